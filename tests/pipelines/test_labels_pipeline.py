"""The labels experiment: methods that match separate fits and scikit-learn, settings chosen on labelled rows."""

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
    every = read("bundled", NONE, 0)
    kept = np.r_[:300, 1200:1300]
    return Digits(every.title, every.X[kept].astype(np.float64), every.y[kept], 300, every.sigma)


def labels_at(digits, ids):
    """Labels of the training rows `ids`, and -1 for the others."""
    y = np.full(300, -1)
    y[ids] = digits.y[ids]
    return y


def test_shared_eigenfunctions_predict_as_a_fit_to_all_rows(digits):
    first = digits.sample(1, 300, np.random.RandomState(0))
    after = []
    values = eigenfunctions(digits, first, {10.0: 30, 0.0: 30}, landmarks=60, seed=0, after=lambda: after.append(1))
    test = np.arange(300, 400)
    assert len(after) == 3
    for manifold, count, per_class in ((10.0, 20, 3), (0.0, 30, 4)):
        ids = digits.sample(per_class, 300, np.random.RandomState(per_class))
        setting = {"manifold": manifold, "n_components": count, "alpha": 0.004}
        uniform = {"n_landmarks": 60, "landmarks": "uniform", "random_state": 0}
        model = SSSLClassifier(Gaussian(digits.sigma), **uniform, **setting)
        model.fit(digits.X[:300], labels_at(digits, ids))
        shared = Eigenfunctions("shared", values, (setting,), setting)
        np.testing.assert_array_equal(shared.predict(ids, digits.y[ids], test, setting), model.predict(digits.X[test]))


def test_spreading_over_nearest_neighbours_is_that_of_scikit_learn(digits):
    graph = neighbours(digits.X, 300)
    assert graph.shape == (400, 300)
    ids = digits.sample(3, 300, np.random.RandomState(1))
    # its graph counts a row among its own neighbours, without spreading to itself
    theirs = LabelSpreading(kernel="knn", n_neighbors=8, alpha=0.8, max_iter=methods.STEPS)
    theirs.fit(digits.X[:300], labels_at(digits, ids))
    ours = Spreading(graph, 300)
    guess = ours.predict(ids, digits.y[ids], np.arange(400), {"alpha": 0.8})
    np.testing.assert_array_equal(guess[:300], theirs.classes_[theirs.label_distributions_.argmax(axis=1)])
    distances = np.linalg.norm(digits.X[300:, None] - digits.X[:300], axis=2)
    nearest = np.argsort(distances, axis=1)[:, : methods.NEIGHBOURS]
    votes = theirs.label_distributions_[nearest].sum(axis=1)
    np.testing.assert_array_equal(guess[300:], votes.argmax(axis=1))


def test_self_training_adds_the_most_certain_rows_of_each_class(digits, monkeypatch):
    monkeypatch.setattr(methods, "ROUNDS", (5,))
    ids, test = digits.sample(2, 300, np.random.RandomState(2)), np.arange(300, 400)
    method = SelfTraining(digits.X, digits.sigma, pool=np.arange(300))
    first = KernelRidgeClassifier(Gaussian(digits.sigma), alpha=0.1).fit(digits.X[ids], digits.y[ids])
    others = np.array([i for i in range(300) if i not in ids])
    values = first.decision_function(digits.X[others])
    two = np.sort(values, axis=1)[:, -2:]
    margin, guess = two[:, 1] - two[:, 0], values.argmax(axis=1)
    added = [i for c in range(10) for i in sorted(np.flatnonzero(guess == c), key=lambda i: -margin[i])[:5]]
    X, y = np.concatenate([digits.X[ids], digits.X[others[added]]]), np.concatenate([digits.y[ids], guess[added]])
    expected = KernelRidgeClassifier(Gaussian(digits.sigma), alpha=0.1).fit(X, y).predict(digits.X[test])
    np.testing.assert_array_equal(method.predict(ids, digits.y[ids], test, {"alpha": 0.1}), expected)
    np.testing.assert_array_equal(method.trial(ids, digits.y[ids], test, {"alpha": 0.1}), first.predict(digits.X[test]))


class Scripted(Method):
    """A method with `wrong` errors on held-out rows, which records its calls."""

    def __init__(self):
        self.settings = ({"wrong": 3}, {"wrong": 1}, {"wrong": 1, "smaller": 1}, {"wrong": 2})
        self.default = {"wrong": 9}
        self.calls = []

    def predict(self, ids, labels, test, setting):
        assert np.array_equal(labels, ids % 10)
        self.calls.append((ids, test))
        return np.where(np.arange(len(test)) < setting["wrong"], -1, test % 10)


def test_settings_are_chosen_by_cross_validation_on_labelled_rows_and_the_first_of_equals_wins():
    method, ids = Scripted(), np.arange(100, 150)
    assert choose(method, ids, ids % 10, 0) is method.settings[1]
    assert len(method.calls) == 4 * methods.FOLDS
    for kept, held in method.calls:
        assert sorted([*kept, *held]) == ids.tolist()
        assert len(np.unique(held % 10)) == 10
    assert choose(Scripted(), ids[:10], ids[:10] % 10, 0) == {"wrong": 9}  # a single row of a class cannot be held out


def test_usps_is_read_as_unit_rows_and_a_class_with_too_few_rows_is_named(tmp_path):
    rng = np.random.default_rng(0)
    for name, count in (("zip.train.gz", 40), ("zip.test.gz", 20)):
        rows = [f"{i % 10} " + " ".join(f"{v:.4f}" for v in rng.uniform(-1, 1, 256)) for i in range(count)]
        (tmp_path / name).write_bytes(gzip.compress("\n".join([*rows, ""]).encode()))
    usps = read("usps", tmp_path, 0)
    assert (usps.X.shape, usps.rows) == ((60, 512), 40)
    np.testing.assert_allclose(np.linalg.norm(usps.X, axis=1), 1, rtol=1e-6)
    assert usps.y[40:].tolist() == [i % 10 for i in range(20)]
    ids = usps.sample(4, 40, np.random.RandomState(0))
    assert np.bincount(usps.y[ids]).tolist() == [4] * 10
    assert ids.max() < 40
    with pytest.raises(ConfigError, match="--labels 5: class 0 has 4 of 40 rows"):
        usps.sample(5, 40, np.random.RandomState(0))


@pytest.mark.slow
def test_the_command_writes_tables_and_a_picture(tmp_path):
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
