"""The tune pipeline: its cells are those of explicit refits, copies flatter folds of rows, tests come after choices."""

from __future__ import annotations

import csv
import gzip
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
from click.testing import CliRunner, Result
from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize
from threadpoolctl import threadpool_limits

from bigkernel import open_corpus
from bigkernel.engine.rows import as_rows
from bigkernel.kernels import uniform_landmarks
from bigkernel.streaming.folds import HashFolds
from pipelines.__main__ import main
from pipelines.shared import digit_corpora
from pipelines.shared.digit_corpora import Digits, bundled
from pipelines.tune import command as tune
from pipelines.tune import page as tune_page

pytestmark = pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdge")  # grids are small
SMALL = [
    *("--rows", "2400", "--landmarks", "60", "--final-landmarks", "90"),
    *("--sigma", "0.3:0.6:3", "--alpha", "1e-3,0.1"),
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """One thread for the linear algebra: the matrices are small, and other tests may be using the cores."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    """Two deformed copies of each of 1,200 digits, and the digits held out."""
    return bundled(tmp_path_factory.mktemp("digits"), 2400, 0, keep=False)


@pytest.fixture
def small_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "COPY_SIGMAS", (0.3, 0.5))
    monkeypatch.setattr(tune, "COPY_ALPHAS", (0.01, 0.1))


def run(*args: Any) -> Result:
    return CliRunner().invoke(main, ["tune", *SMALL, *map(str, args)], catch_exceptions=False)


def refit_errors(train: Any, fold: np.ndarray, m: int, sigma: float, alpha: float) -> list[float]:
    """Error in % of each fold under a model of the other folds' rows, from the dense equations."""
    X, y = normalize(train.array("x")[:].astype(float)), train.column("y")
    Z = X[uniform_landmarks.uniform(len(X), m, np.random.RandomState(0))]
    B, core, errors = reference.gaussian(X, Z, sigma), reference.gaussian(Z, Z, sigma), []
    for number in np.unique(fold):
        kept, tested = fold != number, fold == number
        coef, _ = reference.nystrom_krr(B[kept], core, np.eye(10)[y[kept]], alpha)
        errors.append(100 * np.mean((B[tested] @ coef).argmax(axis=1) != y[tested]))
    return errors


@pytest.mark.parametrize("by", ["row", "group"])
def test_a_cell_is_the_error_of_explicit_refits(digits: Digits, by: Any, small_grid: None) -> None:
    folds = HashFolds(5, 0, by)
    fold = folds.of(as_rows(digits.train).read(0, 2400))
    copies_apart = np.mean(fold[:1200] != fold[1200:])
    assert copies_apart == 0 if by == "group" else copies_apart > 0.7
    found = tune.search(digits.train, (0.3, 0.5), (0.01, 0.1), landmarks=60, seed=0, cv=folds, refit=False)
    cell = next(c for c in tune.cells(found) if (c["sigma"], c["alpha"]) == (0.5, 0.1))
    errors = refit_errors(digits.train, fold, 60, 0.5, 0.1)
    # blocks are float32 there: a row on the border of two classes may fall on the other side
    assert cell["error"] == pytest.approx(np.mean(errors), abs=0.06)
    assert cell["error_se"] == pytest.approx(np.std(errors, ddof=1) / np.sqrt(5), abs=0.06)
    compared = tune.compare(digits.train, landmarks=60, seed=0, repeats=1)
    record = next(r for r in compared if (r["sigma"], r["alpha"]) == (0.5, 0.1))
    assert record["grouped" if by == "group" else "ungrouped"] == cell["error"]


def test_several_partitions_are_averaged(digits: Digits, small_grid: None) -> None:
    once = tune.compare(digits.train, landmarks=30, seed=0, repeats=1)
    both = tune.compare(digits.train, landmarks=30, seed=0, repeats=2)
    second = tune.search(
        digits.train, (0.3, 0.5), (0.01, 0.1), landmarks=30, seed=0, cv=HashFolds(5, 1, "group"), refit=False
    )
    by_cell = {(c["sigma"], c["alpha"]): c for c in tune.cells(second)}
    for first, record in zip(once, both, strict=True):
        other = by_cell[record["sigma"], record["alpha"]]
        assert record["grouped"] == pytest.approx((first["grouped"] + other["error"]) / 2)
        assert record["grouped_se"] == pytest.approx((first["grouped_se"] + other["error_se"]) / 2)
        assert record["true"] == first["true"]


def test_true_errors_count_copies_of_held_out_digits() -> None:
    class Model:
        def predict(self, X: np.ndarray) -> np.ndarray:
            return X[:, 0]

    images = np.array([1, 2, 3, 0]).reshape(4, 1, 1)
    copies = np.concatenate([images[:, 0], [[1], [9], [3], [9]]])  # wrong on digit 3 always, on digit 1 in one of two
    found = tune.true_errors(Model(), images, np.array([1, 2, 3, 7]), copies)  # type: ignore[arg-type]
    by_digit = np.array([0, 0.5, 0, 1])
    assert found["true"] == pytest.approx(100 * by_digit.mean())
    assert found["true_se"] == pytest.approx(100 * by_digit.std(ddof=1) / 2)
    assert found["originals"] == 25


def test_folds_of_rows_are_optimistic_where_copies_are_nearly_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digit_corpora, "STRENGTH", 0.2)
    monkeypatch.setattr(tune, "COPY_SIGMAS", (0.3, 0.4))
    monkeypatch.setattr(tune, "COPY_ALPHAS", (0.3, 1.0))
    train = bundled(tmp_path, 3600, 0, keep=False).train
    for record in tune.compare(train, landmarks=500, seed=0, repeats=1):
        assert record["ungrouped"] < 0.6 * record["grouped"]
        assert record["ungrouped"] < 0.8 * record["true"]
        spread = np.hypot(record["grouped_se"], record["true_se"])
        assert abs(record["grouped"] - record["true"]) < 3 * spread


