"""`python -m tracegrad` is the `tracegrad` command."""

import sys

from tracegrad.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
