"""Importance weights: against dense normal equations by QR, and what they correct."""

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn import config_context
from sklearn.base import clone

from bigkernel import Gaussian, ImportanceWeights, Ridge, executing
from bigkernel.errors import DataError, OverlapWarning
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import HashFolds

rng = np.random.default_rng(3)
X = np.concatenate([rng.normal(0, 1, (300, 2)), rng.normal(1, 0.6, (250, 2))])
DOMAIN = np.repeat([1, -1], [300, 250])
SIGMAS, PENALTIES = [0.5, 1.0, 2.0], [1e-3, 1e-2, 1e-1, 1.0]
MODEL = ImportanceWeights(SIGMAS, PENALTIES, n_landmarks=40, random_state=0)


def dense(phi_source, phi_target, penalty):
    """Solve min ½ mean (φθ)² over the source − mean φθ over the target + ½ λ‖θ‖² by QR."""
    R = np.linalg.qr(np.vstack([phi_source / len(phi_source) ** 0.5, penalty**0.5 * np.eye(40)]), mode="r")
    return np.linalg.solve(R, np.linalg.solve(R.T, phi_target.mean(axis=0)))


@pytest.fixture(scope="module")
def fitted():
    return ImportanceWeights(**MODEL.get_params()).fit(X, sample_domain=DOMAIN)


def test_the_ratio_and_its_held_out_errors_are_those_of_dense_least_squares(fitted):
    fold, source, errors = HashFolds(5).of(Chunk(X)), DOMAIN > 0, np.zeros((3, 4))
    for i, sigma in enumerate(SIGMAS):
        phi = Gaussian(sigma)(X, fitted.landmarks_)
        for j, penalty in enumerate(PENALTIES):
            for number in range(5):
                out = fold == number
                theta = dense(phi[source & ~out], phi[~source & ~out], penalty)
                errors[i, j] += ((phi[source & out] @ theta) ** 2).mean() / 10 - (phi[~source & out] @ theta).mean() / 5
    assert_allclose(fitted.errors_, errors, rtol=1e-8, atol=1e-10)
    best = np.unravel_index(errors.argmin(), errors.shape)
    assert (fitted.sigma_, fitted.penalty_) == (SIGMAS[best[0]], PENALTIES[best[1]])
    phi = Gaussian(fitted.sigma_)(X, fitted.landmarks_)
    ratio = np.maximum(phi @ dense(phi[source], phi[~source], fitted.penalty_), 0)
    assert_allclose(fitted.importance_weights_, np.where(source, ratio, 1), rtol=1e-8, atol=1e-8)
    assert fitted.effective_sample_size_ == pytest.approx(ratio[source].sum() ** 2 / (ratio[source] ** 2).sum())


def test_the_weights_move_the_source_to_the_target_and_correct_a_regression(fitted):
    w, source, target = fitted.importance_weights_[:300], X[:300], X[300:]
    assert abs(np.average(source, axis=0, weights=w) - target.mean(axis=0)).max() < 0.3
    models = [Ridge(1e-3).fit(source, source[:, 0] ** 2, sample_weight=one) for one in (None, w)]
    error = [np.mean((model.predict(target) - target[:, 0] ** 2) ** 2) for model in models]
    assert error[1] < 0.5 * error[0]


def test_source_and_target_are_named_by_sign_by_labels_or_by_domains_without_labels(fitted):
    labels = np.where(DOMAIN > 0, X[:, 0] > 0, -1)
    numbers = np.where(DOMAIN > 0, X[:, 0], np.nan)
    for y, domain in ((labels, None), (numbers, None), (labels, np.where(DOMAIN > 0, 7, 2)), (labels, DOMAIN)):
        other = MODEL.fit(X, y, sample_domain=domain)
        assert_allclose(other.importance_weights_, fitted.importance_weights_, rtol=1e-9)


def test_chunks_and_executors_give_the_same_bits_and_lazy_rows_lazy_weights():
    lazy, results = da.from_array(X, chunks=(100, 2)), []
    for executor, output in (("serial", "default"), ("threads", "pandas")):
        with executing(executor), config_context(transform_output=output):
            results.append(MODEL.fit(lazy, sample_domain=DOMAIN).predict(lazy).compute())
    assert_array_equal(*results)
    framed = clone(MODEL).set_output(transform="pandas").fit(X, sample_domain=DOMAIN)
    assert_allclose(results[0][:300], framed.importance_weights_[:300], rtol=1e-9)


def test_sides_that_hardly_overlap_are_warned_of():
    with pytest.warns(OverlapWarning, match="hardly overlap, and fewer than the"):
        w = MODEL.fit(np.concatenate([X[:300], X[300:] + 2]), sample_domain=DOMAIN).importance_weights_
    assert w[:300].mean() > 1.2


@pytest.mark.parametrize("y, domain", [(None, None), (None, np.ones(550)), (np.ones(550), None)])
def test_one_side_alone_is_refused(y, domain):
    with pytest.raises(DataError, match="expected rows of a source and of a target"):
        MODEL.fit(X, y, sample_domain=domain)
