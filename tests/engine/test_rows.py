"""Rows: the same chunks from NumPy, Dask, zarr and a corpus, taken by index, mapped in order, read ahead."""

import itertools
import pickle
import threading

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel.config import settings
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.errors import DataError
from bigkernel.streaming.chunk import Workspace
from bigkernel.streaming.row_maps import Scale, Standardize, UnitNorm

N, D = 110, 4
X = np.random.default_rng(3).normal(size=(N, D)).astype(np.float32)
Y = np.random.default_rng(4).integers(0, 3, N)
WEIGHT = np.linspace(0, 1, N)

pytestmark = pytest.mark.usefixtures("small_steps")
KINDS = ["numpy", "dask", "zarr", "sharded zarr", "zarr v2", "corpus"]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Picked rows are read in many pieces, too."""
    monkeypatch.setattr("bigkernel.engine.rows._PICKED_BYTES", 1024)


@pytest.fixture
def build(tmp_path, make_corpus):
    """The same rows and columns, from a source of the given kind."""

    def make(kind, X=X, Y=Y, weight=WEIGHT):
        if kind == "numpy":
            return as_rows(X, Y, weight=weight)
        if kind == "dask":
            return as_rows(
                da.from_array(X, chunks=(17, 3)), da.from_array(Y, chunks=40), weight=da.from_array(weight, chunks=23)
            )
        if kind == "corpus":
            return as_rows(make_corpus(X, y=Y, weight=weight, classes=(0, 1, 2)))
        layout = {
            "zarr": {"chunks": (13, D)},
            "sharded zarr": {"chunks": (5, 2), "shards": (20, D)},
            "zarr v2": {"chunks": (13, D), "zarr_format": 2},
        }[kind]
        zarr.create_array(tmp_path / kind, **layout, data=X)
        return as_rows(zarr.open_array(tmp_path / kind, mode="r"), Y, weight=weight)

    return make


def read(rows, bounds=None):
    """All chunks joined: x, y, weight and the row ids."""
    chunks = list(rows.chunks(rows.bounds(settings()) if bounds is None else bounds, 16, Workspace()))
    ids = np.concatenate([chunk.start + np.arange(len(chunk)) for chunk in chunks])
    return *(np.concatenate([getattr(chunk, name) for chunk in chunks]) for name in ("x", "y", "weight")), ids


def assert_rows(rows, start, stop, *, first, bounds=None):
    """The rows are those from `start` to `stop` of X, with their columns, and have ids from `first` on."""
    ids = np.arange(first, first + stop - start)
    expected = (X[start:stop], Y[start:stop], WEIGHT[start:stop], ids)
    for got, values in zip(read(rows, bounds), expected, strict=True):
        assert_array_equal(got, values)
        assert got.dtype == values.dtype


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bounds", [(0, N), (0, 1, 2, N), (30, 47, 47, 90), (109, 110)], ids=str)
def test_every_source_gives_the_same_chunks_between_any_bounds(build, kind, bounds):
    chunks = list(build(kind).chunks(bounds, 16, Workspace()))
    assert [(chunk.start, len(chunk)) for chunk in chunks] == [(a, b - a) for a, b in itertools.pairwise(bounds)]
    for chunk in chunks:
        rows = slice(chunk.start, chunk.start + len(chunk))
        assert_array_equal(chunk.x, X[rows])
        assert_array_equal(chunk.y, Y[rows])
        assert_array_equal(chunk.weight, WEIGHT[rows])
        assert chunk.block_rows == 16


@pytest.mark.parametrize("kind", KINDS)
def test_steps_are_whole_chunks_of_the_input_joined_to_the_size_of_the_settings(build, kind):
    rows, step = build(kind), {"dask": 17, "zarr": 13, "zarr v2": 13, "sharded zarr": 20, "corpus": 25}.get(kind, 1)
    with dask.config.set({"bigkernel.chunk-bytes": 1024, "bigkernel.min-segments": 1}):  # 64 rows of 16 bytes
        bounds = rows.bounds(settings())
    assert bounds[0] == 0
    assert bounds[-1] == N
    assert all(a < b for a, b in itertools.pairwise(bounds))
    assert all(bound % step == 0 for bound in bounds[:-1])
    assert all(b - a <= 64 for a, b in itertools.pairwise(bounds))
    assert len(bounds) - 1 <= 3
    with dask.config.set({"bigkernel.chunk-bytes": 10**6, "bigkernel.min-segments": 1}):
        assert rows.bounds(settings()) == (0, N)


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12), chunk_rows=st.integers(1, 100))
def test_steps_of_any_dask_chunks_cover_the_rows_once(sizes, chunk_rows):
    n = sum(sizes)
    with dask.config.set({"bigkernel.chunk-bytes": 1024}):
        bounds = as_rows(da.zeros((n, 1024 // (8 * chunk_rows) + 1), chunks=(tuple(sizes), -1))).bounds(settings())
    assert bounds[0] == 0
    assert bounds[-1] == n
    assert list(bounds) == sorted(bounds)
    assert set(bounds) <= {0, *np.cumsum(sizes).tolist()}


@pytest.mark.parametrize("kind", KINDS)
def test_taking_rows_equals_fancy_indexing(build, kind):
    rows, rng = build(kind), np.random.default_rng(0)
    for index in (
        np.sort(rng.choice(N, 30, replace=False)), np.array([0]), np.array([N - 1]), np.arange(N), np.array([], int),
        np.array([5, 5, 80, 80]),
    ):  # fmt: skip
        taken = rows.take(index)
        assert taken.dtype == np.float64
        assert_array_equal(taken, X[index])
        assert_array_equal(rows.take_column("y", index), Y[index])


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_mapped_in_order_and_never_stored(build, kind):
    standard = Standardize(np.linspace(-1, 1, D), np.linspace(1, 2, D))
    rows = build(kind)
    mapped = rows.map(Scale(2.0)).map(standard).map(UnitNorm())
    expected = (2.0 * X.astype(float) - standard.mean) / standard.std
    expected /= np.linalg.norm(expected, axis=1)[:, None]
    assert_allclose(mapped.take(np.arange(3, N, 7)), expected[3::7], rtol=1e-12)
    chunks = list(mapped.chunks(mapped.bounds(settings()), 16, Workspace()))
    got = np.concatenate([c.load(block, D, np.float64).copy() for c in chunks for block in c.blocks()])
    assert_allclose(got, expected, rtol=1e-12)
    assert_array_equal(np.concatenate([chunk.x for chunk in chunks]), X)
    assert rows.row_maps == ()


@pytest.mark.parametrize("kind", KINDS)
def test_restricted_rows_keep_their_ids_in_a_pickle(build, kind):
    rows = pickle.loads(pickle.dumps(build(kind).restrict(40, 95)))
    assert_rows(rows, 40, 95, first=40, bounds=(40, 60, 61, 95))


def test_restricted_rows_of_an_array_or_a_graph_are_pickled_without_the_others():
    x = np.random.default_rng(0).normal(size=(10_000, 10))
    whole = len(pickle.dumps(as_rows(x)))
    assert len(pickle.dumps(as_rows(x).restrict(0, 100))) < whole / 50
    lazy = as_rows(da.from_array(x, chunks=(100, 10)))
    assert len(pickle.dumps(lazy.restrict(500, 600))) < whole / 20


def test_columns_given_go_before_those_of_the_corpus(make_corpus):
    rows = as_rows(make_corpus(X, y=Y, classes=(0, 1, 2)), 2 - Y, group=np.arange(N))
    assert_array_equal(rows.column("y"), 2 - Y)
    assert_array_equal(rows.column("group"), np.arange(N))
    assert rows.classes == (0, 1, 2)
    assert_array_equal(as_rows(rows, Y).column("y"), Y)


@pytest.mark.parametrize("column", ["y", "weight", "domain", "group"])
@pytest.mark.parametrize("kind", ["numpy", "dask"])
def test_a_column_of_another_length_is_refused(column, kind):
    values = np.ones(N - 1) if kind == "numpy" else da.ones(N - 1)
    with pytest.raises(DataError, match=f"{column}: expected {N} values, one per row, found shape"):
        as_rows(X, **{column: values})
    with pytest.raises(DataError, match=f"{column}: expected {N} values"):
        as_rows(X, **{column: np.float64(3)})
    if column != "y":
        with pytest.raises(DataError, match=column):
            as_rows(X, Y, **{column: np.ones((N, 1))})


@pytest.mark.parametrize(
    "wrong",
    [*(X.astype(kind) for kind in (object, complex, str, "M8[s]")), X[:, 0], X[None], 3.0, "text", None, [["a"]]],
    ids=["object", "complex", "text", "dates", "vector", "cube", "number", "word", "None", "letters"],
)
def test_rows_other_than_a_matrix_of_numbers_are_refused(wrong):
    with pytest.raises(DataError, match=r"expected (numbers|a matrix)"):
        as_rows(wrong)
    if np.shape(wrong) == (N, D):
        with pytest.raises(DataError, match="y: expected numbers"):
            as_rows(X, wrong[:, 0])
        with pytest.raises(DataError, match="expected numbers"):
            as_rows(da.from_array(wrong, chunks=20))


@pytest.mark.parametrize("dtype", ["i1", "u1", "?", "f2", ">f4", ">i8"])
def test_numbers_of_any_kind_are_rows(dtype):
    x = (X > 0).astype(dtype)
    assert_array_equal(as_rows(x).take(np.arange(N)), x.astype(float))
    assert_array_equal(as_rows(da.from_array(x, chunks=20)).take(np.arange(N)), x.astype(float))


def test_dask_arrays_of_unknown_size_are_refused():
    lazy = da.from_array(X, chunks=20)
    unknown = lazy[lazy[:, 0] > 0]
    with pytest.raises(DataError, match=r"X: expected known chunk sizes, .*; call compute_chunk_sizes"):
        as_rows(unknown)
    with pytest.raises(DataError, match="y: expected known chunk sizes"):
        as_rows(X, unknown[:, 0])
    assert len(as_rows(unknown.compute_chunk_sizes())) == (X[:, 0] > 0).sum()


@pytest.mark.parametrize("kind", KINDS)
def test_taking_a_row_that_is_not_finite_names_it(build, kind):
    x = X.copy()
    x[57, 2] = np.nan
    rows = build(kind, x)
    with pytest.raises(DataError, match="row 57 contains NaN or infinity"):
        rows.take(np.array([3, 57, 90]))
    assert_array_equal(rows.take(np.array([3, 58])), x[[3, 58]])


class Slow:
    """A source that records each read, and whether the main thread made it."""

    def __init__(self, wrong=None):
        self.requested, self.wrong = [], wrong
        self.changed = threading.Condition()

    shape, dtype, steps = (60, 2), np.dtype(float), (0, 20, 40, 60)

    def read(self, start, stop):
        with self.changed:
            self.requested.append((start, threading.current_thread() is threading.main_thread()))
            self.changed.notify_all()
        if start == self.wrong:
            raise DataError("damaged")
        return np.full((stop - start, 2), float(start))

    def wait_for(self, count):
        with self.changed:
            return self.changed.wait_for(lambda: len(self.requested) >= count, timeout=10)


def test_the_next_chunk_is_read_while_the_caller_works_and_none_after_it():
    source = Slow()
    chunks = Rows(source).chunks((0, 20, 40, 60), 16, Workspace())
    for i in range(3):
        chunk = next(chunks)
        assert (chunk.start, chunk.x[0, 0]) == (20 * i, 20.0 * i)
        assert source.wait_for(min(i + 2, 3))
        # one ahead, in a thread of its own
        assert source.requested == [(20 * j, False) for j in range(min(i + 2, 3))]
    assert list(chunks) == []


def test_an_error_while_reading_ahead_comes_when_its_chunk_is_due_and_a_caller_may_stop_early():
    chunks = Rows(Slow(wrong=40)).chunks((0, 20, 40, 60), 16, Workspace())
    assert [next(chunks).start, next(chunks).start] == [0, 20]
    with pytest.raises(DataError, match="damaged"):
        next(chunks)
    threads = threading.active_count()
    early = Rows(Slow()).chunks((0, 20, 40, 60), 16, Workspace())
    next(early)
    early.close()
    assert threading.active_count() == threads


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start, stop", [(0, N), (0, 20), (13, 52), (7, 8), (31, N)])
def test_a_window_is_those_rows_and_columns_with_ids_of_its_own(build, kind, start, stop):
    rows = build(kind).window(start, stop)
    assert_rows(rows, start, stop, first=0)
    assert_array_equal(rows.take(np.array([0, stop - start - 1])), X[[start, stop - 1]])
    assert rows.restrict(0, stop - start).read(0, 1).x.shape == (1, D)


@pytest.mark.parametrize("start, stop", [(-1, 5), (5, 5), (0, N + 1)])
def test_a_window_beyond_the_rows_is_refused(build, start, stop):
    with pytest.raises(DataError, match=r"expected rows within 0 to 110, found"):
        build("corpus").window(start, stop)


def test_a_window_knows_itself_again_and_not_another(build):
    rows = build("corpus")
    assert rows.window(0, 20).x.fingerprint() == rows.window(0, 20).x.fingerprint()
    assert rows.window(0, 20).x.fingerprint() != rows.window(1, 21).x.fingerprint()
    assert rows.window(0, 20).x.fingerprint() != build("numpy", X=X + 1).window(0, 20).x.fingerprint()
