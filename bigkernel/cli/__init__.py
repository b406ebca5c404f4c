"""The command line: `bigkernel COMMAND --help` describes each command.

A command's module is imported on demand: worker processes import this one again, and need no commands.

transforms : the option --transform
options : options that commands share
certs : the command `certs`
data : the commands `info` and `check`
describe : estimators and grids from options
model_options : options of a model
runs : the commands `watch` and `report`
ingest : the command `ingest`
models : the commands `fit`, `predict`, `score` and `export`
plan : the command `plan`
tune : the command `tune`
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

import bigkernel
from bigkernel.cli.options import say
from bigkernel.data.visible import visible
from bigkernel.engine.interrupts import INTERRUPTED, collect_rarely, leave, terminable
from bigkernel.errors import BigKernelError

# in the order of work: (module, one line of help)
COMMANDS = {
    "ingest": ("ingest", "Read files, folders or stores into a chunked corpus."),
    "info": ("data", "Describe a corpus, model or prediction store."),
    "check": ("data", "Verify all chunks and values of a store or run."),
    "plan": ("plan", "Estimate the cost of a fit: memory, flops, time."),
    "tune": ("tune", "Search a grid by cross-validation and save the best model."),
    "fit": ("models", "Fit a model to a corpus or a table and save it."),
    "predict": ("models", "Predict every row of a corpus or a table, chunk by chunk."),
    "score": ("models", "Score a model on labelled rows."),
    "export": ("models", "Write a model as an ONNX graph."),
    "watch": ("runs", "Follow a job from another terminal."),
    "report": ("runs", "Write the report page of a run again."),
    "certs": ("certs", "Make the certificates of an encrypted cluster."),
}


class Commands(click.Group):
    """A group that imports its commands late; our errors become one line on standard error and an exit code.

    `package` has the modules of `table`: name → (module, one line of help).
    """

    def __init__(self, *args: Any, package: str, table: Mapping[str, tuple[str, str]], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.package, self.table = package, table
        self.commands.update(dict.fromkeys(table))  # type: ignore[arg-type]  # click suggests these names for others

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run as the command of this process if no arguments are passed."""
        if not args:
            collect_rarely()
        return super().__call__(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of work, not of the alphabet."""
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in self.table:
            return None
        module = importlib.import_module(f"{self.package}.{self.table[cmd_name][0]}")
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse arguments; errors are shown in printable characters."""
        with _in_letters():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        warnings.showwarning = _show_warning
        try:
            with terminable(), _in_letters():
                return super().invoke(ctx)
        except BigKernelError as error:
            say(f"{type(error).__name__}: {error}", err=True)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            say(
                "interrupted; with --run DIR and in tune, finished segments are kept, and --resume continues from them",
                err=True,
            )
            leave(INTERRUPTED)


@contextmanager
def _in_letters() -> Iterator[None]:
    try:
        yield
    except click.ClickException as error:
        error.message = visible(error.message, lines=True)  # type: ignore[misc]  # each error has its own
        raise


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    say(f"{category.__name__}: {message}", err=True)


@click.group(cls=Commands, package=__name__, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(bigkernel.__version__, prog_name="bigkernel")
def main() -> None:
    """Fit and use kernel methods on data larger than memory, on a Dask cluster.

    \b
    bigkernel fit houses.csv houses.model --target price
    bigkernel ingest train-images-idx3-ubyte.gz train.corpus
    bigkernel plan train.corpus --landmarks 1000
    bigkernel tune train.corpus --transform unit-norm --sigma 0.3:3:10 --out tuned
    bigkernel fit train.corpus digits.model --transform unit-norm --sigma 0.7071
    bigkernel predict digits.model test.corpus test.predictions
    bigkernel score  digits.model test.corpus

    Exit codes: 0 success, 1 unexpected, 2 usage, 3 data, 4 plan too large, 5 resume mismatch, 6 stalled, 7 model
    rejected, 8 setting or cluster, 9 run in use, 75 interrupted (--resume goes on).
    """
