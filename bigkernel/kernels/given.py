"""Kernels that are computed elsewhere: precomputed matrices, Python functions, and scikit-learn's pairwise kernels.

Shapes as in `algebra`. They use no matrix product: values are written into the block, some rows at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from bigkernel.arrays import Array
from bigkernel.errors import BigKernelError, ConfigError, DataError
from bigkernel.kernels.algebra import Kernel, PreparedLandmarks, PreparedPoints

_STRIP_BYTES = 2**21  # a strip of values and its rows in float64
PAIRWISE = ("additive_chi2", "chi2", "cosine")  # of scikit-learn, besides those in `functions`
_DEEPEST = 12  # nesting of the contents of a function
_NAMES = ", ".join(PAIRWISE)
_SYMMETRIC = 1e-6  # largest difference of k(x, z) and k(z, x), relative to the largest value


def computed_here(value: object) -> Iterator[Kernel]:
    """Yield the kernels within plain data that functions of the host compute, which no device can."""
    if isinstance(value, _External):
        yield value
    elif is_dataclass(value) and not isinstance(value, type):
        for one in fields(value):
            yield from computed_here(getattr(value, one.name))
    elif isinstance(value, tuple | list):
        for one in value:
            yield from computed_here(one)


class _External(Kernel, ABC):
    of_distance: ClassVar[bool] = False
    _points: ClassVar[bool] = True  # whether values are computed from the landmarks

    def bind(self, Z: Array, dtype: DTypeLike = np.float64, *, touching: bool = False) -> PreparedLandmarks:
        points, none = np.asarray(Z, np.float64) if self._points else None, np.empty((np.shape(Z)[1], 0), dtype)
        return PreparedPoints(self.finish, none, np.shape(Z)[1], kernel=self, points=points, strip_bytes=_STRIP_BYTES)

    @abstractmethod
    def fill(self, x: Array, points: Array | None, some: slice, out: Array) -> None:
        """Write the values of rows (n, d) and `some` landmarks to `out` (n, k)."""

    def prepared_bytes(self, m: int, d: int, itemsize: int) -> int:
        """Return the bytes of a strip; landmarks are not copied, and the memory of a user's function is unknown."""
        return _STRIP_BYTES


@dataclass
class Precomputed(_External):
    """Kernel values k(x, ·) with all n rows of the fit as rows, like scikit-learn's `kernel="precomputed"`.

    For exact fits only: `fit(K)` takes the matrix (n, n) of the fit, `predict` one (t, n).
    """

    name: ClassVar[str] = "precomputed"
    precomputed: ClassVar[bool] = True
    _points: ClassVar[bool] = False

    def resolve(self, Z: Array, weight: Array | None = None) -> Kernel:
        K = np.asarray(Z)
        if K.shape[0] != K.shape[1]:
            raise ConfigError(
                f"kernel='precomputed': expected the values (n, n) of all n rows of the fit, found {K.shape}; "
                "landmarks and held-out rows need a kernel function"
            )
        far = np.abs(K - K.T).max(initial=0.0)
        if not far <= _SYMMETRIC * np.abs(K).max(initial=0.0):
            raise DataError(
                f"kernel='precomputed': expected a symmetric matrix, found k(x, z) and k(z, x) that differ by {far:.3g}"
            )
        return self

    def fill(self, x: Array, points: Array | None, some: slice, out: Array) -> None:
        out[...] = x[:, some]

    def diag(self, X: Array) -> Array:
        if np.shape(X)[0] != np.shape(X)[1]:
            raise ConfigError("kernel='precomputed': k(x, x) is unknown for rows outside the fit; use another kernel")
        return np.asarray(np.diagonal(X), np.float64)


