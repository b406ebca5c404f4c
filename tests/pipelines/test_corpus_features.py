"""The batch job `corpus` with features: its choices on training rows, and its errors with and without features."""

import numpy as np
import pytest
from pipeline_runs import results_of

from bigkernel import Gaussian, KernelRidgeClassifier, SweepSearchCV, load_model, open_corpus
from bigkernel.engine.rows import as_rows
from pipelines.corpus.choice import ALPHAS

SMALL = ("corpus", "--rows", "3000", "--landmarks", "60", "--steps", "2", "--search-rows", "2400")
STROKES = ("--transform", "orientations:cells=4", "--transform", "unit-norm")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A finished job on strokes: its run and its results."""
    run = tmp_path_factory.mktemp("job") / "run"
    return run, results_of(*SMALL, *STROKES, "--run", run)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdgeWarning")
def test_the_model_is_fitted_to_all_mapped_rows_with_parameters_chosen_on_held_out_digits(done):
    run, results = done
    train, test = open_corpus(run / "train.corpus"), open_corpus(run / "originals" / "test.corpus")
    pipeline = load_model(run / "model")
    model, mapped = pipeline[-1], pipeline[:-1].transform(train)
    # the search of a user, with all copies of a digit in one fold
    some = as_rows(mapped).window(0, 2400)
    of_features = [record for record in results["search"] if record["features"] == "features"]
    grid = {"kernel": [Gaussian(record["sigma"]) for record in of_features], "alpha": list(ALPHAS)}
    plain = KernelRidgeClassifier(n_landmarks=60, landmarks=model.landmarks_)
    search = SweepSearchCV(plain, grid, cv=1 / 6, refit=False).fit(some)
    assert set(some.column("group")) == set(range(1200))
    assert (model.kernel_.sigma, model.alpha_) == (search.best_params_["kernel"].sigma, search.best_params_["alpha"])
    (chosen,) = (record for record in of_features if record["chosen"])
    assert chosen["error"] == pytest.approx(100 * (1 - search.best_score_))
    expected = KernelRidgeClassifier(model.kernel_, model.alpha_, landmarks=model.landmarks_).fit(mapped)
    wrong = np.mean(np.asarray(expected.predict(pipeline[:-1].transform(test))) != test.column("y"))
    assert results["errors"][-1]["error_60"] == pytest.approx(100 * wrong)
    # deformed rows are among the landmarks
    rows = [int(np.argmin(((mapped.take(np.arange(3000)) - z) ** 2).sum(axis=1))) for z in model.landmarks_]
    assert sum(row >= 1200 for row in rows) > 20
