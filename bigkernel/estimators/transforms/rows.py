"""Row transforms as scikit-learn transformers: scale, unit norm, standardize, principal components, side by side.

Each is fitted in at most one sweep. For NumPy and Dask arrays they return arrays of the same kind. For zarr arrays,
corpora and Rows they return `Rows` with one more row map: nothing is stored, and the tasks of the next step apply it.
So a Pipeline of them and an estimator works on all of these.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, replace
from functools import wraps
from inspect import unwrap
from numbers import Integral, Real
from types import FunctionType
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar, cast

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, OneToOneFeatureMixin, TransformerMixin, clone
from sklearn.pipeline import Pipeline
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_is_fitted

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.data.containers import is_dask_array
from bigkernel.engine.rows import DaskSource, Rows, as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.base import NamedSteps, parameters
from bigkernel.estimators.inputs.checks import require_row_squares
from bigkernel.estimators.inputs.columns import is_lazy, validated_weight
from bigkernel.estimators.inputs.read import input_rows, is_sound, near_mean
from bigkernel.kernels.feature_maps import IdentityMap
from bigkernel.kernels.threads import one_thread
from bigkernel.solvers.eigenfunctions import PrincipalAxes, principal_axes
from bigkernel.statistics.moments import FeatureSums, Moments, MomentStatistic
from bigkernel.streaming.chunk import RowMap
from bigkernel.streaming.row_maps import (
    Circles,
    LinearMap,
    Scale,
    SideBySide,
    Sphere,
    Standardize,
    UnitNorm,
    float_of,
    map_rows,
)

if TYPE_CHECKING:
    import dask.array as da
    from sklearn.utils import Tags

T = TypeVar("T")


def framing_in_memory(kind: type[T]) -> type[T]:
    """Let scikit-learn's `set_output` of a transformer give frames of rows in memory alone: lazy rows stay lazy."""
    for name in ("transform", "fit_transform"):
        setattr(kind, name, _framing_in_memory(getattr(kind, name)))
    return kind


def _framing_in_memory(method: FunctionType) -> object:
    """Return a method that scikit-learn has wrapped, without that wrapper where rows are lazy."""

    @wraps(method)
    def mapping(self: BaseEstimator, X: RowsLike, *args: object, **options: object) -> object:
        return (unwrap(method) if is_lazy(X) else method)(self, X, *args, **options)

    return mapping


@framing_in_memory
class RowTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Base of the row transformers: a fitted one is a `RowMap`.

    `learns` names the sweep of its fit, if there is one; without one, a fit learns only the number of features.
    """

    learns: ClassVar[str] = ""
    _parameter_constraints: ClassVar[dict[str, list[object]]] = {}

    def _row_map(self) -> RowMap:
        raise TypeError(f"{type(self).__name__} has no row map")

    @property
    def _n_features_out(self) -> int:
        return self._row_map().width(self.n_features_in_)

    def widest(self, rows: Rows) -> Rows:
        """Map rows to the largest width that a fit can give, without a sweep, for plans of the next step."""
        mapped: Rows = clone(self).fit(rows).transform(rows)
        return mapped

    def fit(self, X: RowsLike, y: ColumnLike = None) -> Self:
        """Learn the number of features; nothing else is needed."""
        self._validate_params()
        input_rows(self, X, reset=True)
        return self

    def transform(self, X: RowsLike) -> Array | da.Array | Rows:
        """Map the rows: to an array (NumPy, Dask; dense for sparse rows), or to Rows that are mapped when read."""
        check_is_fitted(self)
        return self._mapped(X, self._row_map())

    def _mapped(self, X: RowsLike, row_map: RowMap) -> Array | da.Array | Rows:
        """Apply a row map to rows that resemble those of the fit."""
        if is_sound(X, self):
            return map_rows(X, row_map, float_of(X.dtype))
        rows = input_rows(self, X, reset=False)
        if is_dask_array(X) and isinstance(rows.x, DaskSource):
            return rows.map(row_map).mapped_array()
        if is_lazy(X):
            return rows.map(row_map)
        return map_rows(rows.x.read(0, len(rows)), row_map, float_of(rows.dtype))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        tags.input_tags.sparse = True
        return tags


@parameters
class Rescaler(OneToOneFeatureMixin, RowTransformer):
    """Multiply every value by a factor.

    Parameters
    ----------
    factor : float
        For example 1/255 for 8-bit pixels.
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        "factor": [Interval(Real, None, None, closed="neither")]
    }

    factor: float = 1.0

    def _row_map(self) -> RowMap:
        return Scale(float(self.factor))


