"""A fit as an immutable value (columns, sums and solution), and the problem that it solves.

Shapes: d features, p columns of the map, c targets, g groups of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Generic, Protocol, Self, TypeVar, cast, overload

import numpy as np

from bigkernel.arrays import Array, DType
from bigkernel.errors import DataError
from bigkernel.estimators.inputs.checks import require_labelled, require_row_squares, require_sums
from bigkernel.estimators.inputs.training import Inputs
from bigkernel.kernels.feature_maps import FeatureMap, IdentityMap
from bigkernel.kernels.random_fourier import BlockMap
from bigkernel.solvers.pseudo_labels import PseudoLabels
from bigkernel.solvers.residuals import SolveDiagnostics
from bigkernel.solvers.variogram import Variogram
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.blend import Blend
from bigkernel.statistics.domain_cells import Cells
from bigkernel.statistics.moments import Moments, uncentre, unshift_targets
from bigkernel.statistics.predictor import Calibration
from bigkernel.statistics.statistic import add
from bigkernel.streaming.plan import Accumulator

Report = dict[str, object]  # figures as plain data
GRAPH_SUMS = ("anchors", "degrees")
UNSTORED = {"stored": False}  # metadata of fields that a model file leaves out


class ColumnMap(Protocol):
    """Base of the columns of a fit; without more, they have no rounding of their own, and moments suffice."""

    @property
    def sums(self) -> str | None:
        """Name of the dtype of products of blocks and of their sums over some thousand rows; None: that of blocks."""
        return None

    @property
    def ids(self) -> Array | None:
        """The rows of the fit that the columns are values at, sorted; None: not known, or there are no such rows."""
        return None

    @property
    def views(self) -> int:
        """Number of views of a row, of equally many columns each; predictions need the first one."""
        return 1

    @property
    def probed(self) -> bool:
        """Whether vectors in a sweep probe the rounding of its sums."""
        return True

    @property
    def sum_dtype(self) -> DType | None:
        """The dtype that `sums` names."""
        return None if self.sums is None else np.dtype(self.sums)

    def features(self) -> BlockMap:
        """Return the map of rows to columns."""

    def centred(self) -> BlockMap:
        """Return the map less a point near the mean of its blocks, whose moments are swept."""

    def whitening(self, diagnostics: SolveDiagnostics | None = None, *, solves: bool = True) -> Whitening:
        """Return the whitening of the columns, without a warning; unless it `solves`, it only probes rounding."""

    def predicting(self, features: FeatureMap) -> FeatureMap:
        """Return the part of a map to these columns that solutions have coefficients of."""
        return features

    def predicted_from(self, moments: Moments) -> Moments:
        """Return the moments of the columns that solutions have coefficients of."""
        return moments

    def noise(self) -> Array | None:
        """Return the differences of blocks of some points from those in float64, (k, p); None where unknown."""
        return None

    def sample_block(self) -> tuple[Array, Array] | None:
        """Return columns of some points, (k, p), and k(x, x) of each, (k,); None where moments suffice."""
        return None

    def figures(self) -> dict[str, int]:
        """Return figures of the landmarks, for reports."""
        return {}

    def require_range(self, sums: Accumulator) -> None:
        """Raise `DataError` where sums of these columns are out of the range of float64."""
        require_sums(sums)


class Columns(ColumnMap, Protocol):
    """The columns of a fit: rows as they are, or `LandmarkBasis` and `FourierBasis` of a kernel."""

    @property
    def width(self) -> int:
        """Number of columns, p."""

    @property
    def dtype(self) -> str:
        """The dtype of blocks."""


@dataclass(frozen=True, eq=False)
class RowBasis(ColumnMap):
    """The rows themselves as columns, summed about `shift` (d,)."""

    shift: Array

    dtype: ClassVar[str] = "float64"
    probed: ClassVar[bool] = False  # the solve estimates the rounding itself

    @property
    def width(self) -> int:
        """Number of features, d."""
        return len(self.shift)

    def whitening(self, diagnostics: SolveDiagnostics | None = None, *, solves: bool = True) -> Whitening:
        """Return no whitening."""
        return Whitening(self.width, self.width)

    def features(self) -> IdentityMap:
        return IdentityMap(self.shift)

    def centred(self) -> IdentityMap:
        return self.features()

    def require_range(self, sums: Accumulator) -> None:
        require_row_squares(np.diagonal(sums["G"][0]), sums["s"][0], self.shift, float(sums["n"][0]))
        require_sums(sums)


@dataclass(frozen=True, eq=False, kw_only=True)
class Solution:
    """f(x) = φ(x)ᵀW + b: `coef` W (p, c), `intercept` b (c,), the rank of the solve, and its penalties (c,) or one."""

    coef: Array
    intercept: Array
    rank: int
    alpha: float | Array

    @property
    def unresolved(self) -> bool:
        """Whether rounding leaves directions unresolved that float64 might resolve."""
        return False

    def report(self, fit: Fit) -> Report:
        """Return the figures of its fit that only such solutions have."""
        return {}


@dataclass(frozen=True, eq=False, kw_only=True)
class RatioSolution(Solution):
    """A ratio of densities.

    Attributes
    ----------
    sigma : the width
    errors : of all widths and penalties on held-out rows, (K, k)
    weights : of the rows of a fit in memory, (n,)
    effective_size : their effective number
    """

    sigma: float
    errors: Array
    weights: Array | None = field(default=None, metadata=UNSTORED)
    effective_size: float | None = field(default=None, metadata=UNSTORED)


@dataclass(frozen=True, eq=False, kw_only=True)
class RidgeSolution(Solution):
    """A solution with its mean squared error of training (c,), and whether it has an intercept."""

    training_mse: Array
    with_intercept: bool
    iterations: ClassVar[int] = 1  # of a direct solve


@dataclass(frozen=True, eq=False, kw_only=True)
class IterativeSolution(RidgeSolution):
    """A solution with its number of steps of conjugate gradients."""

    iterations: int  # type: ignore[misc]


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearSolution(RidgeSolution):
    """A solution with the `level` (c,) of predictions at the point that rows were summed about."""

    level: Array
    band_weights: Array | None = None  # of bands of columns, (b,) or (c, b)


@dataclass(frozen=True, eq=False, kw_only=True)
class LogisticSolution(Solution):
    """A solution with its mean log-loss of training, and its number of steps."""

    log_loss: float
    iterations: int


@dataclass(frozen=True, eq=False, kw_only=True)
class SpectralSolution(Solution):
    """A solution with eigenvalues (s,) in descending order, and the weight of its graph."""

    eigenvalues: Array
    manifold: float = 0.0

    @property
    def n_components(self) -> int:
        """Number of components: as many as requested, or the numerical rank if that is less."""
        return len(self.eigenvalues)


@dataclass(frozen=True, eq=False, kw_only=True)
class ViewSolution(Solution):
    """A solution with the canonical correlations (r,) of two views, descending, and their ranks above rounding."""

    correlations: Array
    view_ranks: tuple[int, int]

    @property
    def unresolved(self) -> bool:
        """Whether a view has fewer directions above rounding than landmarks."""
        return min(self.view_ranks) < len(self.coef)

    def report(self, fit: Fit) -> Report:
        """Return the rank of each view; `rank` is the number of canonical directions."""
        return {"view_ranks": list(self.view_ranks)}


@dataclass(frozen=True, eq=False, kw_only=True)
class ComponentSolution(SpectralSolution):
    """Components with the mean squared distance of the domains' means, in the features and in the components."""

    variance: Mapping[str, float]

    def report(self, fit: Fit) -> Report:
        domains = fit.inputs.domains
        assert domains is not None
        figures = {"components": self.n_components, "domains": len(domains)}
        return {**figures, "distributional_variance": dict(self.variance)}


