"""The labels experiment: its shared sums give what fits of one's own give, and few labels alone choose its settings."""

import csv
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from pipeline_runs import call
from sklearn.semi_supervised import LabelSpreading

from bigkernel import Gaussian, KernelRidgeClassifier, SSSLClassifier
from bigkernel.errors import ConfigError
from pipelines.labels import methods
from pipelines.labels.data import Digits, read
from pipelines.labels.methods import Eigenfunctions, Method, SelfTraining, Spreading, choose, eigenfunctions, neighbours

NONE = Path("none")


@pytest.fixture(scope="module")
def digits():
    """300 rows and 100 test digits, float64."""
    found = read("bundled", NONE, 0)
    kept = np.r_[:300, 1200:1300]
    return Digits(found.title, found.X[kept].astype(np.float64), found.y[kept], 300, found.sigma)


def test_shared_eigenfunctions_predict_what_a_fit_to_all_rows_does(digits):
    first = digits.sample(1, 300, np.random.RandomState(0))
    after = []
    values = eigenfunctions(digits, first, {10.0: 30, 0.0: 30}, landmarks=60, seed=0, after=lambda: after.append(1))
    test = np.arange(300, 400)
    assert len(after) == 3
    for manifold, count, per_class in ((10.0, 20, 3), (0.0, 30, 4)):
        ids = digits.sample(per_class, 300, np.random.RandomState(per_class))
        y = np.full(300, -1)
        y[ids] = digits.y[ids]
        setting = {"manifold": manifold, "n_components": count, "alpha": 0.004}
        model = SSSLClassifier(Gaussian(digits.sigma), n_landmarks=60, random_state=0, **setting)
        model.fit(digits.X[:300], y)
        shared = Eigenfunctions("shared", values, (setting,), setting)
        np.testing.assert_array_equal(shared.predict(ids, digits.y[ids], test, setting), model.predict(digits.X[test]))


def test_spreading_is_that_of_scikit_learn_over_nearest_neighbours(digits):
    graph = neighbours(digits.X, 300)
    assert graph.shape == (400, 300)
    ids = digits.sample(3, 300, np.random.RandomState(1))
    y = np.full(300, -1)
    y[ids] = digits.y[ids]
    # its graph counts a row among its own neighbours, and does not spread along that
    theirs = LabelSpreading(kernel="knn", n_neighbors=8, alpha=0.8, max_iter=methods.STEPS).fit(digits.X[:300], y)
    ours = Spreading(graph, 300)
    guess = ours.predict(ids, digits.y[ids], np.arange(400), {"alpha": 0.8})
    np.testing.assert_array_equal(guess[:300], theirs.classes_[theirs.label_distributions_.argmax(axis=1)])
    distances = np.linalg.norm(digits.X[300:, None] - digits.X[:300], axis=2)
    nearest = np.argsort(distances, axis=1)[:, : methods.NEIGHBOURS]
    votes = theirs.label_distributions_[nearest].sum(axis=1)
    np.testing.assert_array_equal(guess[300:], votes.argmax(axis=1))


def test_self_training_takes_its_surest_rows_class_by_class(digits, monkeypatch):
    monkeypatch.setattr(methods, "ROUNDS", (5,))
    ids, test = digits.sample(2, 300, np.random.RandomState(2)), np.arange(300, 400)
    method = SelfTraining(digits.X, digits.sigma, pool=np.arange(300))
    first = KernelRidgeClassifier(Gaussian(digits.sigma), alpha=0.1).fit(digits.X[ids], digits.y[ids])
    others = np.array([i for i in range(300) if i not in ids])
    values = first.decision_function(digits.X[others])
    two = np.sort(values, axis=1)[:, -2:]
    margin, guess = two[:, 1] - two[:, 0], values.argmax(axis=1)
    taken = [i for c in range(10) for i in sorted(np.flatnonzero(guess == c), key=lambda i: -margin[i])[:5]]
    X, y = np.concatenate([digits.X[ids], digits.X[others[taken]]]), np.concatenate([digits.y[ids], guess[taken]])
    wanted = KernelRidgeClassifier(Gaussian(digits.sigma), alpha=0.1).fit(X, y).predict(digits.X[test])
    np.testing.assert_array_equal(method.predict(ids, digits.y[ids], test, {"alpha": 0.1}), wanted)
    np.testing.assert_array_equal(method.trial(ids, digits.y[ids], test, {"alpha": 0.1}), first.predict(digits.X[test]))


