"""Importance weights: how much more likely a row is in the target than in the source."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from sklearn.utils._param_validation import Interval
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.data.containers import in_memory
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import ConfigError, DataError, OverlapWarning
from bigkernel.estimators.base import parameters
from bigkernel.estimators.fit.basis import BasisChoice, LandmarkBasis
from bigkernel.estimators.fit.state import Fitted, ProjectionFit, RatioSolution
from bigkernel.estimators.inputs.checks import KERNEL_CONSTRAINTS
from bigkernel.estimators.inputs.classes import no_label, plain_labels
from bigkernel.estimators.inputs.columns import is_lazy, validated_weight
from bigkernel.estimators.inputs.read import input_rows
from bigkernel.estimators.inputs.training import Inputs
from bigkernel.estimators.transforms.nystroem import LandmarkTransformer
from bigkernel.events.job import job
from bigkernel.kernels.feature_maps import LandmarkFamily
from bigkernel.kernels.functions import Gaussian
from bigkernel.kernels.landmarks import MedianGaussian
from bigkernel.solvers.importance import SideMoments, effective_size, held_out_errors, solve_ratio
from bigkernel.statistics.domain_scores import target_domains
from bigkernel.statistics.moments import MomentStatistic
from bigkernel.statistics.predictor import Predictor
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import Folds, HashFolds
from bigkernel.streaming.plan import Accumulator

if TYPE_CHECKING:
    import dask.array as da

_FOLDS = 5
_MOST_MEAN = 1.2  # of the weights of the source: generated pairs with more have far fewer effective rows
_WIDTHS = np.geomspace(0.25, 4.0, 5)  # of the median distance
_PENALTIES = tuple(np.geomspace(1e-4, 10.0, 11))


@dataclass(frozen=True, eq=False)
class SideStatistic(MomentStatistic):
    """Moments of the target (domains below 0) by fold, groups 0 to F − 1, then those of the source."""

    folds: Folds = field(default_factory=lambda: HashFolds(1))

    @property
    def groups(self) -> int:
        """Number of groups, 2F."""
        return 2 * self.folds.count

    def _split(self, chunk: Chunk) -> list[Array | None]:
        assert chunk.domain is not None
        group = self.folds.of(chunk) + np.where(chunk.domain < 0, 0, self.folds.count)
        return [np.flatnonzero(group == number) for number in range(self.groups)]


@parameters
class ImportanceWeights(LandmarkTransformer):
    """Weights of source rows under which they represent the target: the ratio of their densities, by uLSIF.

    The ratio is a sum of Gaussians at landmarks, fitted by least squares in one sweep for all widths and penalties;
    both are chosen by the squared error on held-out rows. As `sample_weight` of a fit, the weights correct it for a
    shift of the rows (covariate shift). Few rows of large weight leave little to learn from: see
    `effective_sample_size_`.

    The target consists of the domains below 0; if there are none, of those in which no row has a label; and without
    domains, of the rows without a label.

    Parameters
    ----------
    sigmas : sequence of float > 0, or None
        Widths to choose from; None: from a quarter of the median distance of landmarks to four times as much.
    penalties : sequence of float > 0
        λ to choose from.
    n_landmarks : int, default 200
        p, sampled evenly from both domains.
    landmarks, random_state : as in `KernelRidge`

    Attributes
    ----------
    importance_weights_ : (n,)
        Weights of the rows of the fit if they are in memory; 1 for those of the target.
    effective_sample_size_ : float
        (Σw)²/Σw² of the source's rows in memory.
    sigma_, penalty_ : the chosen ones
    errors_ : (widths, penalties), squared errors of the ratio on held-out rows, up to a constant
    dual_coef_ : θ, (p, 1)
    landmarks_ : (p, d)

    References
    ----------
    Kanamori, Hido & Sugiyama (JMLR 2009).

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import ImportanceWeights, KernelRidge
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(0, 1, 400), rng.normal(1, 0.5, 400)])[:, None]
    >>> domain = np.repeat([1, -1], 400)
    >>> ratio = ImportanceWeights(n_landmarks=50, random_state=0).fit(X, sample_domain=domain)
    >>> w = ratio.importance_weights_[:400]
    >>> bool(abs(np.average(X[:400, 0], weights=w) - 1) < 0.1)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        "sigmas": ["array-like", None],
        "penalties": ["array-like"],
        "n_landmarks": [Interval(Integral, 1, None, closed="left")],
        "landmarks": KERNEL_CONSTRAINTS["landmarks"],
        "random_state": KERNEL_CONSTRAINTS["random_state"],
    }
    penalty_ = Fitted[float]("solution.alpha")
    sigma_ = Fitted[float]("solution.sigma")
    importance_weights_ = Fitted[Array]("solution.weights")
    effective_sample_size_ = Fitted[float]("solution.effective_size")
    errors_ = Fitted[Array]("solution.errors")

    sigmas: Sequence[float] | None = None
    penalties: Sequence[float] = _PENALTIES
    _: KW_ONLY
    n_landmarks: int = 200
    landmarks: str | Sequence[Sequence[float]] = "balanced"
    random_state: int | np.random.RandomState | None = None

    def fit(
        self, X: RowsLike, y: ColumnLike = None, *, sample_domain: ColumnLike = None, sample_weight: ColumnLike = None
    ) -> Self:
        """Fit to rows X (n, d) of both domains; y (n,) is read only to tell source and target, see the class.

        Raises
        ------
        ConfigError
            A width, a penalty or the choice of landmarks is invalid.
        DataError
            There is no source, no target, or a fold without rows of one of them.

        Warns
        -----
        OverlapWarning
            The source's weights have a mean above 1.2, where a ratio of densities has 1: both hardly overlap, and
            `effective_sample_size_` is too large. Only for rows in memory.
        """
        self._validate_params()
        choice = self._choice(MedianGaussian(), self.n_landmarks, "float64")
        penalties = [float(penalty) for penalty in self.penalties]
        if not penalties or not 0 <= min(penalties) <= max(penalties) < np.inf:
            raise ConfigError(f"penalties: expected finite numbers of at least 0, found {penalties}")
        rows = input_rows(self, X, reset=True)
        target, _ = find_target(rows, y, sample_domain)
        weight = sample_weight if is_lazy(X) else validated_weight(sample_weight, len(rows))
        with job("ImportanceWeights.fit"):
            basis, solution = _fit(with_sides(rows, target, weight), choice, self.sigmas, penalties)
        self._fitted = ProjectionFit(inputs=Inputs.of(self), basis=basis, solution=solution)
        if rows.in_memory:
            weights = self.predict(X)
            of_rows, size = np.where(target, 1.0, weights), effective_size(weights[~target])
            if (mean := float(weights[~target].mean())) > _MOST_MEAN:
                warnings.warn(
                    f"the weights of the source have the mean {mean:.2g}, expected 1: source and target hardly "
                    f"overlap, and fewer than the {size:.0f} effective rows of the source resemble the target",
                    OverlapWarning,
                    stacklevel=2,
                )
            solution = replace(solution, weights=of_rows, effective_size=size)
            self._fitted = replace(self._fitted, solution=solution)
        return self

    def predict(self, X: RowsLike) -> Array | da.Array:
        """Return the weights of rows, (n,), at least 0: a lazy array for Dask arrays."""
        check_is_fitted(self)
        ratio = self._mapped(X, self._row_map())
        if isinstance(ratio, Rows):
            raise DataError(f"{ratio.name}: expected an array; transform() gives the ratio of lazy rows")
        return np.maximum(ratio[:, 0], 0)


