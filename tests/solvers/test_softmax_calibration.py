"""The softmax of a calibration is the least of its objective, as another minimiser finds it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from scipy.special import log_softmax

from bigkernel.errors import DataError
from bigkernel.solvers.logistic import fit_softmax

rng = np.random.default_rng(3)


def dense(values, truth, weight):
    """Scale and offset by L-BFGS on the objective as the module's head has it."""
    n, c = values.shape
    w = weight * weight.sum() / (weight**2).sum()
    mean = np.average(values, axis=0, weights=w)
    unit = np.sqrt(np.average((values - mean) ** 2, axis=0, weights=w).mean())
    shares = np.log([(w[truth == k].sum() + 1) / (w.sum() + c) for k in range(c)])
    z = (values - mean) / unit

    def unpack(theta):
        a = np.full(c, theta[0]) if c == 2 else theta[:c]
        return a, theta[-c:]

    def objective(theta):
        a, b = unpack(theta)
        p = log_softmax(a * z + shares + b, axis=1)
        spread = 0 if c == 2 else ((a - a.mean()) ** 2).sum() / 2
        return -(w @ p[np.arange(n), truth]) + spread + (b @ b) / 2 + 0.01 * (a @ a) / 2

    start = np.zeros(c + 1 if c == 2 else 2 * c)
    a, b = unpack(minimize(objective, start, method="BFGS", options={"gtol": 1e-7}).x)
    return a / unit, shares + b - a / unit * mean


@pytest.mark.parametrize(("n", "c"), [(40, 2), (300, 3), (12, 4)])
def test_it_is_the_least_of_the_objective(n, c):
    truth, weight = rng.integers(0, c, n), rng.uniform(0.1, 3, n)
    values = 0.4 * np.eye(c)[truth] + 0.3 * rng.normal(size=(n, c)) + 5
    scale, offset = dense(values, truth, weight)
    for factor in (1.0, 1e9, 1e200, 1e-200):  # weights are relative
        result = fit_softmax(values, truth, factor * weight)
        assert_allclose(result.scale, scale, rtol=1e-4)
        assert_allclose(log_softmax(result.logits(values), 1), log_softmax(values * scale + offset, 1), atol=1e-4)
    assert result.log_loss == pytest.approx(
        -np.average(log_softmax(values * scale + offset, axis=1)[np.arange(n), truth], weights=weight), rel=1e-5
    )


@pytest.mark.parametrize("c", [2, 3])
@pytest.mark.parametrize("spread", [0.0, 1e-16, 1.0])
def test_values_that_separate_classes_or_are_constant_give_finite_numbers(c, spread):
    truth = np.arange(60) % c
    result = fit_softmax(np.ones((60, c)) + spread * np.eye(c)[truth], truth, np.ones(60))
    p = np.exp(log_softmax(result.logits(np.eye(c)), axis=1))
    if spread == 1:
        assert (p.diagonal() > 0.95).all()
    else:
        assert np.isfinite(result.scale).all()
        shares = np.exp(log_softmax(result.logits(np.ones((1, c))), axis=1))
        assert_allclose(shares, 1 / c, atol=0.02)


@pytest.mark.parametrize("c", [2, 4])
def test_values_that_contradict_held_out_labels_keep_their_order(c):
    truth = np.arange(40) % c
    result = fit_softmax(-np.eye(c)[truth] + 0.1 * rng.normal(size=(40, c)), truth, np.ones(40))
    assert (result.scale > 0).all()
    assert_allclose(np.exp(log_softmax(result.logits(np.eye(c)), axis=1)), 1 / c, atol=0.05)


def test_without_any_row_there_is_no_calibration():
    with pytest.raises(DataError, match="expected held-out rows"):
        fit_softmax(np.zeros((0, 3)), np.zeros(0), np.zeros(0))
