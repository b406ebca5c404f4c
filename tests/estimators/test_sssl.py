"""SSSL: its three forms against the dense ones, unlabelled rows of every kind, and graphs."""

import numpy as np
import pytest
import reference
import reference_adaptation
from numpy.testing import assert_allclose, assert_array_equal
from rounding import catch_warnings_of
from sklearn.base import clone
from sklearn.datasets import load_digits, make_friedman1
from sklearn.metrics import r2_score

import bigkernel as bk
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ConfigError, DataError, RankDeficiencyWarning

rng = np.random.default_rng(20120718)
N, D, M, S = 110, 3, 20, 8
SIGMA, ALPHA = 1.2, 0.3
X = rng.normal(size=(N, D))
NEW = rng.normal(size=(25, D))
Z = X[rng.permutation(N)[:M]]
Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2])
LABELLED = rng.permutation(N) < 40
PARTLY = np.where(LABELLED[:, None], Y, np.nan)
LABELS = rng.integers(0, 3, N)
CODES = np.where(LABELLED, LABELS, -1)
HOT = (LABELS[:, None] == np.arange(3))[LABELLED] * 1.0
GIVEN = {"kernel": bk.Gaussian(SIGMA), "alpha": ALPHA, "n_components": S, "manifold": 0.0, "fit_intercept": False}
GRAPH = GIVEN | {"landmarks": Z, "manifold": 1.0}


def gaussian(A, B):
    return reference.gaussian(A, B, SIGMA)


def sigmoid(A, B):
    return reference.sigmoid(A, B, 1.0, -0.5)


def forms(k):
    """Return settings, landmarks and the dense coefficients for targets of the labelled rows, of every form."""
    return {
        "exact": ({}, X, lambda Y, rows=LABELLED, s=S, alpha=ALPHA: reference.sssl_exact(k(X, X), rows, Y, s, alpha)),
        "landmarks": (
            {"landmarks": Z, "eigenfunctions": "landmarks"},
            Z,
            lambda Y, rows=LABELLED, s=S, alpha=ALPHA: reference.sssl_landmarks(k(Z, Z), k(Z, X[rows]), Y, s, alpha),
        ),
        "all": (
            {"landmarks": Z, "eigenfunctions": "all"},
            Z,
            lambda Y, rows=LABELLED, s=S, alpha=ALPHA: reference.sssl_all(k(X, Z), k(Z, Z), rows, Y, s, alpha),
        ),
    }


def of_graph(Y):
    """Return the dense coefficients with a graph of four neighbours."""
    P = reference_adaptation.anchors(X, Z, lambda a, b: gaussian(a[None], b[None])[0, 0], 4)
    graph = 0.7 * reference_adaptation.laplacian(P, np.ones(N))
    return reference.sssl_all(gaussian(X, Z), gaussian(Z, Z), LABELLED, Y, S, ALPHA, graph)


FORMS = forms(gaussian) | {"graph": ({"landmarks": Z, "manifold": 0.7, "n_neighbors": 4}, Z, of_graph)}
every_form = pytest.mark.parametrize("settings, points, oracle", FORMS.values(), ids=FORMS)

pytestmark = pytest.mark.usefixtures("small_steps")


@every_form
def test_regression_matches_the_dense_form(settings, points, oracle):
    model = bk.SSSL(**GIVEN | settings).fit(X, PARTLY)
    expected = gaussian(NEW, points) @ oracle(Y[LABELLED])
    assert_allclose(model.predict(NEW), expected, atol=1e-8)
    assert model.n_components_ == S
    assert_allclose(model.score(X, PARTLY), r2_score(Y[LABELLED], model.predict(X[LABELLED])))


@every_form
def test_classes_are_one_hot_targets_and_minus_one_is_unlabelled(settings, points, oracle):
    model = bk.SSSLClassifier(**GIVEN | settings).fit(X, CODES)
    expected = gaussian(NEW, points) @ oracle(HOT)
    assert_array_equal(model.classes_, [0, 1, 2])
    assert_allclose(model.decision_function(NEW), expected, atol=1e-8)
    assert_array_equal(model.predict(NEW), expected.argmax(axis=1))
    assert model.score(X, CODES) == np.mean((model.predict(X) == LABELS)[LABELLED])


