"""Shared by the tests of several hosts: a corpus, the digest of its fit, and daemons."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import dask
import numpy as np
import pytest
from machines import CUT, Daemon, fit

from bigkernel import write_corpus
from bigkernel.data.corpus import Corpus

N, D = 4_000, 16


@pytest.fixture(autouse=True)
def eight_segments() -> Iterator[None]:
    """Settings for eight segments of the corpus."""
    with dask.config.set(CUT):
        yield


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """4,000 rows of 16 features with a target, 16 chunks."""
    rng = np.random.default_rng(22)
    X = rng.normal(size=(N, D)).astype(np.float32)
    y = np.sin(X[:, 0].astype(np.float64)) + 0.1 * rng.normal(size=N)
    return write_corpus(tmp_path_factory.mktemp("hosts") / "train.corpus", X, y, chunk_rows=250)


@pytest.fixture(scope="session")
def digest(rows: Corpus) -> str:
    """The digest of the fit by the serial executor, which every cluster must reproduce."""
    with dask.config.set(CUT):
        return fit(rows, "serial")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Daemon]]:
    """Start daemons that are stopped after the module, the last one first."""
    place, started = tmp_path_factory.mktemp("logs"), []

    def start(*command: object, **options: Any) -> Daemon:
        started.append(Daemon(command, place / f"{len(started)}.log", **options))
        return started[-1]

    yield start
    for one in reversed(started):
        one.end()
