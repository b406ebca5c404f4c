"""Products of the block with vectors, against the dense formulas."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bigkernel import Gaussian
from bigkernel.data.fingerprint import fingerprint
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.statistics import products as statistics_of_products
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.products import ProductStatistic
from bigkernel.streaming.folds import ColumnFolds, SomeFolds

rng = np.random.default_rng(7)
N, M = 300, 17
X = rng.normal(size=(N, 4))
Y = rng.normal(size=(N, 3))
WEIGHT = rng.uniform(0, 2, N) * (rng.uniform(size=N) > 0.1)
V = rng.normal(size=(M, 3))
FEATURES = LandmarkMap(Gaussian(1.5), X[:M], np.dtype(np.float64))
B = Gaussian(1.5)(X, X[:M])


def products(rows, *, residual=False, targets=None, vectors=V):
    statistic = ProductStatistic(FEATURES, targets or Targets(3), vectors, "1", residual)
    return sweep(rows, statistic, client="serial").total


@pytest.mark.parametrize("dtype", ["f8", "f4", "wide"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("numbers", [None, (2, 0)], ids=["nothing held out", "two of three folds"])
def test_sums_are_those_of_the_dense_formulas(small_steps, monkeypatch, numbers, weight, dtype):
    if dtype == "wide":  # float32 blocks of so many columns that tiles are converted
        monkeypatch.setattr(statistics_of_products, "_STRIP", (8, 8))
        monkeypatch.setattr(statistics_of_products, "_TILE", (8, 5))
    features = LandmarkMap(Gaussian(1.5), X[:M], np.dtype("f8" if dtype == "f8" else "f4"))
    fold = rng.integers(-2, 3, N)  # −2: no split uses a row, −1: all train on it
    rows, w = as_rows(X, Y, weight=weight, fold=fold), np.ones(N) if weight is None else weight
    folds = numbers and SomeFolds(ColumnFolds(3), numbers)
    groups = [np.ones(N, bool)]
    if numbers:
        groups = [*(fold == number for number in numbers), (fold > -2) & ~np.isin(fold, numbers)]
    used = np.any(groups, axis=0)
    given = rng.normal(size=(M, len(numbers or [0]), 2, 3))  # two penalties, three targets

    def swept(residual):
        statistic = ProductStatistic(features, Targets(3), given.reshape(M, -1), "1", residual, folds)
        return sweep(rows, statistic, client="serial").total

    near = {"rtol": 1e-9, "atol": 1e-9} if dtype == "f8" else {"rtol": 1e-5, "atol": 1e-4}
    products, sums = swept(False)["U"].reshape(given.shape), swept(True)
    for place in range(given.shape[1]):
        tested = w * groups[place] if numbers else np.zeros(N)
        trained = w * used - tested
        for penalty in range(2):
            f = B @ given[:, place, penalty]
            assert_allclose(products[:, place, penalty], B.T @ (trained[:, None] * f), **near)
            expected = {"U": B.T @ (trained[:, None] * (Y - f)), "e": trained @ (Y - f), "sse": trained @ (Y - f) ** 2}
            expected["squares"] = trained @ f**2
            if numbers:
                expected |= {"held_e": tested @ (Y - f), "held_sse": tested @ (Y - f) ** 2}
            for name, values in expected.items():
                result = sums[name].reshape(-1, *given.shape[1:])[:, place, penalty]
                assert_allclose(result.squeeze(), values, **near, err_msg=name)
    assert len(sums["n"]) == len(groups)
    for place, own in enumerate(groups):
        assert_allclose(sums["s"][place], (w * own) @ B, **near)
        assert_allclose(sums["t"][place], (w * own) @ Y, **near)
        assert_allclose(sums["q"][place], (w * own) @ Y**2, **near)
        assert_allclose([sums["n"][place], sums["rows"][place]], [w[own].sum(), np.count_nonzero(w[own])])


def test_rows_without_a_label_count_nothing(small_steps):
    labels = rng.integers(-1, 3, N)
    targets, known = Targets(3, np.arange(3)), labels >= 0
    result = products(as_rows(X, labels), residual=True, targets=targets)
    alone = products(as_rows(X[known], labels[known]), residual=True, targets=targets)
    assert result["rows"] == known.sum()
    for name, values in alone.items():
        assert_allclose(result[name], values, rtol=1e-10, atol=1e-10)


def test_blocks_of_float32_are_multiplied_in_float64():
    features = LandmarkMap(Gaussian(1.5), X[:M], np.dtype(np.float32))
    total = sweep(as_rows(X, Y), ProductStatistic(features, Targets(3), V, "1"), client="serial").total
    exact = B.T @ (B @ V)
    # kernel values are rounded, and nothing after them
    assert_allclose(total["U"], exact, rtol=0, atol=3e-7 * N * np.abs(V).sum())
    assert total["U"].dtype == np.float64


def test_a_run_is_known_by_the_step_and_not_by_the_bits_of_its_vectors():
    first, other = (ProductStatistic(FEATURES, Targets(3), v, "1") for v in (V, V * (1 + 1e-15)))
    assert fingerprint(first) == fingerprint(other)
    assert fingerprint(first) != fingerprint(ProductStatistic(FEATURES, Targets(3), V, "2"))
    with pytest.raises(TypeError, match=r"step: a run compares dataclasses.*found object"):
        fingerprint(replace(first, step=object()))
    with pytest.raises(TypeError, match="found function"):
        fingerprint(replace(first, step=test_blocks_of_float32_are_multiplied_in_float64))
