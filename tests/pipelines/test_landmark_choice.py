"""The landmarks experiment: its records are those of separate fits, and it writes tables and pictures."""

import json

import numpy as np
import pytest
import reference_sampling
from pipeline_runs import call

from bigkernel import KernelRidgeClassifier
from pipelines import landmark_choice
from pipelines.landmark_choice import CHOICES, mixture, trial


def test_the_mixture_has_unequal_clusters_and_is_scored_on_equally_many_rows_of_each():
    problem = mixture(2000, 0, (5,))
    assert np.bincount(problem.y).tolist() == [1800, 180, 18, 2]
    assert np.bincount(problem.truth).tolist() == [250] * 4
    assert problem.accuracy(np.zeros(1000, int)) == 25
    apart = np.array([problem.new[problem.truth == cluster].mean(axis=0) for cluster in range(4)])
    distances = np.linalg.norm(apart[:, None] - apart, axis=2)[np.triu_indices(4, 1)]
    np.testing.assert_allclose(distances, landmark_choice.APART, rtol=0.05)


def test_a_trial_is_a_fit_with_its_trace_error_and_accuracy():
    problem = mixture(1000, 1, (8,))
    record = trial(problem, "rpcholesky", 8, 3)
    model = KernelRidgeClassifier(problem.kernel, problem.alpha, n_landmarks=8, landmarks="rpcholesky", random_state=3)
    model.fit(problem.X, problem.y)
    guess = model.predict(problem.new)
    recalls = [np.mean(guess[problem.truth == cluster] == cluster) for cluster in range(4)]
    assert record.accuracy == pytest.approx(100 * np.mean(recalls))
    ids = np.array([int(np.argmin(((problem.X - z) ** 2).sum(axis=1))) for z in model.landmarks_])
    expected = reference_sampling.trace_error(problem.kernel(problem.X), ids)
    assert record.trace_error == pytest.approx(100 * expected, abs=1e-6)
    assert record.seconds > 0


@pytest.mark.slow
def test_the_command_writes_tables_and_pictures(tmp_path, monkeypatch):
    monkeypatch.setattr(landmark_choice, "QUICK", ((8, 16), (5, 8)))
    call("landmarks", "--quick", "--rows", 1000, "--repeats", 1, "--data", tmp_path / "none", "--out", tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    assert "scikit-learn" in results["facts"]["digits, data"]
    for name in ("digits", "mixture"):
        assert [line["choice"] for line in results[f"{name}_summary"]] == list(CHOICES)
        records = results[f"{name}_all"]
        assert len(records) == 2 * len(CHOICES)
        for one in records:
            assert 0 <= one["accuracy"] <= 100
            assert (one["trace_error"] is None) == (one["choice"] == "orthogonal-fourier")
        for figure in ("trace_error", "accuracy", "seconds"):
            assert (tmp_path / f"{name}_{figure}.png").stat().st_size > 1000
        assert len((tmp_path / f"{name}.csv").read_text().splitlines()) == 1 + len(records)
    centres = {one["m"]: one for one in results["mixture_all"] if one["choice"] == "balanced-k-means"}
    assert centres[8]["accuracy"] > 90
