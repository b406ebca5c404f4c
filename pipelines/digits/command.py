"""`python -m pipelines digits`: what unlabelled rows are worth, on 200,000 digits of which fifty are labelled.

Three fits on one training corpus: SSSL with five labelled rows a class and all other rows unlabelled; exact KRR on
those labelled rows alone; Nyström KRR with the labels of all rows. Then the test digits are predicted. Rows are scaled
to unit norm; kernels are Gaussian.

The settings in `BUNDLED` and `MNIST` were chosen on training data only, each method with its own best width. Bundled
digits: the training originals were split into 800 to deform and 400 to judge by (copies of a digit never on both
sides), three splits, ten draws of labelled rows each: error SSSL 10.4 %, KRR on the same 50 rows 15.3 % (standard
error of either 0.5 %), KRR on all labels 0.8 %. MNIST: 50,000 training digits to fit, 10,000 to judge by, ten draws:
SSSL 22.0 %, KRR on 50 rows 27.0 % (1 %), KRR on all labels 3.3 %. A single draw of labels, which is what a run shows,
varies by about 3 %. The penalty of SSSL grows with the rows, as the eigenvalues of their kernel matrix do: it is given
per row.
"""

from __future__ import annotations

import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from sklearn.pipeline import Pipeline, make_pipeline

import bigkernel
from bigkernel import Corpus, Gaussian, KernelRidgeClassifier, SSSLClassifier, UnitNormalizer, connect, executing
from bigkernel.engine.context import processors
from bigkernel.engine.rows import as_rows
from bigkernel.errors import DataError
from bigkernel.monitor.terminal.bar import bar, progress
from bigkernel.storage.run_directory import write_json
from pipelines.digits.page import Fit, table, write_page
from pipelines.shared import digit_corpora

Array = NDArray[Any]


@dataclass(frozen=True)
class Setting:
    """Hyper-parameters: width, components and penalty of SSSL; width and penalty of both KRRs."""

    sigma: float
    components: int
    alpha: float
    krr_sigma: float
    krr_alpha: float


# alpha is given a row of the corpus here
BUNDLED = Setting(sigma=0.2, components=80, alpha=1e-4, krr_sigma=0.35, krr_alpha=0.1)
MNIST = Setting(sigma=0.4, components=80, alpha=2e-4, krr_sigma=0.5, krr_alpha=0.1)


def fit_all(train: Corpus, test: Corpus, labelled: Array, setting: Setting, landmarks: int, seed: int) -> list[Fit]:
    """Fit the three methods with the cluster in force and predict the test corpus with each."""
    y, truth = train.column("y"), test.column("y")
    few = np.full(len(y), -1)
    few[labelled] = y[labelled]
    nystrom: dict[str, Any] = {"n_landmarks": landmarks, "random_state": seed}
    krr = {"kernel": Gaussian(sigma=setting.krr_sigma), "alpha": setting.krr_alpha}
    sssl = SSSLClassifier(Gaussian(sigma=setting.sigma), setting.components, setting.alpha, **nystrom)
    rows = as_rows(train).take(labelled)  # fifty rows fit in memory: no sweep
    methods: list[tuple[str, Any, Any, Array | None]] = [
        ("SSSL", sssl, train, few),
        ("KRR, same labels", KernelRidgeClassifier(**krr), rows, y[labelled]),
        ("KRR, all labels", KernelRidgeClassifier(**krr, **nystrom), train, None),
    ]
    return [_fit(name, make_pipeline(UnitNormalizer(), method), X, y, test, truth) for name, method, X, y in methods]


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
    return Fit(record, predicted, sweep)


