"""Kernel blocks of sparse rows: products of sparse rows and sparse landmarks, in float64, for what both have.

Of b rows with e values each and m landmarks as sparse, a block takes one addition for each value of a row and each
landmark that has a value in the same column, where dense rows take b·m·d. A row's values are added in the order of its
columns, whatever rows stand beside it, so that no chunking changes a bit. Distances are ‖x‖² + ‖z‖² − 2⟨x, z⟩: centred
rows would not be sparse, and float64 keeps more digits than float32 does about a centre. L1 distances are
‖x‖₁ + ‖z‖₁ − 2 Σ min(|x|, |z|) over the columns where both have values of one sign.

Shapes: b rows of a block, d features, m landmarks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.kernels.blocks import Bound, JoinedBound, strips
from bigkernel.streaming.row_maps import UnitNorm

if TYPE_CHECKING:
    from bigkernel.streaming.chunk import Chunk

Array = NDArray[Any]
# of a product of two sparse values, in those of a dense block in float32; measured: 100 where rows share many columns
# with a landmark, 500 to 1,500 where they share one or none. At 450 neither choice takes 1.5 times the other's time
PRODUCT_COST = 450
SPARSE_PRODUCTS = 2**33  # of a kernel matrix of dense rows, a second, from which on they are looked at for zeros
# of the points one in so many has a value in a column, that is then kept dense: additions beside one another are faster
COMMON = 32
STRIP_BYTES = 2**20  # of float64 values, and of the sparse product that they come from, that are worked on at a time
_PAIRS = 2**18  # of values in one column that L1 distances look at at once


@dataclass(frozen=True, eq=False)
class SparsePoints:
    """Points (m, d), almost all of whose values are 0: SciPy's CSR as plain arrays.

    Attributes
    ----------
    data, indices : (e,) float64 and integers, the values of a point by rising columns
    indptr : (m + 1,) where the values of a point begin
    n_features : d
    """

    data: Array
    indices: Array
    indptr: Array
    n_features: int

    @classmethod
    def of(cls, matrix: Any) -> SparsePoints:
        """A dense or sparse matrix (m, d) as points."""
        csr = _csr(matrix, dtype=np.float64)
        csr.sum_duplicates()
        return cls(csr.data, csr.indices, csr.indptr, csr.shape[1])

    @classmethod
    def where_cheaper(cls, Z: Array) -> SparsePoints | None:
        """Points of landmarks Z (m, d) where blocks of rows as sparse as they cost less as sparse products; else None.

        Examples
        --------
        >>> SparsePoints.where_cheaper(np.eye(300)).shape, SparsePoints.where_cheaper(np.ones((9, 9)))
        ((300, 300), None)
        """
        filled = np.zeros(Z.shape[1])
        for strip in strips(Z):
            filled += np.count_nonzero(Z[strip], axis=0)
        products = (filled**2).sum() / max(1, len(Z))  # of a row that is as the landmarks are, with all of them
        return cls.of(Z) if products * PRODUCT_COST < Z.size else None

    @property
    def shape(self) -> tuple[int, int]:
        """(m, d)."""
        return len(self.indptr) - 1, self.n_features

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """All of them, dense."""
        return np.asarray(self.csr.toarray(), dtype)

    @property
    def nbytes(self) -> int:
        """Of the three arrays."""
        return self.data.nbytes + self.indices.nbytes + self.indptr.nbytes

    @property
    def csr(self) -> Any:
        """As SciPy's csr_array, which shares the arrays."""
        return _csr((self.data, self.indices, self.indptr), shape=self.shape)

    @cached_property
    def by_column(self) -> Any:
        """The points as columns, (d, m) csr_array."""
        return self.csr.T.tocsr()

    @cached_property
    def _factors(self) -> tuple[Array, Array, Any]:
        """Places of features that many points have, (d,), −1: another one; their columns, (k, m); the rest, (d, m)."""
        columns, counts = self.by_column, np.diff(self.by_column.indptr)
        common = np.flatnonzero(counts * COMMON > len(self))
        places = np.full(self.n_features, -1, columns.indices.dtype)
        places[common] = np.arange(len(common))
        rest = columns.copy()
        rest.data[np.repeat(places >= 0, counts)] = 0
        rest.eliminate_zeros()
        return places, columns[common].toarray(), rest

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("by_column", "_factors")}

    def products(self, x: Any, out: Array) -> Array:
        """⟨x, z⟩ of rows, csr_array (b, d) of float64, and all points, in the first rows of a buffer (≥ b, m)."""
        places, dense, rest = self._factors
        values = out[: x.shape[0]]
        of_common = places[x.indices] >= 0
        if not of_common.any():
            (x @ rest).toarray(out=values)
            return values
        before = np.concatenate([[0], np.cumsum(of_common)]).astype(x.indptr.dtype)[x.indptr]
        head = (x.data[of_common], places[x.indices[of_common]], before)
        tail = (x.data[~of_common], x.indices[~of_common], x.indptr - before)
        (_csr(tail, shape=x.shape) @ rest).toarray(out=values)
        values += _csr(head, shape=(x.shape[0], len(dense))) @ dense
        return values

    def columns(self, chosen: Array) -> SparsePoints:
        """The same points in some of the columns (k,)."""
        return SparsePoints.of(self.csr[:, chosen])

    def scaled(self, factors: Array) -> SparsePoints:
        """The same points with column j multiplied by factors[j], (d,)."""
        return SparsePoints(self.data * factors[self.indices], self.indices, self.indptr, self.n_features)

    def at_length_one(self) -> SparsePoints:
        """The same points divided by their norms; zeros stay."""
        return SparsePoints.of(UnitNorm().apply_sparse(self.csr.copy()))

    @property
    def products_per_row(self) -> float:
        """Products of two values that a row takes that is as they are."""
        return float((np.bincount(self.indices, minlength=1).astype(np.float64) ** 2).sum()) / max(1, len(self))

    @property
    def row_bytes(self) -> int:
        """Of a row as sparse as they are, and of what is made of it on its way to a block."""
        return 4 * self.nbytes // max(1, len(self))

    @property
    def prepared_bytes(self) -> int:
        """Of the points with what is prepared from them, and of the strips that a block is worked on by."""
        dense = int((np.bincount(self.indices, minlength=1) * COMMON > len(self)).sum())
        return 3 * self.nbytes + 8 * dense * len(self) + 32 * self.n_features + 5 * STRIP_BYTES


