"""Models of fewer landmarks from the statistics of many."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel import Gaussian, KernelRidge, load_model, save_model
from bigkernel.errors import ConfigError

rng = np.random.default_rng(20261121)
N, D, M = 120, 3, 24
X, NEW = rng.normal(size=(N, D)), rng.normal(size=(15, D))
Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] ** 2])
SIGMA = Gaussian(1.2)


def test_fewer_landmarks_are_nested_random_subsets():
    line = np.linspace(0, 1, 400)[:, None]  # landmarks are in the order of the rows
    whole = KernelRidge(Gaussian(0.005), 0.1, n_landmarks=100, random_state=0).fit(line, np.sin(9 * line[:, 0]))
    few, fewer = whole.with_landmarks(40).landmarks_, whole.with_landmarks(20).landmarks_
    assert set(fewer.ravel()) < set(few.ravel()) < set(whole.landmarks_.ravel())
    assert fewer.min() < 0.15
    assert fewer.max() > 0.85


def test_fewer_landmarks_share_no_state_with_the_first_model():
    whole = KernelRidge(SIGMA, 0.1, n_landmarks=M, random_state=0).fit(X, Y)
    before, statistics = whole.predict(NEW), {name: values.copy() for name, values in whole.statistics_.items()}
    fewer = whole.with_landmarks(M)
    fewer.set_params(alpha=5.0).refit()
    fewer.partial_fit(NEW, np.ones((15, 2)))
    assert_array_equal(whole.predict(NEW), before)
    assert all((whole.statistics_[name] == values).all() for name, values in statistics.items())
    assert whole.alpha == 0.1


def test_fewer_landmarks_can_be_fitted_further_and_saved(tmp_path):
    whole = KernelRidge(SIGMA, 0.1, n_landmarks=M, random_state=0).fit(X, Y)
    fewer = whole.with_landmarks(9).partial_fit(NEW, np.ones((15, 2)))
    joined = KernelRidge(SIGMA, 0.1, landmarks=fewer.landmarks_)
    joined.fit(np.vstack([X, NEW]), np.vstack([Y, np.ones((15, 2))]))
    assert_allclose(fewer.predict(NEW), joined.predict(NEW), rtol=1e-8, atol=1e-9)
    save_model(fewer, tmp_path / "model")
    assert_array_equal(load_model(tmp_path / "model").predict(NEW), fewer.predict(NEW))


@pytest.mark.parametrize("count", [0, -3, M + 1])
def test_a_count_beyond_the_landmarks_is_refused(count):
    model = KernelRidge(SIGMA, 0.1, n_landmarks=M, random_state=0).fit(X, Y)
    with pytest.raises(ConfigError, match=f"from 1 to the {M} landmarks of the fit, found {count}"):
        model.with_landmarks(count)


def test_an_exact_fit_is_refused():
    with pytest.raises(ConfigError, match="keeps no statistics"):
        KernelRidge(SIGMA, 0.1).fit(X, Y).with_landmarks(3)
