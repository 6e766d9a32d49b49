"""The `mitigate` program: `python -m mitigate.cli`."""
