"""`python -m pipelines corpus`: a digit corpus of any size and the error of its model, as one batch job.

The stages are in `job`, the page in `page`.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bigkernel.cli.options import Numbers, Where, cluster_options, execution, json_option, run_options, transform_option
from pipelines.corpus import page
from pipelines.corpus.job import work
from pipelines.corpus.settings import Settings
from pipelines.shared.experiments import Report, seed_option

_PATH = click.Path(path_type=Path)
# of a job, in the order of --help
_SETTINGS = (
    click.option(
        "--data",
        type=_PATH,
        help="Directory with the four MNIST files (train-images-idx3-ubyte.gz …): its digits are the originals "
        "[scikit-learn's 8×8 digits].",
    ),
    click.option("--corpus", type=_PATH, help="A corpus to fit without deformed copies; needs --test."),
    click.option("--test", type=_PATH, help="With --corpus: the corpus with the true test rows."),
    click.option("--rows", type=click.IntRange(100), help="Rows of the deformed corpus [200,000; all of --corpus]."),
    click.option(
        "--landmarks",
        type=click.IntRange(10),
        default=2000,
        show_default=True,
        help="Landmarks m, sampled from all rows.",
    ),
    transform_option,
    click.option(
        "--plain/--no-plain",
        default=True,
        show_default=True,
        help="With --transform: also do the job on rows of unit norm, for comparison.",
    ),
    click.option(
        "--sigma",
        type=Numbers(),
        help="Width of the Gaussian kernel; of several the best on training rows [0.5 for rows of unit norm, 0.35 "
        "for 8×8 digits; with --transform five around the median distance].",
    ),
    click.option(
        "--alpha",
        type=Numbers("gcv"),
        metavar="gcv|NUMBERS",
        help="Ridge penalty; of several the best on training rows; gcv: generalised cross-validation "
        "[gcv; with --transform nine from 1e-4 to 1].",
    ),
    click.option(
        "--search-rows",
        type=click.IntRange(100),
        help="First rows used to choose widths and penalties, a sixth of the digits held out with their copies "
        "[two for each original, at least 20,000].",
    ),
    click.option(
        "--solver",
        type=click.Choice(["auto", "direct", "cg"]),
        default="auto",
        show_default=True,
        help="As in `bigkernel fit`; cg fits every step anew.",
    ),
    click.option(
        "--steps",
        type=click.IntRange(1, 20),
        default=5,
        show_default=True,
        help="Numbers of rows and of landmarks for which the error is shown.",
    ),
    click.option(
        "--strength", type=click.FloatRange(0), default=1.0, show_default=True, help="Factor of the deformation."
    ),
    seed_option,
)


def _settings_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a job, passed on as one argument `job`."""

    @functools.wraps(function)
    def command(**options: Any) -> Any:
        job = Settings(**{name: options.pop(name) for name in Settings.__dataclass_fields__})
        return function(job=job, **options)

    return functools.reduce(lambda decorated, option: option(decorated), reversed(_SETTINGS), command)


@click.command()
@_settings_options
@cluster_options
@run_options
@json_option
def corpus(job: Settings, where: Where, run: str | None, resume: bool, as_json: bool) -> None:
    """Make a large digit corpus, fit kernel ridge regression to it, and measure the error on test digits.

    \b
    1. corpus  --rows deformed copies of the originals, unless in --run already
    2. plan    flops, bytes, memory, disk; a job that is too large is refused
    3. choose  with --transform, or several --sigma or --alpha: width and penalty
               on training rows, a digit and its copies held out together
    4. fit     one sweep over all rows, in steps from the originals to all; without
               step 3, the penalty by generalised cross-validation
    5. score   the error on digits not used for training, against the rows and,
               from the same statistics, against the landmarks
    6. report  RUN/results: report.html, rows.png, landmarks.png, errors.csv;
               RUN/model

    With --transform (as in `bigkernel fit`) steps 3 to 5 are done twice: on rows of unit norm and on these features.
    The model of the features is saved.

    Everything is kept in --run: after Ctrl-C, SIGKILL or the loss of the cluster, the same command with --resume
    continues with the same bits; an incomplete corpus is made again. --resume also starts a run that does not exist
    yet, so that batch schedulers can always pass it.

    \b
    python -m pipelines corpus --run out/corpus --cluster local
    python -m pipelines corpus --data ~/mnist --rows 8100000 --landmarks 2000 \\
        --cluster local --memory-limit 2GiB --run /scratch/mnist8m --resume
    python -m pipelines corpus --data ~/mnist --rows 1000000 --landmarks 4000 \\
        --transform moments --transform orientations --transform unit-norm \\
        --cluster local --run /scratch/strokes --resume
    """
    if run is None:
        raise click.UsageError("--run DIR is missing: it keeps the corpus, the finished work and the results")
    directory = Path(run).absolute()  # workers may have another working directory
    job.check()
    subtitle = f"Kernel ridge regression on {job.landmarks:,} landmarks"
    made = Report(directory / "results", "A digit corpus and its model", subtitle, quiet=as_json)
    with execution(where, run=str(directory), resume=resume, quiet=as_json):
        outcome = work(job, directory, quiet=as_json)
    page.fill(made, outcome)
