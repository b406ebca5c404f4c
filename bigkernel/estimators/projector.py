"""Principal components of rows as a transformer: fewer features, from one sweep."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils._param_validation import Interval

from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import DataError
from bigkernel.estimators.inputs import input_rows, near_mean
from bigkernel.estimators.transforms import PlainTransformer
from bigkernel.kernels.blas import one_thread
from bigkernel.kernels.feature_maps import IdentityMap
from bigkernel.solvers.eigenfunctions import principal_axes
from bigkernel.statistics.moments import Moments, MomentStatistic
from bigkernel.streaming.row_maps import LinearMap

Array = NDArray[Any]


class Projector(PlainTransformer):
    """Project rows on the directions of their largest variance (PCA), learnt in one sweep of d×d moments.

    z = (x − mean)V, with whitening zᵢ/√λᵢ: distances of rows change little while their features become fewer, so that
    kernel blocks cost less. Rows of some thousand features at most: d² numbers are summed in float64.

    Parameters
    ----------
    n_components : int, float or None
        How many features; a share of the variance, below 1, that they hold together at least; None: all that have a
        variance above rounding.
    whiten : bool
        Bring every feature to variance 1.

    Attributes
    ----------
    mean_ : (d,)
    components_ : (r, d)
        Directions of unit length, at right angles; r may be fewer than asked for where rows have fewer directions.
    explained_variance_ : (r,)
        λ, falling: of the rows as they are, divided by their number.
    explained_variance_ratio_ : (r,)

    References
    ----------
    Pearson, On lines and planes of closest fit to systems of points in space, Philosophical Magazine 2 (1901).

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import Projector
    >>> X = np.random.default_rng(0).normal(size=(100, 3)) * [5.0, 1.0, 0.1]
    >>> Projector(n_components=2).fit_transform(X).shape
    (100, 2)
    >>> Projector(n_components=0.99).fit(X).components_.shape
    (2, 3)
    """

    learns = "project"
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_components": [
            Interval(Integral, 1, None, closed="left"),
            Interval(Real, 0, 1, closed="neither"),
            None,
        ],
        "whiten": ["boolean"],
    }

    def __init__(self, n_components: float | None = None, *, whiten: bool = False) -> None:
        self.n_components = n_components
        self.whiten = whiten

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the directions of rows X (n, d).

        Raises
        ------
        DataError
            All rows are equal, or leave the range of squares.
        """
        self._validate_params()
        rows = input_rows(self, X, reset=True)
        plain = Rows(rows.x, {}, rows.row_maps, rows.name, bad_rows=rows.bad_rows)
        # rows as the next step sees them; their products in float64
        dtype = np.dtype(np.float64 if rows.dtype == np.float64 else np.float32)
        shift = near_mean(rows).astype(dtype).astype(np.float64)
        statistic = MomentStatistic(IdentityMap(shift, dtype), sums=np.dtype(np.float64))
        total = sweep(plain, statistic, what=self.learns).total
        if not all(np.isfinite(total[name]).all() for name in ("G", "s")):
            raise DataError(f"{rows.name}: the squares of its values leave the range of float64; scale the rows")
        with one_thread():
            found = principal_axes(Moments.of(total, shift=shift), self.n_components)
        if not len(found.variances):
            raise DataError(
                f"{rows.name}: its rows (n_samples = {len(rows)}) are all equal; there is no direction in which they "
                "vary"
            )
        self.mean_, self.components_, self.explained_variance_ = found.mean, found.axes, found.variances
        self.explained_variance_ratio_ = found.variances / found.total
        return self

    def widest(self, rows: Rows) -> Rows:
        """Rows through as many directions as were asked for; of a share of the variance, all."""
        d, count = rows.shape[1], self.n_components
        width = d if count is None or count < 1 else min(d, int(count))
        return rows.map(LinearMap(np.zeros(d), np.zeros((d, width))))

    def _row_map(self) -> LinearMap:
        scale = np.sqrt(self.explained_variance_) if self.whiten else 1.0
        return LinearMap(self.mean_, self.components_.T / scale)
