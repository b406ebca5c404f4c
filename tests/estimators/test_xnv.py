"""XNV: its dense form, landmarks of two views, and invalid arguments."""

import numpy as np
import pytest
import reference
import reference_views
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel import XNV, Gaussian, Polynomial
from bigkernel.errors import ConfigError, DataError, RankDeficiencyWarning

rng = np.random.default_rng(20130624)
N, D, M, SIGMA, ALPHA = 140, 3, 9, 1.6, 1e-2
X, NEW = rng.normal(size=(N, D)), rng.normal(size=(25, D))
Z = rng.normal(size=(2 * M, D))
Y = np.column_stack([np.sin(X[:, 0]) + 2, X[:, 1] ** 2])
LABELLED = rng.permutation(N) < 45
PARTLY = np.where(LABELLED[:, None], Y, np.nan)
WEIGHT = rng.uniform(0.2, 2, N)
GIVEN = {"kernel": Gaussian(SIGMA), "alpha": ALPHA, "n_landmarks": M, "landmarks": Z}

pytestmark = pytest.mark.usefixtures("small_steps")


def dense(targets, *, weight=None, intercept=True, points=Z, rows=NEW, alpha=ALPHA, view_alpha=1.0):
    """Return the predictions of the paper for new rows, and the correlations."""

    def features(A, view):
        return reference_views.features(reference.gaussian(A, view, SIGMA), reference.gaussian(view, view, SIGMA))

    first, second = points[: len(points) // 2], points[len(points) // 2 :]
    predict, rho = reference_views.xnv(
        *(features(X, first), features(X, second), LABELLED, targets, alpha),
        **{"weight": weight, "intercept": intercept, "view_alpha": view_alpha},
    )
    return predict(features(rows, first)), rho


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("alpha, view_alpha", [(0.0, 0.0), (ALPHA, 0.0), (ALPHA, 1.0), (10.0, 7.0)])
def test_regression_matches_the_dense_form(alpha, view_alpha, intercept, weight):
    settings = {**GIVEN, "alpha": alpha, "view_alpha": view_alpha, "fit_intercept": intercept}
    model = XNV(**settings).fit(X, PARTLY, sample_weight=weight)
    expected, rho = dense(Y[LABELLED], weight=weight, intercept=intercept, alpha=alpha, view_alpha=view_alpha)
    assert_allclose(model.predict(NEW), expected, atol=1e-8)
    assert_allclose(model.correlations_, rho, atol=1e-10)


def test_views_are_random_halves_of_the_landmarks():
    line = np.linspace(0, 1, 400)[:, None]
    model = XNV(Gaussian(0.1), n_landmarks=20, random_state=0).fit(line, line[:, 0])
    first, second = model.landmarks_[:20, 0], model.landmarks_[20:, 0]
    assert len(set(first) | set(second)) == 40
    for view in (first, second):
        assert view.min() < 0.25
        assert view.max() > 0.75
    expected = XNV(Gaussian(0.1), landmarks=model.landmarks_, n_landmarks=20).fit(line, line[:, 0])
    assert_array_equal(model.predict(line), expected.predict(line))


@pytest.mark.parametrize("choice", ["uniform", "k-means"])
def test_default_numbers_of_landmarks(choice):
    given = {"kernel": Gaussian(SIGMA), "alpha": ALPHA}
    model = XNV(**given, landmarks=Z).fit(X, PARTLY)
    assert_allclose(model.predict(NEW), dense(Y[LABELLED])[0], atol=1e-8)
    assert XNV(**given, landmarks=choice, random_state=0).fit(X[:31], Y[:31]).landmarks_.shape == (30, D)
    wide = rng.normal(size=(450, 1))
    assert XNV(**given, random_state=0).fit(wide, wide[:, 0]).landmarks_.shape == (400, 1)


def test_an_odd_number_of_chosen_landmarks_drops_one():
    points = np.repeat([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [3.0, 0.5]], 20, axis=0)
    model = XNV(Gaussian(1.0), landmarks="k-means", n_landmarks=4, random_state=0)
    with pytest.warns(RankDeficiencyWarning):
        model.fit(points, points[:, 0])
    assert model.landmarks_.shape == (4, 2)
    assert len(np.unique(model.landmarks_, axis=0)) == 4


def test_the_trace_error_is_that_of_both_views():
    core = reference.polynomial(Z, Z, 2, 0.5, 1.0)
    model = XNV(Polynomial(degree=2, gamma=0.5, coef0=1.0), ALPHA, landmarks=Z).fit(X, PARTLY)
    block = reference.polynomial(X, Z, 2, 0.5, 1.0)
    known = np.trace(block @ np.linalg.pinv(core, hermitian=True, rcond=1e-10) @ block.T)
    whole = np.trace(reference.polynomial(X, X, 2, 0.5, 1.0))
    assert model.fit_report()["trace_error"] == pytest.approx(1 - known / whole, abs=1e-8)
    gaussian = XNV(**GIVEN).fit(X, PARTLY)
    block, core = reference.gaussian(X, Z, SIGMA), reference.gaussian(Z, Z, SIGMA)
    expected = 1 - np.trace(block @ np.linalg.solve(core, block.T)) / N
    assert gaussian.fit_report()["trace_error"] == pytest.approx(expected, abs=1e-8)


def test_the_report_describes_the_views_and_more_landmarks_than_theirs_are_refused():
    model = XNV(**GIVEN).fit(X, PARTLY)
    report = model.fit_report()
    assert report["view_ranks"] == [M, M]
    assert (report["landmarks"], report["rank"], report["labelled_rows"]) == (2 * M, M, 45)
    assert report["diagnostics"]["solution"] < 30
    with pytest.raises(ConfigError, match=f"from 1 to the {M} landmarks of a view"):
        model.with_landmarks(M + 1)


@pytest.mark.parametrize(
    "change, error, message",
    [
        (
            {"landmarks": Z[:-1], "n_landmarks": None},
            DataError,
            "expected an even number of landmarks for two views, found 17",
        ),
        ({"landmarks": Z, "n_landmarks": 5}, DataError, "expected 10 landmarks for two views, found 18"),
        (
            {"landmarks": Z[:0], "n_landmarks": None},
            DataError,
            "expected an even number of landmarks for two views, found 0",
        ),
        ({"landmarks": "fourier"}, ConfigError, "not supported by XNV"),
        ({"alpha": -1.0}, ValueError, "alpha"),
        ({"alpha": "gcv"}, ValueError, "alpha"),
        ({"alpha": np.nan}, ValueError, "alpha"),
    ],
)
def test_invalid_settings_are_refused(change, error, message):
    with pytest.raises(error, match=message):
        XNV(**{**GIVEN, **change}).fit(X, PARTLY)