@dataclass
class SparseBound(Bound):
    """k(·, Z) of sparse landmarks, for rows that are a csr_array (b, d) of float64. Made by `Kernel.bind`.

    Attributes
    ----------
    points : the landmarks, as the rows are stretched
    argument : "euclidean", "manhattan", "inner" or "cosine"
    gamma : γ of −γ‖x−z‖²
    kinked : distances of rows that nearly touch a landmark are computed from differences
    """

    points: SparsePoints | None = None
    argument: str = "inner"
    gamma: float = 1.0
    kinked: bool = False

    @classmethod
    def made(cls, value: Any, points: SparsePoints, dtype: Any, **how: Any) -> SparseBound:
        """Of a method of a kernel and landmarks."""
        none = np.empty((points.n_features, 0), dtype)
        return cls(value, none, None, how.pop("stretch", None), None, points.n_features, points=points, **how)

    @classmethod
    def of_lengths(
        cls, value: Any, Z: SparsePoints, gamma: float, lengths: Array | None, dtype: Any, *, kinked: bool
    ) -> SparseBound:
        """Landmarks prepared for −γ‖x−z‖², in rows divided by one length a feature (d,), if there are such."""
        how: dict[str, Any] = {"argument": "euclidean", "gamma": gamma, "kinked": kinked}
        if lengths is None:
            return cls.made(value, Z, dtype, **how)
        return cls.made(value, Z.scaled(1 / lengths), dtype, stretch=1 / lengths, **how)

    @property
    def nbytes(self) -> int:
        assert self.points is not None
        return self.points.nbytes

    @property
    def row_bytes(self) -> int:
        """Of a row as sparse as a landmark, and what is made of it."""
        assert self.points is not None
        return self.points.row_bytes

    def products_per_row(self, width: int) -> float:
        """See `Bound`."""
        assert self.points is not None
        return self.points.products_per_row

    def spare_bytes(self, columns: int) -> int:
        """What is prepared, and the strips of a block."""
        assert self.points is not None
        return self.points.prepared_bytes

    def load(self, chunk: Chunk, block: slice | Array) -> Any:
        """Rows of a block, csr_array (b, d)."""
        return chunk.load_sparse(block)

    def rows_of(self, x: Any) -> Any:
        """Rows, dense or sparse, that `place` may change."""
        return _csr(x, dtype=np.float64, copy=True)

    def place(self, rows: Any) -> None:
        """Stretch rows as the landmarks are, in place."""
        if self.stretch is not None:
            rows.data *= self.stretch[rows.indices]
        if self.argument == "cosine":
            UnitNorm().apply_sparse(rows)

    def multiply(self, rows: Any, out: Array, some: slice = slice(None)) -> None:
        """out (b, s) ← the argument of placed rows and some of the landmarks."""
        assert self.points is not None
        whole = some.indices(len(self.points)) == (0, len(self.points), 1)
        points = self.points if whole else SparsePoints.of(self.points.csr[some])
        fill = self._distances if self.argument == "euclidean" else self._products
        fill = self._sums if self.argument == "manhattan" else fill
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite product is a value of tanh; sums are looked at
            fill(rows, points, out)

    def _products(self, rows: Any, points: SparsePoints, out: Array) -> None:
        """⟨x, z⟩."""
        buffer = _buffer(out)
        for strip in _strips(out):
            out[strip] = points.products(rows[strip], buffer)

    def _distances(self, rows: Any, points: SparsePoints, out: Array) -> None:
        """−γ‖x−z‖² = 2γ⟨x, z⟩ − γ‖x‖² − γ‖z‖²."""
        squares, of_rows = sums_of(points.csr, np.square), sums_of(rows, np.square)
        far = ~(of_rows < self.far)  # beyond float64: farther than any landmark matters
        buffer = _buffer(out)
        for strip in _strips(out):
            x = rows[strip]
            values = points.products(x, buffer)
            values *= 2.0
            values -= of_rows[strip, None]
            values -= squares
            if self.kinked:
                _look_again(x, points, of_rows[strip], values)
            values *= self.gamma
            values[far[strip]] = -np.inf
            np.maximum(values, -self.horizon, out=values)
            out[strip] = values

    def _sums(self, rows: Any, points: SparsePoints, out: Array) -> None:
        """‖x−z‖₁, from what rows and landmarks have in the same columns."""
        columns, m, lengths = points.by_column, len(points), sums_of(points.csr, np.abs)
        of_rows = sums_of(rows, np.abs)
        for first, stop in _within(np.diff(columns.indptr)[rows.indices], rows.indptr, out.shape[1]):
            x = rows[first:stop]
            starts, counts = columns.indptr[x.indices], np.diff(columns.indptr)[x.indices]
            ends = np.cumsum(counts)
            places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - counts), counts)
            row = np.repeat(np.repeat(np.arange(stop - first), np.diff(x.indptr)), counts)
            ours, theirs = np.repeat(x.data, counts), columns.data[places]
            # |x − z| − |x| − |z| = −2 min(|x|, |z|) where both have one sign, else 0
            common = np.where((ours > 0) == (theirs > 0), 2 * np.minimum(np.abs(ours), np.abs(theirs)), 0.0)
            shared = np.bincount(row * m + columns.indices[places], common, (stop - first) * m)
            values = of_rows[first:stop, None] + lengths - shared.reshape(-1, m)
            out[first:stop] = np.maximum(values, 0, out=values)

    @property
    def blur(self) -> float:
        """The error of γ‖x−z‖² that rounding may cause, where rows are as long as the longest landmark."""
        assert self.points is not None
        limits, largest = np.finfo(np.float64), float(sums_of(self.points.csr, np.square).max(initial=0.0))
        vanish = self.gamma * largest > limits.eps and largest < 1e6 * float(limits.tiny)
        far = self.gamma > float(np.finfo(self.dtype).max) / 1e6 or vanish
        return np.inf if far else self.gamma * largest * float(limits.eps)

    @property
    def far(self) -> float:
        """The largest ‖x‖² that is told from infinity."""
        return float(np.finfo(np.float64).max) / 16

    @property
    def horizon(self) -> float:
        """The largest γ‖x−z‖² of a block."""
        return float(np.finfo(self.dtype).max) / 16


