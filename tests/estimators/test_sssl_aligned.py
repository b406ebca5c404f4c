"""SSSL with aligned eigenfunctions: the dense form, rounds of pseudo-labels, and what is refused."""

import itertools

import numpy as np
import pytest
import reference
import reference_alignment as dense
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel import SSSL, Gaussian, SSSLClassifier, SweepSearchCV
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ConfigError, DataError

rng = np.random.default_rng(17)
N_S, N_T, D, S, SIGMA, ALPHA = 45, 40, 6, 12, 2.5, 0.3
TRUTH = np.resize([0, 1, 2], N_S + N_T)
X = rng.normal(size=(N_S + N_T, D)) + 2 * np.eye(D)[TRUTH]
X[N_S:] += 0.7
Y = np.where(np.arange(len(X)) < N_S, TRUTH, -1)
ORDER = rng.permutation(len(X))
K = reference.gaussian(X, X, SIGMA)
GIVEN = {"kernel": Gaussian(SIGMA), "n_components": S, "alpha": ALPHA, "landmarks": X, "eigenfunctions": "aligned"}

pytestmark = pytest.mark.usefixtures("small_steps")


@pytest.mark.parametrize("weight", [0.2, 1.0, 30.0])
def test_values_are_those_of_the_dense_form(weight):
    model = SSSLClassifier(**GIVEN, alignment=weight).fit(X[ORDER], Y[ORDER])
    assert_allclose(model.decision_function(X), dense.aligned_sssl(K, Y[:N_S], S, ALPHA, weight), atol=1e-8)


def test_without_weight_the_eigenfunctions_are_those_of_all_rows():
    aligned = SSSLClassifier(**GIVEN, alignment=0.0).fit(X, Y)
    plain = SSSLClassifier(**{**GIVEN, "eigenfunctions": "all"}).fit(X, Y)
    assert_allclose(aligned.decision_function(X), plain.decision_function(X), atol=1e-9)
    assert_allclose(aligned.eigenvalues_, plain.eigenvalues_, rtol=1e-9)


def test_rounds_are_those_of_the_dense_form():
    model = SSSLClassifier(**GIVEN, n_rounds=3).fit(X[ORDER], Y[ORDER])
    told, values = [], dense.aligned_sssl(K, Y[:N_S], S, ALPHA, 1.0)
    for _ in range(3):
        told.append(values[N_S:].argmax(axis=1))
        values = dense.aligned_sssl(K, Y[:N_S], S, ALPHA, 1.0, told[-1])
    assert_allclose(model.decision_function(X), values, atol=1e-8)
    changed = [1.0, *(np.mean(a != b) for a, b in itertools.pairwise(told))]
    assert_allclose([entry["changed"] for entry in model.rounds_], changed[: len(model.rounds_)])


def test_numbers_have_aligned_eigenfunctions_too():
    numbers = np.where(Y < 0, np.nan, np.sin(X[:, 0]))
    aligned = SSSL(**GIVEN).fit(X, numbers)
    plain = SSSL(**{**GIVEN, "eigenfunctions": "all"}).fit(X, numbers)
    between = [abs(m.predict(X[:N_S]).mean() - m.predict(X[N_S:]).mean()) for m in (aligned, plain)]
    assert between[0] < 0.2 * between[1]


def test_more_rows_may_be_added_where_there_are_no_rounds():
    whole = SSSLClassifier(**GIVEN).fit(X, Y)
    parts = SSSLClassifier(**GIVEN)
    for index in (ORDER[:40], ORDER[40:]):
        parts.partial_fit(X[index], Y[index], classes=[0, 1, 2])
    assert_allclose(parts.decision_function(X), whole.decision_function(X), atol=1e-7)
    some = whole.with_landmarks(20)
    wanted = SSSLClassifier(**{**GIVEN, "landmarks": X[:20]}).fit(X, Y)
    assert_allclose(some.decision_function(X), wanted.decision_function(X), atol=1e-8)


def test_rounds_on_a_corpus_of_named_classes_are_those_in_memory(make_corpus):
    names = ("nine", "one", "two")
    corpus = make_corpus(X[ORDER], classes=names, y=Y[ORDER])
    model = SSSLClassifier(**GIVEN, n_rounds=2).fit(corpus)
    wanted = SSSLClassifier(**GIVEN, n_rounds=2).fit(X, Y)
    assert_allclose(model.decision_function(X), wanted.decision_function(X), atol=1e-8)
    assert_array_equal(model.predict(X), np.array(names)[wanted.predict(X)])


@pytest.mark.parametrize("call", ["partial_fit", "with_landmarks"])
def test_rounds_would_have_to_be_done_again(call):
    model = SSSLClassifier(**GIVEN, n_rounds=1).fit(X, Y)
    with pytest.raises(ConfigError, match=f"{call}: n_rounds=1 rounds would have to be done again"):
        model.partial_fit(X, Y) if call == "partial_fit" else model.with_landmarks(5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SSSLClassifier(**{**GIVEN, "landmarks": "uniform"}), "expected n_landmarks or an array"),
        (lambda: SSSLClassifier(**{**GIVEN, "eigenfunctions": "all"}, n_rounds=2), "n_rounds=2: expected 0"),
        (lambda: SSSL(**GIVEN, n_rounds=2), "n_rounds=2: expected 0"),
    ],
)
def test_settings_that_have_no_aligned_form_are_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make().fit(X, Y)


def test_labels_everywhere_leave_nothing_to_align_with():
    with pytest.raises(DataError, match="need rows without a label to align with; all are labelled"):
        SSSLClassifier(**GIVEN).fit(X, TRUTH)


def test_a_search_by_sweeps_refuses_them():
    search = SweepSearchCV(SSSLClassifier(**GIVEN), {"alpha": [0.1, 1.0]}, cv=2)
    with pytest.raises(ConfigError, match="differ from fold to fold"):
        search.fit(as_rows(X[ORDER], Y[ORDER]))
