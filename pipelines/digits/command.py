"""`python -m pipelines digits`: what unlabelled rows and features add, on 200,000 digits with fifty labels.

Four fits on one training corpus: SSSL on a graph, with five labelled rows a class and all other rows unlabelled; exact
KRR on those labelled rows alone; Nyström KRR with the labels of all rows, on pixels and on oriented strokes. Then the
test digits are predicted. Rows are scaled to unit norm; kernels are Gaussian.

The settings in `BUNDLED` and `MNIST` were chosen on training data only, each method with its own best width. Bundled
digits, 800 training originals to deform and 400 to judge by: error SSSL 6.1 %, without its graph 10.2 %, KRR on 50 rows
15.3 %, KRR on all labels 0.8 %; strokes of 4×4 cells 2.0 % where pixels have 2.8 %. MNIST, 20,000 digits to fit and
4,000 to judge by: SSSL 16.1 %, without its graph 25.7 %; 50,000 and 10,000: KRR 27.0 and 3.3 %. A single draw of
labels, which is what a run shows, varies by about 3 %.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from sklearn.pipeline import Pipeline, make_pipeline

from bigkernel import (
    Corpus,
    Gaussian,
    KernelRidgeClassifier,
    MomentNormalizer,
    OrientationFeatures,
    SSSLClassifier,
    UnitNormalizer,
    connect,
    executing,
)
from bigkernel.arrays import Array
from bigkernel.engine.rows import as_rows
from bigkernel.monitor.terminal.bar import bar, progress
from pipelines.digits.page import Fit, show
from pipelines.shared import digit_corpora
from pipelines.shared.digit_corpora import Digits
from pipelines.shared.experiments import Report, json_option, seed_option, timed

SMALL_PIXELS = 256  # pixels of a digit: below, a common pose loses more than it gains


@dataclass(frozen=True)
class Setting:
    """Hyper-parameters: width, components and penalty of SSSL; width and penalty of KRR on pixels, and on strokes."""

    sigma: float
    components: int
    alpha: float
    krr_sigma: float
    krr_alpha: float
    strokes_sigma: float
    strokes_alpha: float

    def facts(self, landmarks: int) -> dict[str, str]:
        """Return the lines at the foot of the page."""
        return {
            "SSSL": f"σ {self.sigma}, {self.components} components, α {self.alpha:g}, {landmarks:,} landmarks",
            "KRR": f"σ {self.krr_sigma}, α {self.krr_alpha:g}, {landmarks:,} landmarks with all labels, else exact",
            "KRR, strokes": f"σ {self.strokes_sigma}, α {self.strokes_alpha:g}, {landmarks:,} landmarks",
        }


BUNDLED = Setting(
    sigma=0.35, components=80, alpha=0.002, krr_sigma=0.35, krr_alpha=0.1, strokes_sigma=0.6, strokes_alpha=0.1
)
MNIST = Setting(
    sigma=0.5, components=80, alpha=0.002, krr_sigma=0.5, krr_alpha=0.1, strokes_sigma=0.64, strokes_alpha=0.1
)


def corpora(out: Path, data: Path | None, rows: int, seed: int, *, keep: bool, quiet: bool) -> Digits:
    """Return the corpora of MNIST's files in `data`, or of the bundled digits, made or found below `out`."""
    if data is None:
        return digit_corpora.bundled(out, rows, seed, keep=keep, quiet=quiet)
    with bar("ingest", enabled=not quiet) as shown:
        return digit_corpora.mnist(out, data, keep=keep, progress=shown)


def labelled_rows(train: Corpus, per_class: int, seed: int) -> Array:
    """Return the rows that keep their label, `per_class` of each class, no two of them copies of one digit."""
    group = train.column("group") if "group" in train.columns else np.arange(len(train))
    return digit_corpora.choose_labelled(train.column("y"), group, per_class, seed)


