"""`python -m bigkernel`: the command line, for an interpreter that is named by its path."""

from __future__ import annotations

import sys

from bigkernel.cli import main

if __name__ == "__main__":
    sys.argv[0] = "bigkernel"  # for help, and for the command that a run keeps
    main(prog_name="bigkernel")
