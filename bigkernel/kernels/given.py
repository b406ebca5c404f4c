"""Kernels that others compute: matrices that were computed before, functions, and scikit-learn's pairwise kernels.

Shapes as in `algebra`. No product serves these: their values are written into the block, some rows at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import CodeType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import ConfigError, DataError
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.blocks import Bound, keep_values, strips

Array = NDArray[Any]
PAIRWISE = ("additive_chi2", "chi2", "cosine")  # of scikit-learn, beside those that `functions` has
_SYMMETRIC = 1e-6  # of the largest value: what k(x, z) and k(z, x) may differ by


@dataclass
class GivenBound(Bound):
    """Values that are no products: the kernel writes them itself, from points (m, d) float64 or without."""

    kernel: _Given | None = None
    points: Array | None = None

    @property
    def nbytes(self) -> int:
        return 0 if self.points is None else self.points.nbytes

    def multiply(self, rows: Array, out: Array, some: slice = slice(None)) -> None:
        """out (b, s) ← k of rows and some of the landmarks."""
        assert self.kernel is not None
        points = None if self.points is None else self.points[some]
        for strip in strips(out):
            self.kernel.fill(rows[strip, : self.n_features], points, some, out[strip])


class _Given(Kernel):
    _distance: ClassVar[bool] = False
    _points: ClassVar[bool] = True  # values are computed from the landmarks

    def bind(self, Z: Array, dtype: Any = np.float64, *, touching: bool = False) -> Bound:
        points = np.asarray(Z, np.float64) if self._points else None
        none = np.empty((np.shape(Z)[1], 0), dtype)
        return GivenBound(keep_values, none, None, None, None, np.shape(Z)[1], kernel=self, points=points)

    def fill(self, x: Array, points: Array | None, some: slice, out: Array) -> None:
        """out (b, s) ← k of rows x (b, d) and points (s, d), which are number `some` of the landmarks."""
        raise TypeError(type(self).__name__)

    def finish(self, strip: Array) -> None:
        """Nothing: the block holds values already."""

    def prepared_bytes(self, m: int, d: int, itemsize: int) -> int:
        """The landmarks are seen as they are; values of a strip come in float64."""
        return 2**20


@dataclass
class Precomputed(_Given):
    """A row holds its values k(x, ·) with all n rows of the fit, scikit-learn's `kernel="precomputed"`.

    For exact fits alone: `fit(K)` takes the matrix (n, n) of the fit, `predict` one (t, n).
    """

    name: ClassVar[str] = "precomputed"
    _points: ClassVar[bool] = False

    def resolve(self, Z: Array, weight: Array | None = None) -> Kernel:
        K = np.asarray(Z)
        if K.shape[0] != K.shape[1]:
            raise ConfigError(
                f"kernel='precomputed': expected the values (n, n) of all n rows of the fit, found {K.shape}; "
                "landmarks, and rows that are left out, ask for a kernel that can be computed"
            )
        far = np.abs(K - K.T).max(initial=0.0)
        if not far <= _SYMMETRIC * np.abs(K).max(initial=0.0):
            raise DataError(
                f"kernel='precomputed': the matrix is not symmetric; k(x, z) and k(z, x) differ by {far:.3g}"
            )
        return self

    def fill(self, x: Array, points: Array | None, some: slice, out: Array) -> None:
        out[...] = x[:, some]

    def diag(self, X: Array) -> Array:
        if np.shape(X)[0] != np.shape(X)[1]:
            raise ConfigError("kernel='precomputed': k(x, x) of other rows than those of the fit is not known")
        return np.asarray(np.diagonal(X), np.float64)


@dataclass
class Pairwise(_Given):
    """A function as kernel, or one of scikit-learn's pairwise kernels by name.

    Parameters
    ----------
    metric : callable, "chi2", "additive_chi2" or "cosine"
        A function of blocks, f(X, Z) → (n, m), or of two rows, f(x, z) → number, which is slow. Which of them it is
        is tried on a few landmarks. Workers import it by its name.
    params : dict or None
        Keyword arguments of the function.
    gamma : float or None
        Of "chi2"; None: 1.

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import Pairwise
    >>> Pairwise(lambda X, Z: np.minimum(X[:, None], Z).sum(axis=2))([[1.0, 2.0]], [[2.0, 0.5], [3.0, 3.0]])
    array([[1.5, 3. ]])
    """

    metric: Callable[..., Any] | str
    params: Mapping[str, Any] | None = None
    gamma: float | None = None
    name: ClassVar[str] = "pairwise"

    @property
    def positive(self) -> bool:
        """Known of scikit-learn's alone; a function is not trusted to be."""
        return self.metric in ("chi2", "cosine")

    def resolve(self, Z: Array, weight: Array | None = None) -> Kernel:
        if not callable(self.metric) and self.metric not in PAIRWISE:
            names = ", ".join(PAIRWISE)
            raise ConfigError(f"pairwise kernel: expected a function or one of {names}, found {self.metric!r}")
        if self.gamma is not None and not (self.metric == "chi2" and 0 < self.gamma < np.inf):
            raise ConfigError(f"pairwise kernel: gamma is of chi2, a number above 0, found {self.gamma!r}")
        return self

    def fill(self, x: Array, points: Array | None, some: slice, out: Array) -> None:
        assert points is not None
        found = np.asarray(self._of_blocks(points)(x.astype(np.float64), points))
        if found.shape != out.shape:
            raise DataError(f"{self.formula()} kernel: expected values {out.shape}, found {found.shape}")
        out[...] = found

    def diag(self, X: Array) -> Array:
        X = np.asarray(X, np.float64)
        values = self._of_blocks(X)
        return np.array([float(values(X[i : i + 1], X[i : i + 1])[0, 0]) for i in range(len(X))])

    def formula(self) -> str:
        return self.metric if isinstance(self.metric, str) else _called(self.metric)

    def described(self) -> dict[str, Any]:
        """As it is written."""
        return {"name": self.formula(), **self._words()}

    def fingerprint(self) -> str:
        """Equal for the same function in another process."""
        known = self.metric if isinstance(self.metric, str) else _content(self.metric)
        return hashlib.sha256(repr((known, sorted(self._words().items()))).encode()).hexdigest()

    def _words(self) -> dict[str, Any]:
        """Keyword arguments of the metric."""
        return {**(self.params or {}), **({} if self.gamma is None else {"gamma": self.gamma})}

    def _of_blocks(self, Z: Array) -> Callable[[Array, Array], Array]:
        """The metric as a function of blocks."""
        if isinstance(self.metric, str):
            from sklearn.metrics.pairwise import pairwise_kernels

            return partial(pairwise_kernels, metric=self.metric, **self._words())
        called = partial(self.metric, **self._words())
        few = Z[np.arange(3) % len(Z)]
        try:
            blocks = np.shape(called(few[:2], few)) == (2, 3) and np.shape(called(few[:1], few[:1])) == (1, 1)
        except (TypeError, ValueError, IndexError):
            blocks = False
        return called if blocks else partial(_by_pairs, called)


def _by_pairs(function: Callable[..., Any], X: Array, Z: Array) -> Array:
    """Values (n, m) of a function of two rows."""
    return np.array([[_number(function, function(x, z)) for z in Z] for x in X]).reshape(len(X), len(Z))


def _number(function: Callable[..., Any], value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"{_called(function)} kernel: expected a number for two rows, found {type(value).__name__}"
        ) from error


def _called(function: Any) -> str:
    """Module and name of a function."""
    if isinstance(function, partial):
        return f"partial {_called(function.func)}"
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__name__)}"


def _content(function: Any) -> Any:
    """What a function is, the same in every process."""
    if isinstance(function, partial):
        return _content(function.func), function.args, sorted(function.keywords.items())
    code = getattr(function, "__code__", None)
    return _called(function), None if code is None else _lines(code)


def _lines(code: CodeType) -> Any:
    constants = tuple(_lines(one) if isinstance(one, CodeType) else repr(one) for one in code.co_consts)
    return code.co_code.hex(), code.co_names, constants