def fit_all(train: Corpus, test: Corpus, labelled: Array, setting: Setting, landmarks: int, seed: int) -> list[Fit]:
    """Fit all methods on the current cluster and predict the test corpus with each."""
    y, truth = train.column("y"), test.column("y")
    few = np.full(len(y), -1)
    few[labelled] = y[labelled]
    nystrom: dict[str, Any] = {"n_landmarks": landmarks, "random_state": seed}
    krr = {"kernel": Gaussian(sigma=setting.krr_sigma), "alpha": setting.krr_alpha}
    sssl = SSSLClassifier(
        Gaussian(sigma=setting.sigma), setting.components, setting.alpha, landmarks="uniform", **nystrom
    )
    rows = as_rows(train).take(labelled)  # fifty rows fit in memory, without a sweep
    unit = (UnitNormalizer(),)
    on_strokes = KernelRidgeClassifier(Gaussian(sigma=setting.strokes_sigma), setting.strokes_alpha, **nystrom)
    methods: list[tuple[str, Any, Any, Any, Array | None]] = [
        ("SSSL", unit, sssl, train, few),
        ("KRR, same labels", unit, KernelRidgeClassifier(**krr), rows, y[labelled]),
        ("KRR, all labels", unit, KernelRidgeClassifier(**krr, **nystrom), train, None),
        ("KRR, strokes", strokes(train), on_strokes, train, None),
    ]
    return [_fit(name, make_pipeline(*maps, method), X, y, test, truth) for name, maps, method, X, y in methods]


def strokes(corpus: Corpus) -> tuple[Any, ...]:
    """Return row transforms to oriented strokes; digits of few pixels keep their pose, as moments would blur them."""
    shape = corpus.info.image_shape
    if corpus.n_features < SMALL_PIXELS:
        return (OrientationFeatures(shape, cells=4),)
    return MomentNormalizer(shape), OrientationFeatures(shape)


def _fit(name: str, model: Pipeline, X: Any, y: Array | None, test: Corpus, truth: Array) -> Fit:
    start = time.perf_counter()
    model.fit(X, y)
    fitted = time.perf_counter()
    predicted = np.asarray(model.predict(test))
    ended = time.perf_counter()
    wrong = float(np.mean(predicted != truth))
    sweep = getattr(model[-1], "sweep_", {})
    record = {
        "method": name,
        "labels": len(X) if y is None else int(np.sum(y != -1)),
        "rows": len(X),
        "accuracy_percent": 100 * (1 - wrong),
        "error_percent": 100 * wrong,
        "standard_error_percent": 100 * float(np.sqrt(wrong * (1 - wrong) / len(truth))),
        "fit_seconds": fitted - start,
        "predict_seconds": ended - fitted,
        "gflops_per_second": sweep.get("gflops_per_second"),
        "peak_bytes": sweep.get("peak_bytes"),
    }
    return Fit(record, predicted, sweep, model)


