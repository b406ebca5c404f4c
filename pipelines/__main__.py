"""`python -m pipelines`: one table of pipelines, each a module that is imported when it is asked for."""

from __future__ import annotations

import importlib
import sys

import click

# name: ("module:command", one line of help)
PIPELINES: dict[str, tuple[str, str]] = {
    "digits": ("pipelines.digits:digits", "The main job: SSSL and KRR on 200,000 digits, with a report page."),
    "wine": ("pipelines.wine:wine", "Seed 000: linear, ridge and kernel ridge regression on white wine."),
    "usps-mnist": ("pipelines.usps_mnist:usps_mnist", "Seed 001: SSSL, exact and Nyström, from USPS to MNIST digits."),
    "domains": ("pipelines.domains:domains", "Domain generalization: from one set of digits to another, all methods."),
    "representer": ("pipelines.representer:representer", "Seed 003: seven points, polynomials, a kernel and its band."),
    "mercer": ("pipelines.mercer:mercer", "Definition 1: which of the seeds' kernels are positive definite on digits."),
    "landmarks": ("pipelines.landmark_choice:landmarks", "Choices of landmarks: trace error, accuracy and seconds."),
    "tune": ("pipelines.tune:tune", "Tuning: bandwidth and penalty by cross-validation, and why copies share a fold."),
    "corpus": ("pipelines.corpus:corpus", "A batch job: a digit corpus of any size, its fit, its error; resumable."),
    "chaos": ("pipelines.chaos:chaos", "Faults: workers and drivers killed and frozen at random; the model identical."),
    "scaling": ("pipelines.scaling:scaling", "Scaling: one and two workers measured, up to 1,000 by a model."),
    "bench": ("pipelines.bench:bench", "Benchmarks: ratios to other ways of doing the same, in one run."),
}


class _Table(click.Group):
    """A group whose commands are those of `PIPELINES`; a `BigKernelError` is one line and its exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(PIPELINES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in PIPELINES:
            return None
        module, _, command = PIPELINES[cmd_name][0].partition(":")
        found = getattr(importlib.import_module(module), command)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # from the table, so that no pipeline is imported for this page
        with formatter.section("Pipelines"):
            formatter.write_dl([(name, text) for name, (_, text) in PIPELINES.items()])

    def invoke(self, ctx: click.Context) -> object:
        from bigkernel.cli.interrupts import terminable

        try:
            with terminable():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            ctx.exit(75)
        except Exception as error:
            # not imported here: `--help` need not wait for it
            ours = sys.modules.get("bigkernel.errors")
            if ours is None or not isinstance(error, ours.BigKernelError):
                raise
            click.echo(f"{type(error).__name__}: {error}", err=True)
            ctx.exit(error.exit_code)


@click.group(cls=_Table, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Whole jobs with bigkernel, from data to a report page.

    `python -m pipelines NAME --help` teaches what a pipeline does, takes and writes.
    """


# worker processes are spawned: they import this module again and must not start a job
if __name__ == "__main__":
    sys.exit(main(prog_name="python -m pipelines"))
