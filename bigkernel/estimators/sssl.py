"""Simple semi-supervised learning: ridge on the leading eigenfunctions of the kernel over all rows, labelled or not.

Ji, Yang, Lin, Jin & Han, "A simple algorithm for semi-supervised learning with improved generalization error bound"
(ICML 2012, arXiv 1206.6412). SSSL_N is exact; SSSL_m approximates it on m landmarks.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Integral, Real
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg
from sklearn.utils._param_validation import Interval, StrOptions

from bigkernel.arrays import Array
from bigkernel.errors import ConfigError
from bigkernel.estimators.base import Classifier, LandmarkEstimator, Regressor, parameters, some_landmarks_choice
from bigkernel.estimators.fit.basis import CHOICES, BasisChoice, check_landmarks, of_kernel
from bigkernel.estimators.fit.calibration import PROBABILITY
from bigkernel.estimators.fit.folds import choose_by_rows
from bigkernel.estimators.fit.graph import GRAPH, Graph, refuse_graph
from bigkernel.estimators.fit.method import Method, with_choice
from bigkernel.estimators.fit.precision import ADVICE, SAFE, rounding_estimate
from bigkernel.estimators.fit.state import ExactProblem, Fitted, Problem, SpectralSolution
from bigkernel.estimators.inputs.checks import KERNEL_CONSTRAINTS, RULES, chosen_by_folds, one_penalty
from bigkernel.estimators.inputs.class_weights import CLASS_WEIGHT
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.positive_definite import negative_note
from bigkernel.solvers.eigenfunctions import (
    Known,
    eigenfunctions_of_core,
    eigenfunctions_of_rows,
    graph_penalty,
    rounding_error,
    solve_labelled,
)
from bigkernel.solvers.penalty_grid import Coordinates, SolveSettings, resolve_gcv
from bigkernel.solvers.residuals import ENOUGH, Errors, SolveDiagnostics, warn_or_note
from bigkernel.solvers.whitening import Whitening, centre, reduce_moments
from bigkernel.statistics.moments import Moments

_CONSTRAINTS: dict[str, list[object]] = {
    **KERNEL_CONSTRAINTS,
    "alpha": [Real, StrOptions(RULES)],
    "n_components": [Interval(Integral, 1, None, closed="left")],
    "fit_intercept": ["boolean"],
    "eigenfunctions": [StrOptions({"all", "landmarks"})],
    **GRAPH,
    "manifold": [*GRAPH["manifold"], StrOptions({"gcv"})],
}


Functions = tuple[Coordinates, Array]  # eigenfunctions as coordinates, and their eigenvalues
SSSLReduced = tuple[Whitening, Array | None]  # the whitening, and ΦᵀLΦ of a graph or None


@dataclass(frozen=True, eq=False, kw_only=True)
class SSSLMethod(Method[SSSLReduced, SpectralSolution]):
    """Ridge on the leading eigenfunctions of all rows, or of the landmarks alone."""

    semi_supervised: ClassVar[bool] = True
    n_components: int
    fit_intercept: bool
    of_landmarks: bool

    @property
    def whitens(self) -> bool:
        """False where the eigenfunctions are of the core alone."""
        return not self.of_landmarks

    def check_settings(self, columns: BasisChoice) -> None:
        landmarks, graph = columns.landmarks, self.graph
        refuse_graph(landmarks, graph, fourier=columns.fourier)
        if graph.exists and (self.of_landmarks or columns.kernel.precomputed):
            what = f"manifold={graph.manifold!r}: a graph needs"
            raise ConfigError(f"{what} rows and eigenfunctions='all'; set manifold=0")
        if columns.fourier and self.of_landmarks:
            raise ConfigError(f"landmarks={landmarks!r}: random features have no landmarks; set eigenfunctions='all'")

    def reduce(self, problem: Problem, whitening: Whitening) -> SSSLReduced:
        return whitening, self.graph.laplacian(problem, whitening)

    def solve(self, problem: Problem, reduced: SSSLReduced, diagnostics: SolveDiagnostics) -> SpectralSolution:
        if not self.fit_intercept:
            problem = problem.of_targets()
        labelled, whitening = Moments.of(problem.statistics, 1, shift=problem.centre), reduced[0]
        if self.of_landmarks:
            core = of_kernel(problem.basis).core()
            _note_negative(core, of_kernel(problem.basis).kernel, diagnostics)
            functions = eigenfunctions_of_core(core, self.n_components, diagnostics=diagnostics)
            return self._solution(functions, labelled, problem.inputs.shift, problem.basis.width, diagnostics)
        coordinates, values, known = self._of_rows(problem, reduced, self.n_components, diagnostics)
        labelled, functions = reduce_moments(labelled, whitening), (replace(coordinates, whitening=None), values)
        solution = self._solution(functions, labelled, problem.inputs.shift, whitening.rank, diagnostics)
        if (estimate := rounding_estimate(problem, whitening)) is not None:
            block, few = self.graph.weights.index(solution.manifold), centre(labelled, fit_intercept=self.fit_intercept)
            settings = self.n_components, float(np.max(solution.alpha)), solution.manifold
            # a larger one is estimated by another solve (`estimate_error`)
            if (error := SAFE * rounding_error(known, block, few, *settings, estimate)) <= ENOUGH:
                diagnostics.errors = Errors(error, 0.0, 0.0, advice=ADVICE)
        return replace(solution, coef=whitening.expand(solution.coef))

    def solve_exact(self, problem: ExactProblem, diagnostics: SolveDiagnostics) -> SpectralSolution:
        # weights: eigenfunctions of L f = Σ w_i k(x_i,·) f(x_i), through W^{1/2} K W^{1/2}
        K, (Y, labelled) = problem.K, problem.targets
        assert isinstance(labelled, np.ndarray)
        root = np.ones(len(K)) if problem.weight is None else np.sqrt(problem.weight)
        _note_negative(K, of_kernel(problem.basis).kernel, diagnostics)
        core = K * np.outer(root, root)
        functions = eigenfunctions_of_core(core, self.n_components, diagnostics=diagnostics)
        phi, weight, method = K[labelled] * root, root[labelled] ** 2, self
        if chosen_by_folds(self.alpha) and problem.folds is not None:
            settings, folds = self.solve_settings(), problem.folds[labelled]
            choice = choose_by_rows(settings, problem, Y, weight, folds, lambda rest: (functions[0], phi))
            method = with_choice(self, choice)
        moments = Moments.of_rows(phi, Y, weight)
        solution = method._solution(functions, moments, problem.inputs.shift, len(K), diagnostics)
        return replace(solution, coef=root[:, None] * solution.coef)

    def _solution(
        self, functions: Functions, labelled: Moments, shift: Array, rank: int, diagnostics: SolveDiagnostics
    ) -> SpectralSolution:
        """Solve ridge on the labelled rows in the coordinates of eigenfunctions."""
        (coordinates, values), weight = functions, self.graph.weights[0]
        if blocks := coordinates.blocks:
            (settings,) = resolve_gcv(coordinates.reduce(labelled), [self.solve_settings()], blocks)
            assert settings.block is not None
            weight = self.graph.weights[blocks.index(settings.block)]
            coordinates, values = coordinates.select(settings.block), values[slice(*settings.block)]
        coef, intercept, alpha = solve_labelled(
            coordinates, labelled, one_penalty(self.alpha), fit_intercept=self.fit_intercept, diagnostics=diagnostics
        )
        return SpectralSolution(
            coef=coef, intercept=intercept + shift, rank=rank, alpha=alpha, eigenvalues=values, manifold=weight
        )

    def solve_settings(self) -> SolveSettings:
        return SolveSettings(self.alpha, self.fit_intercept, n_components=self.n_components)

    def coordinates(self, problem: Problem, n_components: int, whitening: Whitening | None = None) -> Coordinates:
        if not self.whitens:
            return eigenfunctions_of_core(of_kernel(problem.basis).core(), n_components)[0]
        return self._of_rows(problem, self.reduce(problem, whitening or problem.basis.whitening()), n_components)[0]

    def _of_rows(
        self, problem: Problem, reduced: SSSLReduced, count: int, diagnostics: SolveDiagnostics | None = None
    ) -> tuple[Coordinates, Array, Known]:
        """Return eigenfunctions, with P = I + μ ΦᵀLΦ of the graph of all rows, held out or not, for each weight μ."""
        whitening, L = reduced
        penalties = [None if L is None or not weight else graph_penalty(L, weight) for weight in self.graph.weights]
        return eigenfunctions_of_rows(problem.moments, whitening, count, penalties=penalties, diagnostics=diagnostics)


def _note_negative(K: Array, kernel: Kernel, diagnostics: SolveDiagnostics) -> None:
    # the solve uses only the largest eigenvalues
    if not kernel.positive:
        warn_or_note(negative_note(linalg.eigvalsh(K), kernel.name), True, diagnostics)


def _columns(estimator: SSSL | SSSLClassifier) -> BasisChoice:
    exact = estimator.manifold == 0 or LandmarkEstimator._columns(estimator).kernel.precomputed
    return LandmarkEstimator._columns(estimator) if exact else some_landmarks_choice(estimator)


def _check_landmarks(estimator: LandmarkEstimator) -> None:
    check_landmarks(estimator.landmarks, estimator.n_landmarks, uncounted=CHOICES)


def _method(estimator: SSSL | SSSLClassifier) -> SSSLMethod:
    return SSSLMethod(
        name=type(estimator).__name__,
        alpha=estimator.alpha,
        probability=getattr(estimator, "probability", False),
        n_components=estimator.n_components,
        fit_intercept=bool(estimator.fit_intercept),
        of_landmarks=estimator.eigenfunctions == "landmarks",
        graph=Graph(estimator.manifold, estimator.n_neighbors),
    )


@parameters
class SSSL(Regressor, LandmarkEstimator):
    """Semi-supervised regression on the s leading eigenfunctions of the kernel; rows of NaN targets are unlabelled.

    Parameters
    ----------
    kernel, gamma, degree, coef0, fit_intercept, dtype, random_state, verbose : as in `KernelRidge`
    n_components : int, default 120
        s; fewer are used where the kernel matrix has lower rank.
    alpha : float ≥ 0, "cv" or "gcv", default 0.4
        Ridge penalty on the weights of the eigenfunctions; "cv" and "gcv" as in `KernelRidge`, over the labelled rows.
    n_landmarks : int or None
        m: SSSL_m, one sweep over all rows and an m×m solve. None: 500, or half of the rows if these are fewer; with
        ``manifold=0`` None is SSSL_N, exact, N×N in memory.
    landmarks : str or array (m, d), default "k-means"
        As in `KernelRidge`.
    eigenfunctions : "all" or "landmarks"
        Eigenfunctions of the Nyström kernel over all N rows, including unlabelled ones, or of the m landmarks alone. If
        labelled and unlabelled rows come from different domains, put `JDA` before it in a Pipeline.
    manifold : float ≥ 0 or "gcv" (default)
        μ, the weight of a graph Laplacian L in the eigenfunctions, ΦᵀΦ w = λ(I + μ ΦᵀLΦ)w; 0: no graph. The graph
        connects rows through their nearest landmarks (`solvers.anchor_graph`), so that eigenfunctions change mainly
        where rows are sparse, and few labels separate classes. λ falls as μ grows, and so should α. "gcv": the largest
        of 0, 0.1 and 1 whose generalised cross-validation, summed over the targets, is at most 1.2 times the least.
    n_neighbors : int, default 3
        Number of landmarks that connect a row: the same at every `partial_fit`; `refit` keeps the graph of the fit.

    Attributes
    ----------
    dual_coef_ : (m,) or (m, c), over the landmarks (over the rows, where exact)
    manifold_ : float, the weight that was used
    eigenvalues_ : (s,), of the N×N kernel matrix or its approximation (of the core, for "landmarks"), descending
    landmarks_, kernel_, statistics_, rank_, intercept_, diagnostics_, skipped_rows_, n_features_in_
        As in `KernelRidge`; the statistics have two groups of rows, unlabelled and labelled.

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import Gaussian, SSSL
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> y = np.full(200, np.nan)
    >>> y[::10] = np.sin(X[::10, 0])
    >>> model = SSSL(Gaussian(sigma=1.0), alpha=1e-6, n_landmarks=12, random_state=0).fit(X, y)
    >>> bool(np.abs(model.predict(X) - np.sin(X[:, 0])).max() < 0.1)
    True
    """

    _semi_supervised = True
    manifold_ = Fitted[float]("solution.manifold")
    _parameter_constraints: ClassVar[dict[str, list[object]]] = _CONSTRAINTS

    n_components: int = 120
    alpha: float | str = 0.4
    _: KW_ONLY
    fit_intercept: bool = True
    eigenfunctions: str = "all"
    manifold: float | str = "gcv"
    n_neighbors: int = 3
    landmarks: str | ArrayLike = "k-means"

    _method = _method
    _columns = _columns
    _check_landmarks = _check_landmarks


@parameters
class SSSLClassifier(Classifier, LandmarkEstimator):
    """Semi-supervised classification: `SSSL` on one-hot targets. Rows labelled −1 (among text "-1") are unlabelled.

    Parameters and attributes are those of `SSSL` and those below, but alpha is 0.1, manifold 3 and fit_intercept False
    by default; −1 cannot be a class.

    Parameters
    ----------
    class_weight, probability : as in `KernelRidgeClassifier`
        For the labelled rows. Held-out rows still contribute to the eigenfunctions, without their labels.

    Attributes
    ----------
    classes_ : (c,)
    calibration_scale_, calibration_offset_ : as in `KernelRidgeClassifier`
    """

    _semi_supervised = True
    manifold_ = Fitted[float]("solution.manifold")
    _parameter_constraints: ClassVar[dict[str, list[object]]] = {**_CONSTRAINTS, **CLASS_WEIGHT, **PROBABILITY}

    n_components: int = 120
    alpha: float | str = 0.1
    _: KW_ONLY
    fit_intercept: bool = False
    eigenfunctions: str = "all"
    manifold: float | str = 3.0
    n_neighbors: int = 3
    landmarks: str | ArrayLike = "k-means"
    class_weight: dict[object, float] | str | None = None
    probability: bool = False

    _method = _method
    _columns = _columns
    _check_landmarks = _check_landmarks
