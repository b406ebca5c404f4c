"""Callbacks of scikit-learn: sweeps and segments are tasks, the end has a model, and the last call always comes."""

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from bigkernel import KernelRidge, SweepSearchCV
from bigkernel.errors import DataError

pytest.importorskip("sklearn.callback", reason="scikit-learn before 1.9 has no callbacks")
X = np.random.default_rng(0).normal(size=(400, 3))
Y = np.sin(X[:, 0])


class Log:
    """Notes the calls of a fit, and what a model at the end of a task predicts."""

    def __init__(self):
        self.calls, self.predicted = [], None

    def setup(self, estimator, context):
        self.calls.append("setup")

    def teardown(self, estimator, context):
        self.calls.append("teardown")

    def on_fit_task_begin(self, estimator, context):
        self.calls.append(f"{context.task_name} begins")

    def on_fit_task_end(self, estimator, context, *, fitted_estimator=None):
        self.calls.append(f"{context.task_name} ends")
        if fitted_estimator is not None:
            self.predicted = fitted_estimator.predict(X)


def test_sweeps_and_segments_are_tasks_of_a_fit():
    log = Log()
    model = KernelRidge(n_landmarks=20, solver="cg", random_state=0).set_callbacks(log).fit(X, Y)
    assert log.calls[:4] == ["setup", "fit begins", "cg-0 begins", "segment begins"]
    assert log.calls[-2:] == ["fit ends", "teardown"]
    assert log.calls.count("segment begins") == log.calls.count("segment ends") > model.n_iter_
    np.testing.assert_array_equal(log.predicted, model.predict(X))
    np.testing.assert_array_equal(
        log.predicted, KernelRidge(n_landmarks=20, solver="cg", random_state=0).fit(X, Y).predict(X)
    )


def test_the_last_call_comes_after_an_error():
    log = Log()
    with pytest.raises(DataError, match="landmarks"):
        KernelRidge(landmarks=np.ones((3, 5))).set_callbacks(log).fit(X, Y)
    assert log.calls == ["setup", "fit begins", "teardown"]


def test_a_search_of_one_sweep_and_one_of_scikit_learn_have_tasks():
    log, model = Log(), KernelRidge(n_landmarks=20, random_state=0)
    search = SweepSearchCV(model, {"alpha": [0.1, 1.0]}, cv=2).set_callbacks(log).fit(X, Y)
    assert [log.calls[0], log.calls[-1]] == ["setup", "teardown"]
    assert "tune begins" in log.calls
    np.testing.assert_array_equal(log.predicted, search.predict(X))
    log = Log()
    log.max_propagation_depth = None  # scikit-learn passes it to estimators inside
    found = GridSearchCV(model, {"alpha": [0.1, 1.0]}, cv=2).set_callbacks(log).fit(X, Y)
    assert found.best_params_ == search.best_params_
    assert log.calls.count("moments begins") == 2 * 2 + 1
