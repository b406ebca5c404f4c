"""What every kernel has, and kernels made of kernels: sums, products, multiples, and kernels of some columns.

Kernels are small things that are called, `k(X, Z)`, and that bind landmarks for the fast block path. Shapes: X (n, d)
rows, Z (m, d) landmarks, k(X, Z) (n, m), k.diag(X) (n,).

Sums and products of positive definite kernels are positive definite, and so is c·k for c > 0 (Schölkopf & Smola, 2002,
ch. 13.1). `Gaussian(1.0) + 0.5 * Linear()` and `Gaussian(2.0) * Polynomial(2)` write them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import ConfigError, DataError
from bigkernel.kernels.blocks import PART_ROWS, Bound, JoinedBound

Array = NDArray[Any]


class Kernel:
    """The base of all kernels; subclasses are dataclasses of their parameters.

    `get_params` and `set_params` are scikit-learn's, so that `kernel__sigma` works in a grid search.
    """

    name: ClassVar[str]
    _distance: ClassVar[bool] = True  # a function of ‖x−z‖

    @property
    def positive(self) -> bool:
        """True where it is positive definite for every parameter value that is accepted."""
        return True

    @property
    def precomputed(self) -> bool:
        """True where rows hold values of the kernel in place of features, so that k(x, x) of a new row is not known."""
        return False

    @property
    def leaves(self) -> int:
        """Products that a block takes: 1, or as many as it is made of."""
        return 1

    def prepared_bytes(self, m: int, d: int, itemsize: int) -> int:
        """Bytes of what `bind` makes of m landmarks of d features, and of buffers that blocks take beside it.

        Where rows may touch landmarks these are kept beside the factors of the product.
        """
        return m * (d + 2) * (1 + self.kinked) * itemsize

    def described(self) -> dict[str, Any]:
        """Name and parameters, as plain data for reports."""
        return {"name": self.name, **self.get_params()}

    def formula(self) -> str:
        """As one would write it."""
        values = ((name, np.asarray(value)) for name, value in self.get_params().items())
        inside = ", ".join(f"{name}={value if value.ndim == 0 else value.shape}" for name, value in values)
        return f"{self.name}({inside})" if inside else self.name

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """By name; `deep` with those of kernels inside it, as `k1__sigma`."""
        own = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        inner = {name: value.get_params() for name, value in own.items() if deep and isinstance(value, Kernel)}
        return own | {f"{name}__{key}": value for name, params in inner.items() for key, value in params.items()}

    def set_params(self, **params: Any) -> Kernel:
        """Set parameters by name and return the kernel; scikit-learn's convention."""
        for key, value in params.items():
            name, _, rest = key.partition("__")
            if key not in self.get_params():
                raise ConfigError(f"{self.name} kernel has no parameter {key!r}; it has {sorted(self.get_params())}")
            if rest:
                getattr(self, name).set_params(**{rest: value})
            else:
                setattr(self, name, value)
        return self

    def __add__(self, other: Any) -> Kernel:
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Any) -> Kernel:
        if isinstance(other, Kernel):
            return Product(self, other)
        return Scaled(self, float(other)) if isinstance(other, int | float | np.number) else NotImplemented

    __rmul__ = __mul__

    def __call__(self, X: Array, Z: Array | None = None) -> Array:
        """The kernel matrix, shape (n, m); (n, n) and exactly symmetric when Z is not given.

        float32 where both are, float64 otherwise. "scale" parameters are taken from Z.
        """
        X = np.atleast_2d(np.asarray(X))
        other = X if Z is None else np.atleast_2d(np.asarray(Z))
        if X.shape[1] != other.shape[1]:
            raise DataError(f"{self.name} kernel: X has {X.shape[1]} features, Z has {other.shape[1]}")
        dtype = np.float32 if X.dtype == other.dtype == np.float32 else np.float64
        kernel = self.resolve(other)
        bound = kernel.bind(other, dtype)
        if Z is None and (whole := bound.of_itself()) is not None:
            return whole
        out = np.empty((len(X), len(other)), dtype)
        bound.product(bound.rows_of(X), out)
        bound.finish(out)
        if Z is None:
            _symmetrize(out)
        return out

    def diag(self, X: Array) -> Array:
        """k(x, x) for every row, shape (n,): 1 for kernels of the distance."""
        return np.ones(len(X))

    def resolve(self, Z: Array, weight: Array | None = None) -> Kernel:
        """The same kernel, checked, with every "scale" parameter replaced by its number for (weighted) rows Z."""
        self._check(np.shape(Z)[1])
        return replace(self)  # type: ignore[type-var]

    @property
    def kinked(self) -> bool:
        """True where the slope in ‖x−z‖² is infinite at 0, so that its rounding counts by its root."""
        return False

    def bind(self, Z: Array, dtype: Any = np.float64, *, touching: bool = False) -> Bound:
        """Prepare landmarks Z (m, d) for blocks of `dtype`.

        With `touching` the distances of rows that nearly touch a landmark keep their digits, which `kinked` kernels
        have anyway: for others that share a block with such a one.

        Raises
        ------
        DataError
            float32 cannot resolve the distances between these landmarks at this bandwidth.
        """
        dtype = np.dtype(dtype)
        Z = np.asarray(Z, np.float64)
        if not self._distance:
            return Bound(self.finish, np.ascontiguousarray(Z.T, dtype), None, None, None, Z.shape[1])
        bound, blur = Bound.of_distance(self.finish, Z, *self.widths(), dtype, touching=touching or self.kinked)
        refuse_blur(self.name, dtype, blur)
        return bound

    def widths(self) -> tuple[float, Array | None]:
        """(γ, lengths per feature or None) with the kernel's argument −γ‖x−z‖²."""
        raise TypeError(f"{self.name} is not a kernel of the Euclidean distance")

    def finish(self, strip: Array) -> None:
        raise TypeError(f"{type(self).__name__} does not say how its argument becomes a value")

    def _check(self, n_features: int) -> None: ...


