"""Corpora: rows and columns are read back, incomplete ones are refused, every chunk and every value is checked."""

import dataclasses
import itertools
import pickle
import shutil
import threading

import dask
import numpy as np
import pytest
import zarr
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from bigkernel import config
from bigkernel.data import zarr_arrays
from bigkernel.data.check import check_chunks, walk
from bigkernel.data.corpus import CorpusInfo, CorpusWriter, chunk_rows_for, open_corpus
from bigkernel.errors import ChunkCorruptError, ChunkMissingError, DataError

N, D = 103, 5
rng = np.random.default_rng(7)
X = rng.integers(0, 256, (N, D), dtype=np.uint8)
Y = rng.integers(0, 3, N)
INFO = CorpusInfo("digits", "made here", (0, 1, 2), (1, 5), 255.0)


def writer(path, *, chunk_rows=10, dtype="u1", columns=None, info=INFO, **options):
    columns = {"y": "i8"} if columns is None else columns
    return CorpusWriter(path, n_features=D, dtype=dtype, columns=columns, info=info, chunk_rows=chunk_rows, **options)


def check(corpus):
    """Return the checked chunks of a corpus, or raise its first damage."""
    checked = list(walk(corpus.path, "corpus"))
    for damage in filter(None, (chunk.damage for chunk in checked)):
        raise damage
    return checked


@pytest.fixture
def path(tmp_path):
    with writer(tmp_path / "c") as w:
        w.append(x=X, y=Y)
    return tmp_path / "c"


@settings(max_examples=15)
@given(cuts=st.lists(st.integers(0, N), max_size=6), chunk_rows=st.integers(5, 130))
def test_rows_appended_in_any_batches_are_read_back(cuts, chunk_rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "c"
    bounds = [0, *sorted(cuts), N]
    with writer(path, chunk_rows=chunk_rows) as w:
        for a, b in itertools.pairwise(bounds):
            w.append(x=X[a:b], y=Y[a:b])
    corpus = open_corpus(path)
    assert_array_equal(corpus.array("x")[:], X)
    assert_array_equal(corpus.column("y"), Y)
    assert corpus.array("x").chunks == (chunk_rows, D)
    assert corpus.array("y").chunks == (chunk_rows,)


@pytest.mark.parametrize("chunk_rows", [10, 25])
def test_appended_arrays_may_be_overwritten(tmp_path, chunk_rows):
    buffer = np.empty((20, D), X.dtype)
    with writer(tmp_path / "c", chunk_rows=chunk_rows) as w:
        for a in range(0, 100, 20):
            buffer[:] = X[a : a + 20]
            w.append(x=buffer, y=Y[a : a + 20])
    assert_array_equal(open_corpus(tmp_path / "c").array("x")[:], X[:100])


def test_attributes_of_a_corpus(path):
    corpus = open_corpus(path)
    assert (corpus.shape, len(corpus), corpus.chunk_rows, corpus.dtype) == ((N, D), N, 10, "uint8")
    assert corpus.columns == ("y",)
    assert corpus.info == dataclasses.replace(INFO, complete=True)
    assert pickle.loads(pickle.dumps(corpus)) == corpus


def test_a_corpus_is_refused_while_it_is_written(tmp_path):
    with writer(tmp_path / "c") as w:
        w.append(x=X, y=Y)
        with pytest.raises(DataError, match=r"manifest, found none: writing was interrupted.*ingest the source again"):
            open_corpus(w.path)
        with pytest.raises(DataError, match="does not exist"):
            open_corpus(tmp_path / "c")
    assert open_corpus(tmp_path / "c").info.complete


@pytest.mark.parametrize(
    "rows",
    [{"x": X}, {"x": X, "y": Y[1:]}, {"x": X[:, :4], "y": Y}, {"x": X.ravel(), "y": Y}, {"x": X, "y": Y[:, None]}],
    ids=["no y", "short y", "narrow x", "flat x", "column y"],
)
def test_rows_of_a_wrong_shape_are_refused(tmp_path, rows):
    with pytest.raises(DataError, match="expected shape"), writer(tmp_path / "c") as w:
        w.append(**rows)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("value", [300, -1, 0.5, np.nan, np.inf])
@pytest.mark.parametrize("name", ["x", "y"])
def test_numbers_that_the_stored_dtype_cannot_hold_are_refused(tmp_path, name, value):
    values = {"x": X.astype(float), "y": Y.astype(float)}
    values[name][50] = value
    with pytest.raises(DataError, match=name), writer(tmp_path / "c", columns={"y": "u1"}) as w:
        w.append(**values)


def test_a_corpus_may_have_no_rows(tmp_path):
    with writer(tmp_path / "c"):
        pass
    corpus = open_corpus(tmp_path / "c")
    assert corpus.shape == (0, D)
    assert check(corpus) == []
    assert corpus.column("y").shape == (0,)


# ---------------------------------------------------------------- damage


def edit(path, **changes):
    group = zarr.open_group(path, mode="r+")
    attributes = dict(group.attrs["bigkernel"])
    for key, value in changes.items():
        attributes.pop(key)
        if value is not None:
            attributes[key] = value
    group.attrs["bigkernel"] = attributes
    zarr_arrays.write_manifest(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 3}, "expected corpus format 2, found 3; ingest the source again"),
        ({"format": None}, "found None"),
        ({"complete": False}, "incomplete corpus"),
        ({"complete": None}, "incomplete corpus"),
        ({"kind": "model"}, "expected a corpus, found model"),
        ({"name": None}, "name"),
        ({"scale": 0}, "scale: expected a finite number above 0, found 0"),
        ({"scale": "255"}, "scale: expected a finite number above 0, found '255'"),
    ],
    ids=str,
)
def test_attributes_of_no_complete_corpus_are_refused(path, changes, message):
    edit(path, **changes)
    with pytest.raises(DataError, match=message):
        open_corpus(path)