def test_the_promise_is_compared_with_the_truth() -> None:
    records = [
        {"sigma": 0.2, "alpha": 0.1, "ungrouped": 1.0, "grouped": 4.0, "true": 4.0, "true_se": 0.5},
        {"sigma": 0.4, "alpha": 0.1, "ungrouped": 2.0, "grouped": 3.0, "true": 2.5, "true_se": 0.4},
        {"sigma": 0.4, "alpha": 1.0, "ungrouped": 2.0, "grouped": 3.0, "true": 2.6, "true_se": 0.4},
    ]
    found, text = tune_page.promise(records, "ungrouped", "rows")
    assert (found["sigma"], found["optimism"]) == (0.2, 3.0)
    assert found["share"] == pytest.approx(np.mean([1 / 4, 2 / 2.5, 2 / 2.6]))
    assert "promise 1.00 % error; the true error is 4.00 ± 0.50 %, 3.00 points more." in text
    found, text = tune_page.promise(records, "grouped", "digits")
    assert (found["alpha"], found["optimism"]) == (1.0, pytest.approx(-0.4))  # of equals the larger penalty
    assert "0.40 points less." in text


def test_the_heat_map_has_each_score_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Any] = {}

    def score_map(mean: Any, error: Any, widths: Any, alphas: Any, **_: Any) -> bytes:
        drawn.update(mean=mean, error=error, widths=widths, alphas=alphas)
        return b""

    monkeypatch.setattr("pipelines.tune.score_map.score_map", score_map)
    grid = [(s, a) for a in (1.0, 0.1, 10.0) for s in (0.5, 0.2)]
    records = [
        {"sigma": s, "alpha": a, "error": 100 * s * a / 5, "error_se": s, "prediction_error": 0.0} for s, a in grid
    ]
    tune_page.score_picture(records)
    assert (drawn["widths"], drawn["alphas"]) == ([0.2, 0.5], [0.1, 1.0, 10.0])
    np.testing.assert_allclose(drawn["mean"], 1 - np.outer([0.2, 0.5], [0.1, 1.0, 10.0]) / 5)
    np.testing.assert_allclose(drawn["error"], np.outer([0.2, 0.5], [1, 1, 1]) / 100)


