"""JDA: its dense form, pipelines, and invalid arguments."""

import itertools

import numpy as np
import pytest
import reference
import reference_alignment as dense
from numpy.testing import assert_allclose, assert_array_equal
from reference_domains import up_to_sign
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from bigkernel import JDA, ARTLClassifier, Gaussian, KernelRidgeClassifier

rng = np.random.default_rng(43)
N_S, N_T, D, S, SIGMA = 50, 40, 6, 7, 2.5
TRUTH = np.resize([0, 1, 2], N_S + N_T)
X = rng.normal(size=(N_S + N_T, D)) + 2.5 * np.eye(D)[TRUTH]
X[N_S:] += 0.6
Y = np.where(np.arange(len(X)) < N_S, TRUTH, -1)
ORDER = rng.permutation(len(X))
K = reference.gaussian(X, X, SIGMA)
GIVEN = {"kernel": Gaussian(SIGMA), "n_components": S, "alpha": 0.5, "label_alpha": 0.3, "landmarks": X}

pytestmark = pytest.mark.usefixtures("small_steps")


@pytest.mark.parametrize("rounds", [0, 1, 4])
def test_components_match_the_dense_form(rounds):
    model = JDA(**GIVEN, n_rounds=rounds).fit(X[ORDER], Y[ORDER])
    done = len(model.rounds_)
    # rounds end when no label changes
    values, Z, labels = dense.joint_adaptation(K, Y[:N_S], S, 0.5, 0.3, rounds)
    changed = [1.0, *(np.mean(a != b) for a, b in itertools.pairwise(labels))]
    assert_allclose([entry["changed"] for entry in model.rounds_], changed[:done])
    assert done <= rounds
    assert (model.pseudo_labels_ is None) == (rounds == 0)
    assert_allclose(model.eigenvalues_, values, rtol=1e-8)
    assert_allclose(up_to_sign(model.transform(X), Z), Z, atol=1e-8 * np.abs(Z).max())


def test_a_pipeline_fits_a_corpus(make_corpus):
    corpus = make_corpus(X[ORDER], classes=(0, 1, 2), y=Y[ORDER])
    steps = JDA(**GIVEN), KernelRidgeClassifier("linear", alpha=0.1, landmarks=np.eye(S))
    streamed = make_pipeline(*steps).fit(corpus)
    assert_array_equal(streamed.classes_, [0, 1, 2])
    Z = JDA(**GIVEN).fit(X, Y).transform(X)
    expected = KernelRidgeClassifier("linear", alpha=0.1, landmarks=np.eye(S)).fit(Z[:N_S], Y[:N_S])
    assert_array_equal(streamed.predict(corpus).compute(), expected.predict(Z[ORDER]))


def test_random_features_can_replace_landmarks():
    settings = {"n_landmarks": 500, "landmarks": "fourier", "random_state": 0, "n_rounds": 0}
    settings = {**GIVEN, "n_components": 2} | settings
    model = JDA(**settings).fit(X, Y)
    expected = JDA(**{**GIVEN, "n_components": 2}, n_rounds=0).fit(X, Y)
    assert_allclose(model.eigenvalues_, expected.eigenvalues_, rtol=0.2)


@pytest.mark.parametrize("model", [JDA(n_rounds=0), ARTLClassifier(n_rounds=0)], ids=["JDA", "ARTL"])
def test_there_are_500_landmarks_by_default_or_half_as_many_as_rows(model):
    rows = rng.normal(size=(1100, 2))
    assert len(clone(model).fit(X, Y).landmarks_) == len(X) // 2
    assert model.plan(rows, np.where(np.arange(1100) < 500, np.arange(1100) % 2, -1)).width == 500
