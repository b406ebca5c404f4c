"""Kernels that others compute: matrices, functions of blocks and of rows, scikit-learn's pairwise kernels."""

import os
import re
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.kernel_ridge import KernelRidge as DenseKernelRidge
from sklearn.metrics import pairwise
from sklearn.model_selection import cross_val_score

import bigkernel as bk
from bigkernel.data.fingerprint import fingerprint
from bigkernel.errors import ConfigError, DataError
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.kernels.given import Precomputed
from bigkernel.streaming.chunk import Chunk

RNG = np.random.default_rng(2)
X = np.abs(RNG.normal(size=(90, 3)))  # for d = 3 a product of two rows and of three looks like a block
y = X[:, 0] * X[:, 1]
K = pairwise.rbf_kernel(X, gamma=0.3)


def shared(x, z, power=1.0):
    """The overlap of two histograms, to a power."""
    return float(np.minimum(x, z).sum()) ** power


def shared_in_blocks(X, Z):
    return np.minimum(X[:, None], Z).sum(axis=2)


METRICS = {
    "chi2": "chi2",
    "cosine": "cosine",
    "a function of blocks": shared_in_blocks,
    "a function of rows": shared,
    "a product of rows": np.dot,
    "a partial function": partial(shared, power=2.0),
}
every_metric = pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)


@every_metric
def test_exact_fits_are_the_dense_ones_and_blocks_their_values(metric):
    of_rows = shared if metric is shared_in_blocks else metric
    dense = DenseKernelRidge(alpha=0.1, kernel=of_rows, gamma=1.0).fit(X, y)
    ours = bk.KernelRidge(metric, alpha=0.1, fit_intercept=False).fit(X, y)
    assert_allclose(ours.predict(X[:9]), dense.predict(X[:9]), rtol=1e-7, atol=1e-9)
    expected = pairwise.pairwise_kernels(X, X[:20], metric=of_rows)
    for dtype, near in ((np.float64, 1e-12), (np.float32, 1e-5)):
        features = LandmarkMap(bk.Pairwise(metric).resolve(X), X[:20], np.dtype(dtype))
        assert_allclose(features.block(Chunk(X), slice(0, 90)), expected, rtol=near, atol=near)
    assert_allclose(bk.Pairwise(metric).diag(X), np.diagonal(pairwise.pairwise_kernels(X, metric=of_rows)), rtol=1e-12)


@pytest.mark.filterwarnings("ignore:pairwise kernel. the kernel matrix of 40:bigkernel.errors.RankDeficiencyWarning")
def test_landmark_fits_take_them_too_and_several_chunks_are_one():
    one = bk.KernelRidge(shared_in_blocks, alpha=0.1, landmarks=X[:40]).fit(X, y)
    grown = bk.KernelRidge(shared_in_blocks, alpha=0.1, landmarks=X[:40])
    for rows in (slice(0, 50), slice(50, 90)):
        grown.partial_fit(X[rows], y[rows])
    assert_allclose(grown.predict(X), one.predict(X), rtol=1e-7)
    assert one.score(X, y) > 0.85


def test_a_matrix_that_was_computed_before_is_fitted_and_searched_as_scikit_learn_does():
    dense = DenseKernelRidge(alpha=0.1, kernel="precomputed").fit(K, y)
    ours, kept = bk.KernelRidge("precomputed", alpha=0.1, fit_intercept=False), K.copy()
    assert_allclose(ours.fit(K, y).predict(K[:8]), dense.predict(K[:8]), rtol=1e-9)
    assert_array_equal(K, kept)
    given, computed = (bk.KernelRidge(kernel, alpha=0.1, gamma=0.3) for kernel in ("precomputed", "rbf"))
    assert_allclose(cross_val_score(given, K, y, cv=3), cross_val_score(computed, X, y, cv=3), rtol=1e-7)
    labels = (y > 1).astype(int)
    model = bk.KernelRidgeClassifier("precomputed", alpha=0.1).fit(K, labels)
    assert_array_equal(
        model.predict(K), bk.KernelRidgeClassifier("rbf", gamma=0.3, alpha=0.1).fit(X, labels).predict(X)
    )


def test_models_of_matrices_and_of_named_kernels_are_stored_and_those_of_functions_refused(tmp_path, caplog):
    for name, model, rows in (
        ("matrix", bk.KernelRidge("precomputed"), K),
        ("chi2", bk.KernelRidge("chi2", gamma=0.5, n_landmarks=10), X),
    ):
        with caplog.at_level("INFO", "bigkernel.estimators"):
            bk.save_model(model.fit(rows, y), tmp_path / name)
        assert re.search("Predictor.load refuses .* the .* kernel needs more than NumPy", caplog.text)
        caplog.clear()
        assert_array_equal(bk.load_model(tmp_path / name).predict(rows), model.predict(rows))
    with pytest.raises(ConfigError, match=r"shared.* cannot be stored"):
        bk.save_model(bk.KernelRidge(shared).fit(X, y), tmp_path / "function")