def test_without_mnist_the_deformed_digits_are_tuned_and_it_says_so(tmp_path: Path) -> None:
    done = run("--data", tmp_path / "none", "--out", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    results = json.loads(done.stdout)
    assert json.loads((tmp_path / "results.json").read_text()) == results
    assert "scikit-learn digits" in results["facts"]["data"]
    searched = results["search"]
    assert (searched["candidates"], searched["folds"], searched["fits_one_by_one"]) == (6, 5, 30)
    # the one-standard-error rule: of all near the best the largest α, then the largest σ
    grid, best = searched["grid"], min(searched["grid"], key=lambda cell: cell["error"])
    near = [cell for cell in grid if cell["error"] <= best["error"] + best["error_se"] + 1e-9]
    assert searched["chosen"] == max(near, key=lambda cell: (cell["alpha"], cell["sigma"]))
    for cell in results["final"]:
        assert cell["sigma"] / searched["chosen"]["sigma"] in (1.0, pytest.approx(1.2), pytest.approx(1 / 1.2))
        assert cell["alpha"] <= searched["chosen"]["alpha"]
    # the held-out error of the chosen model from the dense equations
    train, test = (open_corpus(tmp_path / "copies" / f"{name}.corpus") for name in ("train", "test"))
    X, T = (normalize(corpus.array("x")[:].astype(float)) for corpus in (train, test))
    Z, sigma = X[uniform_landmarks.uniform(2400, 90, np.random.RandomState(0))], results["test"]["sigma"]
    core, targets = reference.gaussian(Z, Z, sigma), np.eye(10)[train.column("y")]
    coef, _ = reference.nystrom_krr(reference.gaussian(X, Z, sigma), core, targets, results["test"]["alpha"])
    wrong = np.mean((reference.gaussian(T, Z, sigma) @ coef).argmax(axis=1) != test.column("y"))
    assert results["test"]["error"] == pytest.approx(100 * wrong, abs=0.35)  # two of 597 on a border
    assert results["test"]["error_se"] == pytest.approx(100 * np.sqrt(wrong * (1 - wrong) / 597), rel=0.1)
    # the files
    with open(tmp_path / "grid.csv", newline="") as file:
        assert [float(row["error"]) for row in csv.DictReader(file)] == [cell["error"] for cell in grid]
    for name, rows in (("candidates.csv", 6), ("copies.csv", 20), ("final.csv", len(results["final"]))):
        assert len((tmp_path / name).read_text().splitlines()) == rows + 1
    for name in ("grid.png", "copies.png"):
        assert (tmp_path / name).read_bytes()[:4] == b"\x89PNG"
    page = (tmp_path / "report.html").read_text()
    assert page.count("<img") == 2
    assert "as --data has no MNIST" in page


def test_what_is_printed_fits_eighty_columns_and_corpora_are_kept(tmp_path: Path, small_grid: None) -> None:
    first = run("--data", tmp_path / "none", "--out", tmp_path)
    assert first.exit_code == 0, first.output
    printed = first.stdout.replace(str(tmp_path), "")
    assert max(map(len, printed.splitlines())) <= 80
    assert "6 candidates on 5 folds took 2 sweeps" in printed
    made = (tmp_path / "copies" / "train.corpus" / "zarr.json").stat().st_mtime_ns
    again = run("--data", tmp_path / "none", "--out", tmp_path)
    assert (tmp_path / "copies" / "train.corpus" / "zarr.json").stat().st_mtime_ns == made
    tables = [[line for line in one.stdout.splitlines() if "±" in line] for one in (first, again)]
    assert tables[0] == tables[1]


def write_idx(path: Path, values: np.ndarray) -> None:
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes())


def test_nothing_is_chosen_by_the_test_digits(tmp_path: Path, small_grid: None) -> None:
    images, labels = np.rint(load_digits().images * 15).astype(np.uint8), load_digits().target.astype(np.uint8)
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", images[:600])
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", labels[:600])
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", images[600:900])
    found = []
    for shown in (labels[600:900], (labels[600:900] + 1) % 10):
        write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", shown)
        done = run("--data", tmp_path, "--out", tmp_path / "out", "--json")
        assert done.exit_code == 0, done.output
        found.append(json.loads(done.stdout))
    right, wrong = found
    assert right["facts"]["rows"].startswith("600 training, 300 test")
    for key in ("grid", "chosen"):
        assert right["search"][key] == wrong["search"][key]
    assert right["final"] == wrong["final"]
    assert right["test"]["error"] < 15
    assert wrong["test"]["error"] > 90


@pytest.mark.parametrize("missing", ["t10k-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"])
def test_half_of_mnist_is_a_data_error(tmp_path: Path, missing: str) -> None:
    shapes = {"train-images-idx3": (20, 8, 8), "train-labels-idx1": (20,), "t10k-images-idx3": (20, 8, 8)}
    for name, shape in shapes.items():
        write_idx(tmp_path / f"{name}-ubyte.gz", np.zeros(shape, np.uint8))
    (tmp_path / missing).unlink()
    done = run("--data", tmp_path, "--out", tmp_path / "out")
    assert done.exit_code == 3
    assert missing.partition("-")[0] in done.output


def test_more_landmarks_than_rows_and_a_file_for_out_are_data_errors(tmp_path: Path) -> None:
    done = run("--data", tmp_path / "none", "--out", tmp_path, "--final-landmarks", 2401)
    assert done.exit_code == 3
    assert "2,401" in done.output or "2401" in done.output
    (tmp_path / "file").write_text("")
    assert run("--data", tmp_path, "--out", tmp_path / "file" / "out").exit_code == 3
    assert CliRunner().invoke(main, ["tune", "--sigma", "a:b"]).exit_code == 2
