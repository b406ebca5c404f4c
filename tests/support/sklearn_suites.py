"""A pytest plugin: scikit-learn's own tests, from the installed package, with our classes in place of theirs.

Each class here differs from ours in names, in the order of parameters and in defaults, on which those tests rely
without naming them. A parameter that ours has not is taken, and refused where it asks for something. Tests that name
none of these classes are left out, and so are those of RidgeCV, of neighbours' graphs, and repetitions for solvers
and searches of other names.
"""

import importlib
import inspect
from typing import Any

import bigkernel

LANDMARKS = 10_000  # as many as there are rows


def refuse(what, asked):
    """Refuse to do what ours cannot."""
    if asked:
        raise NotImplementedError(f"{what} is not a feature")


class KernelRidge(bigkernel.KernelRidge):
    """With scikit-learn's defaults, alpha first."""

    def __init__(self, alpha=1, *, kernel="linear", gamma="auto", degree=3, coef0=1):
        super().__init__(kernel, alpha, gamma=gamma, degree=degree, coef0=coef0)


class Nystroem(bigkernel.Nystroem):
    """With scikit-learn's defaults."""

    def __init__(
        self, kernel="rbf", *, gamma="auto", coef0=None, degree=None, kernel_params=None, n_components=100,
        random_state=None, n_jobs=None,
    ):  # fmt: skip
        super().__init__(kernel, n_components=n_components, gamma=gamma, random_state=random_state)
        self.coef0, self.degree = 1 if coef0 is None else coef0, 3 if degree is None else degree
        self.kernel_params, self.n_jobs = kernel_params, n_jobs


class RBFSampler(bigkernel.RandomFourier):
    """Under scikit-learn's name, with its parameters."""

    def __init__(self, *, gamma=1.0, n_components=100, random_state=None):
        super().__init__("rbf", n_components=n_components, gamma=gamma, random_state=random_state)


class LinearRegression(bigkernel.LinearRegression):
    """With scikit-learn's parameters."""

    def __init__(self, *, fit_intercept=True, copy_X=True, tol=1e-6, n_jobs=None, positive=False):
        super().__init__(fit_intercept=fit_intercept)
        self.copy_X, self.tol, self.n_jobs, self.positive = copy_X, tol, n_jobs, positive

    def fit(self, X, y, sample_weight=None):
        """As ours."""
        refuse("positive=True", self.positive)
        return super().fit(X, y, sample_weight)


class Ridge(bigkernel.Ridge):
    """With scikit-learn's parameters; there is one solver, whatever its name."""

    def __init__(
        self, alpha=1.0, *, fit_intercept=True, copy_X=True, max_iter=None, tol=1e-4, solver="auto", positive=False,
        random_state=None,
    ):  # fmt: skip
        super().__init__(alpha, fit_intercept=fit_intercept)
        self.copy_X, self.max_iter, self.tol, self.solver = copy_X, max_iter, tol, solver
        self.positive, self.random_state = positive, random_state

    def fit(self, X, y, sample_weight=None):
        """As ours."""
        refuse("positive=True", self.positive)
        self.solver_ = self.solver
        return super().fit(X, y, sample_weight)


class LabelSpreading(bigkernel.SSSLClassifier):
    """SSSL under the name of what is semi-supervised there, its width by default."""

    def __init__(self, kernel="rbf", *, gamma=20, n_neighbors=7, alpha=0.2, max_iter=30, tol=1e-3, n_jobs=None):
        super().__init__(kernel, alpha=alpha, gamma=gamma)
        self.n_neighbors, self.max_iter, self.tol, self.n_jobs = n_neighbors, max_iter, tol, n_jobs

    def fit(self, X, y, sample_weight=None):
        """As ours."""
        super().fit(X, y, sample_weight)
        self.transduction_ = self.predict(X)
        return self


class LabelPropagation(LabelSpreading):
    """The same."""


class _C:
    """The penalty of a classifier as 1/C."""

    C: Any

    @property
    def alpha(self):
        """Penalty of ours."""
        return 1 / self.C

    @alpha.setter
    def alpha(self, value):
        """Nothing: C has it."""


