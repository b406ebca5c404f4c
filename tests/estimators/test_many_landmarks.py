"""Predictions by slices of landmarks equal those of one wide block, with every input and executor."""

from copy import deepcopy

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel import Gaussian, KernelRidge, KernelRidgeClassifier, Laplacian, Matern, Nystroem, executing
from bigkernel.kernels import feature_maps
from bigkernel.kernels.feature_maps import LandmarkSlices
from bigkernel.statistics import blend
from bigkernel.statistics.blend import Deviations
from bigkernel.statistics.predictor import Predictor
from bigkernel.streaming.chunk import Chunk

rng = np.random.default_rng(50_000)
N, D, M = 300, 4, 50
X = rng.normal(size=(N, D)).astype(np.float32)
LABELS = (X[:, 0] + X[:, 1] ** 2 > 0.5).astype(int) + (X[:, 2] > 1)
Y = np.c_[np.sin(X[:, 0]), X[:, 1] * X[:, 2]].astype(np.float64)
pytestmark = pytest.mark.usefixtures("small_steps")


@pytest.fixture
def few_columns(monkeypatch):
    """Limit slices to 16 columns of float32."""
    monkeypatch.setattr(feature_maps, "SLICE_ROW_BYTES", 64)


def classifier(kernel):
    return KernelRidgeClassifier(kernel, n_landmarks=M, random_state=0).fit(X, LABELS)


@pytest.mark.parametrize("kernel", [Gaussian(1.5), Matern(2.0, 0.5), Laplacian(0.3)], ids=lambda kernel: kernel.name)
def test_slices_change_predictions_within_rounding(kernel, request):
    model = classifier(kernel)
    wide = model.decision_function(X)
    request.getfixturevalue("few_columns")
    assert isinstance(Predictor.of(model._features(), *model._coefficients()).features, LandmarkSlices)
    model = deepcopy(model)  # without prepared landmarks
    narrow = model.decision_function(X)
    assert_allclose(narrow, wide, atol=2e-5)
    # the sum of float32 values is exact in float64
    weights = model.dual_coef_.astype(np.float32).astype(np.float64)
    features = model._features()
    exact = features.block(Chunk(X), slice(None)).astype(np.float64) @ weights + model.intercept_
    assert np.abs(narrow - exact).max() <= 1.5 * np.abs(wide - exact).max() + 1e-6
    assert_array_equal(model.predict(X), np.argmax(narrow, axis=1))


@pytest.mark.cluster
@pytest.mark.usefixtures("few_columns")
def test_every_executor_gives_the_same_bits(client, make_corpus, tmp_path):
    model, corpus = classifier(Gaussian(1.5)), make_corpus(X, y=LABELS, classes=(0, 1, 2))
    actual = {}
    for name, executor in {"serial": "serial", "threads": "threads", "dask": client}.items():
        with executing(executor):
            group = model.predict_to(corpus, tmp_path / name, decision=True)
            score = model.score(corpus)
        actual[name] = group["decision"][...], group["prediction"][...], score
    with executing(client, run=tmp_path / "run"):  # the prepared landmarks come from the run directory
        group = model.predict_to(corpus, tmp_path / "by run", decision=True)
    actual["run"] = group["decision"][...], group["prediction"][...], actual["serial"][2]
    for name, values in actual.items():
        for one, other in zip(values, actual["serial"], strict=True):
            assert_array_equal(one, other, err_msg=name)
    assert actual["serial"][2] == np.mean(model.predict(X) == LABELS)


@pytest.mark.usefixtures("few_columns")
def test_slices_do_not_change_a_transform(monkeypatch):
    model = Nystroem(Gaussian(1.5), n_components=M, random_state=0, dtype="float64").fit(X)
    narrow = model.transform(X)
    monkeypatch.undo()
    assert_allclose(narrow, deepcopy(model).transform(X), atol=1e-9)


def test_blocks_of_deviations_fit_their_memory_limit(monkeypatch):
    model = KernelRidge(Gaussian(1.5), n_landmarks=M, random_state=0, dtype="float64").fit(X, Y[:, 0])
    mean, deviation = model.predict(X, return_std=True)
    before = Deviations(model._with_spread())
    row_bytes = before.model.spread_cost.row_bytes
    monkeypatch.setattr(blend, "_SPREAD_BYTES", 5 * row_bytes)
    assert before._most_rows == 5
    assert (
        before.work_bytes(2048)
        == before.work_bytes(5)
        == before.work_bytes(4) + (row_bytes + before.model.features.cost.row_bytes)
    )
    again, narrower = model.predict(X, return_std=True)
    assert_allclose(again, mean, rtol=1e-12)
    assert_allclose(narrower, deviation, rtol=1e-12)
