"""Candidates that are drawn at random, and rounds of finer grids around the best, against scikit-learn's searches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from peers import digest, peer, split_scores
from scipy.stats import loguniform
from sklearn.model_selection import KFold, RandomizedSearchCV, ShuffleSplit
from sklearn.pipeline import make_pipeline

from bigkernel import (
    Gaussian,
    KernelRidge,
    Laplacian,
    Ridge,
    Standardizer,
    SweepSearchCV,
    executing,
)
from bigkernel.errors import ConfigError
from bigkernel.events.kinds import SweepStarted
from bigkernel.events.scope import observe

pytestmark = pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdge")  # grids are small
rng = np.random.default_rng(1961)
N = 150
X = rng.normal(size=(N, 3))
Z = X[:20] + 0.03
y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=N)
FOLDS = KFold(3, shuffle=True, random_state=0)
GRID = {"alpha": [1e-2, 1.0, 1e2], "kernel": [Gaussian(0.4), Gaussian(5.0), Laplacian(30.0)]}


def sweeps_of(make):
    started = []
    with observe(lambda event: started.append(event.what) if isinstance(event, SweepStarted) else None):
        found = make()
    return found, started


def test_candidates_at_random_are_those_of_the_peer_and_share_a_sweep():
    grid = {"kernel__sigma": loguniform(0.3, 5.0), "alpha": loguniform(1e-2, 10.0), "fit_intercept": [True, False]}
    model = KernelRidge(Gaussian(1.0), landmarks=Z)
    ours, started = sweeps_of(
        lambda: SweepSearchCV(model, grid, cv=FOLDS, n_iter=12, random_state=3).fit(X, y)
    )  # fmt: skip
    theirs = RandomizedSearchCV(model, grid, cv=FOLDS, n_iter=12, random_state=3).fit(X, y)
    assert ours.cv_results_["params"] == theirs.cv_results_["params"]
    assert_allclose(split_scores(ours), split_scores(theirs), rtol=0, atol=1e-7)
    assert ours.best_params_ == theirs.best_params_
    assert (started, ours.edges_) == (["tune"], [])
    with pytest.raises(ConfigError, match="distributions are drawn from with n_iter"):
        SweepSearchCV(model, grid).fit(X, y)
    for wrong in ({"n_iter": 0}, {"refine": -1}, {"refine": 1.5}, {"n_iter": True}, {"refine": None}):
        with pytest.raises(ConfigError, match=f"{next(iter(wrong))}: expected a whole number of at least"):
            SweepSearchCV(Ridge(), {}, **wrong).fit(X, y)


@pytest.mark.filterwarnings("ignore::bigkernel.errors.Inaccurate")  # of the widest kernel
def test_rounds_go_on_around_the_best_with_the_same_folds_and_landmarks_in_a_sweep_each():
    np.random.seed(1)  # noqa: NPY002, from which the folds are drawn, once
    model = KernelRidge(n_landmarks=20, random_state=np.random.RandomState(4))
    search = SweepSearchCV(model, GRID, cv=ShuffleSplit(3, test_size=0.3), refine=3)
    found, started = sweeps_of(lambda: search.fit(X, y))
    results, params = found.cv_results_, found.cv_results_["params"]
    assert started == ["tune"] * (2 * 3 + 3 * 3)  # kernels of two kinds, then one; splits overlap
    assert len(params) == len({str(p) for p in params}) == found.plan_.candidates > 9 + 8
    first = SweepSearchCV(model, GRID, cv=FOLDS, refine=0).fit(X, y)
    assert params[:9] == first.cv_results_["params"]
    means = results["mean_test_score"]
    assert found.best_score_ == means.max() > means[:9].max() + 1e-3
    assert_array_equal(found.best_estimator_.landmarks_, first.best_estimator_.landmarks_)
    # a round halves the steps in the logarithm, unless the best lies at an end
    near = sorted({p["alpha"] for p in params if p["kernel"] == found.best_params_["kernel"]})
    ratio = min(b / a for a, b in pairwise(near))
    halvings = np.log2(np.log(1e2) / np.log(ratio))
    assert halvings > 0.9
    assert abs(halvings - round(halvings)) < 1e-9


def test_candidates_of_all_rounds_are_those_of_one_grid():
    model = make_pipeline(Standardizer(), KernelRidge(landmarks=Z))
    grid = {f"kernelridge__{name}": values for name, values in GRID.items()}
    found, started = sweeps_of(lambda: SweepSearchCV(model, grid, cv=FOLDS, refine=2).fit(X * 2 + 1, y))
    assert started.count("moments") <= 1  # what scales the rows is fitted once
    each = [{name: [value] for name, value in p.items()} for p in found.cv_results_["params"]]
    whole = SweepSearchCV(model, each, cv=FOLDS).fit(X * 2 + 1, y)
    assert_allclose(split_scores(found), split_scores(whole), rtol=0, atol=1e-7)
    assert found.best_params_ == whole.best_params_
    assert_allclose(found.predict(X), whole.predict(X), rtol=0, atol=1e-7)
    theirs = peer(Ridge(), {"alpha": [p["alpha"] for p in _rounds_of_ridge()]}, X, y, cv=FOLDS)
    assert_allclose(split_scores(SweepSearchCV(Ridge(), {"alpha": [1e-2, 1.0, 1e2]}, cv=FOLDS, refine=2).fit(X, y)),
                    split_scores(theirs), rtol=0, atol=1e-8)  # fmt: skip


def _rounds_of_ridge():
    return SweepSearchCV(Ridge(), {"alpha": [1e-2, 1.0, 1e2]}, cv=FOLDS, refine=2).fit(X, y).cv_results_["params"]


def test_rounds_resume_and_take_conjugate_gradients_and_scores_of_values(tmp_path):
    model = KernelRidge(Gaussian(1.0), landmarks=Z, solver="cg", tol=1e-4)
    digests = []
    for resume in (False, True):
        search = SweepSearchCV(model, {"alpha": [1e-4, 1.0, 1e2]}, cv=0.3, refine=1, scoring="neg_max_error")
        with executing("serial", run=tmp_path / "run", resume=resume):
            digests.append(digest(search.fit(X, y)))
    assert digests[0] == digests[1]
    assert search.plan_.candidates == 5
    assert search.best_estimator_.alpha == search.best_params_["alpha"]
