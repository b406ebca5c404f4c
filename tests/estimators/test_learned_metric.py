"""LearnedMetric as a step of pipelines: targets of all kinds, corpora, files, and when the plain kernel is kept."""

from contextlib import nullcontext

import dask.array as da
import numpy as np
import pytest
from sklearn.pipeline import make_pipeline

from bigkernel import (
    Gaussian,
    KernelRidge,
    KernelRidgeClassifier,
    LearnedMetric,
    Matern,
    Standardizer,
    load_model,
    save_model,
    write_corpus,
)
from bigkernel.engine.rows import as_rows
from bigkernel.errors import DataError, MissingLabelWarning


@pytest.fixture
def rows(rng):
    X = rng.normal(size=(600, 8)) * 3 + 1
    return X, np.sin(X[:, 2]) + 0.1 * rng.normal(size=600)


def learner(**settings):
    return LearnedMetric(**{"n_landmarks": 40, "max_iter": 6, "random_state": 0} | settings)


def test_a_pipeline_predicts_better_with_it_and_is_stored(rows, tmp_path):
    X, y = rows
    plain = KernelRidge(n_landmarks=100, alpha="gcv", random_state=0).fit(X[:400], y[:400])
    ridge = KernelRidge(Gaussian(sigma=1.0), n_landmarks=100, alpha="gcv", random_state=0)
    model = make_pipeline(Standardizer(), learner(), ridge).fit(X[:400], y[:400])
    assert model.score(X[400:], y[400:]) > 0.95 > 0.8 > plain.score(X[400:], y[400:])
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded[1].feature_importances_.argmax() == 2


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"method": "gradient"},
        {"method": "products"},
        {"method": "products", "diagonal": True},
        {"kernel": Matern()},
    ],
    ids=["both", "gradient", "products", "diagonal", "matern"],
)
def test_its_attributes_describe_the_map(settings, rows):
    X, y = rows
    learned = learner(**settings).fit(X, y)
    weights = learned.weights_
    mapped = (X - learned.centre_) * weights if weights.ndim == 1 else (X - learned.centre_) @ weights
    np.testing.assert_allclose(learned.transform(X), mapped, atol=1e-9)
    # far from 0, single precision loses no more than the rows have lost already
    learned.centre_ = learned.centre_ + 1e6
    far = (X + 1e6).astype(np.float32)
    spread = np.abs(np.diff(learned.transform(far) - learned.transform(far.astype(float)), axis=0)).max()
    assert spread < 1e-5
    np.testing.assert_allclose(learned.metric_, weights**2 if weights.ndim == 1 else weights @ weights.T)
    assert learned.feature_importances_.sum() == pytest.approx(1)
    assert learned.feature_importances_.argmax() == 2
    assert (np.diff(learned.rounds_) <= 0).all()
    assert len(learned.rounds_) == learned.n_iter_ + 1
    assert learned.gain_ > 3 * learned.gain_error_ > 0
    assert learned.kernel_.sigma == 1.0


@pytest.mark.parametrize("constant", [True, False])
def test_the_plain_kernel_is_kept_where_nothing_can_be_learned(constant, rng):
    y = np.ones(400) if constant else rng.normal(size=400)
    learned = learner().fit(rng.normal(size=(400, 6)), y)
    assert learned.gain_ <= learned.gain_error_
    assert np.ptp(learned.weights_) == 0


def test_classes_by_name_number_and_truth_value_agree(rows):
    X, y = (values[:300] for values in rows)
    names, numbers, truth = np.where(y > 0, "up", "down"), np.where(y > 0, 7, 3), y > 0
    expected = learner().fit(X, truth).weights_
    for labels in (names, numbers, numbers.tolist(), np.where(y > 0, 1, -1)):
        np.testing.assert_allclose(learner().fit(X, labels).weights_, expected, rtol=1e-3)
    classifier = KernelRidgeClassifier(Gaussian(sigma=1.0), n_landmarks=80, random_state=0)
    assert make_pipeline(learner(), classifier).fit(X, names).score(X, names) > 0.9


@pytest.mark.parametrize("missing", [np.nan, -1], ids=["numbers", "classes"])
def test_rows_without_a_target_are_left_out(missing, rows):
    X, y = (values[:300] for values in rows)
    y = y if np.isnan(missing) else np.digitize(y, [-0.5, 0.5])
    some = np.arange(len(y)) % 3 > 0
    garbled = np.where(some[:, None], X, 1e6)
    with pytest.warns(MissingLabelWarning) if missing == -1 else nullcontext():
        a = learner().fit(garbled, np.where(some, y, missing))
    assert a.feature_importances_.argmax() == 2
    assert np.abs(a.centre_).max() < 10
    weighted = as_rows(da.from_array(garbled), np.nan_to_num(y), weight=some.astype(float))
    np.testing.assert_array_equal(learner().fit(weighted).centre_, a.centre_)
    garbled[~some] = np.nan
    skipped = learner().fit(as_rows(da.from_array(garbled), y * 1.0).skip_bad_rows())
    np.testing.assert_allclose(np.sort(skipped.centre_), np.sort(a.centre_), atol=0.3)


def test_a_corpus_gives_the_bits_of_its_array(rows, tmp_path):
    X, y = rows
    corpus = write_corpus(tmp_path / "corpus", X, y, chunk_rows=211)
    np.testing.assert_array_equal(learner().fit(corpus).weights_, learner().fit(X, y).weights_)
    np.testing.assert_array_equal(learner().fit(X, np.column_stack([y, y])).transform(X).shape, X.shape)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.ones((20, 2)), None, "requires y"),
        (np.arange(18.0).reshape(9, 2), np.arange(9.0), "n_samples=9 .* at least 10"),
        (np.arange(40.0).reshape(20, 2) * 1e300, np.arange(20.0), "exceed the range of float32"),
    ],
)
def test_what_cannot_be_learned_from_is_refused_by_name(X, y, message):
    with pytest.raises(DataError, match=message):
        learner().fit(X, y)
