"""Adaptation regularization in landmark form: a classifier for a target domain without labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils._param_validation import Interval, StrOptions

from bigkernel.arrays import ColumnLike, RowsLike
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ConfigError
from bigkernel.estimators.adaptation.self_training import (
    AdaptingMethod,
    ReducedSides,
    check_choice,
    fit_sides,
    median_kernel,
    pseudo_labels_of,
    read_sides,
    with_label_domains,
    with_sides,
)
from bigkernel.estimators.base import Classifier, LandmarkEstimator, parameters, some_landmarks_choice
from bigkernel.estimators.fit.basis import BasisChoice
from bigkernel.estimators.fit.calibration import PROBABILITY
from bigkernel.estimators.fit.graph import GRAPH, Graph, refuse_graph
from bigkernel.estimators.fit.precision import Whitened
from bigkernel.estimators.fit.state import AlignedSolution, Fitted, Problem, Solved
from bigkernel.estimators.inputs.checks import KERNEL_CONSTRAINTS, number
from bigkernel.estimators.inputs.class_weights import CLASS_WEIGHT
from bigkernel.estimators.inputs.read import read_cells
from bigkernel.estimators.inputs.training import Training
from bigkernel.kernels.functions import SCALES
from bigkernel.solvers.adaptation import Strengths, adaptation_ridge, slope
from bigkernel.solvers.penalty_grid import SolveSettings
from bigkernel.solvers.pseudo_labels import Decision
from bigkernel.solvers.residuals import SolveDiagnostics
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.domain_cells import cell_targets

_LEAST_TARGET_ROWS = 2  # for a variance


@dataclass(frozen=True, eq=False, kw_only=True)
class ARTLMethod(AdaptingMethod[AlignedSolution]):
    """Ridge on the source, with the distances of means and the variation along a graph of all rows."""

    guarded: ClassVar[bool] = True
    mmd: float
    balance: float
    sharpness: float | tuple[float, float]

    def check_settings(self, columns: BasisChoice) -> None:
        self.sharpness_of(1)
        refuse_graph(columns.landmarks, self.graph, fourier=columns.fourier)

    def sharpness_of(self, number: int) -> float:
        """Return β of a round."""
        given = self.sharpness if isinstance(self.sharpness, tuple) else (self.sharpness, self.sharpness)
        try:
            first, last = map(float, given)
        except (TypeError, ValueError):
            first = last = np.nan
        if not (0 < first < np.inf and 0 < last < np.inf):
            raise ConfigError(f"sharpness: expected one or two numbers above 0, found {self.sharpness!r}")
        return float(first * (last / first) ** ((number - 1) / max(1, self.n_rounds - 1)))

    def reduce(self, problem: Problem, whitening: Whitening) -> ReducedSides:
        return replace(super().reduce(problem, whitening), graph=self.graph.laplacian(problem, whitening))

    def solve(self, problem: Problem, reduced: ReducedSides, diagnostics: SolveDiagnostics) -> AlignedSolution:
        strengths = Strengths(float(self.mmd), float(self.graph.manifold), number(self.alpha), float(self.balance))
        labels = problem.pseudo_labels and problem.pseudo_labels.reduce(reduced.whitening)
        W = adaptation_ridge(reduced.aligned, reduced.graph, labels, strengths, diagnostics=diagnostics)
        return AlignedSolution(
            coef=reduced.whitening.expand(W),
            intercept=np.zeros(W.shape[1]),
            rank=reduced.whitening.rank,
            alpha=number(self.alpha),
            whitened=W,
        )

    def decision(self, solved: Solved[ReducedSides, AlignedSolution], number: int) -> tuple[Decision, float]:
        solution, aligned = solved.solution, solved.reduced.aligned
        assert solution.whitened is not None
        steepness = slope(aligned, solution.whitened, self.sharpness_of(number))
        return Decision(solution.coef, solution.intercept), steepness

    def solve_settings(self) -> SolveSettings:
        return SolveSettings(number(self.alpha), by_direction=True)


@parameters
class ARTLClassifier(Classifier, LandmarkEstimator):
    """Adaptation regularization: ridge on a labelled source domain, made to hold on an unlabelled target domain.

    Transductive: the rows of the target take part in the fit, their labels never. Three terms are added to the squares
    of kernel ridge regression: the distance between the means of both domains, and of each class in them (joint maximum
    mean discrepancy), with soft pseudo-labels for the target's classes; the variation of f along a graph that connects
    all rows through their nearest landmarks (`solvers.anchor_graph`); and the norm of f. One sweep sums the moments;
    each round sweeps the target once for its pseudo-labels and solves an m×m problem.

    The target consists of the domains in which no row has a label; without domains, of the rows without a label. Rows
    without a label in a domain that has some are left out. A class that no source row has is never predicted.

    Parameters
    ----------
    kernel, degree, coef0, dtype, random_state, verbose : as in `KernelRidge`
    n_landmarks : int or None
        m. None: 500, or half of the rows if these are fewer.
    landmarks : str or array (m, d), default "k-means"
        As in `KernelRidge`. They connect the graph, so that their choice matters: between five draws of 500 of
        1,800 + 2,000 digits, MNIST → USPS, the accuracy on the target differs by 9 points with rows sampled uniformly
        (84 % on average), and by 1 with centres of k-means (90 %).
    mmd : float ≥ 0, default 10
        λ, the weight of the distances between means, times half the number of rows.
    manifold : float ≥ 0, default 1
        γ, the weight of the graph. Random features have no landmarks to connect rows: use `manifold=0` with them.
    alpha : float ≥ 0, default 0.1
        σ, the ridge penalty.
    balance : float from 0 to 1, default 0.5
        μ, the share of the classes' means; the rest is that of the domains'.
    sharpness : float > 0 or (first, last), default (3.0, 10.0)
        β of the pseudo-labels Q = softmax(βf/τ), τ the spread of f over the target. A pair: raised from the first round
        to the last by equal factors, as labels are least certain at first (deterministic annealing). Labels that are
        too soft pull all classes together: below about 2.5 they collapse on digits.
    n_rounds : int ≥ 0, default 10
        Maximum number of rounds; there are fewer if no label changes.
    n_neighbors : int, default 3
        Number of landmarks that connect a row in the graph.
    class_weight : dict, "balanced" or None
        Of the source's rows, as in `KernelRidgeClassifier`.
    probability : bool, default False
        As in `KernelRidgeClassifier`, calibrated on the source's rows: the probabilities hold for the target as far as
        the model has aligned both. Pseudo-labels stay those of the fit to all rows.
    gamma : float, "median", "scale" or "auto", default "median", as in `JDA`

    Attributes
    ----------
    classes_ : (c,)
    dual_coef_ : (m, c), over the landmarks
    rounds_ : list of dict
        One a round: `entropy` of the soft labels (mean a row, in nats), `conditional_entropy` (that entropy as a
        share of the entropy of the classes at large, from 0 to 1) and `changed` (share of the target whose class is
        new).
    source_domains_, target_domains_ : domains of source and target; 0 and 1 if none were given
    congruence_ : float from -1 to 1
        Σ p_c⟨a_c, b_c⟩ / (Σ p_c‖a_c‖² Σ p_c‖b_c‖²)^½ (Tucker's congruence), with a_c the mean of a class of the source
        less that of all its rows, b_c the same of the target by its pseudo-labels, and p_c the share of the class in
        the source. Low values are a sign of wrong labels. Absent for random features, for fewer than two classes in
        both, and where the class means explain less than 5 % of the variance of the source.
    pseudo_labels_ : sums of the target's features by class, from which the solution was fitted; `refit` uses them
    landmarks_, kernel_, statistics_, rank_, intercept_ (zeros), diagnostics_, skipped_rows_, n_features_in_
        As in `KernelRidge`; the statistics have two groups of rows, target and labelled source, and `anchors` (m, m)
        and `degrees` (m,) of the graph.

    Warns
    -----
    CollapsedLabelsWarning
        The pseudo-labels of a round are less certain than those before it, or too uncertain after three: the rounds
        stop, and the solution of the most certain ones is kept.
    DifferentClassesWarning
        `congruence_` is below 0.4: the adapted classes may be worse than those of the source alone.

    References
    ----------
    Long, Wang, Ding, Pan & Yu (IEEE TKDE 2014); Liu, He & Chang (ICML 2010) for the graph; Tucker (1951) for the
    congruence.

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import ARTLClassifier
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat([0, 1], 100)
    >>> source = rng.normal(size=(200, 2)) * 0.3 + 2 * truth[:, None]
    >>> target = source + [1.0, -0.5]
    >>> X, y = np.vstack([source, target]), np.concatenate([truth, np.full(200, -1)])
    >>> model = ARTLClassifier(n_landmarks=30, random_state=0).fit(X, y)
    >>> bool(np.mean(model.predict(target) == truth) > 0.95)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        **KERNEL_CONSTRAINTS,
        "gamma": [Interval(Real, 0, None, closed="neither"), StrOptions({"median", *SCALES})],
        "mmd": [Interval(Real, 0, None, closed="left")],
        **GRAPH,
        "balance": [Interval(Real, 0, 1, closed="both")],
        "sharpness": [Interval(Real, 0, None, closed="neither"), tuple],
        "n_rounds": [Interval(Integral, 0, None, closed="left")],
        **CLASS_WEIGHT,
        **PROBABILITY,
    }
    _semi_supervised = True
    _keeps_sums = False
    rounds_ = Fitted[Sequence[Mapping[str, float]]]("rounds")
    congruence_ = Fitted[float]("pseudo_labels.congruence")
    pseudo_labels_ = property(pseudo_labels_of)

    _: KW_ONLY
    mmd: float = 10.0
    manifold: float = 1.0
    alpha: float = 0.1
    balance: float = 0.5
    sharpness: float | tuple[float, float] = (3.0, 10.0)
    n_rounds: int = 10
    n_neighbors: int = 3
    landmarks: str | ArrayLike = "k-means"
    gamma: float | str = "median"
    class_weight: dict[object, float] | str | None = None
    probability: bool = False

    def _method(self) -> ARTLMethod:
        return ARTLMethod(
            name=type(self).__name__,
            alpha=self.alpha,
            probability=self.probability,
            n_rounds=self.n_rounds,
            graph=Graph(self.manifold, self.n_neighbors),
            mmd=self.mmd,
            balance=self.balance,
            sharpness=self.sharpness,
        )

    fit = fit_sides  # type: ignore[assignment]
    given_kernel = median_kernel
    _columns = some_landmarks_choice
    _check_landmarks = check_choice

    def _read_fit(self, X: RowsLike, y: ColumnLike, sample_domain: ColumnLike, sample_weight: ColumnLike) -> Training:
        return read_sides(self, X, y, sample_domain, sample_weight, least=_LEAST_TARGET_ROWS)

    def read_search(
        self, X: RowsLike, y: ColumnLike, sample_weight: ColumnLike, sample_domain: ColumnLike, groups: ColumnLike
    ) -> Training:
        """Return the data of a search, with the cells of the targets."""
        data = read_cells(self, X, y, sample_domain, sample_weight, fallback="labels", groups=True)
        rows = as_rows(with_label_domains(self, data.rows, data.cells), group=groups)
        return Training(rows, cell_targets(data.cells), data.inputs)

    def fit_from_sums(self, data: Training, white: Whitened, problem: Problem | None) -> None:
        """Fit to these sums, with source and target by the labels of the rows."""
        data = with_sides(self, data, least=_LEAST_TARGET_ROWS)
        super().fit_from_sums(data, white, None if problem is None else replace(problem, inputs=data.inputs))