def test_arrays_that_are_unlisted_missing_or_of_different_lengths_are_refused(path):
    shutil.copytree(path / "y", path / "weight")
    with pytest.raises(DataError, match="c/weight: array is not listed in the manifest"):
        open_corpus(path)
    shutil.rmtree(path / "weight")
    group = zarr.open_group(path, mode="r+")
    group["y"].resize((N - 1,))
    zarr_arrays.write_manifest(path)
    with pytest.raises(DataError, match=r"y: expected shape \(103,\) to match x, found \(102,\)"):
        open_corpus(path)
    shutil.rmtree(path / "x")
    zarr_arrays.write_manifest(path)
    with pytest.raises(DataError, match="'x' is missing"):
        open_corpus(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_check_names_values_that_are_not_finite(tmp_path, value):
    x = X.astype(np.float32)
    x[[41, 48], 2] = value
    with writer(tmp_path / "c", dtype="f4") as w:
        w.append(x=x, y=Y)
    message = r"c/x: rows 40:50 have 2 rows with values that are not finite, the first are \[41, 48\]"
    with pytest.raises(DataError, match=message):
        check(open_corpus(tmp_path / "c"))


@pytest.mark.parametrize("classes", [(0, 1, 2), ("zero", "one", "two")])
def test_check_names_labels_outside_the_classes_and_accepts_unlabelled_rows(tmp_path, classes):
    info = dataclasses.replace(INFO, classes=classes)
    for name, label in (("good", -1), ("bad", 3)):
        y = Y.copy()
        y[77] = label
        with writer(tmp_path / name, info=info) as w:
            w.append(x=X, y=y)
    assert len(check(open_corpus(tmp_path / "good"))) == 22
    message = r"bad/y: rows 70:80 have 1 rows with labels outside the classes, the first are \[77\]"
    with pytest.raises(DataError, match=message):
        check(open_corpus(tmp_path / "bad"))


SWAP = [("2", "saved"), ("5", "2"), ("saved", "5")]  # renames


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: [(x / f"c/{a}").rename(x / f"c/{b}") for a, b in SWAP], "its 11 chunks differ"),
        (lambda x: shutil.copy(x / "c/2/0", x / "c/3/0"), "its 11 chunks differ from the published ones"),
        (lambda x: shutil.copytree(x / "c/2", x / "c/11"), "expected 11 chunks as published, found 12 files"),
    ],
    ids=["swapped", "stale", "added"],
)
def test_check_names_valid_chunks_in_the_wrong_place(path, change, message):
    change(path / "x")
    with pytest.raises(DataError, match=f"c/x: {message}"):
        check(open_corpus(path))


def test_walk_reports_every_damaged_chunk(path):
    for key in ("x/c/1/0", "y/c/9"):
        (path / key).write_bytes(b"noise")
    (path / "x/c/4/0").unlink()
    assert [(chunk.array, chunk.done, type(chunk.damage)) for chunk in walk(path, "corpus") if chunk.damage] == [
        ("x", 20, ChunkCorruptError),
        ("x", 50, ChunkMissingError),
        ("y", 100, ChunkCorruptError),
    ]


def test_chunks_are_checked_concurrently_and_reported_in_order(path, monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    both = threading.Barrier(2, timeout=30)

    def describe(start, values):
        if start < 20:
            both.wait()  # breaks where the first chunk must end before the second begins
        return f"{start}"

    checked = list(check_chunks(open_corpus(path).array("x"), "x", describe))
    assert [chunk.done for chunk in checked] == [*range(10, 101, 10), 103]
    assert all(str(chunk.damage).endswith(f"have {10 * i}") for i, chunk in enumerate(checked))


# ---------------------------------------------------------------- the size of a chunk


@example(n_features=1, itemsize=1, n_rows=None, chunk_bytes=2**24, unit=4)
@example(n_features=1, itemsize=1, n_rows=2048, chunk_bytes=1024, unit=1)
@given(
    n_features=st.integers(1, 5000),
    itemsize=st.sampled_from([1, 4, 8]),
    n_rows=st.none() | st.integers(0, 10**8),
    chunk_bytes=st.integers(1024, 2**24),
    unit=st.integers(1, 32),
)
def test_a_chunk_has_at_least_a_row_and_at_most_its_bytes(n_features, itemsize, n_rows, chunk_bytes, unit):
    with dask.config.set({"bigkernel.chunk-bytes": chunk_bytes, "bigkernel.min-segments": unit}):
        rows = chunk_rows_for(n_features, itemsize, n_rows)
    assert rows >= 1
    assert rows == 1 or rows * n_features * itemsize <= chunk_bytes
    assert rows <= config.settings().segment_rows
    if n_rows is None:
        assert rows == max(1, min(config.settings().segment_rows, chunk_bytes // (n_features * itemsize)))