@every_form
def test_an_intercept_is_free_of_the_penalty(settings, points, oracle):
    def residuals(y):
        return y - gaussian(X[LABELLED], points) @ oracle(y)

    # with the hat matrix H of ridge, b minimises (y − b)ᵀ(I − H)(y − b)
    b = residuals(Y[LABELLED]).sum(axis=0) / residuals(np.ones((LABELLED.sum(), 1))).sum()
    model = bk.SSSL(**GIVEN | settings | {"fit_intercept": True}).fit(X, PARTLY)
    assert_allclose(model.intercept_, b, rtol=1e-8)
    assert_allclose(model.predict(NEW), b + gaussian(NEW, points) @ oracle(Y[LABELLED] - b), atol=1e-8)
    assert_allclose(clone(model).fit(X, PARTLY + 1000).predict(NEW), model.predict(NEW) + 1000, rtol=1e-10)


def test_the_defaults_learn_more_of_digits_than_from_their_labels_alone():
    rows, digits = (table[:600] for table in load_digits(return_X_y=True))
    few = np.arange(600) < 60
    both = bk.SSSLClassifier(random_state=0).fit(rows, np.where(few, digits, -1))
    alone = bk.KernelRidgeClassifier().fit(rows[few], digits[few])
    assert both.score(rows[~few], digits[~few]) > alone.score(rows[~few], digits[~few]) + 0.05
    # without clusters a graph loses
    rows, y = make_friedman1(600, noise=1.0, random_state=0)
    both = bk.SSSL(random_state=0).fit(rows, np.where(few, y, np.nan))
    assert both.score(rows[~few], y[~few]) > bk.KernelRidge().fit(rows[few], y[few]).score(rows[~few], y[~few])


@pytest.mark.parametrize("settings, points, oracle", forms(sigmoid).values(), ids=forms(sigmoid))
def test_negative_eigenvalues_of_a_sigmoid_are_dropped_with_a_warning(settings, points, oracle):
    model = bk.SSSL(**GIVEN | settings | {"kernel": bk.Sigmoid(1.0, -0.5)})
    values = np.linalg.eigvalsh(sigmoid(points, points))
    share = 100 * -values[values < 0].sum() / np.abs(values).sum()
    assert share > 1
    with pytest.warns(
        RankDeficiencyWarning, match=rf"^sigmoid kernel: .*negative eigenvalues \({share:.1f}% of"
    ) as caught:
        model.fit(X, PARTLY)
    assert len(caught) == 1
    assert_allclose(model.predict(NEW), sigmoid(NEW, points) @ oracle(Y[LABELLED]), atol=1e-7)
    assert model.n_components_ == S


@pytest.mark.parametrize("form", ["exact", "landmarks", "all"])
def test_eigenvalues_are_the_largest_of_the_kernel_matrix(form):
    settings = {} if form == "exact" else {"landmarks": X[:30], "eigenfunctions": form}
    model = bk.SSSL(**GIVEN | settings).fit(X, PARTLY)
    core = gaussian(X[:30], X[:30])
    Phi = gaussian(X, X[:30]) @ reference.whitening(core)
    matrix = {"exact": gaussian(X, X), "landmarks": core, "all": Phi @ Phi.T}[form]
    assert_allclose(model.eigenvalues_, np.linalg.eigvalsh(matrix)[::-1][:S], rtol=1e-8)


@pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")
@pytest.mark.parametrize("settings, points, oracle", forms(reference.linear).values(), ids=forms(reference.linear))
@pytest.mark.parametrize("s", [2, 50])
@pytest.mark.parametrize("n_labels", [1, 40])
def test_without_a_penalty_the_weights_of_the_eigenfunctions_have_least_norm(n_labels, s, settings, points, oracle):
    labelled = np.arange(N) < n_labels  # sometimes fewer labels than eigenfunctions
    target = np.where(labelled[:, None], Y, np.nan)
    model = bk.SSSL(**GIVEN | settings | {"kernel": bk.Linear(), "n_components": s, "alpha": 0}).fit(X, target)
    assert model.n_components_ == min(s, D)
    coefficients = oracle(Y[labelled], labelled, s, 0.0)
    assert_allclose(model.predict(NEW), reference.linear(NEW, points) @ coefficients, atol=1e-8)


