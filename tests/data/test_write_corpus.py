"""Corpora from Python: arrays, frames and generators are stored; a corpus is indexed like an array."""

import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import dask
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


def batches(*columns, size=40):
    return (tuple(column[i : i + size] for column in columns) for i in range(0, N, size))


SOURCES = {
    "array": (X, CODES),
    "lists": (X.tolist(), CODES.tolist()),
    "names": (X, NAMES),
    "names as objects": (X, NAMES.astype(object)),
    "dask": (da.from_array(X, chunks=(33, D)), da.from_array(CODES, chunks=50)),
    "zarr": (zarr.array(X, chunks=(50, D)), CODES),
    "pandas": (FRAME, pd.Series(NAMES)),
    "arrow": (pa.Table.from_pandas(FRAME), pa.chunked_array([NAMES])),
    "dask frame": (LAZY, dd.from_pandas(pd.Series(CODES), npartitions=2)),
    "images": (X.reshape(N, 2, 2), CODES),
    "stored images": (zarr.array(X.reshape(N, 2, 2)), CODES),
    "sparse matrix": (sparse.csr_array(X), CODES),
    "generator": (None, CODES),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_rows_and_classes_are_stored(kind, tmp_path):
    given, y = SOURCES[kind]
    corpus = write_corpus(tmp_path / "c", *((batches(X, CODES),) if kind == "generator" else (given, y)), chunk_rows=50)
    assert_array_equal(np.asarray(corpus), X)
    assert_array_equal(corpus.column("y"), CODES)
    named = kind in ("names", "names as objects", "pandas", "arrow")
    assert corpus.info.classes == (("a", "b", "c") if named else (0, 1, 2))
    assert corpus.info.image_shape == ((2, 2) if "images" in kind else None)
    assert (corpus.chunk_rows, corpus.info.complete) == (50, True)
    assert corpus.head(3)["y"].tolist() == (NAMES if named else CODES)[:3].tolist()


def test_dtypes_columns_and_missing_labels_are_kept(tmp_path):
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
    assert write_corpus(tmp_path / "p", batches(X, NAMES)).info.classes == ("a", "b", "c")
    assert write_corpus(tmp_path / "n", X, CODES, classes=False).column("y").dtype == np.float64


REFUSED = {
    "no batch": (lambda: (iter(()),), "at least one row, found none"),
    "no row": (lambda: (X[:0],), "at least one row, found none"),
    "labels and batches": (lambda: (batches(X), CODES), r"pair \(X, y\)"),
    "several labels": (lambda: (X, X[:, :2]), "y: expected one label a row, found 2"),
    "too few labels": (lambda: (X, CODES[:3]), "y: expected one value per row, found fewer"),
    "images of another size": (lambda: (X,), "expected 4 pixels as in a row, found 3×2 = 6", {"image_shape": (3, 2)}),
    "NaN": (lambda: (np.where(X[7, 2] == X, np.nan, X),), r"the first are \[7\]"),
    "text": (lambda: (FRAME.assign(t="x"),), r"column 't': expected numbers, found \w+.*TableEncoder"),
    "masked rows": (lambda: (np.ma.masked_greater(X, X.max() - 1e-9),), "NaN or infinite values in x"),
    "masked weights": (
        lambda: (iter([{"x": X, "weight": np.ma.masked_equal(CODES, 0)}]),),
        "infinite values in weight",
    ),
    "large whole numbers": (lambda: (CODES[:, None] + 2**60,), r"row 0, column 0: found 11529\d+.*2\*\*53"),
    "large targets": (lambda: (X, CODES + 2**60), "row 0 .*whole numbers below 2⁵³, .*, found 115"),
    "columns of other names": (lambda: ([FRAME, FRAME.rename(columns={"p": "z"})],), r"'p', 'q', .*found 'z', 'q'"),
    "a table and an array": (lambda: ([FRAME, X],), "batch 1 of X: expected the columns of the first.*found none"),
    "a list of arrays": (lambda: ([X, X],), r"iter\(X\) if they are batches of rows, numpy\.stack\(X\) if"),
    "three arrays": (lambda: ((X, CODES, CODES),), r"expected a batch \(X, y\), found a tuple of 3"),
    "labels beside a list": (lambda: ([FRAME, FRAME], CODES), r"pair \(X, y\)"),
    "lines of other lengths": (lambda: ([[1.0, 2.0], [3.0]],), "X: expected rows of one length"),
    "a missing group": (lambda: (iter([{"x": X, "group": np.where(CODES == 1, None, "a")}]),), "row .* is missing"),
    "batches of other widths": (lambda: (iter([X, X[:, :2]]),), "batch 1 of X: expected rows of 4 features"),
    "batches without labels": (lambda: (iter([(X, CODES), X]),), "with y as in the first batch, found 4 with no"),
    "labels of two kinds": (lambda: (iter([(X, CODES), (X, NAMES)]),), "found labels that are names, unlike"),
    "too few lazy labels": (lambda: (LAZY, da.zeros(90)), "y: expected one value per row, found fewer"),
    "too many lazy labels": (lambda: (LAZY, da.zeros(140)), "found 140"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_rows_and_labels_are_refused_and_leave_nothing(case, tmp_path):
    arguments, message, *options = REFUSED[case]
    with pytest.raises(DataError, match=message):
        write_corpus(tmp_path / "c", *arguments(), **dict(*options))
    assert list(tmp_path.iterdir()) == []


ARGUMENTS = {
    "scale": (0, -1.0, 10**400, float("nan"), float("inf"), "a", True, None, [255.0]),
    "name": (3, b"c", ["c"], 0),
    "image_shape": (3, "ab", (1, 4, 1), (-1, -4), (0, 4), (2.0, 2), (True, 4), [4]),
    "chunk_rows": (2.5, "a", -1, 0, True),
    "classes": (None, 2, "some", b"ab", {"a": 1}, ["a", "b"]),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_invalid_argument_is_refused_before_a_corpus_is_replaced(name, corpus):
    for value in ARGUMENTS[name]:
        with pytest.raises(DataError if name == "classes" else ConfigError, match=f"^{name}: expected .*, found"):
            write_corpus(corpus.path, X, CODES, overwrite=True, **{name: value})
    assert open_corpus(corpus.path).digest == corpus.digest


def test_arguments_may_be_numpy_scalars_and_arrays(tmp_path):
    given = {"scale": np.float32(255), "image_shape": np.array([2, 2]), "name": np.str_("n")}
    corpus = write_corpus(tmp_path / "c", X, chunk_rows=np.int64(50), **given)
    assert corpus.info == CorpusInfo("n", "Python", (), (2, 2), 255.0, complete=True)
    assert (type(corpus.info.scale), type(corpus.info.image_shape[0]), corpus.chunk_rows) == (float, int, 50)


@pytest.mark.parametrize("info", [{"scale": 0.0}, {"name": 3}, {"image_shape": (-1, -4)}], ids=str)
def test_invalid_attributes_are_refused_by_the_writer(info, tmp_path):
    with pytest.raises(ConfigError, match=next(iter(info))):
        CorpusWriter(tmp_path / "c", n_features=D, dtype="f8", columns={}, info=CorpusInfo(**{"name": "c", **info}))


TABLES = {
    "pandas": lambda frame: frame,
    "arrow": pa.Table.from_pandas,
    "dask": lambda frame: dd.from_pandas(frame, npartitions=2),
    "polars": lambda frame: pytest.importorskip("polars").DataFrame({name: frame[name].values for name in frame}),
    "pairs": lambda frame: (frame, CODES[frame.index]),
    "mappings": lambda frame: {"x": frame, "y": CODES[frame.index]},
}


@pytest.mark.parametrize("kind", TABLES)
def test_batches_of_tables_are_matched_by_name(kind, tmp_path):
    parts = [TABLES[kind](FRAME[:50]), TABLES[kind](FRAME[50:][list("srqp")])]
    for number, given in enumerate((iter(parts), parts, tuple(parts))):
        corpus = write_corpus(tmp_path / f"{number}", given)
        assert_array_equal(np.asarray(corpus), X)
        assert corpus.info.feature_names == tuple("pqrs")
    if kind == "pairs":
        assert_array_equal(corpus.column("y"), CODES)
        assert_array_equal(write_corpus(tmp_path / "p", (FRAME, pd.Series(CODES))).column("y"), CODES)


def test_partitions_of_a_frame_are_matched_by_name(tmp_path):
    parts = [dask.delayed(FRAME[:50]), dask.delayed(FRAME[50:][list("srqp")])]
    corpus = write_corpus(tmp_path / "c", dd.from_delayed(parts, meta=FRAME[:0], verify_meta=False))
    assert_array_equal(np.asarray(corpus), X)


def test_columns_of_other_numbers_are_numbers(tmp_path):
    frame = FRAME.astype({"p": "Float64", "q": object}).assign(s=FRAME["s"].map(Decimal), flag=CODES == 1)
    assert_array_equal(np.asarray(write_corpus(tmp_path / "c", frame)), np.column_stack([X, CODES == 1]))


@pytest.mark.parametrize("names", [NAMES, NAMES.astype(object), pd.Series(NAMES), da.from_array(NAMES, chunks=50)])
def test_groups_may_be_names_whose_codes_do_not_depend_on_other_rows(names, tmp_path):
    codes = write_corpus(tmp_path / "c", X, group=names).column("group")
    assert codes.dtype == np.int64
    assert len(np.unique(codes)) == len(np.unique(np.column_stack([codes, CODES]), axis=0)) == 3
    first = write_corpus(tmp_path / "first", iter([{"x": X[:1], "group": np.asarray(names)[:1]}]))
    assert first.column("group")[0] == codes[0]


MISSING = CODES == 1
LABELS = {
    "masked names": (np.ma.array(NAMES, mask=MISSING), ("a", "c"), np.where(MISSING, -1, CODES // 2)),
    "masked whole numbers": (np.ma.array(CODES, mask=MISSING), (0, 2), np.where(MISSING, -1, CODES)),
    "masked numbers": (np.ma.array(X[:, 0], mask=MISSING), (), np.where(MISSING, np.nan, X[:, 0])),
    "names and None": (np.where(MISSING, None, NAMES), ("a", "c"), np.where(MISSING, -1, CODES // 2)),
    "names and NaN": (np.where(MISSING, np.nan, NAMES.astype(object)), ("a", "c"), np.where(MISSING, -1, CODES // 2)),
    "whole numbers": (CODES.astype(object), (0, 1, 2), CODES),
    "numbers and None": (np.where(MISSING, None, X[:, 0]), (), np.where(MISSING, np.nan, X[:, 0])),
}


@pytest.mark.parametrize("labels, classes, stored", LABELS.values(), ids=LABELS)
def test_object_labels_are_names_or_numbers_and_none_is_a_missing_label(labels, classes, stored, tmp_path):
    corpus = write_corpus(tmp_path / "c", X, labels)
    assert corpus.info.classes == classes
    assert_array_equal(corpus.column("y"), stored)


ODD = {
    "names and numbers": (X, np.where(MISSING, 2, NAMES.astype(object)), "only names as labels, found names, whole"),
    "sets": (X, np.array([set()] * N), r"only numbers or only names as labels, found set"),
    "too large": (X, np.array([10**400] * N), "exceeds the range of 64 bits"),
    "dates": (X, np.arange(N).astype("M8[D]"), r"as labels, found datetime64\[D\]"),
    "complex": (X, CODES + 1j, "as labels, found complex128"),
    "lazy dates": (X, da.arange(N).astype("M8[D]"), "as labels, found datetime64"),
    "long rows": (X.astype("g"), CODES, f"x: expected numbers of at most 64 bits, found dtype {np.dtype('g')}"),
}


@pytest.mark.skipif(np.dtype("g").itemsize == 8, reason="a longdouble is a double here")
@pytest.mark.parametrize("rows, labels, message", ODD.values(), ids=ODD)
def test_rows_and_labels_of_unsupported_types_are_refused(rows, labels, message, tmp_path):
    with pytest.raises(DataError, match=message):
        write_corpus(tmp_path / "c", rows, labels)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def corpus(tmp_path):
    return write_corpus(tmp_path / "c", X, NAMES, chunk_rows=30)


INDEXES = [slice(5), slice(28, 95), slice(None, None, -1), slice(100, 3, -7), slice(9, 3), [3, 129, 3], CODES == 1, []]


@pytest.mark.parametrize("index", INDEXES, ids=str)
def test_a_corpus_is_indexed_like_an_array(corpus, index):
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


def test_too_many_rows_for_memory_are_refused_with_alternatives(corpus, monkeypatch):
    monkeypatch.setattr(corpus_module, "MOST_BYTES", 100 * D * 8)
    with pytest.raises(PlanTooLargeError, match=r"130 rows of 4 float64.*corpus\[start:stop\].*corpus\.x"):
        np.asarray(corpus)
    with pytest.raises(PlanTooLargeError):
        corpus[np.arange(101)]
    assert len(corpus[:100]) == 100


def test_a_missing_chunk_is_not_read_as_zeros(corpus):
    Path(corpus.path, "x/c/1/0").unlink()
    assert_array_equal(corpus[:30], X[:30])
    with pytest.raises(ChunkMissingError):
        corpus[25:35]


def test_two_writers_of_a_process_are_independent(tmp_path):
    started, done = threading.Event(), threading.Event()

    def slow():
        yield np.ones((40, 3))
        started.set()
        assert done.wait(60)
        yield np.ones((40, 3))

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(write_corpus, tmp_path / "c", slow(), overwrite=True, chunk_rows=20)
        assert started.wait(60)
        write_corpus(tmp_path / "c", np.zeros((10, 3)), overwrite=True)
        done.set()
        first.result()
    assert open_corpus(tmp_path / "c").n_rows == 80


def test_a_corpus_with_damaged_metadata_can_be_overwritten(corpus):
    metadata = Path(corpus.path, "zarr.json")
    metadata.write_bytes(metadata.read_bytes()[:-20])
    with pytest.raises(DataError, match="changed since the group was published"):
        open_corpus(corpus.path)
    assert write_corpus(corpus.path, np.zeros((10, 3)), overwrite=True).n_rows == 10
