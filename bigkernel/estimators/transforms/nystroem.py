"""Whitened Nyström features as a scikit-learn transformer, computed in the tasks that read the rows."""

from __future__ import annotations

from dataclasses import KW_ONLY
from numbers import Integral
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils._param_validation import Interval

from bigkernel.arrays import Array, ColumnLike, RowsLike
from bigkernel.data.containers import length
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ConfigError
from bigkernel.estimators.base import cached_predictor, parameters
from bigkernel.estimators.fit.basis import BasisChoice, Seed, check_landmarks, is_precomputed
from bigkernel.estimators.fit.state import Fitted, ProjectionFit, Solution
from bigkernel.estimators.inputs.checks import KERNEL_CONSTRAINTS
from bigkernel.estimators.inputs.columns import domain_column
from bigkernel.estimators.inputs.read import input_rows
from bigkernel.estimators.inputs.training import Inputs
from bigkernel.estimators.transforms.rows import RowTransformer
from bigkernel.events.job import job
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.functions import as_kernel
from bigkernel.solvers.residuals import SolveDiagnostics
from bigkernel.statistics.predictor import Predictor, Projection

if TYPE_CHECKING:
    from sklearn.utils import Tags


class LandmarkTransformer(RowTransformer):
    """Base of the transformers that are kernel values at landmarks times coefficients, without sums of a fit."""

    landmarks: str | ArrayLike
    random_state: Seed
    _fitted: ProjectionFit | None = None
    landmarks_ = Fitted[Array]("basis.landmarks")
    dual_coef_ = Fitted[Array]("solution.coef")

    def _choice(self, kernel: Kernel, count: int, dtype: str) -> BasisChoice:
        """Return how `landmarks` are chosen, `count` unless they are given; `ConfigError` for random features."""
        count = count if isinstance(self.landmarks, str) else length(self.landmarks)
        check_landmarks(self.landmarks, count)
        choice = BasisChoice(
            kernel=kernel, landmarks=self.landmarks, count=count, dtype=dtype, random_state=self.random_state
        )
        if choice.fourier:
            raise ConfigError(
                f"landmarks={self.landmarks!r}: expected a choice of landmarks; use RandomFourier for random features"
            )
        return choice

    def __sklearn_is_fitted__(self) -> bool:
        return self._fitted is not None

    def _row_map(self) -> Projection:
        fit = self._fitted
        assert fit is not None
        predictor = cached_predictor(
            fit, lambda: Predictor.of(fit.basis.features(), fit.solution.coef, fit.solution.intercept)
        )
        return Projection(int(self.n_features_in_), predictor)


@parameters
class Nystroem(LandmarkTransformer):
    """Nyström features of a kernel: φ(x) = Tᵀk(Z, x) with TᵀK_mmT = I, whose inner products are K_nm K_mm⁺ K_mn.

    Like scikit-learn's `Nystroem`, up to a rotation, for rows of any size and any choice of landmarks. Directions below
    rounding are dropped, so that there may be fewer features than landmarks. For zarr arrays, corpora and Rows, the
    tasks of the next step compute the features.

    Parameters
    ----------
    kernel, gamma, degree, coef0, landmarks, random_state
        As in `KernelRidge`, without random features (see `RandomFourier`).
    n_components : int, default 100
        m, the number of landmarks, or that of the rows if there are fewer (with a warning); ignored if landmarks are
        given.
    dtype : "auto", "float32" or "float64"
        The dtype of kernel blocks, "auto" as in `KernelRidge`; features have the dtype of the rows.

    Attributes
    ----------
    landmarks_ : (m, d)
    n_landmarks_ : int, m
    dual_coef_ : (m, r)
        T, `normalization_` in scikit-learn.
    intercept_ : (r,), zeros
    rank_ : int
        r, the number of features.
    kernel_ : Kernel, every parameter a number
    dtype_, n_features_in_, feature_names_in_

    References
    ----------
    Williams & Seeger (NIPS 2000).

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import Gaussian, Nystroem
    >>> X = np.random.RandomState(0).normal(size=(200, 2))
    >>> features = Nystroem(Gaussian(sigma=2.0), n_components=40, landmarks="k-means", random_state=0).fit_transform(X)
    >>> bool(abs(features @ features.T - Gaussian(sigma=2.0)(X)).max() < 1e-2)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        **{name: KERNEL_CONSTRAINTS[name] for name in ("kernel", "gamma", "degree", "coef0", "landmarks")},
        **{name: KERNEL_CONSTRAINTS[name] for name in ("dtype", "random_state")},
        "n_components": [Interval(Integral, 1, None, closed="left")],
    }
    kernel_ = Fitted[Kernel]("basis.kernel")
    dtype_ = Fitted[str]("basis.dtype")
    n_landmarks_ = Fitted[int]("basis.width")
    rank_ = Fitted[int]("solution.rank")
    intercept_ = Fitted[Array]("solution.intercept")

    kernel: Kernel | str = "rbf"
    n_components: int = 100
    _: KW_ONLY
    landmarks: str | ArrayLike = "uniform"
    gamma: float | str = "scale"
    degree: int = 3
    coef0: float = 1.0
    dtype: str = "auto"
    random_state: int | np.random.RandomState | None = None

    def fit(self, X: RowsLike, y: ColumnLike = None, *, sample_domain: ColumnLike = None) -> Self:
        """Choose landmarks among rows X (n, d), and whiten their core.

        `sample_domain`, (n,) integers or names, is the domain of each row, for balanced landmarks.

        Warns
        -----
        RankDeficiencyWarning
            Some landmarks are duplicates, or there are fewer rows than components.
        """
        self._validate_params()
        kernel = as_kernel(self.kernel, gamma=self.gamma, degree=self.degree, coef0=self.coef0)
        columns = self._choice(kernel, self.n_components, self.dtype)
        rows = as_rows(input_rows(self, X, reset=True), domain=domain_column(sample_domain)[0])
        with job("Nystroem.fit"):
            basis = columns.choose(rows)
            diagnostics = SolveDiagnostics()
            whitening = basis.whitening(diagnostics)
            diagnostics.warn()
        coef = whitening.expand(np.eye(whitening.rank))
        solution = Solution(coef=coef, intercept=np.zeros(whitening.rank), rank=whitening.rank, alpha=0.0)
        self._fitted = ProjectionFit(inputs=Inputs.of(self), basis=basis, solution=solution)
        return self

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = is_precomputed(self.kernel)
        return tags