@pytest.mark.parametrize("form", [{}, {"landmarks": Z}], ids=["exact", "all"])
def test_weights_count_rows(form):
    count = rng.integers(1, 4, N)
    repeated = np.repeat(np.arange(N), count)
    weighted = bk.SSSL(**GIVEN, **form).fit(X, PARTLY, sample_weight=count)
    assert_allclose(
        weighted.predict(NEW), bk.SSSL(**GIVEN, **form).fit(X[repeated], PARTLY[repeated]).predict(NEW), atol=1e-7
    )


def test_a_row_with_some_of_its_targets_is_refused_and_one_with_an_infinite_target_can_be_skipped():
    row, model = int(np.argmax(LABELLED)), bk.SSSL(**GIVEN, landmarks=Z)
    some, infinite = PARTLY.copy(), PARTLY.copy()
    some[row, 1], infinite[row, 1] = np.nan, np.inf
    for call in (clone(model).fit, model.fit(X, PARTLY).score):
        with pytest.raises(DataError, match=f"row {row} has 1 of 2 targets"):
            call(X, some)
    others = np.arange(N) != row
    skipped = model.fit(as_rows(X, infinite).skip_bad_rows()).predict(NEW)
    assert_allclose(skipped, clone(model).fit(X[others], PARTLY[others]).predict(NEW), rtol=1e-7, atol=1e-9)


def dense_gcv(target=PARTLY, weight=np.ones(N), **settings):  # noqa: B008
    """Return the GCV of a fit: with the identity as targets of the labelled rows, predictions are the hat matrix."""
    n, unit = LABELLED.sum(), np.full((N, LABELLED.sum()), np.nan)
    unit[LABELLED] = np.eye(n)
    values, hat = (bk.SSSL(**settings).fit(X, y, sample_weight=weight).predict(X)[LABELLED] for y in (target, unit))
    return weight[LABELLED] @ (target[LABELLED] - values) ** 2 / n / (1 - np.trace(hat) / n) ** 2


@pytest.mark.parametrize("form", FORMS)
def test_gcv_minimises_the_dense_criterion(form):
    weight, given = rng.uniform(0.5, 2, N), GIVEN | FORMS[form][0]
    chosen = bk.SSSL(**given | {"alpha": "gcv"}).fit(X, PARTLY, sample_weight=weight).alpha_
    score = lambda alpha: dense_gcv(PARTLY, weight, **given | {"alpha": alpha}).sum()  # noqa: E731
    assert score(chosen) <= min(score(alpha) for alpha in np.geomspace(1e-8, 1e3, 12)) * (1 + 1e-6)


@pytest.mark.parametrize("y, expected", [(X.sum(axis=1), 1.0), (X[:, 0] * X[:, 1], 0.1)], ids=["linear", "product"])
def test_the_weight_of_the_graph_is_the_largest_whose_gcv_is_small(y, expected):
    y = np.where(LABELLED, y, np.nan)
    scores = {weight: dense_gcv(y, **GRAPH | {"manifold": weight}) for weight in (0.0, 0.1, 1.0)}
    assert max(weight for weight in scores if scores[weight] <= 1.2 * min(scores.values())) == expected
    model, fixed = (bk.SSSL(**GRAPH | {"manifold": weight}).fit(X, y) for weight in ("gcv", expected))
    assert model.manifold_ == expected
    assert_allclose(model.predict(NEW), fixed.predict(NEW), rtol=1e-9)


@pytest.mark.parametrize("kind", [str, object], ids=["text", "objects"])
def test_minus_one_as_text_means_unlabelled(kind):
    names = np.array(["a", "b", "c", "-1"])[CODES].astype(kind)
    actual, expected = (bk.SSSLClassifier(landmarks=Z, **GIVEN).fit(X, y) for y in (names, CODES))
    assert actual.classes_.tolist() == ["a", "b", "c"]
    assert_array_equal(actual.predict(NEW), np.array(["a", "b", "c"])[expected.predict(NEW)])


def moons(count):
    draw = np.random.default_rng(5)
    angle, side = draw.uniform(0, np.pi, count), np.arange(count) % 2
    x = np.column_stack([np.cos(angle) * (1 - 2 * side) + side, np.sin(angle) * (1 - 2 * side) + side / 2])
    return x + 0.1 * draw.normal(size=x.shape), side


