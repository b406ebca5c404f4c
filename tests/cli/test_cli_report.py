"""`bigkernel report`, `fit --score` and `score --run`: their output and their report."""

import base64
import json
import shutil

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_allclose, assert_array_equal
from page_reader import read
from test_cli import FIT, LABELS, NUMBERS, PIXELS, ROWS, N

from bigkernel import load_model, open_corpus
from bigkernel.cli import main
from bigkernel.estimators.evaluation import limit_classes
from bigkernel.monitor.report import gather

pytestmark = pytest.mark.usefixtures("small_steps")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Make corpora of images for training and test, and one of numbers."""
    root = tmp_path_factory.mktemp("made")
    for name, x, y in (
        ("train", PIXELS[:200], LABELS[:200]),
        ("test", PIXELS[200:], LABELS[200:]),
        ("numbers", ROWS, NUMBERS),
    ):
        np.savez(root / f"{name}.npz", x=x, y=y)
        command = ["ingest", root / f"{name}.npz", root / f"{name}.corpus", "--chunk-rows", 30]
        assert CliRunner().invoke(main, list(map(str, command))).exit_code == 0
    return root


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """Change to a directory with these corpora."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def score_of(run_directory):
    return gather(run_directory)["jobs"][0]["figures"]["score"]


def unpacked(packed):
    data = b"".join(map(base64.b64decode, packed["data"]))
    return np.frombuffer(data, np.uint8).reshape(-1, *packed["shape"])


def margins(model, corpus):
    """Return f of the true class less the largest other f, predicted and true classes of all rows."""
    loaded = load_model(model)
    values = np.asarray(loaded.decision_function(open_corpus(corpus)))
    y = open_corpus(corpus).column("y")
    of_truth = values[np.arange(len(y)), y]
    guess = values.argmax(axis=1)
    values[np.arange(len(y)), y] = -np.inf
    return of_truth - values.max(axis=1), guess, y


def test_a_fit_is_scored_on_held_out_rows_and_shows_the_worst_ones(here, run):
    result = run("fit", "train.corpus", "a.model", *FIT, "--run", "r", "--score", "test.corpus", "--json")
    printed, score = json.loads(result.stdout), score_of("r")
    margin, guess, y = margins("a.model", "test.corpus")
    assert score["of"] == "held-out"
    assert printed["held_out_rows"] == score["rows"] == 100
    assert printed["held_out_error_percent"] == score["error_percent"] == pytest.approx(100 * np.mean(guess != y))
    counts = np.zeros((3, 3))
    np.add.at(counts, (y, guess), 1)
    assert_array_equal(score["confusion"], counts)
    order = np.argsort(margin, kind="stable")[:40]
    assert_allclose(score["worst"]["margin"], margin[order], rtol=1e-4, atol=1e-6)
    assert_array_equal(score["worst"]["true"], y[score["worst"]["row"]])
    assert_array_equal(score["worst"]["predicted"], guess[score["worst"]["row"]])
    pixels = PIXELS[200:][score["worst"]["row"]].astype(float)
    low, high = pixels.min(axis=(1, 2), keepdims=True), pixels.max(axis=(1, 2), keepdims=True)
    assert_array_equal(unpacked(score["worst"]["images"]), np.rint(255 * (pixels - low) / (high - low)))
    shown = read((here / "r" / "report.html").read_text())["jobs"][0]["figures"]["score"]
    assert len(shown["worst"]["images"]["data"]) == 40


def test_the_score_of_a_regression_has_residuals(here, run):
    fit = ["fit", "numbers.corpus", "a.model", "--landmarks", 50, "--transform", "standardize"]
    printed = json.loads(run(*fit, "--run", "r", "--score", "numbers.corpus", "--json").stdout)
    score = score_of("r")
    assert score["of"] == "training"  # it is the corpus of the fit
    y = open_corpus("numbers.corpus").column("y")
    predicted = np.asarray(load_model("a.model").predict(open_corpus("numbers.corpus")))
    errors, sample = y - predicted, score["sample"]
    assert sorted(sample["row"]) == list(range(N))  # all, as they are fewer than 400
    assert_allclose(sample["actual"], y[sample["row"]])
    assert_allclose(sample["predicted"], predicted[sample["row"]], rtol=1e-4)
    assert printed["training_mse"] == score["mse"] == pytest.approx(np.mean(errors**2), rel=1e-4)
    assert sum(score["residuals"]) == N
    edges = np.linspace(-4, 4, 41) * score["residual_unit"]
    edges[[0, -1]] = -np.inf, np.inf
    assert np.abs(np.histogram(errors, edges)[0] - score["residuals"]).sum() <= 4  # float32 at the edges of bins


