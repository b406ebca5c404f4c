"""`python -m pipelines soak`: many fits in one process, some of which are killed; does anything pile up?

Memory, open files, threads and temporary files of this process are read as the fits go on, and must be flat. A killed
fit is a fork of this process that ends itself by SIGKILL as it publishes; the same fit then goes on with its run here.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import dask
import numpy as np
import psutil

from bigkernel import Gaussian, KernelRidge, executing, open_corpus
from bigkernel.data.corpus import Corpus, CorpusInfo, CorpusWriter
from bigkernel.data.run_directory import Run
from pipelines.shared.charts import Curve, curves
from pipelines.shared.experiments import Report, json_option, out_option, seed_option, steps
from pipelines.shared.page import Column, Table

ROWS, FEATURES, LANDMARKS, SEGMENTS = 60, 8, 6, 3
MARKS = 20  # times that the process is looked at
PUBLISHES = 5  # of a fit: its segments and their merges
MOST_BYTES = 20_000  # a fit, by the slope over the second half


@dataclass(frozen=True)
class Mark:
    """What this process holds after so many fits.

    Attributes
    ----------
    memory : resident bytes
    files, threads : that are open, and that are ours: zarr's pool fills up to a few more than processors as reads meet
    strays : files and directories in the directory of temporary files
    """

    fits: int
    memory: int
    files: int
    threads: int
    strays: int


def held(fits: int, scratch: Path) -> Mark:
    """What is held now, garbage collected."""
    gc.collect()
    process = psutil.Process()
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")]
    strays = len(list(scratch.rglob("*")))
    return Mark(fits, process.memory_info().rss, process.num_fds(), len(threads), strays)


def fit(corpus: Corpus, run: Path | None = None, *, resume: bool = False) -> bytes:
    """The coefficients of one fit."""
    with executing("serial", run=run, resume=resume):
        model = KernelRidge(Gaussian(2.0), n_landmarks=LANDMARKS, random_state=0).fit(corpus)
    return model.dual_coef_.tobytes()


def kill_a_fit(corpus: Corpus, run: Path, at: int) -> None:
    """Fit in a fork of this process, which SIGKILL ends as it publishes for the `at`-th time."""
    with warnings.catch_warnings():  # it runs serially, and never returns
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        child = os.fork()
    if not child:
        try:
            _die_at(at)
            fit(corpus, run)
        finally:
            os._exit(1)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended != -signal.SIGKILL:
        raise RuntimeError(f"the fit to be killed ended with {ended}")


def _die_at(at: int) -> None:
    publish, done = Run.publish, 0

    def counted(self: Run, *arguments: Any) -> Any:
        nonlocal done
        done += 1
        if done == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return publish(self, *arguments)

    Run.publish = counted  # type: ignore[method-assign]


def soak_fits(
    corpus: Corpus, scratch: Path, fits: int, kills: int, after: Callable[[], None]
) -> tuple[list[Mark], int]:
    """What the process held as it went on, and how many fits had other coefficients than the first, or left a file."""
    run, clean, wrong, marks = scratch / "run", fit(corpus), 0, list[Mark]()
    ends = {round(fits * part / MARKS) for part in range(1, MARKS + 1)}
    struck = {fits * part // kills: 1 + part % PUBLISHES for part in range(kills)}  # fit: publish
    for number in range(fits):
        if number in struck:
            kill_a_fit(corpus, run, struck[number])
            wrong += fit(corpus, run, resume=True) != clean
            wrong += any(path.name.endswith((".partial", ".old")) for path in run.rglob("*"))
            shutil.rmtree(run)
        else:
            wrong += fit(corpus) != clean
        if number + 1 in ends:
            marks.append(held(number + 1, scratch))
        after()
    return marks, wrong


def growth(marks: list[Mark]) -> float:
    """Bytes a fit, by a line through the second half: until then caches and pools fill."""
    late = marks[len(marks) // 2 :]
    return float(np.polyfit([mark.fits for mark in late], [mark.memory for mark in late], 1)[0])


def troubles(marks: list[Mark], wrong: int) -> list[str]:
    """What is not as it should be, a sentence each."""
    half = len(marks) // 2
    found = [f"{wrong} fits had other coefficients or left half-written files"] if wrong else []
    if growth(marks) > MOST_BYTES:
        found.append(f"memory grows by {growth(marks) / 1e3:.0f} kB a fit")
    for name in ("files", "threads", "strays"):
        early, late = (max(getattr(mark, name) for mark in part) for part in (marks[:half], marks[half:]))
        if late > early:
            found.append(f"{name} grow from {early} to {late}")
    return found


COLUMNS = [
    Column("fits", "fits", ","),
    Column("memory", "memory, MB", lambda mark: f"{mark['memory'] / 1e6:.1f}"),
    Column("files", "open files"),
    Column("threads", "threads"),
    Column("strays", "temporary files"),
]


@click.command()
@click.option("--fits", type=click.IntRange(MARKS), default=1000, show_default=True, help="To make, one after another.")
@click.option("--kills", type=click.IntRange(0), default=100, show_default=True, help="Of them, killed and resumed.")
@seed_option
@out_option("soak", "Directory for report.html, CSV and PNG.")
@json_option
@click.pass_context
def soak(ctx: click.Context, fits: int, kills: int, seed: int, out: Path, as_json: bool) -> None:
    """Fit a thousand times in one process, and see that nothing piles up.

    \b
    1. A small corpus is written, and fitted once: the coefficients that all
       other fits must have, to the last bit.
    2. --fits fits follow in this process. --kills of them, evenly spread, are
       made in a fork that SIGKILL ends as it publishes a partial result, and
       are gone on with by --resume.
    3. Twenty times memory, open files, threads and temporary files are read.
       In the second half they must not grow.

    Ends with 0 if so, otherwise with 1. About two minutes on two processors.

    \b
    python -m pipelines soak
    python -m pipelines soak --fits 20000 --kills 500

    In --out: report.html, marks.csv, memory.png, counts.png, results.json.
    """
    report = Report(out, "A thousand fits, and nothing piles up", f"{fits:,} fits, {kills:,} killed", quiet=as_json)
    small = {"bigkernel.min-segments": SEGMENTS, "bigkernel.chunk-bytes": 1024, "bigkernel.monitor": False}
    with tempfile.TemporaryDirectory() as place, dask.config.set(small):
        scratch, before = Path(place, "scratch"), tempfile.tempdir
        scratch.mkdir()
        corpus = _corpus(Path(place) / "corpus", seed)
        tempfile.tempdir = str(scratch)
        try:
            with steps("fits", fits, quiet=as_json) as after:
                marks, wrong = soak_fits(corpus, scratch, fits, min(kills, fits), after)
        finally:
            tempfile.tempdir = before
    found = troubles(marks, wrong)
    _show(report, marks, found, kills)
    facts = {"fits": f"{fits:,}, {kills:,} of them killed", "python": sys.version.split()[0], "seed": seed}
    report.finish(facts, flat=not found, troubles=found, growth_bytes=growth(marks))
    if found:
        ctx.exit(1)


def _corpus(path: Path, seed: int) -> Corpus:
    X = np.random.default_rng(seed).normal(size=(ROWS, FEATURES))
    with CorpusWriter(
        path, n_features=FEATURES, dtype=X.dtype, columns={"y": X.dtype}, info=CorpusInfo("soak"), chunk_rows=20
    ) as writer:
        writer.append(x=X, y=X[:, 0].copy())
    return open_corpus(path)


def _show(report: Report, marks: list[Mark], found: list[str], kills: int) -> None:
    """Print the table and put it and the two figures on the page."""
    low, high = (select(mark.memory for mark in marks) / 1e6 for select in (min, max))
    last = marks[-1]
    flat = (
        f"Nothing piles up: memory stays between {low:,.1f} and {high:,.1f} MB (a fit adds {growth(marks):,.0f} bytes "
        f"in the second half), {last.files} files are open, {last.threads} threads live, {last.strays} temporary files "
        "lie about. All coefficients are those of the first fit to the last bit."
    )
    report.tell(f"Not flat: {'; '.join(found)}." if found else flat)
    report.table("marks", "As the fits went on", Table(COLUMNS, [asdict(mark) for mark in marks]))
    numbers = [mark.fits for mark in marks]
    report.figure(
        "memory",
        curves,
        [Curve("memory", numbers, [mark.memory / 1e6 for mark in marks])],
        x_label="fits",
        y_label="resident memory, MB",
        y_range=(0, 1.2 * high),
        caption=f"Memory of the process; {kills:,} of the fits were killed and gone on with.",
    )
    report.figure(
        "counts",
        curves,
        [
            Curve("open files", numbers, [mark.files for mark in marks]),
            Curve("threads", numbers, [mark.threads for mark in marks]),
            Curve("temporary files", numbers, [mark.strays for mark in marks]),
        ],
        x_label="fits",
        y_label="number",
        caption="What else could pile up.",
    )
