"""The experiments across domains: their data, choices without target labels, and their output."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from pipeline_runs import call, fits_eighty_columns, require_page
from scipy.io import savemat

from pipelines.domains import choice as domains_choice
from pipelines.domains import data as domains_data
from pipelines.domains import methods as domains_methods
from pipelines.domains import pair as domains_pair
from pipelines.domains import rotated as domains_rotated
from pipelines.domains import tables as domains_tables
from pipelines.domains.data import Digits
from pipelines.domains.features import BARE, COPIES, MOMENTS, TABLES, task_of
from pipelines.domains.methods import METHODS, SOURCE, Draws, Method
from pipelines.shared import pictures
from pipelines.shared.experiments import Report

N_SOURCE, N_TARGET = 70, 60


def made(name, n, seed, side=16):
    """Blurred strokes of ten directions, shifted by a pixel or two that depend on the seed."""
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 10
    grid = (np.arange(side) - side / 2) / side
    angle = labels * np.pi / 10 + 0.1 * rng.standard_normal(n)
    along = np.cos(angle)[:, None, None] * grid[:, None] + np.sin(angle)[:, None, None] * grid
    across = -np.sin(angle)[:, None, None] * grid[:, None] + np.cos(angle)[:, None, None] * grid + 0.02 * seed
    images = np.exp(-((along / 0.35) ** 4) - (across / 0.07) ** 2) * (1 + (labels % 2)[:, None, None] * (along > 0))
    return Digits(name, np.clip(images / 2 + 0.02 * rng.random(images.shape), 0, 1), labels)


@pytest.fixture(scope="module")
def sets():
    return made("USPS", N_SOURCE, 1), made("MNIST", N_TARGET, 2)


@pytest.fixture(scope="module")
def data(tmp_path_factory, sets):
    """The files of the pair, with generated digits."""
    directory = tmp_path_factory.mktemp("pair")
    for digits, name in zip(sets, ("USPS_1800", "MNIST_2000"), strict=True):
        stored = {"fts": digits.images.reshape(len(digits), -1), "labels": digits.labels[:, None].astype(np.uint8) + 1}
        savemat(directory / f"digits16_{name}.mat", stored)
    return directory


@pytest.fixture
def few(monkeypatch):
    """Some of the methods, two tables of features, and pictures for light paper."""
    monkeypatch.setattr(pictures, "both", lambda draw, *args, **options: (draw(*args, **options),) * 2)
    for key in ("dica", "sssl", "xnv", "tca"):
        monkeypatch.delitem(METHODS, key)
    monkeypatch.delitem(TABLES, MOMENTS)


def test_the_pair_is_shuffled_with_its_labels(data, sets):
    for digits, stored in zip(domains_data.the_pair(data, 3), sets, strict=True):
        assert digits.labels.tolist() != stored.labels.tolist()
        order = [int(np.argmin(np.abs(stored.images - image).sum(axis=(1, 2)))) for image in digits.images]
        assert sorted(order) == list(range(len(stored)))
        np.testing.assert_array_equal(digits.labels, stored.labels[order])


@pytest.mark.parametrize("table", [BARE, MOMENTS])
def test_features_of_a_digit_do_not_depend_on_other_digits(sets, table):
    order = np.random.default_rng(0).permutation(N_SOURCE)
    task, permuted = (task_of(source, sets[1], table, 0) for source in (sets[0], sets[0].take(order)))
    np.testing.assert_array_equal(permuted.source, task.source[order])
    np.testing.assert_array_equal(permuted.labels, task.labels[order])


def test_the_weights_of_all_copies_of_a_digit_add_up_to_one(sets):
    task, bare = (task_of(*sets, table, 4) for table in (COPIES, BARE))
    assert len(task.source) == 6 * N_SOURCE
    np.testing.assert_allclose(np.bincount(task.digit, task.weight), 1)
    np.testing.assert_array_equal(task.labels, sets[0].labels[task.digit])
    np.testing.assert_array_equal(task.source[task.style == 0], bare.source)
    np.testing.assert_array_equal(task.target, bare.target)
    assert (task.style[N_SOURCE:] == 1).all()
    assert np.abs(task.source[N_SOURCE:] - bare.source[task.digit[N_SOURCE:]]).max(axis=1).min() > 0


@pytest.mark.parametrize("key", METHODS)
def test_no_method_uses_labels_of_the_target_and_source_methods_not_its_images_either(sets, key):
    method = METHODS[key]
    task = task_of(*sets, COPIES if method.needs_styles else BARE, 0)
    other = replace(task, target_labels=np.zeros_like(task.target_labels))
    if method.knows == SOURCE:
        other = replace(other, target=np.full_like(task.target, np.nan))
    Z = Draws(task, 30).landmarks(method.knows, 0)[0]
    with domains_methods.guarded():
        predictions = [method.fit(given, Z, method.setting)(task.target) for given in (task, other)]
    np.testing.assert_array_equal(*predictions)


def test_held_out_digits_and_their_copies_are_not_fitted(sets, monkeypatch):
    fitted = []

    def fit(task, Z, setting):
        fitted.append(task.digit)
        return lambda rows: np.full(len(rows), -1)

    monkeypatch.setattr(domains_pair, "METHODS", {"one": Method("one", SOURCE, fit, {"a": 0.0}, {"a": (1.0, 2.0)})})
    task = task_of(*sets, COPIES, 0)
    chosen = domains_pair.choose(task, 12, 0, None, lambda: None)
    assert chosen["one"] == domains_pair.Chosen({"a": 1.0}, 0.0)
    assert len(fitted) == 2 * domains_pair.N_FOLDS
    for digits in fitted:
        assert len(digits) == 6 * len(np.unique(digits))
    kept = np.concatenate([np.unique(digits) for digits in fitted[: domains_pair.N_FOLDS]])
    np.testing.assert_array_equal(np.bincount(kept), domains_pair.N_FOLDS - 1)


@pytest.mark.slow
def test_what_is_chosen_does_not_depend_on_target_labels(sets, monkeypatch):
    some = {key: METHODS[key] for key in ("krr", "tca")}
    monkeypatch.setattr(domains_pair, "METHODS", some)
    task = task_of(*sets, BARE, 0)
    poisoned = replace(task, target_labels=(task.target_labels + 1) % 10)
    expected, result = (domains_pair.choose(one, 20, 0, 2, lambda: None) for one in (task, poisoned))
    assert result == expected
    assert set(result) == set(some)
    for key, chosen in result.items():
        assert chosen.setting in domains_pair.grid_of(METHODS[key], 2)


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_the_pair_prints_its_tables_and_writes_its_files(data, tmp_path):
    out = tmp_path / "out"
    call("domains", "--experiment", "pair", "--quick", "--landmarks", 24, "--data", data, "--out", out)
    results = json.loads((out / "results.json").read_text())
    for table in TABLES:
        keys = [line["key"] for line in results[f"pair_{table}"]]
        styled = table == COPIES
        assert keys == [key for key, method in METHODS.items() if styled or not method.needs_styles]
        for kind in ("", "_chosen"):
            with open(out / f"pair_{table}{kind}.csv", encoding="utf-8", newline="") as file:
                for line, stored in zip(csv.DictReader(file), results[f"pair_{table}{kind}"], strict=True):
                    assert float(line["forth"]) == stored["forth"]
                    assert 0 <= stored["back"] <= 100
        chosen = {line["key"]: line for line in results[f"pair_{table}_chosen"]}
        assert set(chosen) == {key for key in keys if METHODS[key].grid}
        assert all(line["forth_chosen"] and 0 <= line["back_cv"] <= 100 for line in chosen.values())
    assert [line["direction"] for line in results["open_problem"]] == ["USPS → MNIST", "MNIST → USPS"]
    names = {f"pair_{table}{kind}_bars" for table in TABLES for kind in ("", "_chosen")}
    names |= {"examples"}
    assert {path.stem for path in out.glob("*.png")} == names
    require_page(out, pictures=len(names))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::bigkernel.errors.CollapsedLabelsWarning")  # of so few digits
def test_choices_without_labels_are_compared_with_the_best(sets, monkeypatch, tmp_path):
    result = domains_choice.measure(task_of(*sets, BARE, 0), 20, 0)
    assert set(result) == {"pair", "best", "default", *domains_choice.SCORES}
    assert all(0 <= value <= result["best"] <= 100 for key, value in result.items() if key != "pair")
    for name, digits in zip(("usps_digits", "mnist_digits"), sets, strict=True):
        monkeypatch.setattr(domains_choice, name, lambda data, digits=digits: digits)
    report = Report(tmp_path, "title", "subtitle", quiet=True)
    found = domains_choice.whole_sets(report, tmp_path, range(2), 20, rows=None, quiet=True)
    assert [len(values) for values in found.values()] == [2, 2]


def test_tables_are_made_pairs_of_domains_that_share_no_row():
    every = list(domains_tables.pairs(0, 90))
    assert len(every) == 4 * len(domains_tables.TABLES)
    for name, X, y, target in every:
        assert len(X) == len(y) == len(target) <= 90
        assert 0.2 < target.mean() < 0.8, name
        assert len(np.unique(y[~target])) >= 2, name
    found = domains_tables.measure(every[4], 20, 0)
    assert set(found) == {"pair", "best", "default", *domains_tables.SCORES}
    assert all(0 <= found[name] <= found["best"] <= 100 for name in ("default", *domains_tables.SCORES))


@pytest.fixture(scope="module")
def mnist():
    return made("MNIST", 400, 3, side=28)


def test_no_digit_is_in_two_domains_and_the_first_domain_is_unchanged(mnist):
    domains = domains_rotated.styled(mnist, 40, 0)
    ids = np.random.default_rng(0).permutation(400)[:240].reshape(6, 40)
    for digits, some in zip(domains, ids, strict=True):
        np.testing.assert_array_equal(digits.labels, mnist.labels[some])
    np.testing.assert_allclose(domains[0].images, mnist.images[ids[0]], atol=1e-6)
    assert np.abs(domains[1].images - mnist.images[ids[1]]).max() > 0.1


def test_a_left_out_domain_provides_neither_rows_nor_landmarks(mnist):
    domains, _ = domains_rotated.draw_domains(mnist, 40, 20, 0)
    source, target = domains.split(2)
    assert len(source.rows) == 200
    assert set(target.domain) == {2}
    np.testing.assert_array_equal(source.landmarks, np.concatenate([domains.centres[g] for g in (0, 1, 3, 4, 5)]))
    assert source.landmarks.shape == (20, 784)


@pytest.mark.slow
def test_every_method_is_measured_on_rotated_digits(mnist, tmp_path, capsys, monkeypatch):
    for name in ("30°, thin", "45°, pale"):
        monkeypatch.delitem(domains_rotated.STYLES, name)
    for name, method in domains_rotated.METHODS.items():
        grid = {key: values[:2] if key == "penalty" else values[:1] for key, values in method.grid.items()}
        monkeypatch.setitem(domains_rotated.METHODS, name, replace(method, grid=grid))
    measured = domains_rotated.measure(mnist, 30, 20, [0, 1], quiet=True)
    for name, method in domains_rotated.METHODS.items():
        assert np.shape(measured.accuracies[name]) == (4, 2)
        for setting in measured.chosen[name]:
            assert all(setting[key] in values for key, values in method.grid.items())
    report = Report(tmp_path, "", "")
    domains_rotated.show(report, measured, domains_rotated.styled(mnist, 30, 0), 30, 20)
    fits_eighty_columns(capsys.readouterr().out)
    table = report.results["rotated"]
    assert [line["left_out"] for line in table] == [*domains_rotated.STYLES, "mean", "fit s"]
    for name in domains_rotated.METHODS:
        assert table[4][name] == pytest.approx(np.mean(measured.accuracies[name]))
    assert {path.stem for path in tmp_path.glob("*.png")} == {"domains"}
