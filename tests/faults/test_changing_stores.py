"""F41: stores that change during a job end in a named error, on threads and workers, and never in a result."""

import os
import random
import time
from dataclasses import replace

import numpy as np
import pytest
import zarr
from probes import CHANGES, Both, Change, Hold, Sums

from bigkernel import open_corpus
from bigkernel.data import zarr_arrays
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import plan_sweep, sweep
from bigkernel.errors import ChunkCorruptError, ChunkMissingError, DataError

N, D, CHUNK_ROWS = 640, 8, 20
CHUNKS = N // CHUNK_ROWS
rng = np.random.default_rng(41)
X, OTHER = rng.integers(0, 256, (2, N, D), dtype=np.uint8)  # both of one size on disk
Y = X[:, 0] / 255.0

pytestmark = pytest.mark.usefixtures("small_steps")


@pytest.fixture
def changing(make_corpus, tmp_path):
    """Make a corpus, and its change."""

    def make(what, at, chunk, place=""):
        corpus = make_corpus(X, name=f"corpus{place}", y=Y, chunk_rows=CHUNK_ROWS)
        other = make_corpus(OTHER, name=f"other{place}", y=Y, chunk_rows=CHUNK_ROWS)
        return corpus, Change(what, str(corpus.path), str(other.path), at, chunk)

    return make


def sweep_error(corpus, change, client):
    """Return the error of a sweep of the corpus; None if its sums are those of the unchanged rows."""
    rows = as_rows(corpus)
    try:
        total = sweep(rows, Sums(D, change), client=client).total
    except DataError as error:
        return error
    np.testing.assert_array_equal(total["sum"], X.sum(axis=0, dtype=float))
    return None


@pytest.mark.parametrize("what", CHANGES)
def test_f41_a_corpus_that_changes_at_any_moment_never_gives_wrong_sums(changing, what):
    rng, n_errors = random.Random(what), 0
    for moment in range(3):
        corpus, change = changing(what, 0, rng.randrange(CHUNKS // 2, CHUNKS), str(moment))
        steps = [row for segment in plan_sweep(as_rows(corpus), Sums(D)).segments for row in segment.bounds[:-1]]
        change = replace(change, at=rng.choice(steps[:-2]))
        error = sweep_error(corpus, change, rng.choice(["threads", "serial"]))
        n_errors += error is not None
        assert error is None or str(corpus.path) in str(error)
    assert n_errors >= 1  # the others changed chunks that had been read


@pytest.mark.cluster
@pytest.mark.parametrize("what", CHANGES)
def test_f41_on_workers(changing, client, tmp_path, what):
    corpus, change = changing(what, 0, CHUNKS - 1)
    gate = str(tmp_path / "gate")  # the other worker waits for it before the last chunk
    error = sweep_error(corpus, Both((replace(change, gate=gate), Hold(1, gate))), client)
    assert isinstance(error, ChunkMissingError if what == "a chunk is removed" else DataError)
    assert str(corpus.path) in str(error)


def test_f41_a_later_sweep_is_compared_with_the_opened_store(changing):
    corpus, change = changing("the store is exchanged", 0, 3)
    rows = as_rows(corpus)
    sweep(rows, Sums(D), client="serial")
    change.here()
    with pytest.raises(ChunkCorruptError, match="have changed: chunk"):
        sweep(rows, Sums(D), client="serial")


@pytest.mark.parametrize("what", ["written", "removed"])
def test_f41_a_foreign_store_that_changes_is_refused_at_the_end_of_the_sweep(tmp_path, what):
    array = zarr.create_array(tmp_path / "foreign", data=X, chunks=(CHUNK_ROWS, D))

    def change(chunk):
        if chunk.start == 0:
            if what == "written":
                zarr.open_array(tmp_path / "foreign", mode="r+")[-3:] = 1
            else:
                (tmp_path / "foreign" / "c" / str(CHUNKS - 1) / "0").unlink()

    with pytest.raises(DataError, match="X was modified while it was read"):
        sweep(as_rows(array), Sums(D, change), client="threads")
    assert sweep(as_rows(array), Sums(D), client="threads").total["rows"] == N


def test_f41_a_memory_map_that_changes_is_refused(tmp_path):
    np.save(tmp_path / "x.npy", X)
    rows = as_rows(np.load(tmp_path / "x.npy", mmap_mode="r"))

    def change(chunk):
        if chunk.start == 0:
            time.sleep(0.05)  # longer than the resolution of file times
            with open(tmp_path / "x.npy", "r+b") as file:
                file.seek(-D, os.SEEK_END)
                file.write(bytes(D))

    with pytest.raises(DataError, match="X was modified while it was read"):
        sweep(rows, Sums(D, change), client="serial")


def test_f41_a_corpus_replaced_before_the_fit_is_refused(make_corpus):
    codes = np.arange(N) % 2
    corpus = make_corpus(X, name="corpus", y=codes, classes=("a", "b"), chunk_rows=CHUNK_ROWS)
    other = make_corpus(X, name="other", y=1 - codes, classes=("b", "a"), chunk_rows=CHUNK_ROWS)
    Change("the store is exchanged", str(corpus.path), str(other.path), 0, 0).here()
    with pytest.raises(DataError, match="the store was replaced after it was opened"):
        as_rows(corpus)
    assert as_rows(open_corpus(corpus.path)).classes == ("b", "a")


def test_f41_a_group_replaced_while_it_is_read_is_refused(tmp_path, monkeypatch):
    for name, value in (("a", 1.0), ("b", 2.0)):
        zarr_arrays.publish(tmp_path / name, "model", {"values": np.full(4, value)}, {"value": value})
    digests = zarr_arrays.Store.digests

    def exchange(*arguments):
        (tmp_path / "a").rename(tmp_path / "old")
        (tmp_path / "b").rename(tmp_path / "a")
        return digests(*arguments)

    monkeypatch.setattr(zarr_arrays.Store, "digests", exchange)
    with pytest.raises(DataError, match="the store was replaced after it was opened"):
        zarr_arrays.read_group(tmp_path / "a", "model")
    monkeypatch.setattr(zarr_arrays.Store, "digests", digests)
    (tmp_path / "a" / "values" / ".DS_Store").touch()  # no chunk
    assert zarr_arrays.read_group(tmp_path / "a", "model")[1]["value"] == 2.0
