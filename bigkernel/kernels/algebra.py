"""The base class of kernels, their evaluation in blocks, and sums, products, multiples and kernels on some columns.

Kernels are small callable values, `k(X, Z)`. For the fast block path, `k.bind(Z, dtype)` prepares landmarks Z once and
returns a `PreparedLandmarks`, which fills preallocated blocks and allocates no more than a few strips itself. Shapes:
X (n, d) rows, b of a block, Z (m, d) landmarks, k(X, Z) (n, m), k.diag(X) (n,).

Sums and products of positive definite kernels are positive definite, and so is c·k for c > 0 (Schölkopf & Smola, 2002,
ch. 13.1). `Gaussian(1.0) + 0.5 * Linear()` and `Gaussian(2.0) * Polynomial(2)` write them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike

from bigkernel.arrays import Array, DType
from bigkernel.errors import ConfigError, DataError
from bigkernel.streaming.devices import NUMPY, all_of, converted, dtype_of, empty_like, namespace, row_squares, write
from bigkernel.streaming.plan import NOT_COMPARED

_FAR = 1e3  # factor that γ keeps from the ends of the range of a dtype, where rows are not scaled
_TERM_ROWS = 128  # rows of a block for which the terms of a composite kernel are computed in turn
_LINES = 64  # lines of a matrix at a time, whole cache lines of either triangle
_STRIP_BYTES = 2**18  # in-place passes go over the block in strips of this size, so that a strip stays in cache


def strips(block: Array) -> list[slice]:
    """Split `block` into slices of rows that each stay in cache; on a device it is one."""
    if not isinstance(block, NUMPY):
        return [slice(0, block.shape[0])]
    rows = max(1, _STRIP_BYTES // max(1, block[:1].nbytes))
    return [slice(i, i + rows) for i in range(0, len(block), rows)]


class Kernel:
    """The base of all kernels; subclasses are dataclasses of their parameters.

    `get_params` and `set_params` are scikit-learn's, so that `kernel__sigma` works in a grid search.
    """

    name: ClassVar[str]
    positive: ClassVar[bool] = True  # definite, for every valid parameter value
    precomputed: ClassVar[bool] = False  # rows hold kernel values instead of features: k(x, x) of a new row is unknown
    leaves: ClassVar[int] = 1  # number of simple kernels in it, hence of matrix products per block
    kinked: ClassVar[bool] = False  # the slope in ‖x−z‖² is infinite at 0: the square root of its rounding counts
    of_distance: ClassVar[bool] = True  # a function of ‖x−z‖

    def prepared_bytes(self, m: int, d: int, itemsize: int) -> int:
        """Return the bytes that `bind` takes for m landmarks of d features, with the buffers of blocks.

        Kinked kernels keep the landmarks beside the factors of the product.
        """
        return m * (d + 2) * (1 + self.kinked) * itemsize

    def describe(self) -> dict[str, object]:
        """Return name and parameters as plain data for reports."""
        return {"name": self.name, **self.get_params()}

    def formula(self) -> str:
        """Return the kernel as an expression, for messages."""
        values = ((name, np.asarray(value)) for name, value in self.get_params().items())
        inside = ", ".join(f"{name}={value if value.ndim == 0 else value.shape}" for name, value in values)
        return f"{self.name}({inside})" if inside else self.name

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters by name; with `deep` also those of nested kernels, as `k1__sigma`."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        inner = {name: value.get_params() for name, value in own.items() if deep and isinstance(value, Kernel)}
        return own | {f"{name}__{key}": value for name, params in inner.items() for key, value in params.items()}

    def set_params(self, **params: object) -> Kernel:
        """Set parameters by name and return the kernel; scikit-learn's convention."""
        for key, value in params.items():
            name, _, rest = key.partition("__")
            if key not in self.get_params():
                raise ConfigError(
                    f"{self.name} kernel: unknown parameter {key!r}; expected one of {sorted(self.get_params())}"
                )
            if rest:
                getattr(self, name).set_params(**{rest: value})
            else:
                setattr(self, name, value)
        return self

    def __add__(self, other: object) -> Kernel:
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: object) -> Kernel:
        if isinstance(other, Kernel):
            return Product(self, other)
        return Scaled(self, float(other)) if isinstance(other, int | float | np.number) else NotImplemented

    __rmul__ = __mul__

    def __call__(self, X: Array, Z: Array | None = None) -> Array:
        """Compute the kernel matrix, shape (n, m); (n, n) and exactly symmetric when Z is not given.

        float32 if both inputs are, float64 otherwise. "scale" parameters are computed from Z.
        """
        X = np.atleast_2d(np.asarray(X))
        other = X if Z is None else np.atleast_2d(np.asarray(Z))
        if X.shape[1] != other.shape[1]:
            raise DataError(
                f"{self.name} kernel: expected the same number of features in X and Z, found "
                f"{X.shape[1]} and {other.shape[1]}"
            )
        dtype = np.float32 if X.dtype == other.dtype == np.float32 else np.float64
        prepared = self.resolve(other).bind(other, dtype)
        if Z is not None:
            return prepared.values(X, len(other))
        gram = prepared.gram()
        return _symmetrize(prepared.values(X, len(X))) if gram is None else gram

    def diag(self, X: Array) -> Array:
        """Compute k(x, x) for every row, shape (n,): 1 for kernels of the distance."""
        return np.ones(len(X))

    def resolve(self, Z: Array, weight: Array | None = None) -> Kernel:
        """Check the parameters and return a copy with "scale" and "auto" replaced by numbers for (weighted) rows Z."""
        return replace(self)  # type: ignore[type-var]

    def widths(self) -> tuple[float, Array | None]:
        """Return γ and lengths per feature (or None) of the kernel's argument −γ‖x−z‖²."""
        raise TypeError(f"{self.name}: expected a kernel of the Euclidean distance")

    def finish(self, strip: Array) -> None:
        """Turn a strip of the argument into kernel values, in place; by default they are the same."""

    def bind(self, Z: Array, dtype: DTypeLike = np.float64, *, touching: bool = False) -> PreparedLandmarks:
        """Prepare landmarks Z (m, d) for blocks of `dtype`.

        With `touching`, distances of rows that nearly coincide with a landmark keep their digits, as they always do for
        `kinked` kernels: for kernels that share a block with one of these.

        Raises
        ------
        DataError
            float32 cannot resolve the distances between these landmarks at this bandwidth.
        """
        block_dtype: DType = np.dtype(dtype)
        Z = np.asarray(Z, np.float64)
        if not self.of_distance:
            return PreparedLandmarks(self.finish, np.ascontiguousarray(Z.T, block_dtype), Z.shape[1])
        (gamma, lengths), limits = self.widths(), np.finfo(block_dtype)
        unit = exact_unit(gamma**0.5, block_dtype)
        if unit != 1:
            gamma, lengths = gamma / unit / unit, np.full(Z.shape[1], 1 / unit)
        weights, squares = np.empty((Z.shape[1] + 2, len(Z)), block_dtype), np.empty(len(Z))
        transformed = np.empty(Z.shape, block_dtype) if touching or self.kinked else None
        with np.errstate(over="ignore", invalid="ignore"):
            # the mean in the dtype of the blocks, the same for rows and landmarks
            shift, lost = Z.mean(axis=0).astype(block_dtype), rounding_of(Z, block_dtype)
            stretch = None if lengths is None else (1 / lengths).astype(block_dtype)
            if stretch is not None:
                lost *= stretch
            for strip in strips(Z):
                centred = Z[strip] - shift.astype(np.float64)
                if stretch is not None:
                    centred *= stretch.astype(np.float64)
                centred[...] = centred.astype(block_dtype)
                squares[strip] = np.einsum("ij,ij->i", centred, centred)
                np.multiply(centred.T, 2 * gamma, out=weights[:-2, strip], casting="same_kind")
                if transformed is not None:
                    transformed[strip] = centred
            # rounding of γ‖x−z‖², by the product and of the values themselves
            largest = float(squares.max(initial=0.0))
            blur = float(gamma * largest * limits.eps + (2 * gamma) ** 0.5 * np.linalg.norm(lost))
            # [x, ‖x‖², 1] · [2γz, −γ, −γ‖z‖²] = −γ‖x−z‖²
            weights[-2] = -gamma
            weights[-1] = -gamma * squares
        refuse_blur(self.name, block_dtype, blur)
        return PreparedLandmarks(
            self.finish, weights, Z.shape[1], float(block_dtype.type(gamma)), shift, stretch, transformed
        )


