"""Kriging: fields from their values at places, by exact fits of overlapping neighbourhoods that share a variogram.

Shapes: n rows, d coordinates, c targets, L neighbourhoods.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from sklearn.base import clone
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, Options, StrOptions

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.errors import DataError
from bigkernel.estimators.base import Regressor, parameters
from bigkernel.estimators.evaluation import FitReport
from bigkernel.estimators.fit.basis import draw_rows
from bigkernel.estimators.fit.state import BlendFit, Fitted, KrigingFit
from bigkernel.estimators.inputs.training import Training
from bigkernel.estimators.ridge import KernelRidge
from bigkernel.estimators.tables.blended import as_targets
from bigkernel.estimators.tables.partitioned import PartitionedRegressor
from bigkernel.kernels.algebra import Scaled
from bigkernel.kernels.functions import Linear
from bigkernel.solvers.variogram import SMOOTHNESS, Correlation, Variogram, choose_variogram, neighbourhoods
from bigkernel.statistics.blend import AnyPredictor, Blend, Member, Tree
from bigkernel.streaming.plan import Plan
from bigkernel.streaming.row_maps import LinearMap

if TYPE_CHECKING:
    import dask.array as da

_SLOPE = 1e3  # variance of a linear trend over the longest lag, in partial sills: nearly a flat prior
_FEWEST = 10  # rows of which a variogram is estimated


class _Neighbourhoods(PartitionedRegressor):
    """Leaves whose borders are all as far apart."""

    _evenly = True


@parameters
class Kriging(Regressor):
    """Predict a field between its values at places, with standard deviations, by ordinary or universal kriging.

    Range, anisotropy, nugget and smoothness are those of the largest restricted likelihood in random neighbourhoods of
    the rows. Places are then split into overlapping neighbourhoods; each is an exact fit to all of its rows, and their
    predictions are blended. The variogram is shared; mean and sill are those of each neighbourhood.

    Parameters
    ----------
    nu : 0.5, 1.5, 2.5 or None
        Smoothness of the Matérn variogram; 0.5: exponential. None: of the largest likelihood.
    trend : "constant", "linear" or None
        Mean of a neighbourhood, of ordinary and of universal kriging. None: what predicts the middle of neighbourhoods
        better from the rest.
    anisotropic : bool, default True
        Whether the range depends on the direction; with more than three coordinates, only on the coordinate.
    n_neighbors : int
        Rows of a neighbourhood, about.
    overlap : float in [0, 1)
        Share of a neighbourhood's width in which it is blended with the next one.
    n_samples : int
        Most rows from which the variogram is estimated, and on which the splits are found.
    random_state : int, RandomState or None
    verbose : int
        1: show progress.

    Attributes
    ----------
    variogram_ : smoothness, matrix of ranges, nugget and sill, trend, and the empirical variogram
    nu_ : float
    range_ : (d,) ranges along the axes of the anisotropy, the largest first, in units of the coordinates
    axes_ : (d, d) unit vectors of these axes, in rows
    anisotropy_ : float, the smallest range over the largest
    nugget_, sill_ : float or (c,), in squared units of the targets; the sill includes the nugget
    trend_ : "constant" or "linear"
    leaves_ : tuple of the L neighbourhoods, as in `PartitionedRegressor`

    Notes
    -----
    Correlation is ρ(r) = e^{−r}, (1 + r)e^{−r} or (1 + r + r²/3)e^{−r} with r = √(2ν)‖h‖/range. Where that is clearly
    more likely the variogram is nested: `variogram_.correlation` has the share `far` of an exponential structure with
    `reach` times the range, which carries values into gaps. `fit` raises `DataError` for fewer than ten rows, or values
    that are equal everywhere. Weights count in the neighbourhoods only, not in the variogram.
    Rows that are not in memory are written by neighbourhood, as by `PartitionedRegressor`.

    References
    ----------
    Cressie, Statistics for Spatial Data (1993), ch. 3. Patterson & Thompson, Biometrika 58 (1971).

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import Kriging
    >>> X = np.random.default_rng(0).uniform(size=(500, 2))
    >>> y = np.sin(6 * X[:, 0]) + np.cos(4 * X[:, 1])
    >>> model = Kriging(random_state=0).fit(X[:400], y[:400])
    >>> mean, std = model.predict(X[400:], return_std=True)
    >>> bool(np.abs(mean - y[400:]).max() < 0.05)
    True
    """

    variogram_ = Fitted[Variogram]("variogram")
    nu_ = Fitted[float]("variogram.correlation.nu")
    range_ = Fitted[Array]("variogram.ranges")
    axes_ = Fitted[Array]("variogram.axes")
    trend_ = Fitted[str]("variogram.trend")
    leaves_ = Fitted[tuple[Member, ...]]("blend.members")
    _keeps_sums = False
    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        "nu": [Options(Real, set(SMOOTHNESS)), None],
        "trend": [StrOptions({"constant", "linear"}), None],
        "anisotropic": ["boolean"],
        "n_neighbors": [Interval(Integral, 10, None, closed="left")],
        "overlap": [Interval(Real, 0, 1, closed="left")],
        "n_samples": [Interval(Integral, _FEWEST, None, closed="left")],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    nu: float | None = None
    _: KW_ONLY
    trend: str | None = None
    anisotropic: bool = True
    n_neighbors: int = 800
    overlap: float = 0.5
    n_samples: int = 200_000
    random_state: int | np.random.RandomState | None = None
    verbose: int = 0

    @property
    def anisotropy_(self) -> float:
        """The smallest range over the largest."""
        return float(self.range_[-1] / self.range_[0])

    @property
    def nugget_(self) -> Array | float:
        """Variance of values at the same place, (c,), or a float for one column of targets."""
        return self._of_targets(self.variogram_.nugget)

    @property
    def sill_(self) -> Array | float:
        """Variance of values far apart, with the nugget, (c,), or a float for one column of targets."""
        return self._of_targets(self.variogram_.sill)

    def _of_targets(self, values: Array) -> Array | float:
        return float(values[0]) if self._require("sill_").inputs.flat else values

    def _fit_members(self, data: Training) -> BlendFit:
        rng = check_random_state(self.random_state)
        variogram = self._variogram(data, rng)
        # in units of the ranges the field is isotropic
        A, centre = variogram.inverse_ranges, data.rows.take(data.rows.ids_at(np.arange(1)))[0]
        to_ranges = LinearMap(centre, A)
        leaves = self._leaves(*data.rows.shape, variogram).set_params(random_state=rng.randint(2**31 - 1))
        fitted = leaves._fit_members(replace(data, rows=data.rows.map(to_ranges)))
        tree = fitted.blend.shares
        assert isinstance(tree, Tree)
        directions = tree.directions @ A
        shift = directions @ centre
        blend = Blend(
            Tree(directions, tree.lower + shift, tree.upper + shift),
            tuple(replace(one, row_maps=(to_ranges, *one.row_maps)) for one in fitted.blend.members),
        )
        return KrigingFit(data.inputs, blend, variogram)

    def _variogram(self, data: Training, rng: np.random.RandomState) -> Variogram:
        """Estimate the variogram from the rows, or a sample of them."""
        rows, targets = data.rows, as_targets(data)
        ids = draw_rows(rows, min(self.n_samples, len(rows)), rng)
        y = rows.take_column("y", ids)
        known = targets.labelled(y, 0)
        X, Y = rows.take(ids)[known], y[known].reshape(np.count_nonzero(known), -1).astype(np.float64)
        places = neighbourhoods(X, Y, rng) if len(X) >= _FEWEST else []
        if not places:
            raise DataError(f"{rows.name}: n_samples={len(X)}; expected at least {_FEWEST} rows whose targets differ")
        return choose_variogram(places, self.nu, self.trend, anisotropic=self.anisotropic)

    def _leaves(self, n: int, d: int, variogram: Variogram) -> _Neighbourhoods:
        """Return the estimator of the neighbourhoods of n rows, in units of the ranges."""
        kernel = variogram.correlation.kernel()
        if variogram.trend == "linear":
            kernel = kernel + Scaled(Linear(), float(_SLOPE / variogram.lags[-1] ** 2))
        # the overlap makes a neighbourhood of one leaf's width (1 + 2^(1/d)·overlap) times as wide
        wider = (1 + 2 ** (1 / d) * self.overlap) ** d
        count = 1 if n <= self.n_neighbors else max(2, round(n * wider / self.n_neighbors))
        leaf = KernelRidge(kernel, alpha=variogram.ratio)
        return _Neighbourhoods(leaf, min(count, n // 2), overlap=self.overlap, n_samples=self.n_samples, posterior=True)

    def plan(self, X: RowsLike, y: ColumnLike = None, sample_domain: ColumnLike = None) -> Plan:
        """Return the plan of the sweep that fits the neighbourhoods, for those of equal size; nothing is run."""
        self.check_parameters()
        data = clone(self)._read_fit(X, y, sample_domain, None)
        n, d = data.rows.shape
        return self._leaves(n, d, Variogram(Correlation(0.5), np.eye(d), 1.0, "constant", *np.zeros((3, 0)))).plan(X, y)

    def predict(
        self, X: RowsLike, return_std: bool = False, *, return_share: bool = False
    ) -> Array | da.Array | tuple[Array, ...]:
        """Predict numbers (n,) or (n, c) at places X, and with `return_std` the standard deviations of observations.

        Returns what `KernelRidge.predict` returns; deviations include the nugget. `return_share` adds, behind both, the
        share of the field's own deviation, without nugget, that the values leave: 0 where they determine it, 1 beyond
        the range of all of them, where the prediction is a mean. Of a Dataset it is a variable that ends in `_share`.
        """
        return self._mean_and_std(X, shares=return_share) if return_std or return_share else super().predict(X)

    def _with_spread(self) -> AnyPredictor:
        return self._expansion()

    def fit_report(self) -> FitReport:
        """Describe the fit as plain data: variogram, neighbourhoods, and the largest of their error estimates."""
        rows, found = np.array([leaf.rows for leaf in self.leaves_]), self.variogram_
        wrong = [leaf.prediction_error for leaf in self.leaves_ if leaf.prediction_error is not None]
        return FitReport(
            estimator=type(self).__name__,
            nu=self.nu_,
            range=self.range_.tolist(),
            anisotropy=self.anisotropy_,
            nugget=found.nugget.tolist(),
            sill=found.sill.tolist(),
            trend=self.trend_,
            leaves=len(rows),
            leaf_rows={"least": int(rows.min()), "median": float(np.median(rows)), "most": int(rows.max())},
            diagnostics={"prediction_error": max(wrong)} if wrong else {},
        )
