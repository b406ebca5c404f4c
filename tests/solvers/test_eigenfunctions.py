"""Ridge on eigenfunctions, whose sizes fall by many decades: none that the sums resolve is dropped."""

import numpy as np
import pytest

from bigkernel.solvers.eigenfunctions import eigenfunctions_of_rows, solve_labelled
from bigkernel.solvers.ridge import factorize
from bigkernel.solvers.whitening import Whitening
from bigkernel.statistics.moments import Moments

rng = np.random.default_rng(3)
N, R = 800, 40
SIZES = 10.0 ** np.linspace(0, -3.6, R)
PHI = np.linalg.qr(rng.normal(size=(N, R)))[0] * SIZES * N**0.5
Y = (PHI / SIZES) @ rng.normal(size=(R, 2)) + 0.1 * rng.normal(size=(N, 2))
FEW = np.arange(N) < 300


def moments(rows):
    return Moments.of_rows(PHI, Y, rows * 1.0)


@pytest.mark.parametrize("alpha", [1e-10, 1e-8, 1e-3])
def test_weak_eigenfunctions_are_fitted_as_by_a_decomposition_that_does_not_square(alpha):
    coordinates, values, _ = eigenfunctions_of_rows(moments(np.ones(N, bool)), Whitening(R, R), R)
    coef, _, _ = solve_labelled(coordinates, moments(FEW), alpha)
    _, root, W = np.linalg.svd(PHI, full_matrices=False)
    features = PHI @ (W.T * root)
    tall = np.vstack([features[FEW], np.sqrt(alpha) * np.eye(R)])
    expected = features @ np.linalg.lstsq(tall, np.vstack([Y[FEW], np.zeros((R, 2))]), rcond=None)[0]
    assert len(values) == R
    assert np.linalg.norm(PHI @ coef - expected) < 1e-6 * np.linalg.norm(expected)


def test_repeated_directions_are_left_out():
    twice = PHI[:, :5]
    phi = np.hstack([twice, twice])
    factor = factorize(phi.T @ phi, 1e-14, n_rows=N)
    assert factor.dropped is not None
    assert factor.dropped.shape == (10, 5)