@click.command()
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Directory with the four MNIST files (train-images-idx3-ubyte.gz …); without it, scikit-learn's digits.",
)
@click.option("--rows", type=click.IntRange(2000), default=200_000, show_default=True, help="Deformed rows to make.")
@click.option("--landmarks", type=click.IntRange(10), default=1000, show_default=True, help="Of both Nyström fits.")
@click.option("--labelled-per-class", type=click.IntRange(1), default=5, show_default=True)
@click.option("--sigma", type=float, help="Width of SSSL's kernel, rows of unit norm [0.2; MNIST 0.4].")
@click.option("--components", type=click.IntRange(1), help="Eigenfunctions of SSSL [80].")
@click.option("--alpha", type=float, help="Penalty of SSSL [0.0001 a row; MNIST 0.0002 a row].")
@click.option("--krr-sigma", type=float, help="Width of the kernel of both KRRs [0.35; MNIST 0.5].")
@click.option("--krr-alpha", type=float, help="Penalty of both KRRs [0.1].")
@click.option(
    "--cluster",
    default="local",
    show_default=True,
    metavar="local|ADDRESS|FILE",
    help="Worker processes started here; a scheduler (tcp://host:8786), whose workers were started in this checkout "
    "and see --out; or a YAML file that describes a cluster.",
)
@click.option("--workers", type=click.IntRange(1), help="Processes of a local cluster [one a processor].")
@click.option("--memory-limit", metavar="BYTES", help="Of each local worker, such as 2GiB [2GiB].")
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, show_default=True, help="Of every random choice.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Output directory [out/digits; MNIST out/mnist]."
)
@click.option("--keep/--fresh", default=True, help="Use again a whole corpus of the same settings in --out [keep].")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, and nothing else.")
def digits(
    data: Path | None,
    rows: int,
    landmarks: int,
    labelled_per_class: int,
    sigma: float | None,
    components: int | None,
    alpha: float | None,
    krr_sigma: float | None,
    krr_alpha: float | None,
    cluster: str,
    workers: int | None,
    memory_limit: str | None,
    seed: int,
    out: Path | None,
    keep: bool,
    as_json: bool,
) -> None:
    """SSSL and KRR on a corpus of digits, on a Dask cluster, with a report page.

    \b
    1. A corpus of 200,000 rows is made from scikit-learn's digits: 1,200 training
       originals and smoothly distorted copies. 597 others are the test digits.
       With --data, MNIST as it is: 60,000 rows and 10,000 test digits.
    2. Three fits: SSSL with five labelled rows a class and the rest unlabelled;
       KRR on those labelled rows alone; KRR on all labels (Nyström).
    3. The test digits are predicted, a table is printed and a page written.

    It shows what unlabelled rows add to a few labels, and what all labels would give. About half a minute on two
    processors; the corpus is made once.

    \b
    python -m pipelines digits
    python -m pipelines digits --rows 2000000 --landmarks 4000 --out /scratch/digits
    python -m pipelines digits --data ~/mnist --labelled-per-class 10
    python -m pipelines digits --json | jq '.results[] | {method, accuracy_percent}'

    \b
    In --out: report.html (opens offline), table.csv, results.json,
    originals.corpus, train.corpus, test.corpus (bigkernel info shows what
    is in them).
    """
    begun = time.perf_counter()
    out = (out or Path("out", "mnist" if data else "digits")).absolute()  # workers may stand elsewhere
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{out}: the output directory cannot be made: {error.strerror}") from error
    with (
        connect(cluster, workers=workers, memory_limit=memory_limit) as client,
        executing(client),
        progress(enabled=not as_json),
    ):
        if not as_json:
            click.echo(f"dashboard: {client.dashboard_link}", err=True)
        start = time.perf_counter()
        if data:
            with bar("ingest", enabled=not as_json) as shown:
                found = digit_corpora.mnist(out, data, keep=keep, progress=shown)
        else:
            found = digit_corpora.bundled(out, rows, seed, keep=keep)
        train, test = found.train, found.test
        corpus_seconds = time.perf_counter() - start
        corpus = f"{'found whole' if found.kept else 'made'} in {corpus_seconds:.1f} s"
        default = MNIST if data else BUNDLED
        setting = Setting(
            sigma=default.sigma if sigma is None else sigma,
            components=components or default.components,
            alpha=default.alpha * len(train) if alpha is None else alpha,
            krr_sigma=default.krr_sigma if krr_sigma is None else krr_sigma,
            krr_alpha=default.krr_alpha if krr_alpha is None else krr_alpha,
        )
        y = train.column("y")
        group = train.column("group") if "group" in train.columns else np.arange(len(train))
        labelled = digit_corpora.choose_labelled(y, group, labelled_per_class, seed)
        fits = fit_all(train, test, labelled, setting, landmarks, seed)
    facts = {
        "data": train.info.source,
        "rows": f"{len(train):,} training, {len(test):,} test, {train.n_features} features",
        "SSSL": f"σ {setting.sigma}, {setting.components} components, α {setting.alpha:g}, {landmarks:,} landmarks",
        "KRR": f"σ {setting.krr_sigma}, α {setting.krr_alpha:g}, {landmarks:,} landmarks with all labels, else exact",
        "cluster": f"{cluster}, {fits[0].sweep['workers']} workers; {processors()} processors, {platform.machine()}",
        "corpus": corpus,
        "versions": f"bigkernel {bigkernel.__version__}, Python {platform.python_version()}, NumPy {np.__version__}",
        "seed": seed,
        "made": time.strftime("%Y-%m-%d %H:%M"),
    }
    if not as_json:
        click.echo(f"{train.info.name}: {len(train):,} rows, {len(test):,} test digits; corpus {corpus}\n")
        table(fits).print()
    originals = None if data else digit_corpora.bundled_originals(seed)[0]
    page = write_page(out, train, test, labelled, fits, facts, originals)
    table(fits).write_csv(out / "table.csv")
    results = {
        "report": str(page),
        "facts": facts,
        "setting": asdict(setting),
        "corpus_seconds": corpus_seconds,
        "seconds": time.perf_counter() - begun,
        "labelled_rows": labelled.tolist(),
        "results": [{**fit.record, "sweep": fit.sweep} for fit in fits],
    }
    write_json(out / "results.json", results)
    if as_json:
        click.echo(json.dumps(results))
    else:
        click.echo(f"\n{results['seconds']:.1f} s in all; report: {page}")