@dataclass
class Pairwise(_External):
    """A function as a kernel, or one of scikit-learn's pairwise kernels by name.

    Parameters
    ----------
    metric : callable, "chi2", "additive_chi2" or "cosine"
        A function of blocks, f(X, Z) → (n, m), or of two rows, f(x, z) → number, which is slow; a call with a few
        landmarks decides which. Workers import it by name; `functools.partial` gives it further arguments.
    gamma : float or None
        For "chi2"; None: 1.

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import Pairwise
    >>> Pairwise(lambda X, Z: np.minimum(X[:, None], Z).sum(axis=2))([[1.0, 2.0]], [[2.0, 0.5], [3.0, 3.0]])
    array([[1.5, 3. ]])
    """

    metric: Callable[..., ArrayLike] | str
    gamma: float | None = None
    name: ClassVar[str] = "pairwise"

    @property
    def positive(self) -> bool:  # type: ignore[override]
        """True for "chi2" and "cosine"; False for functions, of which it is unknown."""
        return self.metric in ("chi2", "cosine")

    def resolve(self, Z: Array, weight: Array | None = None) -> Kernel:
        named = isinstance(self.metric, str)
        if not (self.metric in PAIRWISE if named else callable(self.metric)) or isinstance(self.metric, Kernel):
            raise ConfigError(f"pairwise kernel: expected a function or one of {_NAMES}, found {self.metric!r}")
        if self.gamma is not None and not named:
            raise ConfigError(f"pairwise kernel: gamma is only used with chi2, found {self.gamma!r}")
        number = isinstance(self.gamma, int | float | np.number) and 0 < self.gamma < np.inf
        if self.gamma is not None and not (self.metric == "chi2" and number):
            raise ConfigError(f"pairwise kernel: expected gamma above 0 for chi2, found {self.gamma!r}")
        return self

    def bind(self, Z: Array, dtype: DTypeLike = np.float64, *, touching: bool = False) -> PreparedLandmarks:
        return super().bind(_normalize(np.asarray(Z)) if self.metric == "cosine" else Z, dtype)

    def prepared_bytes(self, m: int, d: int, itemsize: int) -> int:
        """Return the bytes of a strip, and of normalized landmarks for "cosine"."""
        return _STRIP_BYTES + 8 * m * d * (self.metric == "cosine")

    def fill(self, x: Array, points: Array | None, some: slice, out: Array) -> None:
        assert points is not None
        out[...] = self._values(x.astype(np.float64), points)

    def diag(self, X: Array) -> Array:
        X = _normalize(X) if self.metric == "cosine" else np.asarray(X, np.float64)
        return np.array([float(self._values(X[i : i + 1], X[i : i + 1])[0, 0]) for i in range(len(X))])

    def _values(self, x: Array, points: Array) -> Array:
        """Compute k of rows and points, (b, s) float64; for "cosine" points are normalized.

        `DataError`: the function raises an exception, or its values are not of shape (b, s) or not finite.
        """
        if self.metric == "cosine":
            return np.asarray(_normalize(x) @ points.T)
        try:
            values = np.asarray(self._of_blocks(points)(x, points), np.float64)
        except BigKernelError:
            raise
        except Exception as error:
            raise DataError(f"{self.formula()} kernel: {type(error).__name__}: {error}") from error
        if values.shape != (len(x), len(points)):
            raise DataError(f"{self.formula()} kernel: expected values {len(x), len(points)}, found {values.shape}")
        if not np.isfinite(values).all():
            raise DataError(f"{self.formula()} kernel: returned NaN or infinity for finite rows")
        return values

    def formula(self) -> str:
        return self.metric if isinstance(self.metric, str) else _qualified_name(self.metric)

    def describe(self) -> dict[str, object]:
        """Return the name of the function and γ."""
        return {"name": self.formula()} | ({} if self.gamma is None else {"gamma": self.gamma})

    def fingerprint(self) -> str:
        """Return a digest that is equal for the same function in another process."""
        return _sha256(repr((_plain(self.metric), self.gamma)).encode())

    def _of_blocks(self, Z: Array) -> Callable[[Array, Array], ArrayLike]:
        """Return the metric as a function of blocks."""
        if isinstance(self.metric, str):
            from sklearn.metrics.pairwise import pairwise_kernels

            width = {} if self.gamma is None else {"gamma": self.gamma}
            return partial(pairwise_kernels, metric=self.metric, **width)
        function = self.metric
        few = Z[np.arange(3) % len(Z)]
        try:
            blocks = np.shape(function(few[:2], few)) == (2, 3) and np.shape(function(few[:1], few[:1])) == (1, 1)
        except Exception:  # taken as a function of two rows, whose call reports what is wrong
            blocks = False
        return function if blocks else partial(_by_pairs, function)


def _by_pairs(function: Callable[..., ArrayLike], X: Array, Z: Array) -> Array:
    """Compute the values (n, m) of a function of two rows."""
    out = np.empty((len(X), len(Z)))
    for i, j in np.ndindex(out.shape):
        value = function(X[i], Z[j])
        try:
            out[i, j] = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{_qualified_name(function)} kernel: expected a number for two rows, found {type(value).__name__}"
            ) from error
    return out


def _qualified_name(function: object) -> str:
    """Return module and name of a function."""
    if isinstance(function, partial):
        return f"partial {_qualified_name(function.func)}"
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"


def _normalize(X: Array) -> Array:
    """Divide rows by their norms, in float64; zeros stay."""
    X = np.asarray(X, np.float64)
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    return np.asarray(X / np.where(norms > 0, norms, 1))


def _sha256(content: bytes) -> str:
    import hashlib  # slow to load, and needed only for functions

    return hashlib.sha256(content).hexdigest()


def _plain(value: object, depth: int = 0) -> object:
    """Describe a function, or an argument of one, as nested tuples that are the same in every process."""
    within = partial(_plain, depth=depth + 1)
    if depth > _DEEPEST:  # functions that refer to each other
        return ""
    if isinstance(value, partial):
        return within(value.func), within(value.args), within(value.keywords)
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, _sha256(np.ascontiguousarray(value).tobytes())
    if isinstance(value, Mapping):
        return tuple(sorted((str(key), within(item)) for key, item in value.items()))
    if isinstance(value, set | frozenset):
        return tuple(sorted(str(within(item)) for item in value))
    if isinstance(value, tuple | list):
        return tuple(map(within, value))
    if isinstance(value, CodeType):
        return value.co_code.hex(), value.co_names, within(value.co_consts)
    if isinstance(value, ModuleType | type):
        return _qualified_name(value)
    if callable(value):
        return _qualified_name(value), within(_contents(value))
    shown = repr(value)
    return shown if " at 0x" not in shown else (_qualified_name(value), within(getattr(value, "__dict__", {})))


def _contents(function: object) -> object:
    """Return the code, defaults and closure of a function, or the attributes of another callable."""
    function = getattr(function, "__func__", function)  # of a method
    if not isinstance(function, FunctionType):
        return getattr(function, "__dict__", {})
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return (
        function.__code__,
        function.__defaults__,
        function.__kwdefaults__,
        [None if one is function else one for one in cells],
    )