@dataclass(frozen=True, eq=False, kw_only=True)
class AlignedSolution(Solution):
    """A solution with W (r, c) over the whitened columns, where a round of pseudo-labels starts; files leave it out."""

    whitened: Array | None = field(default=None, metadata=UNSTORED)

    def report(self, fit: Fit) -> Report:
        assert isinstance(fit, MomentFit)
        target, source = (int(count) for count in fit.statistics["rows"])
        figures = {"source_rows": source, "target_rows": target, "rounds": list(fit.rounds)}
        return figures if fit.pseudo_labels is None else {**figures, "congruence": fit.pseudo_labels.congruence}


@dataclass(frozen=True, eq=False, kw_only=True)
class AlignedComponents(AlignedSolution, SpectralSolution):
    """Components of both sides with their eigenvalues."""


@dataclass(frozen=True, eq=False)
class FoldSums:
    """The sums of labelled rows by fold, which a fit keeps until it has chosen and calibrated (`fit.folds`)."""

    sums: Accumulator  # of g groups
    count: int  # of them that are held out, the first ones; the last group may hold the other rows
    landmarks: Array | None  # (m,) the fold of the row of each landmark; None: they stay in all folds
    joins: bool  # held-out rows stay among those without a label


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """Sums, and all else that a solve needs."""

    inputs: Inputs  # of the rows
    basis: Columns  # of the columns
    statistics: Accumulator  # the sums of one sweep
    pseudo_labels: PseudoLabels | None = None  # of the last round, for methods with rounds of them
    centre: Array | None = None  # (p,) subtracted from the columns before they are summed; None: 0
    # beside the sums of all rows, where a method needs them
    folds: FoldSums | None = field(default=None, metadata=UNSTORED)
    # R (q, q) of the same rows about the same points, where moments were not enough (`statistics.qr`)
    r_factor: Array | None = None
    # number of landmarks through which a row of the graph is connected; None: no graph, or not stored
    neighbors: int | None = None

    @classmethod
    def of_sums(cls, inputs: Inputs, basis: Columns, total: Accumulator, shift: Array | None) -> Self:
        """Take sums about `shift` (p,), or about 0 if it is None; only probed ones stay about it."""
        if shift is None or "E" in total:
            centre = None if shift is None else shift.astype(np.float64)
            return cls(inputs=inputs, basis=basis, statistics=total, centre=centre)
        return cls(inputs=inputs, basis=basis, statistics=uncentre(total, shift))

    @property
    def moments(self) -> Moments:
        """The moments of all rows."""
        return Moments.of(self.statistics, shift=self.centre)

    @property
    def uncentred_statistics(self) -> Accumulator:
        """The statistics of the columns about 0."""
        return self.statistics if self.centre is None else uncentre(self.statistics, self.centre)

    def joined(self, more: Problem) -> Self:
        """Return the problem with the rows of `more`, which has the same columns; no graph where `more` has none."""
        total, zero = more.statistics, np.zeros(self.basis.width)
        before = {name: sums for name, sums in self.statistics.items() if name in total or name not in GRAPH_SUMS}
        # the same point, unless this one comes from another processor or file
        further = (zero if more.centre is None else more.centre) - (zero if self.centre is None else self.centre)
        total = add(before, uncentre(total, further) if further.any() else total)
        return replace(self, statistics=total, r_factor=None, neighbors=more.neighbors)

    def of_targets(self) -> Self:
        """Return the problem of targets without a shift."""
        shift, inputs = self.inputs.target_shift, self.inputs.of_targets()
        if shift is None or inputs is self.inputs:
            return self
        folds = self.folds and replace(self.folds, sums=unshift_targets(self.folds.sums, shift))
        total = unshift_targets(self.statistics, shift)
        return replace(self, inputs=inputs, statistics=total, folds=folds, r_factor=None)

    def require_weight(self, rows: str) -> None:
        """Raise `DataError` if all rows of this name have the weight 0."""
        if not self.statistics["n"].sum() > 0:
            raise DataError(f"{rows}: expected a row with a positive weight, found none")

    def require_labels(self) -> None:
        """Raise `DataError` unless a labelled row has a weight above zero."""
        require_labelled(self.statistics["rows"].sum(), self.statistics["n"][-1])


