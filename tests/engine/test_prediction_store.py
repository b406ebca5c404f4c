"""Predictions on disk: labels, positions of text labels and numbers, every chunk there, nothing else opened."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from bigkernel import Gaussian, KernelRidge
from bigkernel.data import zarr_arrays
from bigkernel.engine.prediction_store import PredictionWriter, create, open_predictions, stored_form
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import ChunkMissingError, DataError
from bigkernel.kernels.feature_maps import IdentityMap
from bigkernel.statistics.moments import Targets
from bigkernel.statistics.predictor import Predictor
from bigkernel.statistics.scores import ScoreStatistic, score

rng = np.random.default_rng(5)
N, D = 110, 3
X = rng.normal(size=(N, D))
COEF, INTERCEPT = rng.normal(size=(D, 3)), rng.normal(size=3)
VALUES = X @ COEF + INTERCEPT

pytestmark = pytest.mark.usefixtures("small_steps")


def predictor(classes=None):
    return Predictor(IdentityMap(np.zeros(D)), COEF, INTERCEPT, None if classes is None else np.asarray(classes))


def test_integer_labels_are_stored_as_they_are_and_others_as_positions():
    positions = VALUES.argmax(axis=1)
    for classes, labels in (([10, 20, 30], 10 * (positions + 1)), (list("abc"), positions), ([0.5, 1, 2], positions)):
        stored = stored_form(predictor(classes), VALUES, flat=False)
        assert_array_equal(stored, labels)
        assert stored.dtype == np.int64
    assert_array_equal(stored_form(predictor(), VALUES, flat=False), VALUES)


@pytest.mark.parametrize("name", ["prediction", "std"])
def test_a_lost_chunk_is_missed_when_opened(make_corpus, tmp_path, name):
    model = KernelRidge(Gaussian(1.0), n_landmarks=9, random_state=0).fit(X, X[:, 0])
    model.predict_to(make_corpus(X), tmp_path / "out", return_std=True)
    (tmp_path / "out" / name / "c" / "1").unlink()
    with pytest.raises(ChunkMissingError, match="c/1"):
        open_predictions(tmp_path / "out")


def test_a_chunk_out_of_step_is_refused(make_corpus, tmp_path):
    create(tmp_path / "out", predictor(), N, 30, decision=False, flat=False)
    writer = PredictionWriter(predictor(), tmp_path / "out", 30, False, False)
    with pytest.raises(DataError, match="row 45"):
        writer.update(writer.zero(), as_rows(X).read(45, 60))
    with pytest.raises(DataError, match="expected 30 rows in chunk 1, found 20"):
        writer.update(writer.zero(), as_rows(X).read(30, 50))
    zarr_arrays.write_manifest(tmp_path / "out")
    with pytest.raises(DataError, match="already published;"):
        writer.update(writer.zero(), as_rows(X).read(30, 60))


@pytest.mark.parametrize("weight", [None, rng.uniform(0, 2, N)], ids=["", "weighted"])
def test_scores_accumulate_over_any_chunks(weight):
    truth = VALUES + rng.normal(size=VALUES.shape)
    totals = sweep(as_rows(X, truth, weight=weight), ScoreStatistic(predictor(), Targets(3))).total
    w = np.ones(N) if weight is None else weight
    mean = np.average(truth, axis=0, weights=w)
    expected = 1 - (w @ (truth - VALUES) ** 2) / (w @ (truth - mean) ** 2)
    assert score(totals) == pytest.approx(expected.mean(), abs=1e-12)


def test_a_constant_target_scores_1_when_met_and_0_otherwise():
    flat = Predictor(IdentityMap(np.zeros(D)), np.zeros((D, 1)), np.array([2.0]))
    for value, expected in ((2.0, 1.0), (3.0, 0.0)):
        totals = sweep(as_rows(X, np.full(N, value)), ScoreStatistic(flat, Targets(1))).total
        assert score(totals) == expected