@pytest.mark.parametrize(
    "fit, error, message",
    [
        (lambda: bk.KernelRidge("precomputed", n_landmarks=10).fit(K, y), ConfigError, r"\(n, n\) .* found \(10, 90\)"),
        (lambda: bk.KernelRidge("precomputed").fit(K[:, :50], y), ConfigError, r"found \(90, 50\)"),
        (lambda: bk.KernelRidge("precomputed").fit(K + np.eye(90, k=1), y), DataError, "a symmetric matrix"),
        (lambda: bk.Nystroem("precomputed", n_components=5).fit(K), ConfigError, "precomputed"),
        (lambda: bk.Pairwise("precomputed_by_me")(X), ConfigError, "expected a function or one of"),
        (lambda: bk.Pairwise("cosine", gamma=1.0)(X), ConfigError, "gamma above 0 for chi2"),
        (lambda: bk.KernelRidge(lambda X, Z: "value").fit(X, y), DataError, "a number for two rows, found str"),
        (lambda: bk.KernelRidge(lambda X, Z: 1 / 0, n_landmarks=5).fit(X, y), DataError, "ZeroDivisionError: division"),
        (lambda: bk.KernelRidge(lambda X, Z: np.nan * X @ Z.T).fit(X, y), DataError, "NaN or infinity for finite rows"),
        (lambda: bk.KernelRidge("chi2", n_landmarks=5).fit(X - 1, y), DataError, "chi2 kernel: .*negative values"),
        (lambda: bk.Pairwise("chi2", gamma="wide")(X), ConfigError, "above 0 for chi2, found 'wide'"),
        (lambda: bk.Pairwise(bk.Gaussian(1.0))(X), ConfigError, "expected a function"),
        (lambda: (bk.Gaussian(1.0) + bk.Pairwise(3))(X), ConfigError, "found 3"),
    ],
)  # fmt: skip
def test_invalid_kernels_are_refused_by_name(fit, error, message):
    with pytest.raises(error, match=message):
        fit()


def test_deviations_of_a_precomputed_kernel_are_refused_also_where_as_many_rows_are_predicted():
    model = bk.KernelRidge(2 * Precomputed(), alpha=0.1).fit(K, y)
    with pytest.raises(ConfigError, match=r"k\(x, x\) of new rows is unknown"):
        model.predict(K, return_std=True)
    assert model.__sklearn_tags__().input_tags.pairwise


def test_searches_take_them_and_share_sweeps():
    model = bk.KernelRidge(bk.Pairwise(shared_in_blocks), n_landmarks=10, random_state=0)
    search = bk.SweepSearchCV(model, {"alpha": [0.1, 1.0, 10.0, 100.0]}, cv=3, one_standard_error=True)
    assert len(search.plan(X, y).sweeps) == 1
    assert search.fit(X, y).best_params_["alpha"] >= 0.1


def test_cosines_keep_their_landmarks_at_length_one_and_count_their_memory():
    features = LandmarkMap(bk.Pairwise("cosine"), X[:20], np.dtype("f8"))
    assert_allclose(np.linalg.norm(features.prepared.points, axis=1), 1)
    assert features.cost.fixed_bytes - X[:20].nbytes >= features.prepared.nbytes
    assert bk.Pairwise("cosine")(np.zeros((1, 3)), X[:2]).tolist() == [[0, 0]]


def test_a_function_has_the_same_fingerprint_in_another_process():
    code = "import test_given as t; from bigkernel.data.fingerprint import fingerprint as f; print(f(t.kernels()))"
    path = os.pathsep.join([os.path.dirname(__file__), *sys.path])
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": path}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == fingerprint(kernels())
    assert len({fingerprint(kernel) for kernel in kernels()}) == len(kernels())


def remembering(power):
    return lambda X, Z: (X @ Z.T) ** power if power in {1, 2, 3, "a", "b"} else X @ Z.T


class Remembering:
    def __init__(self, power):
        self.power = power

    def __call__(self, X, Z):
        return (X @ Z.T) ** self.power


def kernels():
    long = np.arange(2000.0)
    remembered = [make(power) for make in (remembering, Remembering) for power in (1, 2)]
    remembered += [partial(shared, power=long), partial(shared, power=np.where(long == 1000, 5, long)), partial(np.dot)]
    functions = [*METRICS.values(), *remembered, partial(shared, power=remembering(1))]
    return [bk.Pairwise(metric) for metric in functions]
