"""The search over XNV, and the errors that moved sums tell of each candidate, of SSSL too."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import clone
from sklearn.metrics import accuracy_score
from sklearn.model_selection import KFold, ParameterGrid, StratifiedKFold

from bigkernel import SSSL, XNV, Gaussian, SweepSearchCV, XNVClassifier
from bigkernel.errors import ConfigError
from bigkernel.events.kinds import SweepStarted
from bigkernel.events.scope import observe

pytestmark = pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdge")  # grids are small
rng = np.random.default_rng(20130624)
N, M = 90, 7
X = rng.normal(size=(N, 3))
LABELLED = rng.permutation(N) < 48
IDS = np.flatnonzero(LABELLED)
Y = np.column_stack([np.sin(X[:, 0]) + 2, X[:, 1] ** 2])
PARTLY = np.where(LABELLED[:, None], Y, np.nan)
LABELS = np.digitize(X[:, 0], [-0.5, 0.4])
CODES = np.where(LABELLED, LABELS, -1)
GRID = {"alpha": [1e-3, 0.1], "fit_intercept": [True, False], "kernel__sigma": [1.0, 1.6]}


@pytest.mark.parametrize("landmarks", [rng.normal(size=(2 * M, 3)), "uniform"], ids=["given", "drawn"])
def test_every_cell_of_two_views_is_a_fit_with_the_labels_of_a_fold_hidden(landmarks):
    model, cv = XNV(Gaussian(), n_landmarks=M, landmarks=landmarks, random_state=3), KFold(3)
    weight, seen = rng.uniform(0.2, 2, N), []
    with observe(seen.append):
        search = SweepSearchCV(model, GRID, cv=cv, scoring="neg_mean_squared_error").fit(
            X, PARTLY, sample_weight=weight
        )
    assert len([event for event in seen if isinstance(event, SweepStarted)]) == search.plan_.count == 1
    for j, (_, test) in enumerate(cv.split(IDS)):
        ids, hidden = IDS[test], PARTLY.copy()
        hidden[ids] = np.nan
        for i, params in enumerate(search.cv_results_["params"]):
            fitted = clone(model).set_params(**params).fit(X, hidden, sample_weight=weight)
            wanted = -np.average((Y[ids] - fitted.predict(X[ids])) ** 2, axis=0, weights=weight[ids]).mean()
            assert_allclose(search.cv_results_[f"split{j}_test_score"][i], wanted, rtol=1e-7)
    assert (search.cv_results_["prediction_error"] < 1e-6).all()
    alone = clone(model).set_params(**search.best_params_).fit(X, PARTLY, sample_weight=weight)
    assert_allclose(search.predict(X), alone.predict(X), rtol=1e-7)


def test_classes_by_two_views_are_counted_and_ranked_as_refits_are():
    model, cv = XNVClassifier(Gaussian(1.2), n_landmarks=M, random_state=0), StratifiedKFold(3)
    search = SweepSearchCV(
        model, {"alpha": [1e-3, 0.1, 10.0]}, cv=cv, scoring=["accuracy", "f1_macro"], refit="accuracy"
    ).fit(X, CODES)
    for j, (_, test) in enumerate(cv.split(IDS, LABELS[IDS])):
        hidden = CODES.copy()
        hidden[IDS[test]] = -1
        for i, params in enumerate(search.cv_results_["params"]):
            found = clone(model).set_params(**params).fit(X, hidden).predict(X[IDS[test]])
            assert search.cv_results_[f"split{j}_test_accuracy"][i] == accuracy_score(LABELS[IDS[test]], found)
    with pytest.raises(ConfigError, match="neg_gcv is of one penalty for all directions"):
        SweepSearchCV(model, {"alpha": [0.1]}, cv=cv, scoring="neg_gcv").fit(X, CODES)


@pytest.mark.filterwarnings("ignore::bigkernel.errors.Inaccurate", "ignore::bigkernel.errors.RankDeficient")
def test_rounding_that_hides_directions_of_a_view_is_swept_again():
    rows = X.astype(np.float32)
    model = XNV(Gaussian(9.0), n_landmarks=20, random_state=0, alpha=1e-6)
    search = SweepSearchCV(model, {"alpha": [1e-6, 1e-2]}, cv=KFold(3)).fit(rows, PARTLY)
    alone = clone(model).set_params(**search.best_params_).fit(rows, PARTLY)
    assert search.best_estimator_.dtype_ == alone.dtype_ == "float64"
    assert search.best_estimator_.view_ranks_ == alone.view_ranks_


def test_each_candidate_of_eigenfunctions_knows_its_error():
    rows = np.asarray(np.random.default_rng(0).uniform(-1, 1, (400, 3)), np.float32)
    y = np.sin(3 * rows[:, 0])
    cv, grid = KFold(2), {"n_components": [4, 60], "alpha": [1e-9, 1.0]}
    coarse = SSSL(Gaussian(0.7), n_landmarks=60, dtype="float32", random_state=0)  # in float64 of the same rank
    for params in ParameterGrid(grid):
        # kernels of several candidates are swept again for the worst of them
        alone = SweepSearchCV(coarse, {name: [value] for name, value in params.items()}, cv=cv, refit=False)
        told = alone.fit(rows, y).cv_results_["prediction_error"][0]
        of_fits, off = [], []
        for _, test in cv.split(rows):
            hidden = y.copy()
            hidden[test] = np.nan
            fine = clone(coarse).set_params(dtype="float64", **params).fit(rows, hidden).predict(rows)
            fitted = clone(coarse).set_params(**params).fit(rows, hidden)
            of_fits.append(fitted.certificates_["prediction_error"])
            off.append(np.linalg.norm(fitted.predict(rows) - fine) / np.linalg.norm(fine))
        # one draw of the rounding of other groups tells as much
        assert max(off) / 10 <= told <= 30 * max(of_fits), (params, told, of_fits, off)
