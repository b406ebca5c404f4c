"""Kernels that others compute: matrices that were computed before, functions, and scikit-learn's pairwise kernels.

Shapes as in `algebra`. No product serves these: their values are written into the block, some rows at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from bigkernel.arrays import Array
from bigkernel.errors import BigKernelError, ConfigError, DataError
from bigkernel.kernels.algebra import Bound, Kernel, PointsBound

_STRIP_BYTES = 2**21  # of a strip of values and its rows in float64
PAIRWISE = ("additive_chi2", "chi2", "cosine")  # of scikit-learn, beside those that `functions` has
_DEEPEST = 12  # of what a function remembers
_NAMES = ", ".join(PAIRWISE)
_SYMMETRIC = 1e-6  # of the largest value: what k(x, z) and k(z, x) may differ by


class _Given(Kernel, ABC):
    of_distance: ClassVar[bool] = False
    _points: ClassVar[bool] = True  # values are computed from the landmarks

    def bind(self, Z: Array, dtype: DTypeLike = np.float64, *, touching: bool = False) -> Bound:
        points, none = np.asarray(Z, np.float64) if self._points else None, np.empty((np.shape(Z)[1], 0), dtype)
        return PointsBound(self.finish, none, np.shape(Z)[1], kernel=self, points=points, strip_bytes=_STRIP_BYTES)

    @abstractmethod
    def fill(self, x: Array, points: Array | None, some: slice, out: Array) -> None:
        """Write the values of rows (n, d) and of some landmarks to `out` (n, k)."""

    def prepared_bytes(self, m: int, d: int, itemsize: int) -> int:
        """The landmarks are seen as they are; what a function of one's own takes is not known."""
        return _STRIP_BYTES


