"""Shared fixtures: small corpora, two workers, the real data, settings that cut small data into many segments."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile

# set before NumPy and scikit-learn are loaded: on a busy machine several threads make small matrices ten times slower;
# those of OpenMP spin while they wait for each other, and boosted trees take a hundred times as long
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import psutil
import pytest
from click.testing import CliRunner, Result
from distributed import Client, LocalCluster
from hypothesis import settings
from probes import local_cluster
from time_limits import (  # noqa: F401  # hooks of pytest
    pytest_runtest_call,
    pytest_runtest_protocol,
    pytest_runtest_setup,
    pytest_runtest_teardown,
    pytest_timeout_set_timer,
)

from bigkernel.cli import main
from bigkernel.data.corpus import Corpus, CorpusInfo, CorpusWriter, open_corpus
from bigkernel.streaming.devices import Device, device_of

# many tests start processes, which would compile every module again without bytecode
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# as in clusters of bigkernel: on a busy machine a dead worker takes longer than 15 s to come back
dask.config.set({"distributed.deploy.lost-worker-timeout": "3650d"})
settings.register_profile("bigkernel", deadline=None, max_examples=15)
settings.register_profile(
    "full", deadline=None, max_examples=60, derandomize=True
)  # pytest --hypothesis-profile=full, as in .ci/run
settings.load_profile("bigkernel")
gc.disable()  # until all tests are collected, of which it would take a third of the time


_IN_MEMORY = Path("/dev/shm")
_ROOM = 2**32  # bytes; what the tests write at a time takes a fortieth


def pytest_configure(config: pytest.Config) -> None:
    """Keep temporary files in memory if there is room, as the tests wait for a disk as long as they compute."""
    if "TMPDIR" in os.environ or not os.access(_IN_MEMORY, os.W_OK):
        return
    if min(shutil.disk_usage(_IN_MEMORY).free, psutil.virtual_memory().available) >= _ROOM:
        os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="tests-", dir=_IN_MEMORY)
        os.chmod(tempfile.tempdir, 0o1777)  # as /tmp: some tests run as another user
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop("TMPDIR"), ignore_errors=True))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files of this folder, of which single tests take minutes that other processes would wait for."""
    items.sort(key=lambda item: item.path.parent != Path(__file__).parent)


def pytest_collection_finish() -> None:
    """Collect garbage from now on, but not among what the modules of the tests made."""
    gc.freeze()
    gc.enable()


@pytest.fixture
def rng() -> np.random.Generator:
    """Return a new generator for every test."""
    return np.random.default_rng(20130616)


@pytest.fixture(params=["strict", "torch"])
def device(request: pytest.FixtureRequest) -> Device:
    """Return devices that stand for a GPU: array-api-strict refuses what is not in the standard, and mixtures."""
    if request.param == "torch":
        pytest.importorskip("torch").set_num_threads(1)
    return device_of(request.param)


@pytest.fixture
def small_steps() -> Iterator[None]:
    """Cut a few hundred rows into many steps, blocks and segments."""
    with dask.config.set({"bigkernel.chunk-bytes": 1024, "bigkernel.min-segments": 5, "bigkernel.block-rows": 16}):
        yield


@pytest.fixture
def five_rows_a_segment() -> Iterator[None]:
    """Make a segment of each chunk of five rows."""
    with dask.config.set({"bigkernel.segment-rows": 5, "bigkernel.min-segments": 1}):
        yield


@pytest.fixture
def make_corpus(tmp_path: Path) -> Callable[..., Corpus]:
    """Return a function that writes rows and columns as a corpus and opens it."""

    def make(
        X: np.ndarray,
        *,
        name: str = "corpus",
        chunk_rows: int = 25,
        classes: tuple[Any, ...] = (),
        **columns: np.ndarray,
    ) -> Corpus:
        kinds = {column: values.dtype for column, values in columns.items()}
        info = CorpusInfo(name, classes=classes)
        with CorpusWriter(
            tmp_path / name, n_features=X.shape[1], dtype=X.dtype, columns=kinds, info=info, chunk_rows=chunk_rows
        ) as writer:
            writer.append(x=X, **columns)
        return open_corpus(tmp_path / name)

    return make


@pytest.fixture
def run() -> Callable[..., Result]:
    """Return a function that runs a command in this process, 80 columns wide, and checks its exit code."""

    def invoke(*arguments: object, code: int = 0) -> Result:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments], env={"COLUMNS": "80"})
        assert result.exit_code == code, (result.exit_code, result.output, result.exception)
        if code:
            assert result.stderr.strip()
            assert "Traceback" not in result.output
        return result

    return invoke


@pytest.fixture(scope="session")
def cluster() -> Iterator[LocalCluster]:
    """Start two worker processes for the whole session."""
    with local_cluster(2) as running:
        yield running


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[Client]:
    """Connect a client to the two workers, not as the default client."""
    with Client(cluster, set_as_default=False) as connected:
        yield connected


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Return the directory of the real data files, or skip the test."""
    path = Path(os.environ.get("BIGKERNEL_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not path.is_dir():
        pytest.skip(f"{path} is not there; BIGKERNEL_DATA says where the data files are")
    return path
