"""Row maps that align the second moments of a source and a target, summed in one sweep. Shapes: n rows, d features."""

from __future__ import annotations

from numbers import Real
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.engine.rows import Rows
from bigkernel.errors import DataError
from bigkernel.estimators.adaptation.importance import SideStatistic, find_target, with_sides
from bigkernel.estimators.base import parameters
from bigkernel.estimators.inputs.read import input_rows
from bigkernel.estimators.transforms.rows import Projector, RowTransformer, framing_in_memory, principal_axes_of
from bigkernel.solvers.eigenfunctions import PrincipalAxes
from bigkernel.streaming.chunk import RowMap
from bigkernel.streaming.row_maps import LinearMap, Scale

if TYPE_CHECKING:
    import dask.array as da


@framing_in_memory
class DomainAlignment(RowTransformer):
    """Base of transformers with a row map for the source, and one for the target and all new rows."""

    source_mean_: Array
    source_components_: Array
    learns = "align"
    n_components: float | None = None  # principal axes of each domain that a fit needs; None: all

    def fit(self, X: RowsLike, y: ColumnLike = None, *, sample_domain: ColumnLike = None) -> Self:
        """Learn from rows X (n, d) of both domains; y (n,) is read only to tell source and target."""
        self._learn(X, y, sample_domain)
        return self

    def fit_transform(
        self, X: RowsLike, y: ColumnLike = None, *, sample_domain: ColumnLike = None
    ) -> Array | da.Array | Rows:
        """Learn from rows of both domains, and map each row as one of its domain."""
        return self._map_sides(X, ~self._learn(X, y, sample_domain))

    def transform(self, X: RowsLike, *, sample_domain: ColumnLike = None) -> Array | da.Array | Rows:
        """Map rows of the fit's source domains as the source, and all others (None: all) as the target.

        `sample_domain` is (n,), or one domain for all rows, as lazy rows need, except for Dask arrays.
        """
        check_is_fitted(self)
        return self._map_sides(X, np.isin(np.asarray(sample_domain), self.source_domains_))

    def _align(self, source: PrincipalAxes, target: PrincipalAxes) -> None:
        """Set both maps, from principal axes of the domains."""
        raise TypeError(f"{type(self).__name__} has no maps")

    def _map_sides(self, X: RowsLike, source: Array) -> Array | da.Array | Rows:
        """Map rows, of which some are of the source, (n,) or () bool."""
        of_source = LinearMap(self.source_mean_, self.source_components_.T)
        if source.all() or not source.any():
            return self._mapped(X, of_source if source.any() else self._row_map())
        sides = [self._mapped(X, row_map) for row_map in (of_source, self._row_map())]
        if isinstance(sides[0], Rows):
            raise DataError(f"{sides[0].name}: expected an array; map lazy rows of one domain, with one sample_domain")
        check_consistent_length(X, source)
        return np.where(source[:, None], *sides)  # type: ignore[arg-type]  # no Rows

    def _learn(self, X: RowsLike, y: ColumnLike, sample_domain: ColumnLike) -> Array:
        """Learn both maps; return which rows are in the target, (n,) bool."""
        self._validate_params()
        rows = input_rows(self, X, reset=True)
        target, domain = find_target(rows, y, sample_domain)
        sides = with_sides(rows, target), SideStatistic, ("domain",)
        of_target, of_source = principal_axes_of(*sides, self.n_components, self.learns)
        self._align(of_source, of_target)
        self.source_domains_ = np.zeros(0) if domain is None else np.unique(domain[~target])
        return target


@parameters
class CORAL(DomainAlignment):
    """Correlation alignment: give the rows of a source the covariance of a target.

    z = x C_s^(−1/2) C_t^(1/2) for rows of the source, C the covariances; rows of the target stay as they are. Means are
    not aligned: scale each domain to mean 0 and deviation 1 first. `transform` takes rows for the target's, unless
    `sample_domain` says otherwise; a fit tells source and target apart as `ImportanceWeights` does.

    Parameters
    ----------
    shrinkage : float in (0, 1], default 0.1
        ρ in C = (1 − ρ)S + ρ (tr S/d) I, of the empirical covariances S, as in scikit-learn's `ShrunkCovariance`; 0.5
        is the paper's S + I for features of deviation 1.

    Attributes
    ----------
    source_mean_, source_components_ : zeros (d,), and the matrix (d, d) whose transpose multiplies rows of the source
    source_domains_ : domains of the source, sorted

    References
    ----------
    Sun, Feng & Saenko, Return of frustratingly easy domain adaptation (AAAI 2016).
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {"shrinkage": [Interval(Real, 0, 1, closed="right")]}

    shrinkage: float = 0.1

    def _align(self, source: PrincipalAxes, target: PrincipalAxes) -> None:
        self.source_mean_ = np.zeros(len(source.mean))
        self.source_components_ = self._power(target, 0.5) @ self._power(source, -0.5)

    def _power(self, axes: PrincipalAxes, exponent: float) -> Array:
        """Return a power of the shrunk covariance, (d, d)."""
        V, d = axes.axes, len(axes.mean)
        least = self.shrinkage * axes.total / d
        powers = ((1 - self.shrinkage) * axes.variances + least) ** exponent - least**exponent
        return np.asarray((V.T * powers) @ V + least**exponent * np.eye(d))

    def widest(self, rows: Rows) -> Rows:
        return rows

    def _row_map(self) -> RowMap:
        return Scale(1.0)


@parameters
class SubspaceAlignment(DomainAlignment):
    """Principal components of a target, and those of a source turned towards them.

    z = (x − mean_t)V_t for rows of the target and (x − mean_s)V_s V_sᵀV_t for rows of the source, which are told apart
    as in `CORAL`.

    Parameters
    ----------
    n_components : int, float or None
        As in `Projector`, for each domain.

    Attributes
    ----------
    mean_, components_ : (d,) and (r, d), mean and axes of the target
    source_mean_, source_components_ : mean of the source and V_tᵀV_s V_sᵀ
    source_domains_ : domains of the source, sorted

    References
    ----------
    Fernando, Habrard, Sebban & Tuytelaars (ICCV 2013).
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        "n_components": Projector._parameter_constraints["n_components"]
    }
    widest = Projector.widest

    n_components: float | None = None

    def _align(self, source: PrincipalAxes, target: PrincipalAxes) -> None:
        self.mean_, self.components_ = target.mean, target.axes
        self.source_mean_, self.source_components_ = source.mean, target.axes @ source.axes.T @ source.axes

    def _row_map(self) -> RowMap:
        return LinearMap(self.mean_, self.components_.T)
