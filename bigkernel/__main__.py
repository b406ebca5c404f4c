"""Run the command line as `python -m bigkernel`."""

from __future__ import annotations

import sys

from bigkernel.cli import main

if __name__ == "__main__":
    sys.argv[0] = "bigkernel"  # shown in help, and in the command that a run records
    main(prog_name="bigkernel")
