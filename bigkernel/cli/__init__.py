"""The command line: `bigkernel COMMAND --help` teaches each command.

Exit codes: 0 success; 1 an unexpected error; 2 wrong usage; 3 data that cannot be used; 4 a plan too large; 5 a run of
another job; 6 stalled or cluster lost; 7 a model rejected; 8 a setting or cluster; 9 a run directory in use; 75
interrupted, but what was finished is kept.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import click

import bigkernel
from bigkernel.cli.certs import certs
from bigkernel.cli.data import check, info, ingest
from bigkernel.cli.models import fit, plan, predict, score
from bigkernel.cli.runs import runs, worker_check
from bigkernel.cli.tune import tune
from bigkernel.errors import BigKernelError
from bigkernel.interrupts import terminable

INTERRUPTED = 75


class Commands(click.Group):
    """A group that turns our errors into one line on standard error and their exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        warnings.showwarning = _show_warning
        try:
            with terminable():
                return super().invoke(ctx)
        except BigKernelError as error:
            click.echo(f"{type(error).__name__}: {error}", err=True)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            click.echo("interrupted; with --run DIR finished segments are kept, and --resume goes on", err=True)
            sys.exit(INTERRUPTED)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of work, not of the alphabet."""
        return list(self.commands)


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    click.echo(f"{category.__name__}: {message}", err=True)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(bigkernel.__version__, prog_name="bigkernel")
def main() -> None:
    """Kernel methods on data larger than memory, on a Dask cluster.

    \b
    bigkernel ingest train-images-idx3-ubyte.gz train.corpus
    bigkernel plan   train.corpus --landmarks 1000
    bigkernel tune   train.corpus --transform unit-norm --sigma 0.3:3:10 --out tuned
    bigkernel fit    train.corpus digits.model --transform unit-norm --sigma 0.7071
    bigkernel predict digits.model test.corpus test.predictions
    bigkernel score  digits.model test.corpus

    Exit codes: 0 success, 1 unexpected, 2 usage, 3 data, 4 plan too large, 5 resume mismatch, 6 stalled, 7 model
    rejected, 8 setting or cluster, 9 run in use, 75 interrupted (--resume goes on).
    """


for command in (ingest, info, check, plan, tune, fit, predict, score, runs, worker_check, certs):
    main.add_command(command)
