"""`bench monitor`: fits that are watched against fits that are not, in alternated pairs of one run.

Two local clusters stand side by side, the one idle while the other works: with the page, the JSON, the metrics, pulses
and the journal, and with none of them. The JSON of the first is asked for once a second while it works. The report of a
run is made once, when the job has ended, and is told apart.
"""

import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import click
import dask
from distributed import Client

from bigkernel import Gaussian, KernelRidgeClassifier, UnitNormalizer, connect, executing
from bigkernel.data.corpus import Corpus
from bigkernel.engine.rows import Rows
from bigkernel.events.journal import NAME as JOURNAL
from bigkernel.monitor.dashboard.server import STATE
from pipelines.shared.timed_sweeps import SIGMA, table

LIMIT_PERCENT = 2.0
_ASK_SECONDS, _FIRST_SECONDS = 1.0, 0.1  # between two questions; until a job is told


def measure(
    corpus: Corpus, landmarks: int, *, pairs: int, out: Path, update: Callable[[int, int | None], None]
) -> dict[str, Any]:
    """Seconds of fits with and without monitoring, pair by pair, and how often the JSON was answered."""
    rows = UnitNormalizer().fit(corpus).transform(corpus)
    found: dict[bool, list[dict[str, float]]] = {True: [], False: []}
    with _cluster(watched=True) as seen, _cluster(watched=False) as unseen:
        places = {True: seen, False: unseen}
        workers = len(seen.client.ncores())
        for place in places.values():
            _fit(place, rows, landmarks, out)  # imports, and the file in the page cache
        for i in range(pairs):
            for watched in (True, False) if i % 2 else (False, True):
                found[watched].append(_fit(places[watched], rows, landmarks, out))
            update(i + 1, pairs)
    ratios = [a["seconds"] / b["seconds"] for a, b in zip(found[True], found[False], strict=True)]
    median = statistics.median(ratios)
    return {
        "workers": workers,
        "watched": found[True],
        "unwatched": found[False],
        "ratios": ratios,
        "ratio_median": median,
        "ratio_quartiles": statistics.quantiles(ratios, n=4) if pairs > 1 else [median] * 3,
        "below_limit": 100 * (median - 1) < LIMIT_PERCENT,
    }


def show(result: dict[str, Any], title: str) -> None:
    """Print the pairs, the median of their ratios and whether it is below the limit."""
    pairs = list(zip(result["watched"], result["unwatched"], result["ratios"], strict=True))
    median = [statistics.median(one["seconds"] for one in result[name]) for name in ("watched", "unwatched")]
    table(
        title,
        ["pair", "watched s", "not watched s", "ratio", "JSON answers", "journal kB", "report s"],
        [
            [
                str(i + 1),
                f"{a['seconds']:.2f}",
                f"{b['seconds']:.2f}",
                f"{ratio:.3f}",
                f"{a['answers']:.0f}",
                f"{a['journal_bytes'] / 1e3:.1f}",
                f"{a['ending_seconds']:.2f}",
            ]
            for i, (a, b, ratio) in enumerate(pairs)
        ]
        + [["median", f"{median[0]:.2f}", f"{median[1]:.2f}", f"{result['ratio_median']:.3f}", "", "", ""]],
    )
    low, _, high = result["ratio_quartiles"]
    click.echo(
        f"monitoring costs {100 * (result['ratio_median'] - 1):+.1f} % of a fit (quartiles {100 * (low - 1):+.1f} to "
        f"{100 * (high - 1):+.1f} %): {'below' if result['below_limit'] else 'NOT below'} {LIMIT_PERCENT:.0f} %"
    )


@dataclass(frozen=True)
class _Place:
    """A local cluster, and its JSON where it is watched."""

    client: Client
    url: str


@contextmanager
def _cluster(*, watched: bool) -> Iterator[_Place]:
    with dask.config.set({"bigkernel.monitor": watched}), connect("local", dashboard=0) as client:
        # now: it comes from Dask's configuration, which the other cluster changes
        link = urlsplit(client.dashboard_link)
        yield _Place(client, f"{link.scheme}://{link.netloc}/{STATE}" if watched else "")


def _fit(place: _Place, rows: Rows, landmarks: int, out: Path) -> dict[str, float]:
    """Seconds of a fit in a run directory, and of ending its job."""
    watched = bool(place.url)
    with (
        dask.config.set({"bigkernel.monitor": watched}),
        tempfile.TemporaryDirectory(dir=out) as scratch,
        _asking(place.url) as answers,
    ):
        run = Path(scratch, "run")
        with executing(place.client, run=run):
            start = time.perf_counter()
            KernelRidgeClassifier(Gaussian(SIGMA), alpha=0.1, n_landmarks=landmarks, random_state=0).fit(rows)
            end = time.perf_counter()
        ended, journal = time.perf_counter(), run / JOURNAL
        if journal.exists() != watched:
            raise RuntimeError(f"{journal} is {'missing' if watched else 'there'}: the setting monitor is not followed")
        size = journal.stat().st_size if watched else 0
    if watched and not any(answers):
        raise RuntimeError(f"{place.url} told of no job while one was running ({len(answers)} answers)")
    return {"seconds": end - start, "ending_seconds": ended - end, "answers": len(answers), "journal_bytes": size}


@contextmanager
def _asking(url: str) -> Iterator[list[bool]]:
    """Ask for the JSON of a scheduler once a second, where there is one; of every answer, whether it told of a job."""
    answers: list[bool] = []
    done = threading.Event()

    def ask() -> None:
        while not done.wait(_ASK_SECONDS if any(answers) else _FIRST_SECONDS):
            with urlopen(url, timeout=5) as answer:
                answers.append(bool(json.load(answer)["jobs"]))

    if not url:
        yield answers
        return
    thread = threading.Thread(target=ask, name="bench-asks", daemon=True)
    thread.start()
    try:
        yield answers
    finally:
        done.set()
        thread.join(timeout=10)
