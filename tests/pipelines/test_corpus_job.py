"""The batch job `corpus`: from originals to errors, and resumed to the same bits."""

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose
from pipeline_runs import call, results_of

from bigkernel import Gaussian, KernelRidgeClassifier, UnitNormalizer, load_model, open_corpus
from bigkernel.data.zarr_arrays import digest
from bigkernel.statistics.moments import MomentStatistic

SMALL = ("corpus", "--rows", "3000", "--landmarks", "60", "--steps", "3")


def bits(run):
    model = load_model(Path(run) / "model")[-1]
    return digest({"coef": model.dual_coef_, **model.statistics_})


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished job: its run and its results."""
    run = tmp_path_factory.mktemp("job") / "run"
    return run, results_of(*SMALL, "--run", run)


@pytest.mark.slow
def test_the_last_fit_is_a_fit_to_all_rows_at_once(done):
    run, results = done
    train, test = open_corpus(run / "train.corpus"), open_corpus(run / "originals" / "test.corpus")
    assert (len(train), train.columns) == (3000, ("y", "group"))
    normalizer = UnitNormalizer().fit(train)
    model = load_model(run / "model")[-1]
    expected = KernelRidgeClassifier(Gaussian(0.35), model.alpha_, landmarks=model.landmarks_)
    expected.fit(normalizer.transform(train))
    values = np.asarray(expected.decision_function(normalizer.transform(test)))
    assert_allclose(np.asarray(model.decision_function(normalizer.transform(test))), values, rtol=1e-4, atol=1e-4)
    error = 100 * np.mean(np.asarray(expected.predict(normalizer.transform(test))) != test.column("y"))
    assert results["errors"][-1]["error_60"] == pytest.approx(error)
    assert model.alpha == "gcv"


@pytest.mark.slow
def test_errors_of_fewer_rows_and_landmarks_are_those_of_separate_fits(done):
    run, results = done
    train, test = open_corpus(run / "train.corpus"), open_corpus(run / "originals" / "test.corpus")
    whole = load_model(run / "model")[-1]
    normalizer = UnitNormalizer().fit(train)
    X = train.array("x")[:]
    for record in results["all_errors"]:
        points = whole.with_landmarks(record["landmarks"]).landmarks_
        model = KernelRidgeClassifier(Gaussian(0.35), record["alpha"], landmarks=points)
        model.fit(normalizer.transform(X[: record["rows"]]), train.column("y")[: record["rows"]])
        wrong = np.mean(np.asarray(model.predict(normalizer.transform(test))) != test.column("y"))
        # rounding may change the prediction of one of the 597 digits
        assert record["error"] == pytest.approx(100 * wrong, abs=0.2)
    assert [line["rows"] for line in results["fits"]] == [1200, 1897, 3000]


@pytest.mark.slow
def test_an_interrupted_job_resumes_to_the_same_bits(done, tmp_path, monkeypatch):
    run, updated, update = tmp_path / "run", [], MomentStatistic.update

    def failing(self, total, chunk):
        updated.append(chunk.start)
        if len(updated) == 3:
            raise KeyboardInterrupt
        update(self, total, chunk)

    monkeypatch.setattr(MomentStatistic, "update", failing)
    call(*SMALL, "--run", run, "--json", "--resume", code=75)
    monkeypatch.undo()
    assert not (run / "model").exists()
    results = results_of(*SMALL, "--run", run, "--resume")
    assert sum(fit["resumed_segments"] for fit in results["fits"]) > 0
    assert bits(run) == bits(done[0])
    again = results_of(*SMALL, "--run", run, "--resume")
    assert all(fit["resumed_segments"] == fit["segments"] for fit in again["fits"])
    assert bits(run) == bits(done[0])


@pytest.mark.slow
def test_an_existing_run_is_refused_without_resume_and_for_another_job(done):
    run, _ = done
    assert "already holds a run; --resume" in call(*SMALL, "--run", run, code=3).stderr
    assert "another job" in call(*SMALL, "--run", run, "--resume", "--sigma", "0.5", code=5).stderr


@pytest.mark.slow
def test_a_given_corpus_is_fitted_unchanged(done, tmp_path):
    run, _ = done
    own = ("--corpus", run / "train.corpus", "--test", run / "originals" / "test.corpus")
    results = results_of("corpus", *own, "--landmarks", "40", "--run", tmp_path / "r")
    assert results["fits"][-1]["rows"] == 3000
    assert not (tmp_path / "r" / "train.corpus").exists()
    assert "fitted as it is" in call("corpus", *own, "--rows", "2000", "--run", tmp_path / "s", code=8).stderr
    assert "go together" in call("corpus", *own[:2], "--run", tmp_path / "s", code=8).stderr
