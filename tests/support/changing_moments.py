"""Corpora that change at random moments of a fit, on threads and on worker processes: what became of each fit.

`python tests/support/changing_moments.py [--moments 50]` prints the table of `tests/faults/README.md`. A fit may end in
the bits of the undisturbed one, where the change came too late for it, or in a DataError that names the corpus, instead
of the end of the segment that it met; all else is wrong. Moments are drawn from the time that an undisturbed fit took.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client
from probes import CHANGES, Change, local_cluster

from bigkernel import Gaussian, KernelRidge, executing
from bigkernel.data.corpus import CorpusInfo, CorpusWriter, open_corpus
from bigkernel.data.run_directory import Receipt
from bigkernel.engine.context import ExecutorChoice
from bigkernel.errors import DataError
from bigkernel.events.kinds import Receipted, SegmentDone
from bigkernel.events.scope import observe

N, D, CHUNK_ROWS, SEGMENTS = 9600, 8, 200, 16
CHUNKS = N // CHUNK_ROWS


@dataclass
class Tally:
    """What became of the fits of one kind of change.

    Attributes
    ----------
    told, same : fits that ended in a named error, and in the bits of the undisturbed one
    wrong : what came of all others
    later : segments that were finished between the change and the error
    """

    told: int = 0
    same: int = 0
    wrong: list[str] = field(default_factory=list)
    later: list[int] = field(default_factory=list)


@dataclass
class Place:
    """A directory with two sealed corpora of one shape, of which copies are changed."""

    path: Path

    def __post_init__(self) -> None:
        rng = np.random.default_rng(43)
        y = rng.normal(size=N)
        for name in ("corpus", "other"):  # noise of one size on disk
            X = rng.integers(0, 256, (N, D), dtype=np.uint8)
            with CorpusWriter(
                self.path / f"{name}.made",
                n_features=D,
                dtype=X.dtype,
                columns={"y": y.dtype},
                info=CorpusInfo(name),
                chunk_rows=CHUNK_ROWS,
            ) as writer:
                writer.append(x=X, y=y)

    def fresh(self, number: int, *, moved: bool = False) -> tuple[Path, Path]:
        """A copy of the corpus, and the other one; a copy of that too, where it is to be `moved`."""
        here, other = self.path / f"{number}" / "corpus", self.path / f"{number}" / "other"
        shutil.copytree(self.path / "corpus.made", here)
        return here, Path(shutil.copytree(self.path / "other.made", other)) if moved else self.path / "other.made"

    def fit(self, corpus: Any, client: ExecutorChoice) -> str:
        """The bits of a model."""
        with executing(client):
            model = KernelRidge(Gaussian(300.0), n_landmarks=150, random_state=0, dtype="float64").fit(corpus)
        return hashlib.sha256(model.dual_coef_.tobytes()).hexdigest()


def fit_changing(place: Place, change: Change, client: ExecutorChoice, after: float) -> tuple[str, list[Receipt]]:
    """The bits of a fit whose corpus changes after some seconds, or the words of the error that it ended in.

    With the receipts of segments that were finished after the change.
    """
    ended, receipts = [], []

    def act() -> None:
        if not over.wait(after):
            change.here()
            ended.append(time.time())

    def note(event: Any) -> None:
        if isinstance(event, SegmentDone | Receipted) and event.receipt.ended:
            receipts.append(event.receipt)

    over, corpus = threading.Event(), open_corpus(change.path)
    thread = threading.Thread(target=act)
    thread.start()
    try:
        with observe(note):
            result = place.fit(corpus, client)
    except DataError as error:
        result = f"{type(error).__name__}: {error}"
    finally:
        over.set()
        thread.join()
    return result, [receipt for receipt in receipts if ended and receipt.ended > ended[0]]


def run(path: Path, client: ExecutorChoice, moments: int, kinds: Sequence[str] = tuple(CHANGES)) -> dict[str, Tally]:
    """A tally for each kind of change, of so many moments."""
    place, draw, tallies = Place(path), random.Random(f"{client}"[:5]), {what: Tally() for what in kinds}
    with dask.config.set({"bigkernel.min-segments": SEGMENTS, "bigkernel.block-rows": 100, "bigkernel.monitor": False}):
        whole, _ = place.fresh(-1)
        place.fit(open_corpus(whole), client)  # the libraries are loaded
        begun = time.monotonic()
        clean = place.fit(open_corpus(whole), client)
        seconds = time.monotonic() - begun
        for number, what in enumerate(list(kinds) * moments):
            here, other = place.fresh(number, moved=what == "the store is exchanged")
            change = Change(what, str(here), str(other), 0, draw.randrange(1, CHUNKS))
            result, later = fit_changing(place, change, client, draw.uniform(0, 0.9 * seconds))
            tally = tallies[what]
            if result == clean:
                tally.same += 1
            elif ": " in result and str(here) in result:
                tally.told += 1
                tally.later.append(len(later))
            else:
                tally.wrong.append(result)
            shutil.rmtree(path / f"{number}")
    return tallies


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a fit was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=50, help="of each kind of change in each mode")
    moments = parser.parse_args(arguments).moments
    wrong = 0
    print("| change | where | moments | a named error | the same bits | wrong models | segments finished meanwhile |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for where in ("threads", "2 processes"):
        with ExitStack() as stack:
            client: ExecutorChoice = "threads"
            if where != "threads":
                client = stack.enter_context(Client(stack.enter_context(local_cluster(2)), set_as_default=False))
            path = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for what, tally in run(path, client, moments).items():
                later = f"{np.median(tally.later):.0f}, at most {max(tally.later)}" if tally.later else "none"
                print(f"| {what} | {where} | {moments} | {tally.told} | {tally.same} | {len(tally.wrong)} | {later} |")
                for result in tally.wrong:
                    print(f"  WRONG: {result}")
                wrong += len(tally.wrong)
    return int(wrong > 0)


# worker processes are spawned: they import this module again
if __name__ == "__main__":
    sys.exit(main())