@dataclass
class PreparedLandmarks:
    """k(·, Z) with Z prepared: fills blocks in preallocated buffers. Made by `Kernel.bind`.

    Call `place(rows)`, `multiply(rows, out)`, then `value` on strips of `out` (b, m). `rows` is a buffer of as many
    columns as `weights` has rows, with x in its first d, which is overwritten. Both are of `dtype`, C-contiguous, and
    of the library and on the device of `weights` (`Device.moved`).
    """

    # turns a strip of the argument into kernel values, in place; a method of the kernel, which is compared itself
    value: Callable[[Array], None] = field(metadata=NOT_COMPARED)
    weights: Array  # (columns, m): right factor of the product; (d, 0) for kernels that need no product
    n_features: int
    gamma: float = 1.0  # in the dtype of the blocks
    shift: Array | None = None  # (d,): subtracted from the rows; None for kernels of the inner product
    stretch: Array | None = None  # (d,): the rows are multiplied by it (one length per feature)
    touching: Array | None = None  # (m, d) shifted and stretched, to recompute small distances from

    @property
    def dtype(self) -> DType:
        """float32 or float64, of the rows, the block and the product."""
        return dtype_of(self.weights)

    @property
    def nbytes(self) -> int:
        """Bytes of the prepared arrays."""
        return self.weights.nbytes + (0 if self.touching is None else self.touching.nbytes)

    def spare_bytes(self, columns: int) -> int:
        """Return the bytes of buffers beside the block for values at `columns` landmarks."""
        return 0

    def place(self, rows: Array) -> None:
        """Shift and stretch rows like the landmarks, in place; kernels of the distance append ‖x‖² and 1."""
        d = self.n_features
        x = rows[:, :d]
        if self.shift is not None:
            x -= self.shift
        if self.stretch is not None:
            x *= self.stretch
        if self.weights.shape[0] > d:
            with np.errstate(over="ignore", invalid="ignore"):
                rows[:, d] = row_squares(x)
            # beyond this squared distance from the landmarks' mean a row counts as infinitely far
            horizon = float(np.finfo(self.dtype).max) / (16 * max(1.0, self.gamma))
            near = rows[:, d] < horizon
            if not all_of(near):  # their squares would overflow, or give ∞ − ∞
                xp = namespace(rows)
                x[...], rows[:, d] = xp.where(near[:, None], x, 0), xp.where(near, rows[:, d], horizon)
            rows[:, d + 1] = 1

    def multiply(self, rows: Array, out: Array, some: slice = slice(None)) -> None:
        """Write −γ‖x−z‖², ⟨x,z⟩ or ‖x−z‖₁ of placed rows and `some` landmarks into out (b, s)."""
        with np.errstate(over="ignore", invalid="ignore"):  # tanh takes infinite products; sums are checked later
            write(out, "matmul", rows, self.weights[:, some])
        if self.touching is not None:
            self._recompute_small(rows, out, self.touching[some, :])

    def _recompute_small(self, rows: Array, out: Array, landmarks: Array) -> None:
        """Recompute the few ‖x−z‖² < √eps·‖x‖² from differences: the product loses half of their digits."""
        x, squares = rows[:, : self.n_features], rows[:, self.n_features]
        limits = (-self.gamma * float(np.finfo(self.dtype).eps) ** 0.5 * squares)[:, None]
        most = max(1, _STRIP_BYTES // (self.dtype.itemsize * max(1, self.n_features)))
        xp = namespace(out)
        for strip in strips(out):
            near, values = x[strip, :], out[strip, :]
            small = values > limits[strip, :]
            flat = xp.nonzero(xp.reshape(small, (-1,)))[0]
            again = []
            for first in range(0, flat.shape[0], most):
                places, m = flat[first : min(first + most, flat.shape[0])], values.shape[1]
                gap = xp.take(near, places // m, axis=0) - xp.take(landmarks, places % m, axis=0)
                again.append(row_squares(gap))
            if again:
                values[small] = -self.gamma * xp.concat(again)

    def values(self, x: Array, count: int, some: slice = slice(None)) -> Array:
        """Compute k of rows x (b, d) and `some` landmarks, (b, count); x is not changed."""
        b = x.shape[0]
        rows, out = empty_like(self.weights, (b, self.weights.shape[0])), empty_like(self.weights, (b, count))
        rows[:, : self.n_features] = x
        self.place(rows)
        self.multiply(rows, out, some)
        for strip in strips(out):
            self.value(out[strip, :])
        return out

    def gram(self) -> Array | None:
        """Compute k(Z, Z) (m, m), exactly symmetric, from one triangle; None unless a float64 product gives it."""
        of_distance, d, gamma = len(self.weights) > self.n_features, self.n_features, self.gamma
        plain = type(self) is PreparedLandmarks and self.touching is None and self.dtype == np.float64
        if not plain:
            return None
        from bigkernel.kernels.blas import mirror, syrk  # loads SciPy, which predictors do without

        out = np.empty((self.weights.shape[1],) * 2)
        syrk(self.weights[:d], out, accumulate=False)
        # (2γz)ᵀ(2γz') to 2γzᵀz' − γ‖z‖² − γ‖z'‖², which is 0 on the diagonal
        scale = 1 / (2 * gamma)
        squares = np.diagonal(out) * (scale / 2)
        for i in range(0, len(out), _LINES):
            j = min(i + _LINES, len(out))
            out[i:j, i:j] = np.triu(out[i:j, i:j])  # below the diagonal is undefined
            for strip in strips(out[i:j, i:]):
                values = out[i:j, i:][strip]
                if of_distance:
                    values *= scale
                    values -= squares[i:j][strip, None]
                    values -= squares[i:]
                self.value(values)
        mirror(out)
        return out


def _symmetrize(matrix: Array) -> Array:
    """Replace M (n, n) by (M + Mᵀ)/2, some lines at a time."""
    for start in range(0, len(matrix), _LINES):
        rows = slice(start, start + _LINES)
        # these entries have not been written yet
        half = matrix[rows, start:] + matrix[start:, rows].T
        half *= 0.5
        matrix[rows, start:] = half
        matrix[start:, rows] = half.T
    return matrix


def rounding_of(Z: Array, dtype: DTypeLike) -> Array:
    """Compute the largest |z − z rounded to `dtype`| of every feature, (d,)."""
    lost = np.zeros(Z.shape[1])
    for strip in strips(Z):
        np.maximum(lost, np.abs(Z[strip].astype(dtype) - Z[strip]).max(axis=0, initial=0.0), out=lost)
    return lost


def exact_unit(size: float, dtype: DTypeLike) -> float:
    """Return a power of two near `size` if squares of 1/size leave the range of `dtype`, else 1.

    Multiplying rows of about 1/size by it brings their squares into the range and changes no digit.
    """
    limits = np.finfo(np.dtype(dtype))
    end = float(limits.max) ** 0.25
    if 1 / end < size < end:
        return 1.0
    return float(np.ldexp(1.0, np.clip(np.frexp(size)[1], 8 - limits.maxexp, limits.maxexp - 8)))


def require_range(kernel: str, dtype: DTypeLike, gamma: float) -> None:
    """Raise `DataError` if γ or its products lose digits at an end of the range of `dtype`."""
    limits = np.finfo(np.dtype(dtype))
    if not _FAR * float(limits.tiny) < gamma < float(limits.max) / _FAR:
        raise DataError(
            f"{kernel} kernel: expected gamma from {_FAR * float(limits.tiny):.0e} to {float(limits.max) / _FAR:.0e} "
            f"in {limits.dtype}, found {gamma:.1e}; use dtype='float64', or scale the rows"
        )


def refuse_blur(kernel: str, dtype: DType, blur: float) -> None:
    """Raise `DataError` if rounding to `dtype` changes distances by a hundredth of a bandwidth or more."""
    if not blur < 0.01:
        raise DataError(
            f"{kernel} kernel: rounding error of the distances between landmarks in {dtype} is {blur:.1e} bandwidths "
            "(expected below 0.01); use dtype='float64', scale or shift the rows, or use a larger bandwidth"
        )


@dataclass
class PreparedPoints(PreparedLandmarks):
    """Unprepared landmarks, for kernels whose argument is no product: their `fill` computes it by strips of rows."""

    kernel: Any = None  # `fill(x, points, some, out)` writes the argument of rows x (b, d) and points (s, d) into out
    points: Array | None = None  # (m, d), or None if the kernel needs none
    strip_bytes: int = 0  # buffers of a strip; 0: those of the points in float64

    @property
    def nbytes(self) -> int:
        return 0 if self.points is None else self.points.nbytes

    def spare_bytes(self, columns: int) -> int:
        """Return the bytes of the buffers of a strip."""
        return self.strip_bytes or 8 * columns * self.n_features

    def multiply(self, rows: Array, out: Array, some: slice = slice(None)) -> None:
        """Write the argument of rows and `some` landmarks into out (b, s), by `fill` of the kernel."""
        points = None if self.points is None else converted(self.points[some, :], np.float64)
        for strip in strips(out):
            self.kernel.fill(rows[strip, : self.n_features], points, some, out[strip, :])


@dataclass
class _PreparedTerms(PreparedLandmarks):
    """Landmarks prepared for a composite kernel: `multiply` writes kernel values, and `value` keeps them."""

    # prepared landmarks of each term, and the columns (k,) of the rows that it uses; None: all
    terms: Sequence[tuple[PreparedLandmarks, Array | None]] = ()
    join: np.ufunc = np.add  # combines two terms
    factor: float = 1.0  # of the result

    @property
    def nbytes(self) -> int:
        return sum(prepared.nbytes for prepared, _ in self.terms)

    def spare_bytes(self, columns: int) -> int:
        """Return the bytes of some rows of a term and of its own buffers."""
        rows = _TERM_ROWS * (columns + self.n_features + 2) * self.dtype.itemsize
        return rows + max(prepared.spare_bytes(columns) for prepared, _ in self.terms)

    def multiply(self, rows: Array, out: Array, some: slice = slice(None)) -> None:
        """Write k of rows and `some` landmarks into out (b, s), some rows at a time so that a term stays small."""
        b, factor = out.shape[0], float(self.dtype.type(self.factor))
        step = _TERM_ROWS if isinstance(out, NUMPY) else max(1, b)
        for start in range(0, b, step):
            strip = slice(start, min(start + step, b))
            x, values = rows[strip, : self.n_features], out[strip, :]
            for number, (prepared, columns) in enumerate(self.terms):
                own = x if columns is None else namespace(x).take(x, columns, axis=1)
                value = prepared.values(own, out.shape[1], some)
                if number:
                    write(values, self.join.__name__, values, value)
                else:
                    values[...] = value
            if factor != 1:
                values *= factor


class _Composite(Kernel):
    """A kernel made of others, which provide the block path and the "scale" parameters."""

    of_distance: ClassVar[bool] = False
    _join: ClassVar[np.ufunc] = np.add  # combines two terms

    @property
    def terms(self) -> tuple[Kernel, ...]:
        """The kernels that it is made of."""
        values = (getattr(self, one.name) for one in fields(self))  # type: ignore[arg-type]
        return tuple(value for value in values if isinstance(value, Kernel))

    @property
    def positive(self) -> bool:  # type: ignore[override]
        return all(term.positive for term in self.terms)

    @property
    def precomputed(self) -> bool:  # type: ignore[override]
        return any(term.precomputed for term in self.terms)

    @property
    def leaves(self) -> int:  # type: ignore[override]
        return sum(term.leaves for term in self.terms)

    @property
    def kinked(self) -> bool:  # type: ignore[override]
        return any(term.kinked for term in self.terms)

    def prepared_bytes(self, m: int, d: int, itemsize: int) -> int:
        """Return the bytes of all terms, of the columns of one term, and of some rows of it."""
        prepared = sum(term.prepared_bytes(m, d, itemsize) for term in self.terms)
        return prepared + 8 * m * d + _TERM_ROWS * (m + d + 2) * itemsize

    def describe(self) -> dict[str, object]:
        """Return the expression of the kernel as its name."""
        return {"name": self.formula()}

    def bind(self, Z: Array, dtype: DTypeLike = np.float64, *, touching: bool = False) -> PreparedLandmarks:
        Z, chosen = np.asarray(Z), self._columns(np.shape(Z)[1])
        own = Z if chosen is None else Z[:, chosen]
        terms = tuple((term.bind(own, dtype, touching=touching), chosen) for term in self.terms)
        none, factor = np.empty((Z.shape[1], 0), dtype), float(getattr(self, "factor", 1.0))
        return _PreparedTerms(self.finish, none, Z.shape[1], terms=terms, join=self._join, factor=factor)

    def _columns(self, n_features: int) -> Array | None:
        """Return the columns that the terms use; None: all."""
        return None

    def _require_kernels(self, *terms: object) -> None:
        for term in terms:
            if not isinstance(term, Kernel):
                raise ConfigError(f"{self.name} kernel: expected kernels, found {type(term).__name__}")


@dataclass
class _Pair(_Composite):
    k1: Kernel
    k2: Kernel
    _sign: ClassVar[str]

    def formula(self) -> str:
        return f"({self.k1.formula()} {self._sign} {self.k2.formula()})"

    def resolve(self, Z: Array, weight: Array | None = None) -> Kernel:
        self._require_kernels(self.k1, self.k2)
        return replace(self, k1=self.k1.resolve(Z, weight), k2=self.k2.resolve(Z, weight))

    def diag(self, X: Array) -> Array:
        return np.asarray(self._join(self.k1.diag(X), self.k2.diag(X)))


@dataclass
class Sum(_Pair):
    """k1(x, z) + k2(x, z), also written `k1 + k2`.

    Parameters
    ----------
    k1, k2 : Kernel
        Their parameters are named `k1__sigma` and so on.

    Examples
    --------
    >>> from bigkernel import Gaussian, Linear
    >>> (Gaussian(1.0) + 0.5 * Linear())([[1.0]], [[1.0], [3.0]]).round(4)
    array([[1.5   , 1.6353]])
    """

    name: ClassVar[str] = "sum"
    _sign: ClassVar[str] = "+"


@dataclass
class Product(_Pair):
    """k1(x, z) · k2(x, z), also written `k1 * k2`.

    Parameters
    ----------
    k1, k2 : Kernel
        Their parameters are named `k1__sigma` and so on.
    """

    name: ClassVar[str] = "product"
    _sign: ClassVar[str] = "*"
    _join: ClassVar[np.ufunc] = np.multiply


@dataclass
class Scaled(_Composite):
    """factor · k(x, z), also written `factor * k`.

    Parameters
    ----------
    kernel : Kernel
    factor : float > 0
    """

    kernel: Kernel
    factor: float = 1.0
    name: ClassVar[str] = "scaled"

    def formula(self) -> str:
        return f"{self.factor:g} * {self.kernel.formula()}"

    def resolve(self, Z: Array, weight: Array | None = None) -> Kernel:
        self._require_kernels(self.kernel)
        sound = isinstance(self.factor, int | float | np.number) and not isinstance(self.factor, bool)
        if not sound or not 1e-160 < self.factor < 1e160:
            raise ConfigError(f"scaled kernel: expected a finite factor above 0, found {self.factor!r}")
        return replace(self, kernel=self.kernel.resolve(Z, weight))

    def diag(self, X: Array) -> Array:
        return self.factor * self.kernel.diag(X)


@dataclass
class OnColumns(_Composite):
    """k(x, z) on some columns of the rows: one kernel for pixels, say, and another for other measurements.

    Parameters
    ----------
    kernel : Kernel
    columns : sequence of int
        Indices of the columns, from 0, without repetition.

    Examples
    --------
    >>> from bigkernel import Gaussian, Linear
    >>> k = OnColumns(Gaussian(1.0), [0]) * OnColumns(Linear(), [1])
    >>> k([[0.0, 3.0]], [[0.0, 2.0]])
    array([[6.]])
    """

    kernel: Kernel
    columns: Sequence[int]
    name: ClassVar[str] = "columns"

    def formula(self) -> str:
        return f"{self.kernel.formula()} of {np.size(self.columns)} columns"

    def resolve(self, Z: Array, weight: Array | None = None) -> Kernel:
        self._require_kernels(self.kernel)
        return replace(self, kernel=self.kernel.resolve(np.asarray(Z)[:, self._columns(np.shape(Z)[1])], weight))

    def diag(self, X: Array) -> Array:
        return self.kernel.diag(np.asarray(X)[:, self._columns(np.shape(X)[1])])

    def _columns(self, n_features: int) -> Array:
        chosen = np.asarray(self.columns)
        whole = chosen.ndim == 1 and len(chosen) and chosen.dtype.kind in "iuf" and (chosen == np.round(chosen)).all()
        if not whole or len(np.unique(chosen)) < len(chosen) or not 0 <= chosen.min() <= chosen.max() < n_features:
            raise ConfigError(
                f"columns kernel: expected distinct columns from 0 to {n_features - 1}, found {self.columns!r}"
            )
        return chosen.astype(np.int64)