class UnitNormalizer(OneToOneFeatureMixin, RowTransformer):
    """Scale every row to unit L2 norm; rows of zeros stay as they are."""

    def _row_map(self) -> RowMap:
        return UnitNorm()


class Standardizer(OneToOneFeatureMixin, RowTransformer):
    """Subtract the mean and divide by the standard deviation of every feature, learnt in one sweep.

    The deviation is the maximum-likelihood estimate (divided by the sum of weights), as in scikit-learn's
    StandardScaler; it is 1 for a constant feature.

    Attributes
    ----------
    mean_, scale_ : (d,)
    """

    learns = "standardize"

    def fit(self, X: RowsLike, y: ColumnLike = None, sample_weight: ColumnLike = None) -> Self:
        """Learn means and deviations, of weighted rows if weights are given."""
        rows = input_rows(self, X, reset=True)
        rows = as_rows(rows, weight=sample_weight if is_lazy(X) else validated_weight(sample_weight, len(rows)))
        plain = replace(rows, columns={name: source for name, source in rows.columns.items() if name == "weight"})
        shift = near_mean(rows)
        swept = sweep(plain, FeatureSums(IdentityMap(shift)), what=self.learns)
        n, s, q = (swept.total[name] for name in ("n", "s", "q"))
        if not n > 0:
            raise DataError(f"{rows.name}: expected a row with a positive weight, found none")
        require_row_squares(q, s, shift, float(n))
        mean = s / n
        variance = q / n - mean**2
        self.mean_ = shift + mean
        # rounding of a constant feature is not a deviation
        with np.errstate(over="ignore"):
            flat = variance <= 10 * np.finfo(np.float64).eps * (q / n + self.mean_**2)
        self.scale_ = np.sqrt(np.where(flat, 1.0, variance))
        return self

    def widest(self, rows: Rows) -> Rows:
        return rows

    def _row_map(self) -> RowMap:
        return Standardize(self.mean_, self.scale_)


def principal_axes_of(
    rows: Rows, kind: type[MomentStatistic], columns: Sequence[str], count: float | None, what: str
) -> list[PrincipalAxes]:
    """Return the principal axes of each group of rows of a statistic, which reads some columns, from one sweep."""
    plain = replace(rows, columns={name: rows.columns[name] for name in columns}, classes=())
    # rows in the dtype of the next step; their products in float64
    dtype = np.dtype(np.float64 if rows.dtype == np.float64 else np.float32)
    shift = near_mean(rows).astype(dtype).astype(np.float64)
    total = sweep(plain, kind(IdentityMap(shift, dtype), sums=np.dtype(np.float64)), what=what).total
    if not all(np.isfinite(total[name]).all() for name in ("G", "s")):
        raise DataError(f"{rows.name}: squares of its values exceed the range of float64; scale the rows")
    with one_thread():
        found = [principal_axes(Moments.of(total, i, shift=shift), count) for i in range(len(total["n"]))]
    if not all(len(one.variances) for one in found):
        some = "of a domain " if "domain" in columns else ""
        raise DataError(f"{rows.name}: all rows {some}are equal (n_samples = {len(rows)}); expected rows that vary")
    return found


def _fit_positions(estimator: RowTransformer, X: RowsLike, columns: Sequence[object]) -> list[int]:
    """Fit a transformer, and return the positions of columns by name or position; `ConfigError` for others."""
    estimator._validate_params()
    rows = input_rows(estimator, X, reset=True)
    names = [str(name) for name in getattr(estimator, "feature_names_in_", rows.mapped_names)]
    found = []
    for column in columns:
        place = names.index(str(column)) if column in names else column
        if not isinstance(place, int | np.integer) or not 0 <= place < estimator.n_features_in_:
            raise ConfigError(
                f"{type(estimator).__name__}: expected columns among {names or range(estimator.n_features_in_)}, "
                f"found {column!r}"
            )
        found.append(int(place))
    return found