class LinearSVC(_C, bigkernel.KernelRidgeClassifier):
    """A linear classifier."""

    def __init__(self, *, C=1.0, fit_intercept=True, random_state=None):
        self.C = C
        super().__init__("linear", fit_intercept=fit_intercept, n_landmarks=LANDMARKS, random_state=random_state)


class SVC(_C, bigkernel.KernelRidgeClassifier):
    """A kernel classifier."""

    def __init__(
        self, *, C=1.0, kernel="rbf", degree=3, gamma="scale", probability=False, fit_intercept=True, random_state=None
    ):
        self.C = C
        super().__init__(
            kernel, fit_intercept=fit_intercept, gamma=gamma, degree=degree, probability=probability,
            n_landmarks=LANDMARKS, random_state=random_state,
        )  # fmt: skip


class LogisticRegression(LinearSVC):
    """A linear classifier."""


class GridSearchCV(bigkernel.SweepSearchCV):
    """Our search under scikit-learn's name, with its parameters."""

    def __init__(
        self, estimator, param_grid, *, scoring=None, n_jobs=None, refit=True, cv=5, verbose=0,
        error_score=float("nan"), return_train_score=False,
    ):  # fmt: skip
        super().__init__(estimator, param_grid, scoring=scoring, refit=refit, cv=5 if cv is None else cv)
        self.n_jobs, self.verbose, self.error_score = n_jobs, verbose, error_score
        self.return_train_score = return_train_score


LINEAR = {"LinearRegression": LinearRegression, "Ridge": Ridge}
# of each suite: what stands under which name in which module, before the suite is imported
CLASSES = {
    "sklearn.tests.test_kernel_ridge": {"sklearn.kernel_ridge": {"KernelRidge": KernelRidge}},
    "sklearn.tests.test_kernel_approximation": {
        "sklearn.kernel_approximation": {"Nystroem": Nystroem, "RBFSampler": RBFSampler}
    },
    "sklearn.linear_model.tests.test_base": {"sklearn.linear_model": LINEAR},
    "sklearn.linear_model.tests.test_ridge": {"sklearn.linear_model": LINEAR},
    "sklearn.semi_supervised.tests.test_label_propagation": {
        "sklearn.semi_supervised._label_propagation": {
            "LabelPropagation": LabelPropagation, "LabelSpreading": LabelSpreading,
        }
    },
    "sklearn.model_selection.tests.test_search": {
        "sklearn.linear_model": {**LINEAR, "LogisticRegression": LogisticRegression},
        "sklearn.svm": {"SVC": SVC, "LinearSVC": LinearSVC},
        "sklearn.model_selection": {"GridSearchCV": GridSearchCV},
    },
}  # fmt: skip
OTHER_SOLVERS = {"auto", "svd", "sparse_cg", "lsqr", "sag", "saga", "lbfgs", "eigen"}


def pytest_configure(config):
    """Put our classes in the place of theirs, for the suites that are named."""
    for suite in config.invocation_params.args:
        for module, names in CLASSES.get(suite, {}).items():
            for name, ours in names.items():
                setattr(importlib.import_module(module), name, ours)


def pytest_collection_modifyitems(config, items):
    """Leave out what tests none of our classes, or the same of them once more."""
    left = [item for item in items if not _ours(item)]
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=left)


def _ours(item):
    given = item.callspec.params if hasattr(item, "callspec") else {}
    if given.get("solver") in OTHER_SOLVERS:
        return False
    classes = [value if inspect.isclass(value) else type(value) for value in given.values()]
    if any(kind.__name__.endswith("SearchCV") and not issubclass(kind, GridSearchCV) for kind in classes):
        return False
    if "knn" in str(given.get("parameters")):
        return False
    source, names = inspect.getsource(item.function), CLASSES[item.module.__name__]
    if "RidgeCV(" in source:
        return False
    every = [name for group in names.values() for name in group]
    if "GridSearchCV" in every:  # it is the search that is tested, of estimators of ours
        found = "GridSearchCV" in source or GridSearchCV in classes
        return found and any(f"{name}(" in source for name in every if name != "GridSearchCV")
    return any(f"{name}(" in source for name in every) or "Estimator" in given or bool(set(classes) & set(every))