class Scripted(Method):
    """Errs on as many held-out rows as the setting says, and remembers what it was shown."""

    def __init__(self):
        self.settings = ({"wrong": 3}, {"wrong": 1}, {"wrong": 1, "smaller": 1}, {"wrong": 2})
        self.default = {"wrong": 9}
        self.seen = []

    def predict(self, ids, labels, wanted, setting):
        assert np.array_equal(labels, ids % 10)
        self.seen.append((ids, wanted))
        return np.where(np.arange(len(wanted)) < setting["wrong"], -1, wanted % 10)


def test_settings_are_chosen_on_labelled_rows_held_out_in_turns_and_ties_go_to_the_larger_penalty():
    method, ids = Scripted(), np.arange(100, 150)
    assert choose(method, ids, ids % 10, 0) is method.settings[1]
    assert len(method.seen) == 4 * methods.FOLDS
    for kept, held in method.seen:
        assert sorted([*kept, *held]) == ids.tolist()
        assert len(np.unique(held % 10)) == 10
    assert choose(Scripted(), ids[:10], ids[:10] % 10, 0) == {"wrong": 9}  # one a class cannot be held out


def test_rows_of_usps_are_ink_and_a_class_with_too_few_rows_is_named(tmp_path):
    rng = np.random.default_rng(0)
    for name, count in (("zip.train.gz", 40), ("zip.test.gz", 20)):
        rows = [f"{i % 10} " + " ".join(f"{v:.4f}" for v in rng.uniform(-1, 1, 256)) for i in range(count)]
        (tmp_path / name).write_bytes(gzip.compress("\n".join([*rows, ""]).encode()))
    found = read("usps", tmp_path, 0)
    assert (found.X.shape, found.rows) == ((60, 512), 40)
    np.testing.assert_allclose(np.linalg.norm(found.X, axis=1), 1, rtol=1e-6)
    assert found.y[40:].tolist() == [i % 10 for i in range(20)]
    ids = found.sample(4, 40, np.random.RandomState(0))
    assert np.bincount(found.y[ids]).tolist() == [4] * 10
    assert ids.max() < 40
    with pytest.raises(ConfigError, match="--labels 5: class 0 has 4 of 40 rows"):
        found.sample(5, 40, np.random.RandomState(0))


@pytest.mark.slow
def test_the_command_leaves_tables_and_a_picture(tmp_path):
    call("labels", "--labels", "1,5", "--repeats", 2, "--out", tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    with open(tmp_path / "draws.csv", encoding="utf-8") as file:
        draws = list(csv.DictReader(file))
    lines = {line["method"]: line for line in results["results"]}
    assert list(lines) == ["kernel ridge", "self-training", "LabelSpreading", "SSSL", "SSSL with a graph"]
    assert len(draws) == 5 * 2 * 2
    for name, line in lines.items():
        for count in ("1", "5"):
            errors = [float(one["error"]) for one in draws if (one["method"], one["labels"]) == (name, count)]
            assert line[count] == pytest.approx(np.mean(errors))
            assert line[f"{count}_std"] == pytest.approx(np.std(errors, ddof=1))
    assert lines["SSSL with a graph"]["1"] < 0.7 * lines["kernel ridge"]["1"]
    for name in ("report.html", "labels.png", "results.csv", "chosen.csv"):
        assert (tmp_path / name).stat().st_size > 100


def test_digits_that_are_missing_are_named(tmp_path):
    said = call("labels", "--set", "mnist", "--data", tmp_path, "--out", tmp_path, code=3).stderr
    assert "not found; it is the images of MNIST's training digits" in said
