"""Learned metrics: slopes against finite differences, products of gradients against their definition, a toy."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from bigkernel import Gaussian, Matern
from bigkernel.solvers import metric
from bigkernel.solvers.metric import HeldOutLoss, Sample, learn_products, learn_scales, plain_metric

KERNELS = [Gaussian(1.0), Matern(1.0, nu=0.5), Matern(1.0, nu=1.5), Matern(1.0, nu=2.5)]


def loss_of(kernel, x, y, m, run=map):
    n = len(x) * 2 // 3
    return HeldOutLoss(kernel, Sample(x[m:n], y[m:n]), Sample(x[n:], y[n:]), x[:m], run)


@pytest.fixture
def small(rng):
    x = rng.normal(size=(240, 4))
    return x, np.column_stack([np.sin(2 * x[:, 0]) + x[:, 1], x[:, 0] * x[:, 2]])


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_slopes_are_those_of_finite_differences(kernel, small):
    loss, scales, penalty = loss_of(kernel, *small, m=25), np.array([0.5, 0.4, 0.3, 0.2]), 0.01

    def error(logs):
        return loss.with_gradient(scales * np.exp(logs[:-1]), penalty * np.exp(logs[-1]))[0]

    def difference(step, h):
        return (error(h * step) - error(-h * step)) / (2 * h)

    value, slopes, along_penalty = loss.with_gradient(scales, penalty)
    found = np.append(slopes, along_penalty)
    expected = [(4 * difference(step, 5e-4) - difference(step, 1e-3)) / 3 for step in np.eye(5)]
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(found).max())
    assert value == pytest.approx(loss.errors(metric.Metric(scales, penalty, 0.0)).mean(), rel=1e-9)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_products_of_gradients_are_those_of_the_fit(kernel, small):
    x, y = small
    loss, signs = loss_of(kernel, x, y, m=25), np.ones((135, 2))
    w = metric._solved((sums := loss._sums(loss._block(loss.fitted.x))).system(0.1), sums.right)

    def f(row):
        return float((kernel(row[None], loss.landmarks) @ w).sum())

    h, rows = 1e-5, loss.fitted.x
    gradients = np.array([[(f(row + h * e) - f(row - h * e)) / (2 * h) for e in np.eye(4)] for row in rows])
    block = loss._block(rows)
    found = metric._gradients(block, slice(None), np.ones((len(rows), 2)) @ w.T, loss.landmarks)
    np.testing.assert_allclose(found, gradients, atol=1e-7 * np.abs(gradients).max())

    every = metric._gradients(loss._block(loss.fitted.x), slice(None), signs @ w.T, loss.landmarks)
    lengths = np.linalg.norm(every, axis=1)
    every *= np.minimum(1, np.quantile(lengths, 0.99) / lengths)[:, None]
    expected = sum(np.outer(one, one) for one in every) / len(every)
    np.testing.assert_allclose(loss.gradient_products(0.1, signs), expected, atol=1e-10 * np.abs(expected).max())


def test_bits_do_not_depend_on_threads(rng):
    x = rng.normal(size=(9000, 5)).astype(np.float32)
    y = x[:, :1] * x[:, 1:2]
    with ThreadPoolExecutor(3) as pool:
        one, three = (
            loss_of(KERNELS[0], x, y, 40, run).with_gradient(np.full(5, 0.5), 1e-4) for run in (map, pool.map)
        )
    assert one[0] == three[0]
    assert one[2] == three[2]
    np.testing.assert_array_equal(one[1], three[1])


@pytest.mark.parametrize(("diagonal", "most"), [(True, 0.05), (False, 0.15)], ids=["scales", "directions"])
def test_features_that_matter_are_found(diagonal, most, rng):
    x = rng.normal(size=(3000, 20)).astype(np.float32)
    y = (np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.1 * rng.normal(size=3000)).astype(np.float32)[:, None]
    loss = loss_of(Gaussian(1.0), x, y - y.mean(), 200)
    plain = plain_metric([loss])
    learned = learn_products([loss], plain, 5, np.random.RandomState(0), diagonal=diagonal)
    assert plain.error > 0.4
    assert learned.error < most
    if diagonal:
        finer = learn_scales([loss], learned, 20)
        assert finer.error < learned.error
        assert set(np.argsort(finer.weights)[-3:]) == {0, 1, 2}