class _Made(Kernel):
    """A kernel made of others; block path and "scale" parameters are theirs."""

    _distance: ClassVar[bool] = False

    @property
    def parts(self) -> tuple[Kernel, ...]:
        """The kernels that it is made of."""
        values = (getattr(self, part.name) for part in fields(self))  # type: ignore[arg-type]
        return tuple(value for value in values if isinstance(value, Kernel))

    @property
    def positive(self) -> bool:
        return all(part.positive for part in self.parts)

    @property
    def precomputed(self) -> bool:
        return any(part.precomputed for part in self.parts)

    @property
    def leaves(self) -> int:
        return sum(part.leaves for part in self.parts)

    @property
    def kinked(self) -> bool:
        return any(part.kinked for part in self.parts)

    def prepared_bytes(self, m: int, d: int, itemsize: int) -> int:
        """Those of the parts, of the columns of one as they come, and a hundred rows of it."""
        parts = sum(part.prepared_bytes(m, d, itemsize) for part in self.parts)
        return parts + 8 * m * d + PART_ROWS * (m + d + 2) * itemsize

    def described(self) -> dict[str, Any]:
        """As it is written."""
        return {"name": self.formula()}

    def finish(self, strip: Array) -> None:
        """Nothing: the block holds values already."""

    def _require_kernels(self, *parts: Any) -> None:
        for part in parts:
            if not isinstance(part, Kernel):
                raise ConfigError(f"{self.name} kernel: expected kernels, found {type(part).__name__}")


@dataclass
class _Pair(_Made):
    k1: Kernel
    k2: Kernel
    _sign: ClassVar[str]

    def formula(self) -> str:
        return f"({self.k1.formula()} {self._sign} {self.k2.formula()})"

    def resolve(self, Z: Array, weight: Array | None = None) -> Kernel:
        self._require_kernels(self.k1, self.k2)
        return replace(self, k1=self.k1.resolve(Z, weight), k2=self.k2.resolve(Z, weight))

    def bind(self, Z: Array, dtype: Any = np.float64, *, touching: bool = False) -> Bound:
        parts = [(part.bind(Z, dtype, touching=touching), None) for part in self.parts]
        return JoinedBound.of(parts, Z.shape[1], join=self._join)

    def diag(self, X: Array) -> Array:
        value: Array = self._join(*(part.diag(X) for part in self.parts))
        return value

    @property
    def _join(self) -> Callable[..., Any]:
        raise TypeError(type(self).__name__)


