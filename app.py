"""Launches the page: `python app.py` is `mitigate demo`, with the same options."""

import sys

from mitigate.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["demo", *sys.argv[1:]]))
