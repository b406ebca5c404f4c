"""Commands that are killed at publishes and gone on with.

Every attempt is a fork of this process, which has imported all that a command needs and done nothing. A publish is a
rename by which a store, a receipt or a JSON file appears; SIGKILL comes before it.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np

from bigkernel import Gaussian, KernelRidge, cli, save_model
from bigkernel.cli import models, tune
from bigkernel.data import atomic_write, run_directory
from bigkernel.data.corpus import CorpusInfo, CorpusWriter
from bigkernel.models import persistence
from bigkernel.models.file import LIMIT_BYTES, opened
from bigkernel.search import sweep_search

IMPORTED = (models, tune, persistence, sweep_search)
PUBLISHERS = {atomic_write.__name__, run_directory.__name__}
SETTINGS = {"bigkernel.min-segments": 4, "bigkernel.chunk-bytes": 1024, "bigkernel.block-rows": 64}


@dataclass(frozen=True)
class Job:
    """A command in a directory of its own, where `make` puts what it needs."""

    words: tuple[str, ...]  # of the command; a second attempt adds --resume
    make: Callable[[Path], None]
    result: Callable[[Path], Any]  # what must not depend on what happened
    over: str = ""  # of a refusal that says that it had been done before it was killed


def _rows():
    rng = np.random.default_rng(12)
    X = rng.normal(size=(240, 4))
    return X, rng.integers(0, 3, 240)


def _corpus(place):
    X, y = _rows()
    info = CorpusInfo("train", classes=(0, 1, 2))
    with CorpusWriter(
        place / "train", n_features=4, dtype=X.dtype, columns={"y": y.dtype}, info=info, chunk_rows=30
    ) as to:
        to.append(x=X, y=y)


def _corpus_and_model(place):
    X, _ = _rows()
    _corpus(place)
    save_model(KernelRidge(Gaussian(2.0), n_landmarks=9, random_state=0).fit(X, X[:, 0]), place / "m.model")


def _arrays(path):
    with opened(path, limit_bytes=LIMIT_BYTES) as contents:
        return contents.crc32


def _told(place):
    told = json.loads((place / "out").read_text())
    return {key: value for key, value in told.items() if isinstance(value, float) and "second" not in key}


JOBS = {
    "tune": Job(
        ("tune", "train", "--landmarks", "8", "--sigma", "1,2", "--alpha", "0.1,1", "--folds", "2", "--seed", "1")
        + ("--out", "found"),
        _corpus,
        lambda place: ((place / "found/results.csv").read_text(), _arrays(place / "found/best.model")),
        "holds the results of a search already",
    ),
    "score": Job(("score", "m.model", "train", "--run", "run", "--json"), _corpus_and_model, _told),
}


def attempt(job, place, *more, kill_at=0):
    """Run the command in a fork; its exit code or minus its signal, and the publishes that it came to."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.chdir(place)
        for name, descriptor in (("out", 1), ("err", 2)):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        done, replace = 0, os.replace

        def counted(source, target, **options):
            nonlocal done
            if sys._getframe(1).f_globals["__name__"] in PUBLISHERS:
                done += 1
                os.write(writer, b".")
                if done == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
            replace(source, target, **options)

        os.replace = counted
        code = 1
        try:
            with dask.config.set(SETTINGS):
                cli.main([*job.words, *more])
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        published = len(pipe.read())
    status = os.waitpid(child, 0)[1]
    return os.waitstatus_to_exitcode(status), published


def gone_on_with(job, place, kill_at, wanted):
    """What is wrong with a command that was killed at a publish and then gone on with; empty: nothing."""
    place.mkdir()
    job.make(place)
    code, _ = attempt(job, place, kill_at=kill_at)
    if code != -signal.SIGKILL:
        return f"it was not killed: {code}: {(place / 'err').read_text()[-300:]}"
    code, _ = attempt(job, place, "--resume")
    said = " ".join((place / "err").read_text().split())
    if code and not (job.over and job.over in said):
        return f"exit code {code}: {said[-300:]}"
    left = [str(path) for path in place.rglob("*") if path.name.endswith((".partial", ".old"))]
    if left:
        return f"left: {left}"
    return "" if job.result(place) == wanted else "another result"


def kill(place, job, most):
    """Kill a job at so many of its publishes, spread evenly: how many were tried, and what was wrong."""
    clean = place / "clean"
    clean.mkdir(parents=True)
    job.make(clean)
    code, publishes = attempt(job, clean)
    if code:
        return 0, {0: (clean / "err").read_text()[-2000:]}
    wanted = job.result(clean)
    moments = sorted({1 + round(i * (publishes - 1) / max(1, most - 1)) for i in range(min(most, publishes))})
    return len(moments), {k: told for k in moments if (told := gone_on_with(job, place / f"{k}", k, wanted))}


def main(place, asked):
    """Print, as JSON, what `kill` says of each job."""
    print(json.dumps({name: kill(Path(place, name), JOBS[name], most) for name, most in asked.items()}))