def with_sides(rows: Rows, target: Array, weight: ColumnLike = None) -> Rows:
    """Return rows in the domain −1 if they are in the target, else in 1."""
    return as_rows(rows, domain=np.where(target, -1, 1).astype(np.int8), weight=weight)


def fit_ratio(rows: Rows, target: Array, weight: Array) -> Predictor:
    """Fit the ratio of the densities of a target and of the other rows by default settings; see `ImportanceWeights`."""
    count = min(200, len(rows))
    choice = BasisChoice(kernel=MedianGaussian(), landmarks="balanced", count=count, dtype="float64", random_state=0)
    basis, solution = _fit(with_sides(rows, target, weight), choice, None, _PENALTIES)
    return Predictor.of(basis.features(), solution.coef, solution.intercept)


def _fit(
    rows: Rows, choice: BasisChoice, sigmas: Sequence[float] | None, penalties: Sequence[float]
) -> tuple[LandmarkBasis, RatioSolution]:
    """Fit the ratio, and choose its width and penalty."""
    basis = choice.choose(rows)
    assert isinstance(basis, LandmarkBasis)
    median = float(basis.kernel.get_params()["sigma"])
    widths = [float(sigma) for sigma in (median * _WIDTHS if sigmas is None else sigmas)]
    kernels = tuple(Gaussian(sigma).resolve(basis.landmarks) for sigma in widths)
    family = LandmarkFamily(kernels, basis.landmarks, np.dtype(np.float64))
    total = sweep(rows, SideStatistic(family, folds=HashFolds(_FOLDS)), what="sides").total
    solution = _choose(total, widths, penalties)
    return replace(basis, kernel=Gaussian(solution.sigma)), solution


