"""k(X, X): of one triangle, exactly symmetric, and the values of k between two arrays."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist

from bigkernel import Gaussian, Linear, Matern, Polynomial
from bigkernel.kernels import blas

rng = np.random.default_rng(5)
X = rng.normal(size=(200, 6))[np.r_[0, :200]] + 20  # the first row repeats
SQUARES = cdist(X, X, "sqeuclidean")
LENGTHS = np.linspace(1, 3, 6)
ORACLES = {
    "gaussian": (Gaussian(1.5), np.exp(-SQUARES / 4.5)),
    "lengths": (Gaussian(LENGTHS), np.exp(-cdist(X / LENGTHS, X / LENGTHS, "sqeuclidean") / 2)),
    "matern": (Matern(2.0, nu=1.5), (1 + np.sqrt(3 * SQUARES) / 2) * np.exp(-np.sqrt(3 * SQUARES) / 2)),
    "linear": (Linear(), X @ X.T),
    "polynomial": (Polynomial(2, gamma=0.01), (0.01 * X @ X.T + 1) ** 2),
}


@pytest.mark.parametrize("wide", [blas.WIDE, 50])
@pytest.mark.parametrize("name", ORACLES)
def test_values_are_those_of_differences_and_exactly_symmetric(monkeypatch, name, wide):
    monkeypatch.setattr("bigkernel.kernels.blas.WIDE", wide)
    kernel, wanted = ORACLES[name]
    found = kernel(X)
    assert_allclose(found, wanted, rtol=1e-11, atol=1e-13)
    assert_array_equal(found, found.T)
    assert_allclose(found, kernel(X, X), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kernel", [Gaussian(0.3), Gaussian(LENGTHS), Matern(0.2, nu=2.5)])
def test_a_row_is_at_no_distance_from_itself(kernel):
    assert_array_equal(np.diagonal(kernel(X)), 1.0)


@pytest.mark.parametrize("unit", [1e-120, 1e120])
def test_units_whose_squares_leave_the_range_change_nothing(unit):
    assert_allclose(Gaussian(1.5 * unit)(X * unit), Gaussian(1.5)(X), rtol=1e-10)
