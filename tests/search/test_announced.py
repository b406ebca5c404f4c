"""What a search announces is what it sweeps: transforms that learn, and what the best takes."""

import numpy as np
import pytest
from sklearn.model_selection import TimeSeriesSplit
from sklearn.pipeline import make_pipeline

from bigkernel import (
    JDA,
    ARTLClassifier,
    Gaussian,
    KernelRidge,
    KernelRidgeClassifier,
    Projector,
    SSSLClassifier,
    SweepSearchCV,
)
from bigkernel.events.job import SweepStarted, observe

rng = np.random.default_rng(7)
N = 120
LABELS = np.arange(N) % 3
X = rng.uniform(size=(N, 16)) + LABELS[:, None] * np.linspace(0, 1, 16)
TARGET = np.arange(N) >= 80
X[TARGET] += 0.05
CODES = np.where(TARGET, -1, LABELS)
PLAIN = {"landmarks": "uniform", "n_landmarks": 15, "random_state": 0}
MODEL = KernelRidgeClassifier(Gaussian(1.0), **PLAIN)
TWO, ALPHA = [0.1, 1.0], "kernelridgeclassifier__alpha"
ALIGNED = make_pipeline(JDA(Gaussian(2.0), n_components=4, n_rounds=1, **PLAIN), SSSLClassifier(Gaussian(1.0), **PLAIN))
ROUNDS = ARTLClassifier(Gaussian(2.0), n_rounds=1, **PLAIN)
SEARCHES = {  # estimator, grid, splits, labels and the number of sweeps
    "projector": (make_pipeline(Projector(5), MODEL), {ALPHA: TWO}, 3, LABELS, 3),
    "components": (make_pipeline(Projector(), MODEL), {"projector__n_components": [3, 5], ALPHA: TWO}, 3, LABELS, None),
    "rounds of a transform": (ALIGNED, {"ssslclassifier__alpha": TWO}, 3, CODES, 4),
    "rounds of candidates": (ROUNDS, {"kernel__sigma": [1.0, 2.0], "alpha": TWO}, 3, CODES, 2 * 3 + 1),
    "calibration": (MODEL, {"alpha": TWO, "class_weight": [None, "balanced"], "probability": [True]}, 3, LABELS, 6),
    "splits in time": (KernelRidge(Gaussian(1.0), **PLAIN), {"alpha": TWO}, TimeSeriesSplit(2), LABELS * 1.0, None),
}

IGNORED = "ignore::bigkernel.errors."
pytestmark = pytest.mark.filterwarnings(
    IGNORED + "BestAtEdgeWarning", IGNORED + "CollapsedLabelsWarning", "ignore:scoring. labels"
)


@pytest.mark.parametrize("model, grid, cv, y, count", SEARCHES.values(), ids=SEARCHES)
def test_as_many_sweeps_run_as_are_announced(model, grid, cv, y, count):
    search, events = SweepSearchCV(model, grid, cv=cv), []
    announced = search.plan(X, y).count
    with observe(events.append):
        search.fit(X, y)
    measured = len([event for event in events if isinstance(event, SweepStarted)])
    assert measured == announced == search.plan_.count
    assert count in (None, measured)


def test_sweeps_of_transforms_and_of_the_best_have_lines_of_their_own():
    model = make_pipeline(Projector(5), MODEL)
    grid = {ALPHA: TWO, "kernelridgeclassifier__probability": [True]}
    plan = str(SweepSearchCV(model, grid, cv=3).plan(X, LABELS))
    assert "before: sweep for project" in plan
    assert "refit on all rows: values for calibration" in plan
    without = SweepSearchCV(model, grid, cv=3, refit=False).plan(X, LABELS)
    assert "refit on all rows" not in str(without)
    assert without.count == 3
