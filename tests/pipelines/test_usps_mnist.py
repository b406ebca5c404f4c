"""The USPS–MNIST experiment: its methods against dense references, choices without target labels, and its output."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
import reference
from pipeline_runs import require_page, results_of
from scipy.io import savemat
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.preprocessing import normalize

from pipelines.shared.experiments import Report
from pipelines.usps_mnist import choice as usps_mnist_choice
from pipelines.usps_mnist import command as usps_mnist
from pipelines.usps_mnist import fits as usps_mnist_fits
from pipelines.usps_mnist import page as usps_mnist_page
from pipelines.usps_mnist.fits import HALVES, KMEANS, UNIFORM, Draws, Fit, Pair

pytestmark = pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdgeWarning")  # grids are small
N_SOURCE, N_TARGET = 150, 170
GAMMA = 1 / (2 * 0.31**2)


def do_nothing():
    """Ignore the end of a fit."""


def made_pair(seed=5):
    """Noisy copies of ten prototypes of each set, which share half of them; labels 1 to 10 as in the files."""
    rng = np.random.default_rng(seed)
    common, made = rng.uniform(0, 1, (10, 256)), {}
    for name, n in (("USPS_1800", N_SOURCE), ("MNIST_2000", N_TARGET)):
        labels = np.arange(n) % 10
        prototypes = common + 0.5 * rng.uniform(0, 1, (10, 256))
        made[name] = np.clip(prototypes[labels] + 0.35 * rng.standard_normal((n, 256)), 0, None), labels + 1
    return made


def write_pair(directory):
    for name, (fts, labels) in made_pair().items():
        savemat(directory / f"digits16_{name}.mat", {"fts": fts, "labels": labels[:, None].astype(np.uint8)})
    return directory


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return Pair.read(write_pair(tmp_path_factory.mktemp("pair")))


@pytest.fixture
def coarse(monkeypatch):
    """Small grids, and few numbers of landmarks."""
    for name, values in (("KRR_SIGMAS", (0.5, 0.2)), ("KRR_ALPHAS", (0.1, 0.01)), ("SSSL_SIGMAS", (0.5, 0.31))):
        monkeypatch.setattr(usps_mnist_choice, name, values)
    monkeypatch.setattr(usps_mnist, "COUNTS", (20, 60, 800))


@pytest.fixture(scope="module")
def real(data_dir):
    if not (data_dir / "digits16_USPS_1800.mat").is_file():
        pytest.skip("the digit pair is not in the data directory")
    return Pair.read(data_dir)


def percent(pair, values_source, values_target):
    return [
        100 * float(np.mean(values.argmax(axis=1) == y))
        for values, y in ((values_source, pair.source_labels), (values_target, pair.target_labels))
    ]


def accuracies(fit):
    return [fit.source, fit.target]


def test_the_pair_is_read_with_unit_rows_labels_from_zero_and_an_unlabelled_target(small):
    (fts, labels), (target, _) = made_pair().values()
    np.testing.assert_allclose(small.rows, normalize(np.concatenate([fts, target])))
    np.testing.assert_array_equal(small.source_labels, labels - 1)
    np.testing.assert_array_equal(small.labels, np.concatenate([labels - 1, np.full(N_TARGET, -1)]))


@pytest.mark.slow
def test_the_best_printed_row_is_reached_on_other_draws_and_is_dense_sssl_m(real):
    draws = Draws(real, range(30, 33))
    setting = usps_mnist_fits.table_settings(400)[-1]
    fits = draws.fits([setting], do_nothing)[setting]
    source, target = usps_mnist_page.PRINTED["SSSL_m"][:2]
    assert usps_mnist_page.mean(fits, "source") >= source
    assert usps_mnist_page.mean(fits, "target") >= target
    Z = draws.landmarks(HALVES, 400, 30)[0]
    B = rbf_kernel(real.rows, Z, gamma=GAMMA)
    labelled, Y = real.labels != -1, np.eye(10)[real.source_labels]
    coef = reference.sssl_all(B, rbf_kernel(Z, gamma=GAMMA), labelled, Y, setting.s, 0.4)
    assert accuracies(fits[0]) == percent(real, B[labelled] @ coef, B[~labelled] @ coef)


def test_lr_rr_and_krr_are_those_of_dense_algebra(small):
    X, y, Y = small.source, small.source_labels, np.eye(10)[small.source_labels]
    lr, rr, krr = (
        accuracies(usps_mnist_fits.evaluate(small, lambda method=method, options=options: method(X, y, *options)))
        for method, *options in ((usps_mnist_fits.lr,), (usps_mnist_fits.rr, 1.0), (usps_mnist_fits.krr, 0.5, 1.0))
    )
    ones, ones_target = (np.insert(rows, 0, 1, axis=1) for rows in (X, small.target))
    w = np.linalg.lstsq(ones, Y, rcond=None)[0]
    assert lr == percent(small, ones @ w, ones_target @ w)
    w = np.linalg.solve(ones.T @ ones + np.eye(257), ones.T @ Y)
    assert rr == percent(small, ones @ w, ones_target @ w)
    oracle = KernelRidge(kernel="rbf", gamma=1 / (2 * 0.5**2), alpha=1.0).fit(X, Y)
    assert krr == percent(small, oracle.predict(X), oracle.predict(small.target))


@pytest.mark.usefixtures("coarse")
def test_cross_validation_of_rr_and_krr_is_that_of_fits_without_the_held_out_rows(small):
    X, y = small.source, small.source_labels
    folds = usps_mnist_choice.folds(y, 0)
    for one in usps_mnist_choice.cross_validate_krr(X, y, folds, do_nothing):
        model = KernelRidge(kernel="rbf", gamma=1 / (2 * one.sigma**2), alpha=one.alpha)
        right = sum(np.sum(model.fit(X[t], np.eye(10)[y[t]]).predict(X[h]).argmax(1) == y[h]) for t, h in folds)
        assert one.accuracy == pytest.approx(100 * right / N_SOURCE)
    ones = np.insert(X, 0, 1, axis=1)
    for one in usps_mnist_choice.cross_validate_rr(X, y, folds):
        right = 0
        for t, h in folds:
            w = np.linalg.solve(ones[t].T @ ones[t] + one.alpha * np.eye(257), ones[t].T @ np.eye(10)[y[t]])
            right += np.sum((ones[h] @ w).argmax(axis=1) == y[h])
        assert one.accuracy == pytest.approx(100 * right / N_SOURCE)


@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
def test_what_is_chosen_does_not_depend_on_target_labels(small, tmp_path):
    poisoned = replace(small, target_labels=(small.target_labels + 1) % 10)
    chosen = []
    for number, pair in enumerate((small, poisoned)):
        report = Report(tmp_path / str(number), "", "", quiet=True)
        fits = {name: [Fit(1.0, 1.0, 1.0)] for name in ("RR", "KRR", "SSSL_N")}
        fits |= {setting: [Fit(1.0, 1.0, 1.0)] for setting in usps_mnist_fits.table_settings(40)}
        usps_mnist.without_target_labels(report, Draws(pair, [0]), 40, 0, fits, quiet=True)
        chosen.append(report.results["chosen"])
    for before, after in zip(*chosen, strict=True):
        assert [before[key] for key in ("chosen", "cv", "source")] == [after[key] for key in ("chosen", "cv", "source")]
        assert before["target"] != after["target"]
    grid = [(tmp_path / str(number) / "grid.csv").read_text() for number in range(2)]
    assert grid[0] == grid[1]
    assert max(row["cv"] for row in chosen[0] if row["method"] == "KRR") == pytest.approx(
        max(float(row["accuracy"]) for row in csv.DictReader(io.StringIO(grid[0])) if row["method"] == "KRR")
    )


@pytest.mark.slow
@pytest.mark.usefixtures("coarse")
def test_the_command_prints_one_json_object_and_writes_its_files(tmp_path):
    out = tmp_path / "out"
    options = ["--landmarks", 40, "--repeats", 2, "--out", out]
    results = results_of("usps-mnist", "--data", write_pair(tmp_path), *options)
    assert json.loads((out / "results.json").read_text()) == results
    assert [row["method"] for row in results["printed"]] == ["LR", "RR", "KRR", "SSSL_N"] + ["SSSL_m"] * 6
    assert [row["method"] for row in results["chosen"]] == ["RR", "KRR", "SSSL_m", "SSSL_N"]
    assert results["printed"][3]["printed_target"] == 44.30
    assert set(results["speedup"]) == {"landmarks", "all"}
    with open(out / "curves.csv", encoding="utf-8") as file:
        points = [(row["eigenfunctions"], row["landmarks"], int(row["m"])) for row in csv.DictReader(file)]
    lines = [("landmarks", UNIFORM), ("all", UNIFORM), ("all", KMEANS), ("all", HALVES)]
    assert points == [(*line, m) for m in (20, 40, 60) for line in lines]
    names = ["digits", "seconds", "source", "target"]
    assert sorted(path.stem for path in out.glob("*.png")) == names
    assert sorted(path.stem for path in out.glob("*.csv")) == ["chosen", "curves", "grid", "printed"]
    require_page(out, pictures=4)
