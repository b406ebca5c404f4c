"""Classification by kernel ridge regression."""

from __future__ import annotations

from typing import Any, ClassVar

from bigkernel.estimators.classifiers import CLASSIFIER, CalibratedClassifier
from bigkernel.estimators.probabilities import Probabilities
from bigkernel.estimators.ridge import BaseKernelRidge
from bigkernel.kernels.algebra import Kernel


class KernelRidgeClassifier(CalibratedClassifier, BaseKernelRidge, Probabilities):
    """Classification by kernel ridge regression on one-hot targets; the class of the largest value wins.

    Parameters and attributes as in `KernelRidge`, with those below. Rows of a corpus labelled −1 are unlabelled and
    left out.

    Parameters
    ----------
    class_weight : dict, "balanced" or None
        Factors of the weights of all rows of a class; "balanced": such that every class weighs as much in all. With
        `partial_fit` a dict alone; `refit` goes on from sums of rows that were weighed at the fit.
    probability : bool, default False
        Calibrate probabilities, for `predict_proba`, on rows that took no part in the f that judges them: one sweep
        more, of at most about a million values of f, and sums of five folds (where they would not fit a worker, one
        fold is held out). `partial_fit`, `refit`, `with_landmarks` and solver="cg" are refused with it. Probabilities
        are those of rows as they weigh, `class_weight` included. A `DataError` where the groups leave fewer than two
        classes in more than one fold.

    Attributes
    ----------
    classes_ : (c,)
    calibration_scale_, calibration_offset_ : (c,), p = softmax(scale ∘ f + offset); with `probability`

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import Gaussian, KernelRidgeClassifier
    >>> X = np.linspace(0, 6, 300)[:, None]
    >>> model = KernelRidgeClassifier(Gaussian(sigma=1.0), n_landmarks=12, probability=True, random_state=0)
    >>> bool(model.fit(X, np.sin(X[:, 0]) > 0).predict_proba([[1.5]])[0, 1] > 0.9)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        **BaseKernelRidge._parameter_constraints,
        **CLASSIFIER,
    }

    def __init__(
        self,
        kernel: Kernel | str = "rbf",
        alpha: float | str = 1.0,
        *,
        n_landmarks: int | None = None,
        landmarks: Any = "uniform",
        fit_intercept: bool = False,
        gamma: float | str = "scale",
        degree: int = 3,
        coef0: float = 1.0,
        dtype: str = "auto",
        solver: str = "auto",
        tol: float = 1e-3,
        max_iter: int = 20,
        class_weight: dict[Any, float] | str | None = None,
        probability: bool = False,
        random_state: Any = None,
    ) -> None:
        self.set_parameters(locals())

    @property
    def factors_rows(self) -> bool:
        """False where f without each fold is solved for from moments alone."""
        return not self.probability

    def _not_iterative(self) -> str:
        if self.probability:
            return "probability=True needs the m×m sums of folds; take solver='direct'"
        return super()._not_iterative()