@dataclass
class Sum(_Pair):
    """k1(x, z) + k2(x, z), also written `k1 + k2`.

    Parameters
    ----------
    k1, k2 : Kernel
        Their parameters are `k1__sigma` and so on.

    Examples
    --------
    >>> from bigkernel import Gaussian, Linear
    >>> (Gaussian(1.0) + 0.5 * Linear())([[1.0]], [[1.0], [3.0]]).round(4)
    array([[1.5   , 1.6353]])
    """

    name: ClassVar[str] = "sum"
    _sign: ClassVar[str] = "+"

    @property
    def _join(self) -> Callable[..., Any]:
        return np.add


@dataclass
class Product(_Pair):
    """k1(x, z) · k2(x, z), also written `k1 * k2`.

    Parameters
    ----------
    k1, k2 : Kernel
        Their parameters are `k1__sigma` and so on.
    """

    name: ClassVar[str] = "product"
    _sign: ClassVar[str] = "*"

    @property
    def _join(self) -> Callable[..., Any]:
        return np.multiply


@dataclass
class Scaled(_Made):
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

    def bind(self, Z: Array, dtype: Any = np.float64, *, touching: bool = False) -> Bound:
        part = self.kernel.bind(Z, dtype, touching=touching)
        return JoinedBound.of([(part, None)], Z.shape[1], factor=float(self.factor))

    def diag(self, X: Array) -> Array:
        return self.factor * self.kernel.diag(X)


@dataclass
class OnColumns(_Made):
    """k(x, z) of some columns of the rows alone: one kernel for pixels and another for what was measured beside them.

    Parameters
    ----------
    kernel : Kernel
    columns : sequence of int
        Numbers of the columns, from 0, each once.

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
        return replace(self, kernel=self.kernel.resolve(np.asarray(Z)[:, self._chosen(np.shape(Z)[1])], weight))

    def bind(self, Z: Array, dtype: Any = np.float64, *, touching: bool = False) -> Bound:
        chosen = self._chosen(Z.shape[1])
        part = self.kernel.bind(np.asarray(Z)[:, chosen], dtype, touching=touching)
        return JoinedBound.of([(part, chosen)], Z.shape[1])

    def diag(self, X: Array) -> Array:
        return self.kernel.diag(np.asarray(X)[:, self._chosen(np.shape(X)[1])])

    def _chosen(self, n_features: int) -> Array:
        chosen = np.asarray(self.columns)
        whole = chosen.ndim == 1 and len(chosen) and chosen.dtype.kind in "iuf" and (chosen == np.round(chosen)).all()
        if not whole or len(np.unique(chosen)) < len(chosen) or not 0 <= chosen.min() <= chosen.max() < n_features:
            raise ConfigError(
                f"columns kernel: expected different columns from 0 to {n_features - 1}, found {self.columns!r}"
            )
        return chosen.astype(np.int64)


def refuse_blur(kernel: str, dtype: np.dtype[Any], blur: float) -> None:
    """Raise `DataError` where rounding to `dtype` moves distances by a hundredth of a bandwidth or more."""
    if not blur < 0.01:
        raise DataError(
            f"{kernel} kernel: in {dtype} the distances between these landmarks carry an error of {blur:.1e} "
            "bandwidths (expected below 0.01); use dtype='float64', scale or shift the rows, or take a larger bandwidth"
        )


def _symmetrize(matrix: Array) -> None:
    """(M + Mᵀ)/2 in the place of M (n, n), a strip at a time."""
    step = 64  # whole cache lines of either triangle
    for start in range(0, len(matrix), step):
        rows = slice(start, start + step)
        # above the diagonal nothing was written yet
        half = matrix[rows, start:] + matrix[start:, rows].T
        half *= 0.5
        matrix[rows, start:] = half
        matrix[start:, rows] = half.T