@parameters
class OnSphere(RowTransformer):
    """Replace latitude and longitude by a point of a sphere, so that distances are those through the sphere.

    Near places are near across the date line and at the poles. The three coordinates come behind the other columns.

    Parameters
    ----------
    latitude, longitude : names or positions of columns, in degrees; a latitude beyond ±90 raises `DataError`
    radius : float, in the unit of the kernel's width: 6371 for kilometres on Earth

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import OnSphere
    >>> OnSphere(0, 1, radius=2).fit_transform(np.array([[0.0, 180.0], [90.0, 0.0]])).round(3) + 0.0
    array([[-2.,  0.,  0.],
           [ 0.,  0.,  2.]])
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        "latitude": [str, Integral],
        "longitude": [str, Integral],
        "radius": [Interval(Real, 0, None, closed="neither")],
    }

    latitude: str | int = "lat"
    longitude: str | int = "lon"
    _: KW_ONLY
    radius: float = 1.0

    def fit(self, X: RowsLike, y: ColumnLike = None) -> Self:
        """Find the columns."""
        self.columns_ = np.array(_fit_positions(self, X, (self.latitude, self.longitude)))
        return self

    def _row_map(self) -> RowMap:
        return Sphere(int(self.columns_[0]), int(self.columns_[1]), float(self.radius))


@parameters
class Periodic(RowTransformer):
    """Replace columns that repeat by points of a circle: the cosine and the sine of 2π times column/period.

    Two columns for each come behind the others.

    Parameters
    ----------
    columns : name or position of a column, or a list of them
    period : float, or a list with one for each column: 24 for hours, 365.25 for days of the year

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import Periodic
    >>> Periodic(0, 24).fit_transform(np.array([[0.0], [6.0], [24.0]])).round(3) + 0.0
    array([[1., 0.],
           [0., 1.],
           [1., 0.]])
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        "columns": [str, Integral, list, tuple],
        "period": [Interval(Real, 0, None, closed="neither"), list, tuple],
    }

    columns: str | int | Sequence[str | int]
    period: float | Sequence[float]

    def fit(self, X: RowsLike, y: ColumnLike = None) -> Self:
        """Find the columns."""
        given = [self.columns] if isinstance(self.columns, str | int | np.integer) else [*self.columns]
        self.columns_ = np.array(_fit_positions(self, X, given), np.int64)
        try:
            periods = np.asarray(self.period, np.float64)
        except (TypeError, ValueError):
            periods = np.array(np.nan)
        if periods.shape not in ((), (len(given),)) or not ((periods > 0) & (periods < np.inf)).all():
            raise ConfigError(
                f"period: expected a positive number, or one for each of {len(given)} columns, found {self.period!r}"
            )
        self.periods_ = np.broadcast_to(periods, len(given)).copy()
        return self

    def _row_map(self) -> RowMap:
        return Circles(self.columns_, self.periods_)


