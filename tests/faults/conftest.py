"""What the fault tests share: a corpus, drivers in processes of their own, and where to hit them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import dask
import numpy as np
import pytest
from drivers import SEGMENTS, SLOW, D, Driver, N
from probes import Sums

from bigkernel import sweep, write_corpus
from bigkernel.data import zarr_arrays
from bigkernel.data.corpus import Corpus
from bigkernel.engine.rows import Rows, as_rows


@pytest.fixture(scope="session")
def fault_corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """10,240 rows of 32 features in ten classes, 32 chunks."""
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(10, D))
    y = rng.integers(0, 10, N)
    X = (centres[y] + rng.normal(size=(N, D))).astype(np.float32)
    path = tmp_path_factory.mktemp("faults") / "train.corpus"
    return write_corpus(path, X, y, name="faults", chunk_rows=N // (2 * SEGMENTS))


@pytest.fixture
def fault_segments() -> Iterator[None]:
    """Settings that cut the corpus into `SEGMENTS` segments of two chunks."""
    chunk = N // (2 * SEGMENTS) * D * 4
    with dask.config.set({"bigkernel.min-segments": SEGMENTS, "bigkernel.chunk-bytes": chunk}):
        yield


@pytest.fixture
def rows(fault_corpus: Corpus) -> Rows:
    """The rows of the corpus."""
    return as_rows(fault_corpus)


@pytest.fixture
def clean(rows: Rows) -> str:
    """The bits of the undisturbed sweep."""
    return zarr_arrays.digest(sweep(rows, Sums(D), client="serial").total)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Start drivers; whatever is left of them at the end of the test is killed."""
    drivers: list[Driver] = []

    def begin(arguments: Sequence[str] | str, **environment: str) -> Driver:
        drivers.append(Driver(arguments, tmp_path, **environment))
        return drivers[-1]

    yield begin
    for driver in drivers:
        driver.end()


@pytest.fixture(scope="session")
def undisturbed(fault_corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of `fit --landmarks 300 --seed 1`, made on threads."""
    place = tmp_path_factory.mktemp("undisturbed")
    twin = Driver(["fit", fault_corpus.path, "twin.model", "--landmarks", "300", "--seed", "1"], place, **SLOW)
    assert twin.wait() == 0, twin.errors()
    return place / "twin.model"


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount small file systems in memory, where this process may."""
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        place = tmp_path / f"tmpfs{len(mounted)}"
        place.mkdir()
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, check=False
        )
        if done.returncode:
            pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.decode().strip()}")
        mounted.append(place)
        return place

    yield mount
    for place in mounted:
        subprocess.run(["umount", "-l", str(place)], check=False)