def test_a_graph_separates_two_moons_with_four_labels_each(tmp_path):
    x, side = moons(1000)
    y = np.full(1000, -1)
    known = [0, 1, 200, 201, 400, 401, 600, 601]
    y[known] = side[known]
    given = {"n_landmarks": 100, "n_components": 20, "alpha": 1e-3, "random_state": 0}
    plain, model = (bk.SSSLClassifier(bk.Gaussian(0.3), manifold=weight, **given).fit(x, y) for weight in (0.0, 10.0))
    assert np.mean(plain.predict(x) == side) < 0.9
    assert np.mean(model.predict(x) == side) > 0.99
    assert model.fit_report()["diagnostics"]["prediction_error"] < 1e-5
    # a saved model with its sums, and partial fits
    bk.save_model(model, tmp_path / "moons.model")
    again = bk.load_model(tmp_path / "moons.model")
    assert again.manifold_ == 10
    assert_array_equal(again.decision_function(x), model.decision_function(x))
    assert_allclose(again.refit().decision_function(x), model.decision_function(x), atol=1e-6)
    half = bk.SSSLClassifier(
        bk.Gaussian(0.3), manifold=10.0, **{**given, "n_landmarks": None}, landmarks=model.landmarks_
    )
    half.fit(x[:500], y[:500]).partial_fit(x[500:], y[500:])
    assert_allclose(half.decision_function(x), model.decision_function(x), atol=1e-6)


def test_a_graph_of_float32_rows_is_accurate_or_warns():
    x, side = moons(2000)
    x, y = x.astype(np.float32), np.where(np.arange(2000) % 40 < 2, side, -1)
    for manifold in (1.0, 1e3):
        given = {"n_landmarks": 60, "n_components": 8, "manifold": manifold, "random_state": 0}
        exact = bk.SSSLClassifier(bk.Gaussian(0.5), dtype="float64", **given).fit(x, y).decision_function(x)
        model, caught = catch_warnings_of(bk.SSSLClassifier(bk.Gaussian(0.5), **given).fit, x, y)
        actual = model.decision_function(x)
        assert caught or np.linalg.norm(actual - exact) < 1e-3 * np.linalg.norm(exact)


REFUSED = [({"eigenfunctions": "landmarks"}, "eigenfunctions='all'"), ({"landmarks": "fourier"}, "have no landmarks")]


@pytest.mark.parametrize("settings, message", REFUSED)
def test_a_graph_needs_landmarks_and_has_some_unless_their_number_is_given(settings, message):
    with pytest.raises(ConfigError, match=message):
        bk.SSSL(manifold=1.0, n_landmarks=9, **settings).fit(X, PARTLY)
    model = bk.SSSL(**GRAPH).fit(X, PARTLY)
    with pytest.raises(ConfigError, match="graph joins all landmarks"):
        model.with_landmarks(9)
    assert len(bk.SSSL().fit(X, PARTLY).landmarks_) == N // 2


def test_another_number_of_neighbours_is_refused(tmp_path):
    bk.save_model(bk.SSSL(**GRAPH, n_neighbors=3).partial_fit(X[:50], PARTLY[:50]), tmp_path / "graph.model")
    model = bk.load_model(tmp_path / "graph.model").set_params(n_neighbors=4)
    for again in (model.refit, lambda: model.partial_fit(X[50:], PARTLY[50:])):
        with pytest.raises(ConfigError, match=r"n_neighbors=4: expected 3.*set n_neighbors=3"):
            again()
    model.set_params(n_neighbors=3).partial_fit(X[50:], PARTLY[50:])
    whole = bk.SSSL(**GRAPH, n_neighbors=3).fit(X, PARTLY)
    assert_allclose(model.predict(X), whole.predict(X), rtol=1e-7)
    with pytest.raises(ConfigError, match="n_neighbors=4"):
        model.set_params(n_neighbors=4).partial_fit(X, PARTLY)
    model.fit(X, PARTLY)


def test_a_partial_fit_without_a_graph_drops_the_graph():
    model = bk.SSSL(**GRAPH).partial_fit(X[:50], PARTLY[:50])
    model.set_params(manifold=0.0).partial_fit(X[50:], PARTLY[50:])
    plain = bk.SSSL(**GIVEN, landmarks=Z).fit(X, PARTLY)
    assert_allclose(model.predict(X), plain.predict(X), rtol=1e-9)
    with pytest.raises(ConfigError, match="without a graph"):
        model.set_params(manifold=1.0).refit()
