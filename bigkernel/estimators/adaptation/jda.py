"""Joint distribution adaptation and transfer component analysis as a transformer that aligns two domains."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from numbers import Integral, Real
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils._param_validation import Interval, StrOptions

from bigkernel.arrays import ColumnLike, RowsLike
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.adaptation.self_training import (
    AdaptingMethod,
    ReducedSides,
    check_choice,
    fit_sides,
    median_kernel,
    pseudo_labels_of,
    read_sides,
)
from bigkernel.estimators.base import LandmarkEstimator, parameters, some_landmarks_choice
from bigkernel.estimators.fit.basis import BasisChoice
from bigkernel.estimators.fit.state import AlignedComponents, Fitted, Problem, Solved
from bigkernel.estimators.inputs.checks import KERNEL_CONSTRAINTS, number
from bigkernel.estimators.inputs.training import Training
from bigkernel.estimators.transforms.rows import RowTransformer
from bigkernel.kernels.functions import SCALES
from bigkernel.solvers.adaptation import components, fit_labeller
from bigkernel.solvers.pseudo_labels import Decision
from bigkernel.solvers.residuals import SolveDiagnostics
from bigkernel.solvers.ridge import require_alpha


@dataclass(frozen=True, eq=False, kw_only=True)
class JDAMethod(AdaptingMethod[AlignedComponents]):
    """Components that keep variance and align the means of source and target."""

    rotates: ClassVar[bool] = True
    n_components: int
    label_alpha: float

    def check_settings(self, columns: BasisChoice) -> None:
        if not number(self.alpha) > 0:
            raise ConfigError(f"alpha: expected a number above 0, found {self.alpha!r}")
        require_alpha(self.label_alpha)

    def solve(self, problem: Problem, reduced: ReducedSides, diagnostics: SolveDiagnostics) -> AlignedComponents:
        whitening, aligned, labels = reduced.whitening, reduced.aligned, problem.pseudo_labels
        labels = labels and labels.reduce(whitening)
        values, W = components(aligned, labels, self.n_components, number(self.alpha), diagnostics=diagnostics)
        if not len(values):
            raise DataError(
                "JDA: found no component, as the rows do not differ under the kernel; expected rows that vary"
            )
        return AlignedComponents(
            coef=whitening.expand(W),
            intercept=-aligned.mean @ W,
            rank=whitening.rank,
            alpha=number(self.alpha),
            eigenvalues=values,
            whitened=W,
        )

    def decision(self, solved: Solved[ReducedSides, AlignedComponents], number: int) -> tuple[Decision, float]:
        """Return ridge on the components, for hard labels."""
        reduced, W = solved.reduced, solved.solution.whitened
        assert W is not None
        return fit_labeller(reduced.aligned, W, float(self.label_alpha), reduced.whitening), np.inf


@parameters
class JDA(LandmarkEstimator, RowTransformer):
    """Joint distribution adaptation: kernel components that align a source and a target domain.

    Transductive: the rows of the target take part in the fit, their labels never. The components maximise variance
    against the distance between the means of both domains and of each class in them. The classes of the target are hard
    pseudo-labels of ridge on the previous components, fitted to the labelled rows. One sweep sums the moments; each
    round sweeps the target once and solves an m×m problem. `n_rounds=0` is transfer component analysis, which aligns
    only the means of the domains.

    The target consists of the domains in which no row has a label; without domains, of the rows without a label. Rows
    without a label in a domain that has some are left out. A target may be a single row.

    A classifier that follows in a Pipeline gets the same labels: `SSSLClassifier` takes −1 for unlabelled, and a
    `LabelledRowsClassifier` fits any other classifier to the labelled rows.

    Parameters
    ----------
    kernel, degree, coef0, dtype, random_state, verbose : as in `KernelRidge`
    n_components : int, default 100
        s; fewer are used where the kernel matrix has lower rank.
    n_rounds : int ≥ 0, default 10
        Maximum number of rounds; there are fewer if no label changes.
    alpha : float > 0, default 1
        μ, the penalty on the norm of a component, added to the distances of means.
    label_alpha : float ≥ 0, default 1
        Penalty of the ridge that gives the pseudo-labels.
    n_landmarks : int or None
        m. None: 500, or half of the rows if these are fewer.
    landmarks : str or array (m, d), default "k-means"
        As in `KernelRidge`; centres represent both domains better than as many of their rows.
    gamma : float, "median", "scale" or "auto", default "median"
        Of a kernel given by name. "median": σ = .7·√(median ‖z − z'‖²) of the Gaussian, over its landmarks, and
        "scale" of other kernels; the others as in `KernelRidge`.

    Attributes
    ----------
    classes_ : (c,)
    dual_coef_ : (m, s), over the landmarks
    intercept_ : (s,), which centres the components on the mean of both domains
    eigenvalues_ : (s,), descending
    rounds_ : list of dict
        One a round: `changed`, the share of the target whose class is new; `entropy` is that of hard labels, 0, and
        `conditional_entropy` 0 unless all rows are of one class.
    source_domains_, target_domains_ : domains of source and target; 0 and 1 if none were given
    congruence_ : float from -1 to 1, as in `ARTLClassifier`
    pseudo_labels_ : sums of the target's features by class, from which the components were fitted; `refit` uses them
    landmarks_, kernel_, statistics_, rank_, diagnostics_, skipped_rows_, n_features_in_
        As in `KernelRidge`; the statistics have two groups of rows, target and labelled source.

    References
    ----------
    Pan, Tsang, Kwok & Yu (IEEE TNN 2011); Long, Wang, Ding, Sun & Yu (ICCV 2013).

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import JDA
    >>> rng = np.random.default_rng(0)
    >>> truth = np.repeat([0, 1], 100)
    >>> source = rng.normal(size=(200, 2)) * 0.3 + 2 * truth[:, None]
    >>> target = source + [1.0, -0.5]
    >>> X, y = np.vstack([source, target]), np.concatenate([truth, np.full(200, -1)])
    >>> Z = JDA(n_components=2, n_landmarks=30, random_state=0).fit(X, y).transform(X)
    >>> between = np.linalg.norm(Z[:200].mean(axis=0) - Z[200:].mean(axis=0))
    >>> bool(between < 0.1 * Z.std())
    True

    Any classifier follows it in a Pipeline, fitted to the components of the labelled rows:

    >>> from sklearn.pipeline import make_pipeline
    >>> from bigkernel import KernelRidgeClassifier, LabelledRowsClassifier
    >>> classifier = LabelledRowsClassifier(KernelRidgeClassifier("linear", fit_intercept=True))
    >>> adapted = make_pipeline(JDA(n_components=2, n_landmarks=30, random_state=0), classifier).fit(X, y)
    >>> bool(adapted.score(X[200:], truth) > 0.95)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        **KERNEL_CONSTRAINTS,
        "gamma": [Interval(Real, 0, None, closed="neither"), StrOptions({"median", *SCALES})],
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "n_rounds": [Interval(Integral, 0, None, closed="left")],
        "label_alpha": [Real],
    }
    _semi_supervised = True
    rounds_ = Fitted[Sequence[Mapping[str, float]]]("rounds")
    congruence_ = Fitted[float]("pseudo_labels.congruence")
    pseudo_labels_ = property(pseudo_labels_of)

    n_components: int = 100
    _: KW_ONLY
    n_rounds: int = 10
    alpha: float = 1.0
    label_alpha: float = 1.0
    landmarks: str | ArrayLike = "k-means"
    gamma: float | str = "median"

    def _method(self) -> JDAMethod:
        return JDAMethod(
            name=type(self).__name__,
            alpha=self.alpha,
            n_rounds=self.n_rounds,
            n_components=self.n_components,
            label_alpha=self.label_alpha,
        )

    fit = fit_sides  # type: ignore[assignment]
    given_kernel = median_kernel
    _columns = some_landmarks_choice
    _check_landmarks = check_choice

    def _read_fit(self, X: RowsLike, y: ColumnLike, sample_domain: ColumnLike, sample_weight: ColumnLike) -> Training:
        return read_sides(self, X, y, sample_domain, sample_weight)