@dataclass
class SparseJoinedBound(JoinedBound):
    """Sparse landmarks prepared for a kernel made of kernels."""

    def load(self, chunk: Chunk, block: slice | Array) -> Any:
        """Rows of a block, csr_array (b, d)."""
        return chunk.load_sparse(block)

    def rows_of(self, x: Any) -> Any:
        """The rows: each part takes what it changes."""
        return _csr(x)

    @property
    def row_bytes(self) -> int:
        """Of a row, and of what its parts make of it."""
        return 2 * max(bound.row_bytes for bound, _ in self.parts)

    def products_per_row(self, width: int) -> float:
        """See `Bound`."""
        return max(bound.products_per_row(width) for bound, _ in self.parts)


def _look_again(x: Any, points: SparsePoints, squares: Array, values: Array) -> None:
    """Compute the few −‖x−z‖², of those of magnitude < √eps·‖x‖², from the differences."""
    near = values > -(np.finfo(np.float64).eps ** 0.5) * squares[:, None]
    near |= (squares == 0)[:, None] & (values == 0)
    i, j = np.nonzero(near)
    for first in range(0, len(i), 4096):
        part = slice(first, first + 4096)
        values[i[part], j[part]] = -sums_of(x[i[part]] - points.csr[j[part]], np.square)


