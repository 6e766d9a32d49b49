"""Runs the command line, whose modules take a second to import: Ctrl-C ends that, too, without a traceback."""

import sys


def main() -> int:
    """Run the command of this process and return its exit code."""
    try:
        from mitigate.cli.main import main as run
    except KeyboardInterrupt:
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