@dataclass
class Precomputed(_Given):
    """A row holds its values k(x, ·) with all n rows of the fit, scikit-learn's `kernel="precomputed"`.

    For exact fits alone: `fit(K)` takes the matrix (n, n) of the fit, `predict` one (t, n).
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
class Pairwise(_Given):
    """A function as kernel, or one of scikit-learn's pairwise kernels by name.

    Parameters
    ----------
    metric : callable, "chi2", "additive_chi2" or "cosine"
        A function of blocks, f(X, Z) → (n, m), or of two rows, f(x, z) → number, which is slow. Which of them it is
        is tried on a few landmarks. Workers import it by its name; `functools.partial` gives it further arguments.
    gamma : float or None
        Of "chi2"; None: 1.

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
        """Known of scikit-learn's alone; a function is not trusted to be."""
        return self.metric in ("chi2", "cosine")

    def resolve(self, Z: Array, weight: Array | None = None) -> Kernel:
        if isinstance(self.metric, str):
            self._check_named()
        elif not callable(self.metric) or isinstance(self.metric, Kernel):
            raise ConfigError(f"pairwise kernel: expected a function or one of {_NAMES}, found {self.metric!r}")
        elif self.gamma is not None:
            raise ConfigError(f"pairwise kernel: gamma is only used with chi2, found {self.gamma!r}")
        return self

    def _check_named(self) -> None:
        if self.metric not in PAIRWISE:
            raise ConfigError(f"pairwise kernel: expected a function or one of {_NAMES}, found {self.metric!r}")
        number = isinstance(self.gamma, int | float | np.number) and 0 < self.gamma < np.inf
        if self.gamma is not None and not (self.metric == "chi2" and number):
            raise ConfigError(f"pairwise kernel: expected gamma above 0 for chi2, found {self.gamma!r}")

    def bind(self, Z: Array, dtype: DTypeLike = np.float64, *, touching: bool = False) -> Bound:
        return super().bind(_of_length_one(np.asarray(Z)) if self.metric == "cosine" else Z, dtype)

    def prepared_bytes(self, m: int, d: int, itemsize: int) -> int:
        """Cosines keep the landmarks at length 1."""
        return _STRIP_BYTES + 8 * m * d * (self.metric == "cosine")

    def fill(self, x: Array, points: Array | None, some: slice, out: Array) -> None:
        assert points is not None
        out[...] = self._values(x.astype(np.float64), points)

    def diag(self, X: Array) -> Array:
        X = _of_length_one(X) if self.metric == "cosine" else np.asarray(X, np.float64)
        return np.array([float(self._values(X[i : i + 1], X[i : i + 1])[0, 0]) for i in range(len(X))])

    def _values(self, x: Array, points: Array) -> Array:
        """k of rows and points, (b, s) float64; points are of length 1 for cosines.

        Raises
        ------
        DataError
            What the function raises, or values that are not (b, s).
        """
        if self.metric == "cosine":
            return np.asarray(_of_length_one(x) @ points.T)
        try:
            found = np.asarray(self._of_blocks(points)(x, points), np.float64)
        except BigKernelError:
            raise
        except Exception as error:
            raise DataError(f"{self.formula()} kernel: {type(error).__name__}: {error}") from error
        if found.shape != (len(x), len(points)):
            raise DataError(f"{self.formula()} kernel: expected values {len(x), len(points)}, found {found.shape}")
        if not np.isfinite(found).all():
            raise DataError(f"{self.formula()} kernel: returned NaN or infinity for finite rows")
        return found

    def formula(self) -> str:
        return self.metric if isinstance(self.metric, str) else _called(self.metric)

    def described(self) -> dict[str, object]:
        """As it is written."""
        return {"name": self.formula()} | ({} if self.gamma is None else {"gamma": self.gamma})

    def fingerprint(self) -> str:
        """Equal for the same function in another process."""
        return _sha256(repr((_plain(self.metric), self.gamma)).encode())

    def _of_blocks(self, Z: Array) -> Callable[[Array, Array], ArrayLike]:
        """The metric as a function of blocks."""
        if isinstance(self.metric, str):
            from sklearn.metrics.pairwise import pairwise_kernels

            width = {} if self.gamma is None else {"gamma": self.gamma}
            return partial(pairwise_kernels, metric=self.metric, **width)
        called = self.metric
        few = Z[np.arange(3) % len(Z)]
        try:
            blocks = np.shape(called(few[:2], few)) == (2, 3) and np.shape(called(few[:1], few[:1])) == (1, 1)
        except Exception:  # of two rows, then; what is wrong with it shows there
            blocks = False
        return called if blocks else partial(_by_pairs, called)


def _by_pairs(function: Callable[..., ArrayLike], X: Array, Z: Array) -> Array:
    """Values (n, m) of a function of two rows."""
    out = np.empty((len(X), len(Z)))
    for i, j in np.ndindex(out.shape):
        value = function(X[i], Z[j])
        try:
            out[i, j] = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{_called(function)} kernel: expected a number for a pair of rows, found {type(value).__name__}"
            ) from error
    return out


def _called(function: object) -> str:
    """Module and name of a function."""
    if isinstance(function, partial):
        return f"partial {_called(function.func)}"
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"


def _of_length_one(X: Array) -> Array:
    """Rows divided by their norms, float64; zeros stay."""
    X = np.asarray(X, np.float64)
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    return np.asarray(X / np.where(norms > 0, norms, 1))


def _sha256(content: bytes) -> str:
    import hashlib  # slow to load, and needed for functions alone

    return hashlib.sha256(content).hexdigest()


def _plain(value: object, depth: int = 0) -> object:
    """What a function or an argument of one is, as nested tuples of texts that are the same in every process."""
    within = partial(_plain, depth=depth + 1)
    if depth > _DEEPEST:  # functions that remember one another
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
        return _called(value)
    if callable(value):
        return _called(value), within(_inside(value))
    shown = repr(value)
    return shown if " at 0x" not in shown else (_called(value), within(getattr(value, "__dict__", {})))


def _inside(function: object) -> object:
    """The code of a function and what it remembers; of another object that is called, its attributes."""
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
