"""`python -m pipelines`: a table of pipelines, whose modules are imported on demand."""

import importlib
import sys

import click

# name: (module below `pipelines` with a command of that name, one line of help)
PIPELINES: dict[str, tuple[str, str]] = {
    "digits": ("digits.command", "The main job: SSSL and KRR on 200,000 digits, with a report page."),
    "wine": ("wine.command", "White wine: linear, ridge and kernel ridge regression beside printed numbers."),
    "usps-mnist": ("usps_mnist.command", "From USPS to MNIST digits: SSSL, exact and Nyström, beside printed numbers."),
    "domains": ("domains.command", "Domain generalization: from one set of digits to another, all methods."),
    "representer": ("representer", "The representer theorem: seven points, polynomials, a kernel and its band."),
    "mercer": ("mercer", "Which kernels are positive definite on digits."),
    "landmarks": ("landmark_choice", "Choices of landmarks: trace error, accuracy and seconds."),
    "labels": ("labels.command", "Few labels and many rows without one: five ways to learn, errors against labels."),
    "deform": ("deform", "A corpus of deformed copies of images, of any size."),
    "corpus": ("corpus.command", "A batch job: a digit corpus of any size, its fit, its error; resumable."),
    "scaling": ("scaling.command", "Scaling: one worker and two, and what a segment costs a scheduler."),
    "bench": ("bench.command", "Benchmarks: ratios to other ways of doing the same, in one run."),
}


class _Table(click.Group):
    """Group of the commands in `PIPELINES`; a `BigKernelError` is shown as one line and sets the exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(PIPELINES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in PIPELINES:
            return None
        module = importlib.import_module(f"pipelines.{PIPELINES[cmd_name][0]}")
        found = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # from the table, so that no pipeline is imported for this page
        with formatter.section("Pipelines"):
            formatter.write_dl([(name, text) for name, (_, text) in PIPELINES.items()])

    def invoke(self, ctx: click.Context) -> object:
        from bigkernel.engine.interrupts import INTERRUPTED, leave, terminable

        try:
            with terminable():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("interrupted", err=True)
            leave(INTERRUPTED)
        except Exception as error:
            # imported late, to keep `--help` fast
            ours = sys.modules.get("bigkernel.errors")
            if ours is None or not isinstance(error, ours.BigKernelError):
                raise
            click.echo(f"{type(error).__name__}: {error}", err=True)
            ctx.exit(error.exit_code)


@click.group(cls=_Table, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
def main() -> None:
    """Run whole jobs with bigkernel, from data to a report page.

    `python -m pipelines NAME --help` describes what a pipeline does, reads and writes.
    """


# worker processes are spawned: they import this module again and must not start a job
if __name__ == "__main__":
    sys.exit(main(prog_name="python -m pipelines"))