@parameters
class Projector(RowTransformer):
    """Project rows on the directions of their largest variance (PCA), learnt in one sweep of d×d moments.

    z = (x − mean)V, with whitening zᵢ/√λᵢ. Distances of rows change little, and fewer features make kernel blocks
    cheaper. For rows of some thousand features at most: d² numbers are summed in float64.

    Parameters
    ----------
    n_components : int, float or None
        Number of features to keep; or, below 1, the least share of the variance to keep; None: all with a variance
        above rounding.
    whiten : bool
        Whether to scale every feature to variance 1.

    Attributes
    ----------
    mean_ : (d,)
    components_ : (r, d)
        Orthonormal directions; r may be less than requested where rows have fewer directions.
    explained_variance_ : (r,)
        λ in descending order, divided by the number of rows.
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
    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        "n_components": [Interval(Integral, 1, None, closed="left"), Interval(Real, 0, 1, closed="neither"), None],
        "whiten": ["boolean"],
    }

    n_components: float | None = None
    _: KW_ONLY
    whiten: bool = False

    def fit(self, X: RowsLike, y: ColumnLike = None) -> Self:
        """Learn the directions of rows X (n, d).

        Raises
        ------
        DataError
            All rows are equal, or leave the range of squares.
        """
        self._validate_params()
        rows = input_rows(self, X, reset=True)
        (principal,) = principal_axes_of(rows, MomentStatistic, (), self.n_components, self.learns)
        self.mean_, self.components_, self.explained_variance_ = principal.mean, principal.axes, principal.variances
        self.explained_variance_ratio_ = principal.variances / principal.total
        return self

    def widest(self, rows: Rows) -> Rows:
        """Map rows to the requested number of directions, or all for a share of the variance."""
        d, count = rows.shape[1], self.n_components
        width = d if count is None or count < 1 else min(d, int(count))
        return rows.map(LinearMap(np.zeros(d), np.zeros((d, width))))

    def _row_map(self) -> LinearMap:
        scale = np.sqrt(self.explained_variance_) if self.whiten else 1.0
        return LinearMap(self.mean_, self.components_.T / scale)


@parameters
class RowUnion(RowTransformer, NamedSteps):
    """The weighted features of several row transforms side by side, like scikit-learn's FeatureUnion.

    A weight sets how much a transform counts in the distance of two rows. Every transform gets the same rows; all are
    applied in the task, and nothing is stored.

    Parameters
    ----------
    transformer_list : list of (name, transformer)
        Row transforms of this package, or Pipelines of them.
    transformer_weights : dict of name to number, or None
        1 for names that are missing.

    Attributes
    ----------
    transformers_ : list of transformers
        Fitted clones, in the order of the list.

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import OrientationFeatures, RowUnion, UnitNormalizer
    >>> union = RowUnion([("pixels", UnitNormalizer()), ("strokes", OrientationFeatures())])
    >>> union.set_params(transformer_weights={"pixels": 0.5}).fit_transform(np.eye(16)).shape
    (16, 528)
    """

    _steps_name: ClassVar[str] = "transformer_list"
    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        "transformer_list": [list, tuple],
        "transformer_weights": [dict, None],
    }

    transformer_list: Sequence[tuple[str, BaseEstimator]] = ()
    _: KW_ONLY
    transformer_weights: Mapping[str, float] | None = None

    def fit(self, X: RowsLike, y: ColumnLike = None) -> Self:
        """Fit a clone of every transform to X (n, d).

        Raises
        ------
        ConfigError
            There are no transforms, two have the same name, one is of another package, or a weight is not finite.
        """
        self._validate_params()
        self._weights()
        input_rows(self, X, reset=True)
        self.transformers_ = [clone(transformer).fit(X, y) for _, transformer in self.transformer_list]
        return self

    @property
    def learns(self) -> str:  # type: ignore[override]
        """Names of the sweeps of the transforms that learn."""
        steps = (step for _, transformer in self.transformer_list for step in _steps(transformer))
        return ", ".join(filter(None, (getattr(step, "learns", "") for step in steps)))

    def widest(self, rows: Rows) -> Rows:
        weights, chains = self._weights(), []
        for _, transformer in self.transformer_list:
            mapped = rows
            for step in _steps(transformer):
                mapped = cast(RowTransformer, step).widest(mapped)
            chains.append(mapped.row_maps[len(rows.row_maps) :])
        return rows.map(SideBySide(tuple(chains), weights))

    def _weights(self) -> tuple[float, ...]:
        """Return the weight of each transform; `ConfigError` if the list or its weights are invalid."""
        named = list(self.transformer_list)
        if not named or not all(isinstance(one, tuple | list) and len(one) == 2 for one in named):
            raise ConfigError(f"transformer_list: expected a list of (name, transformer), found {named!r}")
        names = [name for name, _ in named]
        if len(set(names)) < len(names):
            raise ConfigError(f"transformer_list: expected distinct names, found {', '.join(map(repr, names))}")
        for name, step in ((name, step) for name, transformer in named for step in _steps(transformer)):
            if not isinstance(step, RowTransformer):
                raise ConfigError(
                    f"transformer_list: {name}: expected a row transform of bigkernel or a Pipeline of them, found "
                    f"{type(step).__name__}"
                )
        weights = self.transformer_weights or {}
        if unknown := sorted(set(weights) - set(names)):
            raise ConfigError(
                f"transformer_weights: {unknown[0]!r} is not a name in transformer_list; the names are "
                f"{', '.join(names)}"
            )
        for name, weight in weights.items():
            if not isinstance(weight, int | float) or not math.isfinite(weight):
                raise ConfigError(f"transformer_weights: {name}: expected a finite number, found {weight!r}")
        return tuple(float(weights.get(name, 1.0)) for name in names)

    def _row_map(self) -> SideBySide:
        weights = self._weights()
        maps = (tuple(cast(RowTransformer, step)._row_map() for step in _steps(one)) for one in self.transformers_)
        row_map = SideBySide(tuple(maps), weights)
        row_map.width(self.n_features_in_)  # refuses what does not fit together
        return row_map


def _steps(transformer: BaseEstimator) -> list[BaseEstimator]:
    return [step for _, step in transformer.steps] if isinstance(transformer, Pipeline) else [transformer]
