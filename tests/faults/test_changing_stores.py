"""F41, stores that change under a job: every one is a named error, on threads and workers, and never a result."""

from __future__ import annotations

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
    """Makes a corpus, and how it will change."""

    def make(what, at, chunk, place=""):
        corpus = make_corpus(X, name=f"corpus{place}", y=Y, chunk_rows=CHUNK_ROWS)
        other = make_corpus(OTHER, name=f"other{place}", y=Y, chunk_rows=CHUNK_ROWS)
        return corpus, Change(what, str(corpus.path), str(other.path), at, chunk)

    return make


def read_on(corpus, change, client):
    """Tell the error that ended a sweep of the corpus; None: its sums are those of the rows as they were."""
    rows = as_rows(corpus)
    try:
        total = sweep(rows, Sums(D, change), client=client).total
    except DataError as error:
        return error
    np.testing.assert_array_equal(total["sum"], X.sum(axis=0, dtype=float))
    return None


@pytest.mark.parametrize("what", CHANGES)
def test_f41_a_corpus_that_changes_at_any_moment_never_gives_sums(changing, what):
    draw, told = random.Random(what), 0
    for moment in range(3):
        corpus, change = changing(what, 0, draw.randrange(CHUNKS // 2, CHUNKS), str(moment))
        steps = [row for segment in plan_sweep(as_rows(corpus), Sums(D)).segments for row in segment.bounds[:-1]]
        change = replace(change, at=draw.choice(steps[:-2]))
        error = read_on(corpus, change, draw.choice(["threads", "serial"]))
        told += error is not None
        # what is removed or exchanged in pieces may be met at any stage
        assert error is None or str(corpus.path) in str(error)
    assert told >= 1  # the others changed what had been read


@pytest.mark.cluster
@pytest.mark.parametrize("what", CHANGES)
def test_f41_on_workers(changing, client, tmp_path, what):
    corpus, change = changing(what, 0, CHUNKS - 1)
    gate = str(tmp_path / "gate")  # the other worker does not come to the last chunk before it
    error = read_on(corpus, Both((replace(change, gate=gate), Hold(1, gate))), client)
    assert isinstance(error, ChunkMissingError if what == "a chunk is removed" else DataError)
    assert str(corpus.path) in str(error)


def test_f41_a_later_sweep_of_the_same_rows_is_compared_with_what_was_opened(changing):
    corpus, change = changing("the store is exchanged", 0, 3)
    rows = as_rows(corpus)
    sweep(rows, Sums(D), client="serial")
    change.here()
    with pytest.raises(ChunkCorruptError, match="have changed: chunk"):
        sweep(rows, Sums(D), client="serial")


@pytest.mark.parametrize("what", ["written", "removed"])
def test_f41_a_foreign_store_that_changes_is_told_at_the_end_of_the_sweep(tmp_path, what):
    array = zarr.create_array(tmp_path / "foreign", data=X, chunks=(CHUNK_ROWS, D))

    def change(chunk):
        if chunk.start == 0:
            if what == "written":
                zarr.open_array(tmp_path / "foreign", mode="r+")[-3:] = 1
            else:
                (tmp_path / "foreign" / "c" / str(CHUNKS - 1) / "0").unlink()

    with pytest.raises(DataError, match="X was modified while it was read"):
        sweep(as_rows(array), Sums(D, change), client="threads")
    assert sweep(as_rows(array), Sums(D), client="threads").total["rows"] == N  # at rest it is read as it is


def test_f41_so_is_a_memory_map(tmp_path):
    np.save(tmp_path / "x.npy", X)
    rows = as_rows(np.load(tmp_path / "x.npy", mmap_mode="r"))

    def change(chunk):
        if chunk.start == 0:
            time.sleep(0.05)  # longer than a tick of the clock of files
            with open(tmp_path / "x.npy", "r+b") as file:
                file.seek(-D, os.SEEK_END)
                file.write(bytes(D))

    with pytest.raises(DataError, match="X was modified while it was read"):
        sweep(rows, Sums(D, change), client="serial")


def test_f41_a_corpus_that_was_exchanged_before_the_fit_is_not_read_with_the_classes_of_the_other(make_corpus):
    codes = np.arange(N) % 2
    corpus = make_corpus(X, name="corpus", y=codes, classes=("a", "b"), chunk_rows=CHUNK_ROWS)
    other = make_corpus(X, name="other", y=1 - codes, classes=("b", "a"), chunk_rows=CHUNK_ROWS)
    Change("the store is exchanged", str(corpus.path), str(other.path), 0, 0).here()
    with pytest.raises(DataError, match="the store was replaced after it was opened"):
        as_rows(corpus)
    assert as_rows(open_corpus(corpus.path)).classes == ("b", "a")


def test_f41_a_model_that_is_exchanged_while_it_is_read_is_refused(tmp_path, monkeypatch):
    for name, value in (("a", 1.0), ("b", 2.0)):
        zarr_arrays.publish(tmp_path / name, "model", {"values": np.full(4, value)}, {"value": value})
    digests = zarr_arrays.Store.digests

    def exchange(*arguments):
        (tmp_path / "a").rename(tmp_path / "gone")
        (tmp_path / "b").rename(tmp_path / "a")
        return digests(*arguments)

    monkeypatch.setattr(zarr_arrays.Store, "digests", exchange)
    with pytest.raises(DataError, match="the store was replaced after it was opened"):
        zarr_arrays.read_group(tmp_path / "a", "model")
    monkeypatch.setattr(zarr_arrays.Store, "digests", digests)
    (tmp_path / "a" / "values" / ".DS_Store").touch()  # what lies beside the chunks is nobody's chunk
    assert zarr_arrays.read_group(tmp_path / "a", "model")[1]["value"] == 2.0
