"""ARTLClassifier: its dense form, collapsing labels, and invalid arguments."""

import itertools

import numpy as np
import pytest
import reference
import reference_adaptation as dense
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.cluster import KMeans

from bigkernel import JDA, ARTLClassifier, Gaussian, KernelRidgeClassifier
from bigkernel.errors import CollapsedLabelsWarning, ConfigError, DataError, DifferentClassesWarning
from bigkernel.kernels.landmarks import median_width
from pipelines.shared.experiments import digit_pair

rng = np.random.default_rng(41)
N_S, N_T, D, M, SIGMA = 90, 70, 3, 14, 1.5
TRUTH = np.resize([0, 1, 2], N_S + N_T)
MIDDLES = np.array([[0.0, 0.0, 0.0], [3.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
X = MIDDLES[TRUTH] + 0.5 * rng.normal(size=(N_S + N_T, D))
X[N_S:] += [0.6, -0.4, 0.5]
Y = np.where(np.arange(len(X)) < N_S, TRUTH, -1)
WEIGHT = rng.uniform(0.2, 2, len(X))
ORDER = rng.permutation(len(X))  # mixes source and target
Z = X[:: len(X) // M][:M] + 0.01
GIVEN = {"kernel": Gaussian(SIGMA), "landmarks": Z, "sharpness": 4.0, "n_rounds": 4, "balance": 0.3}

pytestmark = pytest.mark.usefixtures("small_steps")


def oracle(weight, landmarks=Z, sharpness=4.0, rounds=4):
    B, core = reference.gaussian(X, landmarks, SIGMA), reference.gaussian(landmarks, landmarks, SIGMA)
    P = dense.anchors(X, landmarks, lambda x, z: reference.gaussian(x[None], z[None], SIGMA)[0, 0], 3)
    K, L = B @ np.linalg.pinv(core, hermitian=True) @ B.T, dense.laplacian(P, weight)
    strengths = {"mmd": 10.0, "manifold": 1.0, "alpha": 0.1, "balance": 0.3}
    return dense.adapted(K, L, Y[:N_S], weight, **strengths, sharpness=sharpness, rounds=rounds)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_values_and_entropies_match_the_dense_form(weight):
    model = ARTLClassifier(**GIVEN).fit(X[ORDER], Y[ORDER], sample_weight=None if weight is None else weight[ORDER])
    solved = len(model.rounds_) - (model.rounds_[-1]["changed"] == 0)
    assert solved >= 2
    every = np.ones(len(X)) if weight is None else weight
    expected, _ = oracle(every, rounds=solved)
    _, rounds = oracle(every, rounds=len(model.rounds_))
    assert_allclose(model.decision_function(X), expected, atol=1e-8)
    first = ARTLClassifier(**{**GIVEN, "n_rounds": 0}).fit(X, Y, sample_weight=weight)
    assert_allclose(first.decision_function(X), oracle(every, rounds=0)[0], atol=1e-8)
    core = reference.gaussian(Z, Z, SIGMA)
    interpolated = reference.gaussian(X, Z, SIGMA) @ np.linalg.solve(core, Z - Z.mean(axis=0))
    congruence = dense.congruence(interpolated, Y[:N_S], rounds[solved - 1][0], every)
    assert_allclose(model.congruence_, congruence, rtol=1e-8)
    labels = [Q.argmax(axis=1) for Q, _ in rounds]
    of_target = None if weight is None else weight[N_S:]
    changed = [1.0, *(np.average(a != b, weights=of_target) for a, b in itertools.pairwise(labels))]
    assert_allclose([entry["changed"] for entry in model.rounds_], changed)
    assert_allclose([entry["entropy"] for entry in model.rounds_], [entropy for _, entropy in rounds], rtol=1e-8)
    assert_array_equal(model.predict(X), expected.argmax(axis=1))


def test_a_sharpness_of_two_numbers_grows_geometrically():
    model = ARTLClassifier(**{**GIVEN, "sharpness": (1.5, 12.0)}).fit(X, Y)
    assert len(model.rounds_) == 4
    _, rounds = oracle(np.ones(len(X)), sharpness=[1.5, 3, 6, 12], rounds=len(model.rounds_))
    assert_allclose([entry["entropy"] for entry in model.rounds_], [entropy for _, entropy in rounds], rtol=1e-8)
    first = ARTLClassifier(**{**GIVEN, "sharpness": (1.5, 12.0), "n_rounds": 1}).fit(X, Y)
    assert first.rounds_[0]["entropy"] == model.rounds_[0]["entropy"]


def test_the_default_width_is_the_median_distance_of_landmarks():
    model = ARTLClassifier(landmarks=Z).fit(X, Y)
    assert_allclose(model.kernel_.sigma, median_width(Z))
    assert ARTLClassifier(landmarks=Z, gamma=0.5).fit(X, Y).kernel_.sigma == 1.0


def test_a_refit_cannot_add_a_graph_and_fewer_landmarks_need_a_new_fit():
    model = ARTLClassifier(**GIVEN, manifold=0.0).fit(X, Y)
    with pytest.raises(ConfigError, match="fitted without a graph"):
        model.set_params(manifold=1.0).refit()
    with pytest.raises(ConfigError, match="fit with n_landmarks=5"):
        model.with_landmarks(5)


@pytest.mark.parametrize("dtype", [int, str, object])
def test_a_domain_without_labels_is_the_target(dtype):
    domain = np.where(np.arange(len(X)) < N_S, np.where(TRUTH == 0, 5, 2), 9).astype(dtype)
    model = ARTLClassifier(**GIVEN).fit(X, Y, domain)
    assert_allclose(model.decision_function(X), ARTLClassifier(**GIVEN).fit(X, Y).decision_function(X), atol=1e-10)
    assert_array_equal(model.source_domains_, np.unique(domain)[:2])
    assert_array_equal(model.target_domains_, domain[-1:])


def test_unlabelled_rows_of_a_source_domain_are_ignored():
    extra, n = rng.normal(size=(20, D)) * 4, len(X)
    domain = np.repeat([0, 1, 0], [N_S, N_T, 20])
    model = ARTLClassifier(**GIVEN).fit(np.vstack([X, extra]), np.r_[Y, np.full(20, -1)], domain)
    expected = ARTLClassifier(**GIVEN).fit(X, Y, domain[:n])
    assert_allclose(model.decision_function(X), expected.decision_function(X), atol=1e-10)
    assert model.fit_report()["source_rows"] == N_S
    assert model.fit_report()["target_rows"] == N_T


@pytest.mark.parametrize("domain", [None, np.where(Y < 0, 8, 3)], ids=["by labels", "by domains"])
def test_landmarks_are_balanced_over_source_and_target(domain):
    far = np.vstack([X[:N_S], X[N_S:] + 100])
    model = ARTLClassifier(n_landmarks=10, landmarks="balanced", random_state=0, n_rounds=0).fit(far, Y, domain)
    assert np.count_nonzero(model.landmarks_[:, 0] > 50) == 5


def test_collapsing_labels_warn_and_the_round_of_least_entropy_is_kept():
    with pytest.warns(CollapsedLabelsWarning, match="after 3 rounds .* use a larger sharpness"):
        model = ARTLClassifier(**{**GIVEN, "sharpness": 0.3}).fit(X, Y)
    assert len(model.rounds_) == 3
    entropies = [entry["conditional_entropy"] for entry in model.rounds_]
    kept = int(np.argmin(entropies))
    expected = oracle(np.ones(len(X)), sharpness=0.3, rounds=kept)[0]
    assert_allclose(model.decision_function(X), expected, atol=1e-8)


def test_pseudo_labels_of_one_class_warn():
    far = X.copy()
    far[N_S:] = MIDDLES[0] + 0.01 * rng.normal(size=(N_T, D))
    with pytest.warns(CollapsedLabelsWarning):
        model = ARTLClassifier(**{**GIVEN, "mmd": 0.0, "sharpness": 0.01}).fit(far, Y)
    assert model.rounds_[-1]["conditional_entropy"] > 0.75


def test_rounds_stop_when_the_entropy_rises():
    with pytest.warns(CollapsedLabelsWarning, match="rises from .* in round [2-5]"):
        model = ARTLClassifier(**{**GIVEN, "sharpness": (30.0, 1.2), "n_rounds": 5}).fit(X, Y)
    assert len(model.rounds_) < 5


@pytest.mark.parametrize("adapting", [ARTLClassifier, JDA])
def test_classes_of_the_target_in_the_opposite_order_warn(adapting):
    swapped = X[:, :2] * [1, 0.2] + np.where(Y < 0, 3, 0)[:, None] * [1, 0]  # class 0 of the target lies on class 1
    two = TRUTH < 2
    with pytest.warns(DifferentClassesWarning, match="scale each domain by itself") as caught:
        model = adapting(n_landmarks=20, random_state=0).fit(swapped[two], Y[two])
    assert caught[0].filename == __file__
    assert model.congruence_ < -0.9
    assert model.refit().congruence_ == model.fit_report()["congruence"] < -0.9


def test_class_means_that_coincide_say_nothing_about_the_classes():
    angle, radius = rng.uniform(0, 2 * np.pi, len(X)), 1.0 + TRUTH
    rings = radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    model = ARTLClassifier(n_landmarks=30, random_state=0).fit(rings, Y)
    assert not hasattr(model, "congruence_")
    assert model.fit_report()["congruence"] is None
    # of one class in the target; the weakest of as many components as rows would be rounding
    assert not hasattr(JDA(n_landmarks=20, n_rounds=1).fit(X[: N_S + 1], Y[: N_S + 1]), "congruence_")
    assert np.mean(model.predict(rings[N_S:]) == TRUTH[N_S:]) > 0.9


REFUSED = [
    (DataError, "needs unlabelled rows of a target domain, but all rows are labelled", (X[:N_S], Y[:N_S]), {}),
    (DataError, r"every domain \(0\) has labelled rows", (X[:N_S], Y[:N_S], np.zeros(N_S)), {}),
    (DataError, r"every domain \(0, 1\) has labelled rows", (X[:N_S], Y[:N_S], np.arange(N_S) % 2), {}),
    (DataError, "only one class", (X, np.where(Y < 0, -1, 7)), {}),
    (DataError, "at least 2 rows of the target, found 1", (X[: N_S + 1], Y[: N_S + 1]), {}),
    (DataError, "row of the target with a positive weight", (X, Y, None, np.where(Y < 0, 0.0, 1.0)), {}),
    *(
        (ConfigError, "sharpness: expected one or two numbers above 0", (X, Y), {"sharpness": sharpness})
        for sharpness in ((1.0, -2.0), (1.0,), (0.0, 3.0), ("a", "b"))
    ),
]


@pytest.mark.parametrize("kind, message, columns, settings", REFUSED)
def test_fits_without_a_target_or_classes_and_an_invalid_sharpness_are_refused(kind, message, columns, settings):
    with pytest.raises(kind, match=message):
        ARTLClassifier(**{**GIVEN, **settings}).fit(*columns)


def test_random_features_with_a_graph_are_refused():
    settings = {"kernel": Gaussian(SIGMA), "n_landmarks": 40, "landmarks": "fourier", "random_state": 0}
    with pytest.raises(ConfigError, match="set manifold=0"):
        ARTLClassifier(**settings).fit(X, Y)
    model = ARTLClassifier(**settings, manifold=0.0).fit(X, Y)
    assert np.mean(model.predict(X[N_S:]) == TRUTH[N_S:]) > 0.8


@pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")
@pytest.mark.parametrize("name", ["laplacian", "poly"])
def test_kernels_other_than_the_gaussian_do_not_take_the_median_width(name):
    model = ARTLClassifier(name, landmarks=Z, n_rounds=1, alpha=1.0).fit(X, Y)
    expected = ARTLClassifier(name, landmarks=Z, n_rounds=1, alpha=1.0, gamma="scale").fit(X, Y)
    assert model.kernel_ == expected.kernel_
    assert_allclose(model.decision_function(X), expected.decision_function(X))


@pytest.fixture(scope="module")
def digits(data_dir):
    """Return source, its labels, target, its labels, k-means landmarks, all rows and known labels: MNIST to USPS."""
    usps, usps_labels, mnist, mnist_labels = digit_pair(data_dir)
    centres = KMeans(150, n_init=1, max_iter=8, random_state=0).fit(np.vstack([usps, mnist])).cluster_centers_
    partly = np.concatenate([mnist_labels, np.full(len(usps), -1)])
    return mnist, mnist_labels, usps, usps_labels, centres, np.vstack([mnist, usps]), partly


@pytest.mark.slow
def test_adaptation_improves_accuracy_from_mnist_to_usps(digits):
    source, labels, target, truth, centres, rows, partly = digits
    model = ARTLClassifier(landmarks=centres, n_rounds=5).fit(rows, partly)
    plain = KernelRidgeClassifier(model.kernel_, alpha=0.1, landmarks=centres).fit(source, labels)
    adapted, alone = (100 * np.mean(m.predict(target) == truth) for m in (model, plain))
    assert adapted > 78
    assert adapted > alone + 15
    entropies = [entry["conditional_entropy"] for entry in model.rounds_]
    assert entropies[-1] < entropies[0] / 2


@pytest.mark.slow
def test_default_landmarks_reach_87_percent_from_mnist_to_usps(digits):
    *_, target, truth, _, rows, partly = digits
    model = ARTLClassifier(n_landmarks=500, random_state=0).fit(rows, partly)
    assert np.mean(model.predict(target) == truth) > 0.87  # uniform landmarks reach 0.80 to 0.83
