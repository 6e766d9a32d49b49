"""Runs the command line."""

import sys

from mitigate.cli.main import main

sys.exit(main())
