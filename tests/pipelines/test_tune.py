"""The tune pipeline: its cells are those of explicit refits, tests come after choices."""

import csv
import gzip
import json
import struct

import numpy as np
import pytest
import reference
from pipeline_runs import call, require_page, results_of
from sklearn.datasets import load_digits
from sklearn.preprocessing import normalize
from threadpoolctl import threadpool_limits

from bigkernel import open_corpus
from bigkernel.engine.rows import as_rows
from bigkernel.kernels import landmarks
from bigkernel.streaming.folds import HashFolds
from pipelines.shared.digit_corpora import bundled
from pipelines.tune import command as tune
from pipelines.tune import page as tune_page

pytestmark = pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdge")  # grids are small
SMALL = [
    *("--rows", "2400", "--landmarks", "60", "--final-landmarks", "90"),
    *("--sigma", "0.3:0.6:3", "--alpha", "1e-3,0.1"),
]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """One thread for the linear algebra: the matrices are small, and other tests may be using the cores."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Two deformed copies of each of 1,200 digits, and the digits held out."""
    return bundled(tmp_path_factory.mktemp("digits"), 2400, 0, keep=False)


def run(*words, code=0):
    return call("tune", *SMALL, *words, code=code)


def refit_errors(train, fold, m, sigma, alpha):
    """Error in % of each fold under a model of the other folds' rows, from the dense equations."""
    X, y = normalize(train.array("x")[:].astype(float)), train.column("y")
    Z = X[landmarks.uniform(len(X), m, np.random.RandomState(0))]
    B, core, errors = reference.gaussian(X, Z, sigma), reference.gaussian(Z, Z, sigma), []
    for number in np.unique(fold):
        kept, tested = fold != number, fold == number
        coef, _ = reference.nystrom_krr(B[kept], core, np.eye(10)[y[kept]], alpha)
        errors.append(100 * np.mean((B[tested] @ coef).argmax(axis=1) != y[tested]))
    return errors


@pytest.mark.parametrize("by", ["row", "group"])
def test_a_cell_is_the_error_of_explicit_refits(digits, by):
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


def test_the_heat_map_has_each_error_in_its_place(monkeypatch):
    drawn = {}

    def heat_map(values, columns, rows, **given):
        drawn.update(given, columns=columns, rows=rows)
        return b""

    monkeypatch.setattr(tune_page, "heat_map", heat_map)
    grid = [(s, a) for a in (1.0, 0.1, 10.0) for s in (0.5, 0.2)]
    records = [{"sigma": s, "alpha": a, "error": 10 * s * a} for s, a in grid]
    tune_page.score_picture(records)
    assert (drawn["columns"], drawn["rows"]) == (["0.1", "1", "10"], ["0.2", "0.5"])
    assert drawn["texts"] == [["0.2", "2.0", "20.0"], ["0.5", "5.0", "50.0"]]


def test_without_mnist_the_deformed_digits_are_tuned_and_it_says_so(tmp_path):
    results = results_of("tune", *SMALL, "--data", tmp_path / "none", "--out", tmp_path)
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
    Z, sigma = X[landmarks.uniform(2400, 90, np.random.RandomState(0))], results["test"]["sigma"]
    core, targets = reference.gaussian(Z, Z, sigma), np.eye(10)[train.column("y")]
    coef, _ = reference.nystrom_krr(reference.gaussian(X, Z, sigma), core, targets, results["test"]["alpha"])
    wrong = np.mean((reference.gaussian(T, Z, sigma) @ coef).argmax(axis=1) != test.column("y"))
    assert results["test"]["error"] == pytest.approx(100 * wrong, abs=0.35)  # two of 597 on a border
    assert results["test"]["error_se"] == pytest.approx(100 * np.sqrt(wrong * (1 - wrong) / 597), rel=0.1)
    # the files
    with open(tmp_path / "grid.csv", newline="") as file:
        assert [float(row["error"]) for row in csv.DictReader(file)] == [cell["error"] for cell in grid]
    for name, rows in (("candidates.csv", 6), ("final.csv", len(results["final"]))):
        assert len((tmp_path / name).read_text().splitlines()) == rows + 1
    assert (tmp_path / "grid.png").read_bytes()[:4] == b"\x89PNG"
    page = require_page(tmp_path, pictures=1)
    assert "as --data has no MNIST" in page


def test_what_is_printed_fits_eighty_columns_and_corpora_are_kept(tmp_path):
    first = run("--data", tmp_path / "none", "--out", tmp_path)
    assert "6 candidates on 5 folds took 2 sweeps" in first.stdout
    made = (tmp_path / "copies" / "train.corpus" / "zarr.json").stat().st_mtime_ns
    again = run("--data", tmp_path / "none", "--out", tmp_path)
    assert (tmp_path / "copies" / "train.corpus" / "zarr.json").stat().st_mtime_ns == made
    tables = [[line for line in one.stdout.splitlines() if "±" in line] for one in (first, again)]
    assert tables[0] == tables[1]


def write_idx(path, values):
    with gzip.open(path, "wb") as file:
        file.write(struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes())


def test_nothing_is_chosen_by_the_test_digits(tmp_path):
    images, labels = np.rint(load_digits().images * 15).astype(np.uint8), load_digits().target.astype(np.uint8)
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", images[:600])
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", labels[:600])
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", images[600:900])
    found = []
    for shown in (labels[600:900], (labels[600:900] + 1) % 10):
        write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", shown)
        found.append(results_of("tune", *SMALL, "--data", tmp_path, "--out", tmp_path / "out"))
    right, wrong = found
    assert right["facts"]["rows"].startswith("600 training, 300 test")
    for key in ("grid", "chosen"):
        assert right["search"][key] == wrong["search"][key]
    assert right["final"] == wrong["final"]
    assert right["test"]["error"] < 15
    assert wrong["test"]["error"] > 90


@pytest.mark.parametrize("missing", ["t10k-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"])
def test_half_of_mnist_is_a_data_error(tmp_path, missing):
    shapes = {"train-images-idx3": (20, 8, 8), "train-labels-idx1": (20,), "t10k-images-idx3": (20, 8, 8)}
    for name, shape in shapes.items():
        write_idx(tmp_path / f"{name}-ubyte.gz", np.zeros(shape, np.uint8))
    (tmp_path / missing).unlink()
    done = run("--data", tmp_path, "--out", tmp_path / "out", code=3)
    assert missing.partition("-")[0] in done.output


def test_more_landmarks_than_rows_and_a_file_for_out_are_data_errors(tmp_path):
    done = run("--data", tmp_path / "none", "--out", tmp_path, "--final-landmarks", 2401, code=3)
    assert "2,401" in done.output or "2401" in done.output
    (tmp_path / "file").write_text("")
    run("--data", tmp_path, "--out", tmp_path / "file" / "out", code=3)
    call("tune", "--sigma", "a:b", code=2)
