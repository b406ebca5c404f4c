"""`python -m pipelines`: a table of pipelines, whose modules are imported on demand."""

import sys

import click

from bigkernel.cli import Commands

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
    "maps": ("maps.command", "Predict grids from some of their cells."),
    "deform": ("deform", "Write a corpus of images and deformed copies of them."),
    "corpus": ("corpus.command", "Make and fit a digit corpus of any size; resumable."),
    "scaling": ("scaling.command", "Measure how fits scale with workers."),
    "bench": ("bench.command", "Measure speed, memory and reproducibility."),
}


_SHOWN = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(cls=Commands, package="pipelines", table=PIPELINES, context_settings=_SHOWN)
def main() -> None:
    """Run whole jobs with bigkernel, from data to a report page.

    `python -m pipelines NAME --help` describes what a pipeline does, reads and writes.
    """


# worker processes are spawned: they import this module again and must not start a job
if __name__ == "__main__":
    sys.exit(main(prog_name="python -m pipelines"))