def _choose(total: Accumulator, sigmas: Sequence[float], penalties: Sequence[float]) -> RatioSolution:
    """Return the ratio of the width and penalty of the least error on held-out rows."""
    kernels = [_moments(total, place) for place in range(len(sigmas))]
    for what, weight in (("target", kernels[0].m), ("source", kernels[0].n)):
        if not (weight > 0).all():
            raise DataError(f"sample_domain: expected rows of the {what} in each of {_FOLDS} folds, found too few")
    errors = np.stack([held_out_errors(moments, penalties).mean(axis=0) for moments in kernels])
    kernel, place = divmod(int(errors.argmin()), len(penalties))
    H, h = kernels[kernel].means(range(_FOLDS))
    return RatioSolution(
        coef=solve_ratio(H, h, [penalties[place]]),
        intercept=np.zeros(1),
        rank=len(h),
        alpha=penalties[place],
        sigma=sigmas[kernel],
        errors=errors,
    )


def _moments(total: Accumulator, place: int) -> SideMoments:
    """Return the sums of one kernel."""
    first = 2 * _FOLDS * place
    target, source = slice(first, first + _FOLDS), slice(first + _FOLDS, first + 2 * _FOLDS)
    return SideMoments(total["G"][source], total["n"][source], total["s"][target], total["n"][target])


def find_target(rows: Rows, y: ColumnLike, sample_domain: ColumnLike) -> tuple[Array, Array | None]:
    """Return whether each row is in the target, (n,) bool, see `ImportanceWeights`; and the domains, if there are any.

    Raises
    ------
    DataError
        All rows are on one side.
    """
    labels = rows.column("y") if y is None else in_memory(y, "y", labels=True)
    domain = rows.column("domain") if sample_domain is None else in_memory(sample_domain, "sample_domain", labels=True)
    check_consistent_length(*(column for column in (labels, domain) if column is not None), np.empty(len(rows)))
    missing = np.zeros(len(rows), bool)
    if labels is not None and labels.dtype.kind == "f":
        missing = np.asarray(np.isnan(labels).reshape(len(labels), -1).any(axis=1))
    if labels is not None and labels.ndim == 1 and not missing.any():
        missing = no_label(plain_labels(labels))
    target = missing if domain is None else np.isin(domain, target_domains(domain, ~missing))
    if target.all() or not target.any():
        raise DataError(
            f"{rows.name}: expected rows of a source and of a target, found one of them (n_samples = {len(rows)}); "
            "pass sample_domain, below 0 for the target, or y without the labels of the target (−1 or NaN)"
        )
    return target, domain