@dataclass(frozen=True, eq=False)
class ExactProblem:
    """The kernel matrix K (n, n) of an exact fit, the targets of its rows, and their weights and folds (n,) or None."""

    inputs: Inputs
    basis: Columns
    K: Array
    targets: tuple[Array, Array | Cells]
    weight: Array | None
    folds: Array | None = None


R = TypeVar("R")
S = TypeVar("S", bound=Solution)


@dataclass(frozen=True, eq=False)
class Solved(Generic[R, S]):
    """A solution, the whitening of its columns, and the data that solves of the same sums share."""

    problem: Problem
    solution: S
    diagnostics: SolveDiagnostics
    reduced: R
    whitening: Whitening | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class MomentFit(Problem):
    """A fit from sums, from which another penalty or more rows are fitted without the old rows."""

    solution: Solution  # of these sums
    # figures of the solve by name
    diagnostics: Mapping[str, float | int] = field(default_factory=dict, metadata=UNSTORED)
    # report of the sweep; empty where the sums came from elsewhere
    sweep: Mapping[str, object] = field(default_factory=dict, metadata=UNSTORED)
    skipped_rows: int = 0  # number of bad rows that were left out
    # figures of each round of pseudo-labels
    rounds: Sequence[Mapping[str, float]] = field(default=(), metadata=UNSTORED)
    calibration: Calibration | None = None  # of values of f to probabilities, if requested

    @classmethod
    def of(
        cls,
        solved: Solved[R, S],
        diagnostics: Mapping[str, float | int],
        sweep: Mapping[str, object],
        skipped_rows: int,
        rounds: Sequence[Mapping[str, float]] = (),
    ) -> Self:
        """Make the fit of a solved problem."""
        problem = {one.name: getattr(solved.problem, one.name) for one in fields(Problem)}
        return cls(
            **problem,
            solution=solved.solution,
            diagnostics=diagnostics,
            sweep=sweep,
            skipped_rows=skipped_rows,
            rounds=rounds,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class SumlessFit:
    """Base of the fits that keep no sums; attributes as in `MomentFit`."""

    inputs: Inputs
    basis: Columns
    solution: Solution
    diagnostics: Mapping[str, float | int] = field(default_factory=dict, metadata=UNSTORED)
    skipped_rows: int = 0
    calibration: Calibration | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class ExactFit(SumlessFit):
    """A fit from the n×n kernel matrix; every row is a landmark of its basis, with the weights `weight` (n,)."""

    weight: Array | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class IterativeFit(SumlessFit):
    """A fit by conjugate gradients or by gradients, which keeps no sums.

    `sweep` is the report of all sweeps together; `rows` is the number of labelled rows.
    """

    sweep: Mapping[str, object] = field(default_factory=dict, metadata=UNSTORED)
    rows: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class ProjectionFit:
    """A map that needs no sums: its columns, and the coefficients of its features."""

    inputs: Inputs
    basis: Columns
    solution: Solution


@dataclass(frozen=True, eq=False)
class BlendFit:
    """A fit of parts, which keeps no sums."""

    inputs: Inputs
    blend: Blend


@dataclass(frozen=True, eq=False)
class KrigingFit(BlendFit):
    """A fit of neighbourhoods that share a variogram."""

    variogram: Variogram


Fit = MomentFit | ExactFit | IterativeFit
V = TypeVar("V")


class Fitted(Generic[V]):
    """A fitted attribute, read at a path in the fit of an estimator; `AttributeError` before the fit."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, estimator: None, owner: type) -> Self: ...

    @overload
    def __get__(self, estimator: object, owner: type) -> V: ...

    def __get__(self, estimator: object | None, owner: type) -> Self | V:
        if estimator is None:
            return self
        value = value_at(getattr(estimator, "_fitted", None), self.path)
        if value is None:
            raise AttributeError(f"{type(estimator).__name__!r} object has no attribute {self.name!r}")
        return cast(V, value)

    def __set__(self, estimator: object, value: V) -> None:
        raise AttributeError(f"{self.name} of {type(estimator).__name__} is a fitted attribute and cannot be set")


def value_at(state: object, path: str) -> object | None:
    """Return the value at a path such as "solution.rank", or None."""
    for name in path.split("."):
        state = getattr(state, name, None)
    return state
