"""`python -m pipelines`: a table of pipelines, whose modules are imported on demand."""

import importlib
import sys

import click

# name: (module below `pipelines` with a command of that name, one line of help)
PIPELINES: dict[str, tuple[str, str]] = {
    "digits": ("digits.command", "Fit SSSL and KRR to 200,000 digits (the main job)."),
    "wine": ("wine.command", "Fit linear, ridge and kernel ridge regression to white wine."),
    "usps-mnist": ("usps_mnist.command", "Fit SSSL, exact and Nyström, from USPS to MNIST digits."),
    "domains": ("domains.command", "Recognise digits of one set after learning from another."),
    "representer": ("representer", "Fit seven points with polynomials and with kernels."),
    "landmarks": ("landmark_choice", "Compare choices of landmarks."),
    "labels": ("labels.command", "Learn from few labels and many unlabelled rows."),
    "tables": ("tables", "Compare kernels, learned metrics and leaves with boosted trees."),
    "maps": ("maps", "Predict grids from some of their cells."),
    "deform": ("deform", "Write a corpus of images and deformed copies of them."),
    "corpus": ("corpus.command", "Make and fit a digit corpus of any size; resumable."),
    "scaling": ("scaling.command", "Measure how fits scale with workers."),
    "bench": ("bench.command", "Measure speed, memory and reproducibility."),
}


class _Table(click.Group):
    """Group of the commands in `PIPELINES`; a `BigKernelError` is shown as one line and sets the exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(PIPELINES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in PIPELINES:
            return None
        module = importlib.import_module(f"pipelines.{PIPELINES[cmd_name][0]}")
        command = getattr(module, cmd_name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

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