@click.command()
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory with the four MNIST files (train-images-idx3-ubyte.gz …); without it, scikit-learn's digits.",
)
@click.option("--rows", type=click.IntRange(2000), default=200_000, show_default=True, help="Deformed rows to make.")
@click.option(
    "--landmarks", type=click.IntRange(10), default=1000, show_default=True, help="Landmarks of both Nyström fits."
)
@click.option("--labelled-per-class", type=click.IntRange(1), default=5, show_default=True)
@click.option("--sigma", type=float, help="Width of SSSL's kernel, rows of unit norm [0.35; MNIST 0.5].")
@click.option("--components", type=click.IntRange(1), help="Eigenfunctions of SSSL [80].")
@click.option("--alpha", type=float, help="Penalty of SSSL [0.002].")
@click.option("--krr-sigma", type=float, help="Width of the kernel of both KRRs on pixels [0.35; MNIST 0.5].")
@click.option("--krr-alpha", type=float, help="Penalty of both KRRs on pixels [0.1].")
@click.option("--strokes-sigma", type=float, help="Width of the kernel of KRR on strokes [0.6; MNIST 0.64].")
@click.option("--strokes-alpha", type=float, help="Penalty of KRR on strokes [0.1].")
@click.option(
    "--cluster",
    default="local",
    show_default=True,
    metavar="local|ADDRESS|FILE",
    help="Worker processes started here; a scheduler (tcp://host:8786), whose workers were started in this checkout "
    "and see --out; or a YAML file that describes a cluster.",
)
@click.option("--workers", type=click.IntRange(1), help="Processes of a local cluster [one a processor].")
@click.option("--memory-limit", metavar="BYTES", help="Memory limit of each local worker, such as 2GiB [2GiB].")
@seed_option
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for report.html, CSV and PNG [out/digits; MNIST out/mnist].",
)
@click.option("--keep/--fresh", default=True, help="Reuse a complete corpus of the same settings in --out [keep].")
@json_option
def digits(
    data: Path | None,
    rows: int,
    landmarks: int,
    labelled_per_class: int,
    cluster: str,
    workers: int | None,
    memory_limit: str | None,
    seed: int,
    out: Path | None,
    keep: bool,
    as_json: bool,
    **given: float | None,
) -> None:
    """Fit SSSL and KRR to a corpus of digits on a Dask cluster, with a report page.

    \b
    1. A corpus of 200,000 rows is made from scikit-learn's digits: 1,200 training
       originals and smoothly distorted copies. 597 others are the test digits.
       With --data, MNIST as it is: 60,000 rows and 10,000 test digits.
    2. Four fits: SSSL with five labelled rows a class and the rest unlabelled;
       KRR on those labelled rows alone; KRR on all labels (Nyström), on pixels
       and on oriented strokes.
    3. The test digits are predicted, a table is printed and a page written.

    The results show what unlabelled rows add to few labels, what all labels would give, and what features add.
    About a minute on two processors; the corpus is made once.

    \b
    python -m pipelines digits
    python -m pipelines digits --rows 2000000 --landmarks 4000 --out /scratch/digits
    python -m pipelines digits --data ~/mnist --labelled-per-class 10
    python -m pipelines digits --json | jq '.results[] | {method, accuracy_percent}'
    """
    out = (out or Path("out", "mnist" if data else "digits")).absolute()  # workers may have another working directory
    subtitle = f"{labelled_per_class} labelled rows a class, {landmarks:,} landmarks"
    report = Report(out, "What unlabelled digits are worth", subtitle, quiet=as_json)
    with (
        connect(cluster, workers=workers, memory_limit=memory_limit) as client,
        executing(client),
        progress(enabled=not as_json),
    ):
        if not as_json:
            click.echo(f"dashboard: {client.dashboard_link}", err=True)
        loaded, seconds = timed(corpora, out, data, rows, seed, keep=keep, quiet=as_json)
        labelled = labelled_rows(loaded.train, labelled_per_class, seed)
        options = {name: value for name, value in given.items() if value is not None}
        setting = replace(MNIST if data else BUNDLED, **options)
        fits = fit_all(loaded.train, loaded.test, labelled, setting, landmarks, seed)
    corpus = f"{'found whole' if loaded.kept else 'made'} in {seconds:.1f} s"
    report.say(
        f"{loaded.train.info.name}: {len(loaded.train):,} rows, {len(loaded.test):,} test digits; corpus {corpus}"
    )
    show(report, loaded, labelled, fits, None if data else digit_corpora.bundled_originals(seed)[0])
    facts = setting.facts(landmarks) | {"cluster": f"{cluster}, {fits[0].sweep['workers']} workers", "corpus": corpus}
    figures = {"setting": asdict(setting), "corpus_seconds": seconds, "labelled_rows": labelled.tolist()}
    results = [{**fit.record, "sweep": fit.sweep} for fit in fits]
    report.finish({"data": loaded.train.info.source, **facts, "seed": seed}, **figures, results=results)