@pytest.mark.parametrize("leaves", [(), ("--leaves", 2)])
def test_a_learned_metric_is_shown_by_its_importances(here, run, leaves):
    run("fit", "train.corpus", "a.model", *FIT, "--transform", "metric:max-iter=2", *leaves, "--run", "r")
    shown = gather("r")["jobs"][0]["figures"]["fit"]["metric"]
    last = load_model("a.model")[-1 if leaves else 1]
    importances = last.feature_importances_
    assert importances.sum() == pytest.approx(1)
    largest = np.sort(importances)[::-1][:40]
    assert_allclose(shown["importances"], largest)
    assert [importances[int(name.removeprefix("column "))] for name in shown["features"]] == shown["importances"]
    assert unpacked(shown["image"]).argmax() == importances.argmax()
    if not leaves:
        assert shown["rounds"] == last.rounds_.tolist()


def test_a_resumed_fit_with_another_penalty_is_scored_again(here, run):
    fit = ["fit", "train.corpus", "a.model", *FIT, "--run", "r", "--score", "test.corpus"]
    run(*fit)
    run(*fit, "--resume", "--overwrite", "--alpha", 50)
    margin, guess, y = margins("a.model", "test.corpus")
    assert score_of("r")["error_percent"] == pytest.approx(100 * np.mean(guess != y))
    assert_allclose(score_of("r")["worst"]["margin"], np.sort(margin)[:40], rtol=1e-4, atol=1e-6)
    assert {sweep["name"] for sweep in gather("r")["run"]["sweeps"]} == {"moments", "score"}


@pytest.mark.parametrize(
    ("corpus", "message"), [("numbers.corpus", "has the label"), ("narrow.corpus", "expected rows of 16 features")]
)
def test_a_corpus_that_cannot_be_scored_is_refused(corpus, message, here, run):
    np.savez("narrow.npz", x=PIXELS[:, :2].reshape(N, -1), y=LABELS)
    run("ingest", "narrow.npz", "narrow.corpus")
    result = run("fit", "train.corpus", "a.model", *FIT, "--score", corpus, code=3)
    assert message in result.stderr
    assert (here / "a.model").exists() == (corpus == "numbers.corpus")  # features are compared before the fit


def test_a_score_with_a_run_is_resumed(here, run):
    run("fit", "train.corpus", "a.model", *FIT)
    first = json.loads(run("score", "a.model", "test.corpus", "--run", "r", "--json").stdout)
    again = json.loads(run("score", "a.model", "test.corpus", "--run", "r", "--resume", "--json").stdout)
    plain = json.loads(run("score", "a.model", "test.corpus", "--json").stdout)
    for other in (again, plain):
        assert other | {"seconds": 0} == first | {"seconds": 0}
    assert [sweep["name"] for sweep in gather("r")["run"]["sweeps"]] == ["score"]
    assert "--resume (in Python resume=True)" in run("score", "a.model", "test.corpus", "--run", "r", code=3).stderr


def test_many_classes_are_described_by_their_most_frequent_confusions():
    counts = np.diag(np.full(100, 5))
    counts[3, 9], counts[7, 1] = 4, 2
    limited = limit_classes({"classes": list(range(100)), "confusion": counts.tolist(), "rows": 506})
    assert limited["confused"] == [["3", "9", 4], ["7", "1", 2]]
    assert "confusion" not in limited
    assert len(limited["classes"]) == 64
    small = {"classes": [0, 1], "confusion": [[1, 0], [0, 1]]}
    assert limit_classes(small) is small


def test_report_writes_the_page_again_and_prints_its_state(here, run):
    run("fit", "train.corpus", "a.model", *FIT, "--run", "r")
    before = read((here / "r" / "report.html").read_text())
    (here / "r" / "report.html").unlink()
    found = json.loads(run("report", "r", "--json").stdout)
    assert not (here / "r" / "report.html").exists()
    assert found["run"]["state"] == "finished"
    assert found["jobs"][0]["figures"]["fit"]["diagnostics"]["solution"] < 30
    assert {sweep["name"] for sweep in found["run"]["sweeps"]} == {"moments"}
    assert run("report", "r").stdout.strip() == "r/report.html"
    assert read((here / "r" / "report.html").read_text())["jobs"] == before["jobs"]
    assert run("report", "r", "--out", "p.html").stdout.strip() == "p.html"
    assert read((here / "p.html").read_text())["run"]["state"] == "finished"
