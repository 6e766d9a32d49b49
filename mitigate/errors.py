"""The error a user can mend: it says what was expected, what came and what to do."""


class UsageError(Exception):
    """A wrong option, file or value; the command line prints it as one line and exits with 2."""
