"""A pytest plugin: scikit-learn's own tests, from the installed package, with our classes in place of theirs.

`python -m pytest -p sklearn_suites --pyargs sklearn.tests.test_kernel_ridge` with this folder on PYTHONPATH. Each class
here differs from ours in defaults alone, by which scikit-learn's tests name nothing: no intercept, `gamma` = 1/d.
"""

from __future__ import annotations

import importlib
from typing import Any

import bigkernel


class KernelRidge(bigkernel.KernelRidge):
    """With scikit-learn's defaults."""

    def __init__(self, alpha: Any = 1, *, kernel: Any = "linear", gamma: Any = None, degree: int = 3, coef0: Any = 1):
        super().__init__(kernel, alpha=alpha, gamma=gamma, degree=degree, coef0=coef0, fit_intercept=False)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> KernelRidge:
        """As ours, but for the width that is not given."""
        if self.gamma is None and self.kernel not in ("linear", "precomputed"):
            self.gamma = 1 / X.shape[1]
        return super().fit(X, y, sample_weight)


class Nystroem(bigkernel.Nystroem):
    """With scikit-learn's defaults."""

    def __init__(
        self, kernel: Any = "rbf", *, gamma: Any = None, coef0: Any = None, degree: Any = None,
        kernel_params: Any = None, n_components: int = 100, random_state: Any = None, n_jobs: Any = None,
    ):  # fmt: skip
        super().__init__(kernel, n_components=n_components, gamma=gamma, random_state=random_state)
        self.coef0, self.degree = 1 if coef0 is None else coef0, 3 if degree is None else degree
        self.kernel_params, self.n_jobs = kernel_params, n_jobs

    def fit(self, X: Any, y: Any = None) -> Nystroem:
        """As ours, but for the width that is not given."""
        if self.gamma is None and self.kernel in ("rbf", "laplacian", "poly", "polynomial", "sigmoid"):
            self.gamma = 1 / X.shape[1]
        return super().fit(X, y)


class RBFSampler(bigkernel.RandomFourier):
    """Under scikit-learn's name, with its parameters."""

    def __init__(self, *, gamma: Any = 1.0, n_components: int = 100, random_state: Any = None):
        super().__init__("rbf", n_components=n_components, gamma=gamma, random_state=random_state)

    def fit(self, X: Any, y: Any = None) -> RBFSampler:
        """As ours, whose "scale" is None."""
        self.gamma = None if self.gamma == "scale" else self.gamma
        return super().fit(X, y)


CLASSES = {
    "sklearn.tests.test_kernel_ridge": {"KernelRidge": KernelRidge},
    "sklearn.tests.test_kernel_approximation": {"Nystroem": Nystroem, "RBFSampler": RBFSampler},
}
for module, names in CLASSES.items():
    for name, ours in names.items():
        setattr(importlib.import_module(module), name, ours)
