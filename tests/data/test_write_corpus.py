"""Corpora from Python: what arrays, frames and generators hold comes back; rows of a corpus are read as of an array."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import zarr
from numpy.testing import assert_array_equal
from scipy import sparse

from bigkernel import UnitNormalizer, write_corpus
from bigkernel.data import corpus as corpus_module
from bigkernel.data.corpus import CorpusInfo, CorpusWriter, open_corpus
from bigkernel.errors import ChunkMissingError, ConfigError, DataError, PlanTooLargeError

rng = np.random.default_rng(3)
N, D = 130, 4
X = rng.normal(size=(N, D))
CODES = rng.integers(0, 3, N)
NAMES = np.array(["a", "b", "c"])[CODES]
FRAME = pd.DataFrame(X, columns=list("pqrs"))
LAZY = dd.from_pandas(FRAME, npartitions=3)


def pieces(*columns, size=40):
    return (tuple(column[i : i + size] for column in columns) for i in range(0, N, size))


GIVEN = {
    "array": (X, CODES),
    "lists": (X.tolist(), CODES.tolist()),
    "names": (X, NAMES),
    "names as objects": (X, NAMES.astype(object)),
    "dask": (da.from_array(X, chunks=(33, D)), da.from_array(CODES, chunks=50)),
    "zarr": (zarr.array(X, chunks=(50, D)), CODES),
    "pandas": (FRAME, pd.Series(NAMES)),
    "arrow": (pa.Table.from_pandas(FRAME), pa.chunked_array([NAMES])),
    "dask frame": (LAZY, dd.from_pandas(pd.Series(CODES), npartitions=2)),
    "pictures": (X.reshape(N, 2, 2), CODES),
    "stored pictures": (zarr.array(X.reshape(N, 2, 2)), CODES),
    "sparse matrix": (sparse.csr_array(X), CODES),
    "generator": (None, CODES),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_rows_and_classes_come_back(kind, tmp_path):
    given, y = GIVEN[kind]
    corpus = write_corpus(tmp_path / "c", *((pieces(X, CODES),) if kind == "generator" else (given, y)), chunk_rows=50)
    assert_array_equal(np.asarray(corpus), X)
    assert_array_equal(corpus.column("y"), CODES)
    named = kind in ("names", "names as objects", "pandas", "arrow")
    assert corpus.info.classes == (("a", "b", "c") if named else (0, 1, 2))
    assert corpus.info.image_shape == ((2, 2) if "pictures" in kind else None)
    assert (corpus.chunk_rows, corpus.info.complete) == (50, True)
    assert corpus.head(3)["y"].tolist() == (NAMES if named else CODES)[:3].tolist()


def test_a_corpus_keeps_dtypes_columns_and_what_stands_for_no_label(tmp_path):
    pixels, weight, y = (X > 0).astype(np.uint8), rng.uniform(size=N), np.where(CODES == 2, np.nan, X[:, 0])
    corpus = write_corpus(tmp_path / "c", pixels, y, weight=weight, group=CODES, image_shape=(2, 2), name="digits")
    assert (corpus.dtype, corpus.columns, corpus.info.name) == ("uint8", ("y", "weight", "group"), "digits")
    assert_array_equal(corpus.column("y"), y)
    assert corpus.info.classes == ()
    assert_array_equal(corpus.column("weight"), weight)
    again = write_corpus(tmp_path / "again", UnitNormalizer().fit(corpus).transform(corpus))  # its columns come along
    np.testing.assert_allclose(np.linalg.norm(np.asarray(again), axis=1)[pixels.any(axis=1)], 1)
    assert_array_equal(again.column("group"), CODES)
    unlabelled = write_corpus(tmp_path / "u", X, np.where(CODES == 1, "-1", NAMES))
    assert_array_equal(unlabelled.column("y") == -1, CODES == 1)
    assert unlabelled.info.classes == ("a", "c")
    assert write_corpus(tmp_path / "p", pieces(X, NAMES)).info.classes == ("a", "b", "c")
    assert write_corpus(tmp_path / "n", X, CODES, classes=False).column("y").dtype == np.float64


REFUSED = {
    "no piece": (lambda: (iter(()),), {}, "at least one row, found none"),
    "no row": (lambda: (X[:0],), {}, "at least one row, found none"),
    "labels beside pieces": (lambda: (pieces(X), CODES), {}, r"pair \(X, y\)"),
    "too few labels": (lambda: (X, CODES[:3]), {}, "y: expected one value per row, found fewer"),
    "pictures of another size": (lambda: (X,), {"image_shape": (3, 2)}, "expected 4 pixels as in a row, found 3×2 = 6"),
    "NaN": (lambda: (np.where(X[7, 2] == X, np.nan, X),), {}, r"the first are \[7\]"),
    "text": (lambda: (FRAME.assign(t="x"),), {}, r"expected numeric columns, found t: \w+"),
    "pieces of other widths": (lambda: (iter([X, X[:, :2]]),), {}, "batch 1 of X: expected rows of 4 features"),
    "pieces without labels": (
        lambda: (iter([(X, CODES), X]),),
        {},
        "expected rows of 4 features with y as in the first batch, found 4 with no column",
    ),
    "labels of two kinds": (
        lambda: (iter([(X, CODES), (X, NAMES)]),),
        {},
        "row 0: found labels that are names, unlike the earlier",
    ),
    "too few lazy labels": (lambda: (LAZY, da.zeros(90)), {}, "y: expected one value per row, found fewer"),
    "too many lazy labels": (lambda: (LAZY, da.zeros(140)), {}, "found 140"),
}


@pytest.mark.parametrize("arguments, options, said", REFUSED.values(), ids=REFUSED)
def test_what_is_no_corpus_is_refused_and_leaves_nothing(arguments, options, said, tmp_path):
    with pytest.raises(DataError, match=said):
        write_corpus(tmp_path / "c", *arguments(), **options)
    assert list(tmp_path.iterdir()) == []


ARGUMENTS = {
    "scale": (0, -1.0, 10**400, float("nan"), float("inf"), "a", True, None, [255.0]),
    "name": (3, b"c", ["c"], 0),
    "image_shape": (3, "ab", (1, 4, 1), (-1, -4), (0, 4), (2.0, 2), (True, 4), [4]),
    "chunk_rows": (2.5, "a", -1, 0, True),
    "classes": (None, 2, "some", b"ab", {"a": 1}, ["a", "b"]),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_argument_that_is_none_is_refused_before_a_good_corpus_is_replaced(name, corpus):
    for value in ARGUMENTS[name]:
        with pytest.raises(DataError if name == "classes" else ConfigError, match=f"^{name}: expected .*, found"):
            write_corpus(corpus.path, X, CODES, overwrite=True, **{name: value})
    assert open_corpus(corpus.path).digest == corpus.digest


def test_numbers_of_numpy_are_arguments_too(tmp_path):
    given = {"scale": np.float32(255), "image_shape": np.array([2, 2]), "name": np.str_("n")}
    corpus = write_corpus(tmp_path / "c", X, chunk_rows=np.int64(50), **given)
    assert corpus.info == CorpusInfo("n", "Python", (), (2, 2), 255.0, complete=True)
    assert (type(corpus.info.scale), type(corpus.info.image_shape[0]), corpus.chunk_rows) == (float, int, 50)


@pytest.mark.parametrize("info", [{"scale": 0.0}, {"name": 3}, {"image_shape": (-1, -4)}], ids=str)
def test_a_writer_refuses_attributes_that_no_reader_takes(info, tmp_path):
    with pytest.raises(ConfigError, match=next(iter(info))):
        CorpusWriter(tmp_path / "c", n_features=D, dtype="f8", columns={}, info=CorpusInfo(**{"name": "c", **info}))


MISSING = CODES == 1
LABELS = {
    "names and None": (np.where(MISSING, None, NAMES), ("a", "c"), np.where(MISSING, -1, CODES // 2)),
    "names and NaN": (np.where(MISSING, np.nan, NAMES.astype(object)), ("a", "c"), np.where(MISSING, -1, CODES // 2)),
    "whole numbers": (CODES.astype(object), (0, 1, 2), CODES),
    "numbers and None": (np.where(MISSING, None, X[:, 0]), (), np.where(MISSING, np.nan, X[:, 0])),
}


@pytest.mark.parametrize("labels, classes, stored", LABELS.values(), ids=LABELS)
def test_labels_as_objects_are_what_they_all_are_and_none_is_no_label(labels, classes, stored, tmp_path):
    corpus = write_corpus(tmp_path / "c", X, labels)
    assert corpus.info.classes == classes
    assert_array_equal(corpus.column("y"), stored)


ODD = {
    "names and numbers": (
        X,
        np.where(MISSING, 2, NAMES.astype(object)),
        r"only numbers or only names as labels, found names, whole numbers",
    ),
    "sets": (X, np.array([set()] * N), r"only numbers or only names as labels, found set"),
    "too large": (X, np.array([10**400] * N), "exceeds the range of 64 bits"),
    "dates": (X, np.arange(N).astype("M8[D]"), r"as labels, found datetime64\[D\]"),
    "complex": (X, CODES + 1j, "as labels, found complex128"),
    "lazy dates": (X, da.arange(N).astype("M8[D]"), "as labels, found datetime64"),
    "long rows": (X.astype("g"), CODES, f"x: expected numbers of at most 64 bits, found dtype {np.dtype('g')}"),
}


@pytest.mark.skipif(np.dtype("g").itemsize == 8, reason="a longdouble is a double here")
@pytest.mark.parametrize("rows, labels, said", ODD.values(), ids=ODD)
def test_labels_and_rows_that_are_no_numbers_are_named(rows, labels, said, tmp_path):
    with pytest.raises(DataError, match=said):
        write_corpus(tmp_path / "c", rows, labels)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "c", X, NAMES, chunk_rows=30)


INDEXES = [slice(5), slice(28, 95), slice(None, None, -1), slice(100, 3, -7), slice(9, 3), [3, 129, 3], CODES == 1, []]


@pytest.mark.parametrize("index", INDEXES, ids=str)
def test_rows_of_a_corpus_are_indexed_as_those_of_an_array(corpus, index):
    assert_array_equal(corpus[index], X[index])


def test_single_rows_all_rows_and_lazy_rows(corpus):
    assert_array_equal(corpus[-1], X[-1])
    assert_array_equal(np.stack(list(corpus)), X)
    assert np.asarray(corpus, dtype="f4").dtype == np.float32
    assert_array_equal(da.from_zarr(corpus.x)[40:50].compute(), X[40:50])
    with pytest.raises(IndexError):
        corpus[N]
    with pytest.raises(IndexError):
        corpus[[0, N]]
    with pytest.raises(TypeError, match=r"use corpus\.x for several"):
        corpus[:5, 2]
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(corpus, copy=False)


def test_more_than_memory_should_hold_is_refused_with_ways_to_go_on(corpus, monkeypatch):
    monkeypatch.setattr(corpus_module, "MOST_BYTES", 100 * D * 8)
    with pytest.raises(PlanTooLargeError, match=r"130 rows of 4 float64.*corpus\[start:stop\].*corpus\.x"):
        np.asarray(corpus)
    with pytest.raises(PlanTooLargeError):
        corpus[np.arange(101)]
    assert len(corpus[:100]) == 100


def test_a_lost_chunk_is_no_zeros(corpus):
    (chunk,) = Path(corpus.path, "x").rglob("1/0")
    chunk.unlink()
    assert_array_equal(corpus[:30], X[:30])
    with pytest.raises(ChunkMissingError):
        corpus[25:35]


def test_two_writers_of_a_process_do_not_disturb_one_another(tmp_path):
    begun, done = threading.Event(), threading.Event()

    def slow():
        yield np.ones((40, 3))
        begun.set()
        assert done.wait(60)
        yield np.ones((40, 3))

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(write_corpus, tmp_path / "c", slow(), overwrite=True, chunk_rows=20)
        assert begun.wait(60)
        write_corpus(tmp_path / "c", np.zeros((10, 3)), overwrite=True)
        done.set()
        first.result()
    assert open_corpus(tmp_path / "c").n_rows == 80


def test_a_corpus_whose_metadata_are_damaged_can_be_written_again(corpus):
    metadata = Path(corpus.path, "zarr.json")
    metadata.write_bytes(metadata.read_bytes()[:-20])
    with pytest.raises(DataError, match="changed since the group was published"):
        open_corpus(corpus.path)
    assert write_corpus(corpus.path, np.zeros((10, 3)), overwrite=True).n_rows == 10
