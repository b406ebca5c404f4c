"""`bigkernel tune`: plan, results, existing results, resuming; `fit --alpha cv`."""

import csv
import json

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose
from page_reader import read
from test_cli import FIT, ROWS, made, work  # noqa: F401

from bigkernel import Gaussian, KernelRidgeClassifier, SweepSearchCV, load_model, open_corpus
from bigkernel.cli import main

GRID = ["--landmarks", "30", "--sigma", "0.3:1.2:3", "--alpha", "1e-4,0.1,1", "--transform", "unit-norm"]

pytestmark = [
    pytest.mark.usefixtures("small_steps"),
    pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdgeWarning"),  # grids are small
]


def expected(path, **settings):
    """Return the same search in Python."""
    from sklearn.pipeline import make_pipeline

    from bigkernel import UnitNormalizer

    model = make_pipeline(UnitNormalizer(), KernelRidgeClassifier(n_landmarks=30, random_state=0))
    grid = {
        "kernelridgeclassifier__alpha": [1e-4, 0.1, 1.0],
        "kernelridgeclassifier__kernel": [Gaussian(float(s)) for s in np.geomspace(0.3, 1.2, 3)],
    }
    return SweepSearchCV(model, grid, cv=4, **settings).fit(open_corpus(path))


def test_a_dry_run_prints_a_plan_and_writes_nothing(run, work, monkeypatch):  # noqa: F811
    monkeypatch.setattr("bigkernel.engine.pilot.LONG_ROWS", 100)
    command = ["tune", "digits.corpus", *GRID, "--out", "t", "--dry-run"]
    planned = json.loads(run(*command, "--json").stdout)
    assert (planned["candidates"], planned["splits"]) == (9, 5)
    assert planned["flops"] > 0
    assert planned["expected_seconds"] > 0
    lines = [line for line in run(*command).stdout.splitlines() if line.startswith("sweep ")]
    assert lines == [f"sweep {i}: {line.strip()}" for i, line in enumerate(planned["sweeps"], 1)]
    assert not (work / "t").exists()


def test_results_are_those_of_the_search_and_are_not_overwritten(run, work):  # noqa: F811
    shown = json.loads(run("tune", "digits.corpus", *GRID, "--folds", "4", "--out", "t", "--json").stdout)
    search = expected("digits.corpus")
    with open(work / "t" / "results.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert_allclose([float(row["score"]) for row in rows], search.cv_results_["mean_test_score"])
    assert_allclose([float(row["standard_error"]) for row in rows], search.cv_results_["sem_test_score"])
    assert shown["accuracy"] == pytest.approx(search.best_score_)
    edges = [str(edge).removeprefix("kernelridgeclassifier__") for edge in search.edges_]
    assert shown["edges"] == edges != []
    reported = read((work / "t" / "report.html").read_text())["jobs"][0]["figures"]["tune"]
    assert (reported["name"], len(reported["records"])) == ("Search on digits.corpus", 9)
    assert edges[0] in reported["edges"][0]
    best = load_model(work / "t" / "best.model")
    assert best[-1].alpha == search.best_params_["kernelridgeclassifier__alpha"]
    np.testing.assert_array_equal(best.predict(ROWS), search.predict(ROWS))
    assert not (work / "t" / ".tune.run").exists()
    assert "--overwrite" in run("tune", "digits.corpus", *GRID, "--out", "t", code=3).stderr


def test_overwrite_removes_only_the_files_of_a_search(run, work):  # noqa: F811
    (work / "t" / "run").mkdir(parents=True)
    (work / "t" / "run" / "mine").write_text("of someone else")
    run("tune", "digits.corpus", *GRID, "--out", "t", "--overwrite")
    assert (work / "t" / "run" / "mine").read_text() == "of someone else"


def test_a_resumed_search_gives_the_same_results(run, work, monkeypatch):  # noqa: F811
    arguments = ["tune", "digits.corpus", *GRID, "--folds", "4", "--out", "t"]

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("bigkernel.search.sweeps.solve_folds", stop)
        assert CliRunner().invoke(main, arguments).exit_code == 75
    assert "--resume" in run(*arguments, code=3).stderr
    run(*arguments, "--resume")
    run(*[*arguments[:-1], "whole"])
    assert (work / "t" / "results.csv").read_bytes() == (work / "whole" / "results.csv").read_bytes()


def test_a_grid_of_widths_may_mix_names_and_numbers(run, work):  # noqa: F811
    options = ["--kernel", "laplacian", "--landmarks", "20", "--alpha", "0.1,1"]
    run("tune", "digits.corpus", *options, "--gamma", "scale,auto,0.01", "--out", "t")
    with open(work / "t" / "results.csv", encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 6


INVALID = [*(f"--sigma={grid}" for grid in ("0.3:3", "a", "1:2:3:4", "0:1:3", "1:2:1", "")), "--components=1,inf"]


@pytest.mark.parametrize("option", [*INVALID, "--components=0.4", "--folds=1.5", "--folds=half"])
def test_invalid_grids_and_folds_are_refused_before_anything_is_written(run, work, option):  # noqa: F811
    assert "expected" in run("tune", "digits.corpus", option, "--out", "t", code=2).stderr
    assert not (work / "t").exists()


@pytest.mark.parametrize("rule", ["cv", "gcv"])
def test_the_fit_chooses_a_penalty(run, work, rule):  # noqa: F811
    fitted = json.loads(run("fit", "digits.corpus", rule, *FIT[:-2], "--alpha", rule, "--json").stdout)
    model = load_model(work / rule)[-1]
    assert fitted["alpha"] == model.alpha_ > 0
    assert model.alpha == rule
    assert "number or cv or gcv" in run("fit", "digits.corpus", "n", "--alpha", "best", code=2).stderr