def sums_of(rows: Any, function: Any) -> Array:
    """Σ function(value) over each row of a csr_array, (b,), in the order of its columns."""
    places = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    with np.errstate(over="ignore", invalid="ignore"):
        return np.bincount(places, function(rows.data.astype(np.float64, copy=False)), rows.shape[0])


def _strip_rows(out: Array) -> int:
    """Rows whose float64 values take `STRIP_BYTES`."""
    return int(max(1, STRIP_BYTES // (8 * max(1, out.shape[1]))))


def _buffer(out: Array) -> Array:
    """Room for the float64 values of a strip, (rows, m)."""
    return np.empty((min(len(out), _strip_rows(out)), out.shape[1]))


def _strips(out: Array) -> Iterator[slice]:
    """Slices of rows whose float64 values take `STRIP_BYTES`."""
    rows = _strip_rows(out)
    for start in range(0, len(out), rows):
        yield slice(start, min(start + rows, len(out)))


def _within(counts: Array, indptr: Array, width: int) -> Iterator[tuple[int, int]]:
    """First and last row of pieces with `_PAIRS` values to look at, or one row; `counts`: of each value of the rows."""
    n, most = len(indptr) - 1, max(1, STRIP_BYTES // (8 * max(1, width)))
    before = np.concatenate([[0], np.cumsum(counts)])[indptr]
    start = 0
    while start < n:
        stop = int(np.searchsorted(before, before[start] + _PAIRS, "right")) - 1
        stop = min(max(stop, start + 1), start + most, n)
        yield start, stop
        start = stop


def _csr(*given: Any, **options: Any) -> Any:
    """A csr_array; what predicts dense rows alone does without SciPy."""
    from scipy import sparse

    return sparse.csr_array(*given, **options)
