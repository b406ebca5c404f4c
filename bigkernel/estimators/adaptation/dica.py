"""Components that generalise over domains: DICA and UDICA as a transformer, fitted in one sweep."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import ClassVar, Self

import numpy as np
from sklearn.utils import Tags
from sklearn.utils._param_validation import Interval

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.base import LandmarkEstimator, parameters
from bigkernel.estimators.fit.basis import BasisChoice, of_kernel
from bigkernel.estimators.fit.method import Method
from bigkernel.estimators.fit.state import ComponentSolution, ExactProblem, Problem, Report
from bigkernel.estimators.inputs.checks import KERNEL_CONSTRAINTS, number
from bigkernel.estimators.inputs.read import read_cells
from bigkernel.estimators.inputs.training import Training
from bigkernel.estimators.transforms.rows import RowTransformer
from bigkernel.solvers.dica import Components, exact_components, landmark_components
from bigkernel.solvers.residuals import SolveDiagnostics
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.domain_cells import Cells, CellSums


@dataclass(frozen=True, eq=False, kw_only=True)
class DICAMethod(Method[Whitening, ComponentSolution]):
    """Components that align domains, and separate classes where `supervised`."""

    rotates: ClassVar[bool] = True
    n_components: int
    supervised: bool
    epsilon: float
    invariance: float
    allow_single_domain: bool

    def check_settings(self, columns: BasisChoice) -> None:
        if not number(self.alpha) > 0:
            raise ConfigError(f"alpha: expected a number above 0, found {self.alpha!r}")

    def check(self, problem: Problem, rows: str) -> Problem:
        problem.require_weight(rows)
        return problem

    @property
    def _epsilon(self) -> float | None:
        return float(self.epsilon) if self.supervised else None

    def solve(self, problem: Problem, reduced: Whitening, diagnostics: SolveDiagnostics) -> ComponentSolution:
        total, domains = problem.statistics, problem.inputs.domains
        assert domains is not None
        cells = Cells(domains, np.arange(total["C"].shape[2] // len(domains) - 1))
        if self.supervised and not cells.n_classes:
            raise ConfigError("supervised=True: the fitted statistics were computed without labels; fit again")
        self._require_domains(CellSums.of(total, cells).by_domain()[1], domains)
        components = landmark_components(
            total,
            cells,
            reduced,
            of_kernel(problem.basis).core(),
            shift=problem.centre,
            alpha=number(self.alpha),
            epsilon=self._epsilon,
            count=int(self.n_components),
            invariance=float(self.invariance),
        )
        diagnostics.rounding = components.rounding
        return self._solution(components, reduced.rank, int(total["rows"].sum()))

    def solve_exact(self, problem: ExactProblem, diagnostics: SolveDiagnostics) -> ComponentSolution:
        (cell, cells), K, domains = problem.targets, problem.K, problem.inputs.domains
        assert domains is not None
        assert isinstance(cells, Cells)
        in_domain = np.bincount(cell // (cells.n_classes + 1), problem.weight, minlength=cells.n_domains)
        self._require_domains(in_domain, domains)
        components = exact_components(
            K,
            cell,
            cells,
            weight=problem.weight,
            alpha=number(self.alpha),
            epsilon=self._epsilon,
            count=int(self.n_components),
            invariance=float(self.invariance),
        )
        return self._solution(components, len(K), len(K))

    def _solution(self, components: Components, rank: int, n_rows: int) -> ComponentSolution:
        if not len(components.eigenvalues):
            raise DataError(
                f"DICA: found no component, as the rows or the class means do not differ (n_samples = {n_rows}); "
                "expected rows that vary"
            )
        return ComponentSolution(
            coef=components.coef,
            intercept=components.intercept,
            rank=rank,
            alpha=number(self.alpha),
            eigenvalues=components.eigenvalues,
            variance=components.variance,
        )

    def _require_domains(self, weights: Array, domains: Array) -> None:
        count = np.count_nonzero(weights)
        if count < 2 and not self.allow_single_domain:
            raise DataError(
                f"domain: {self.name} expects several domains, found {count}: {domains[weights > 0].tolist()}; add "
                "rows of another domain, or set allow_single_domain=True"
            )


@parameters
class DICA(LandmarkEstimator, RowTransformer):
    """Domain-invariant component analysis: kernel features that align domains and separate classes.

    For domain generalization: the components are learnt from several source domains, without any row of the domains
    they will be used on, and `transform` maps rows of any domain, known or new, one by one. `supervised=True` is DICA,
    which keeps the means of the classes apart; `supervised=False` is UDICA, which keeps variance. Both hold the means
    of the domains together.

    Parameters
    ----------
    kernel, landmarks, gamma, degree, coef0, dtype, random_state, verbose : as in `KernelRidge`
    n_components : int, default 20
        Number of components to keep; there may be fewer, for DICA at most one less than the number of classes.
    supervised : bool, default True
        True: DICA, which needs labels. False: UDICA, which ignores them.
    alpha : float > 0, default 1
        λ, the penalty on the norm of a component.
    epsilon : float ≥ 0, default 1e-3
        ε, the regularization of the labels (DICA only).
    invariance : float ≥ 0, default 1
        Weight of the spread of the domains' means. 1 is the paper, in which it counts little beside the variance of
        the rows where kernel values are at most 1; 10 to 1,000 hold the domains closer, 0 ignores them.
    n_landmarks : int or None
        None: exact, n×n in memory. m: one sweep over the rows and an m×m solve.
    allow_single_domain : bool, default False
        Accept rows of one domain, or without domains. With nothing to align, DICA is covariance operator inverse
        regression and UDICA kernel PCA.

    Attributes
    ----------
    eigenvalues_ : (c,), descending; the variance of each component over the training rows
    dual_coef_ : (m, c), over the landmarks (over the rows, where exact)
    intercept_ : (c,), which centres the components by the mean of the training rows
    domains_ : (G,) the domains of the fit, sorted
    classes_ : (k,) sorted labels (DICA only)
    distributional_variance_ : dict
        Mean squared distance of the domains' means from their mean, in the features (`features`) and in the components
        (`components`), and its share of the variance there (`features_share`, `components_share`).
    landmarks_, kernel_, rank_, diagnostics_, skipped_rows_, n_features_in_
        As in `KernelRidge`.
    statistics_ : dict of float64 arrays
        The moments of the landmark block (Nyström only), with the sums of every domain and class as C (1, m, G(k + 1));
        `refit()` after `set_params` of alpha, epsilon, invariance or n_components needs no sweep.

    Notes
    -----
    Every domain has the same weight in the distributional variance, whatever its number of rows; the mean of a domain
    of one row is that row. Rows labelled −1 or NaN have no label: they count in the variance and in the means of
    domains. The labels of one domain are enough, and a domain may lack classes, as their means are over all domains.
    The sign of a component is that of its largest magnitude among the landmarks. The paper's code centres a test set by
    its own mean; here it is centred by that of the training rows, so that a row's components depend on that row alone.

    References
    ----------
    Muandet, Balduzzi & Schölkopf, "Domain generalization via invariant feature representation" (ICML 2013).

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import DICA, Gaussian
    >>> rng = np.random.default_rng(0)
    >>> domain, y = np.repeat([0, 1, 2], 40), np.tile([0, 1], 60)
    >>> X = rng.normal(size=(120, 2)) + np.column_stack([3 * domain, 2 * y])
    >>> model = DICA(Gaussian(sigma=2.0), n_landmarks=30, random_state=0).fit(X, y, sample_domain=domain)
    >>> shares = model.distributional_variance_
    >>> bool(shares["components_share"] < 0.1 * shares["features_share"])
    True
    >>> model.transform(X).shape
    (120, 1)
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        **KERNEL_CONSTRAINTS,
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "supervised": ["boolean"],
        "epsilon": [Interval(Real, 0, None, closed="left")],
        "invariance": [Interval(Real, 0, None, closed="left")],
        "allow_single_domain": ["boolean"],
    }
    _semi_supervised = True

    n_components: int = 20
    _: KW_ONLY
    supervised: bool = True
    alpha: float = 1.0
    epsilon: float = 1e-3
    invariance: float = 1.0
    allow_single_domain: bool = False

    def fit(  # type: ignore[override]  # domains come before weights
        self, X: RowsLike, y: ColumnLike = None, sample_domain: ColumnLike = None, sample_weight: ColumnLike = None
    ) -> Self:
        """Learn the components of rows X (n, d).

        Parameters
        ----------
        y : (n,) labels, −1 or NaN (beside text: None) where there is none; None for a corpus or Rows that carry their
            own, and for UDICA
        sample_domain : (n,) integers or names; None for a corpus or Rows with a column `domain`
        sample_weight : (n,) or None

        Raises
        ------
        DataError
            Domains or labels are missing or invalid, or there is only one domain.
        """
        return super().fit(X, y, sample_weight, sample_domain=sample_domain)

    def _method(self) -> DICAMethod:
        return DICAMethod(
            name=type(self).__name__,
            alpha=self.alpha,
            n_components=self.n_components,
            supervised=self.supervised,
            epsilon=self.epsilon,
            invariance=self.invariance,
            allow_single_domain=self.allow_single_domain,
        )

    def _read_fit(self, X: RowsLike, y: ColumnLike, sample_domain: ColumnLike, sample_weight: ColumnLike) -> Training:
        fallback = "one" if self.allow_single_domain else "refuse"
        return read_cells(self, X, y, sample_domain, sample_weight, labels=self.supervised, fallback=fallback)

    def fit_report(self) -> Report:
        """Describe the fit as plain data: `KernelRidge.fit_report` with `domains` and `distributional_variance`."""
        report = super().fit_report()
        report.pop("labelled_rows", None)
        return report

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = bool(self.supervised)
        return tags
