"""Fixtures of the fault tests: a corpus, its undisturbed results, drivers in their own processes, small disks."""

import subprocess

import dask
import numpy as np
import pytest
from drivers import SEGMENTS, SLOW, D, Driver, N
from probes import Sums, Touch

from bigkernel import sweep, write_corpus
from bigkernel.data import zarr_arrays
from bigkernel.engine.rows import as_rows


@pytest.fixture(scope="session")
def fault_corpus(tmp_path_factory):
    """10,240 rows of 32 features in ten classes, 32 chunks."""
    rng = np.random.default_rng(7)
    centres = rng.normal(size=(10, D))
    y = rng.integers(0, 10, N)
    X = (centres[y] + rng.normal(size=(N, D))).astype(np.float32)
    path = tmp_path_factory.mktemp("faults") / "train.corpus"
    return write_corpus(path, X, y, name="faults", chunk_rows=N // (2 * SEGMENTS))


@pytest.fixture
def fault_segments():
    """Settings that cut the corpus into `SEGMENTS` segments of two chunks."""
    chunk = N // (2 * SEGMENTS) * D * 4
    with dask.config.set({"bigkernel.min-segments": SEGMENTS, "bigkernel.chunk-bytes": chunk}):
        yield


@pytest.fixture
def rows(fault_corpus):
    """The rows of the corpus."""
    return as_rows(fault_corpus)


@pytest.fixture
def clean(rows):
    """The digest of the undisturbed sweep."""
    return zarr_arrays.digest(sweep(rows, Sums(D), client="serial").total)


@pytest.fixture
def touch(tmp_path):
    """Records the chunks that are read."""
    return Touch(str(tmp_path / "touched"))


@pytest.fixture
def start(tmp_path):
    """Start drivers, which are killed at the end of the test."""
    drivers = []

    def begin(arguments, **environment):
        drivers.append(Driver(arguments, tmp_path, **environment))
        return drivers[-1]

    yield begin
    for driver in drivers:
        driver.end()


@pytest.fixture(scope="session")
def undisturbed(fault_corpus, tmp_path_factory):
    """The model of `fit --landmarks 300 --seed 1`, fitted on threads."""
    folder = tmp_path_factory.mktemp("undisturbed")
    twin = Driver(["fit", fault_corpus.path, "twin.model", "--landmarks", "300", "--seed", "1"], folder, **SLOW)
    assert twin.wait() == 0, twin.errors()
    return folder / "twin.model"


@pytest.fixture
def tmpfs(tmp_path):
    """Mount small file systems in memory, if this process may."""
    mounted = []

    def mount(size):
        folder = tmp_path / f"tmpfs{len(mounted)}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.decode().strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=False)
