"""One module per command of the `mitigate` program, each with `add_parser` and `run`."""
