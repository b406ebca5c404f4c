"""The wine experiment: MATLAB's zscore and rounding, splits with copies on one side, the printed formula, the pages."""

import csv
import json

import numpy as np
import pytest
import reference
from pipeline_runs import call, require_page, results_of
from sklearn.kernel_ridge import KernelRidge
from threadpoolctl import threadpool_limits

from bigkernel.data.readers import open_source
from pipelines.wine import command as wine
from pipelines.wine import page as wine_page
from pipelines.wine.formula import gauss_kernel, krr_predict


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """One thread for the linear algebra: the matrices are small, and other tests may be using the cores."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def table():
    """Rows like those of the wine data (520, 12): large means, several scales, 80 copies."""
    rng = np.random.default_rng(11)
    X = (rng.standard_normal((440, 11)) + 5) * 10.0 ** rng.integers(-2, 3, 11)
    y = np.clip(np.rint(6 + np.tanh(X[:, 0] / X[:, 0].std() - 5) * 2 + rng.standard_normal(440) / 2), 3, 9)
    rows = np.column_stack([X, y])
    return rng.permutation(np.concatenate([rows, rows[rng.integers(0, 440, 80)]]))


@pytest.fixture(scope="module")
def directory(table, tmp_path_factory):
    """A data directory with these rows in the published format."""
    path = tmp_path_factory.mktemp("data")
    header = ";".join(f'"attribute {i}"' for i in range(11)) + ';"quality"'
    np.savetxt(path / "winequality-white.csv", table, delimiter=";", header=header, comments="", fmt="%.17g")
    return path


@pytest.fixture(scope="module")
def split(table):
    """One of its random splits."""
    X, y = table[:, :11], table[:, 11]
    return wine.standardised(X, y, *wine.random_splits(len(X), 1, 5)[0])


def test_zscore_is_that_of_matlab():
    # zscore([1 2 3 4; 7 7 7 7]') in MATLAB: divisor n − 1, and 0 for a constant column
    values = np.array([[1.0, 7], [2, 7], [3, 7], [4, 7]])
    expected = [-1.161895003862225, -0.387298334620742, 0.387298334620742, 1.161895003862225]
    np.testing.assert_allclose(wine.zscore(values), np.column_stack([expected, np.zeros(4)]), rtol=1e-14)
    np.testing.assert_allclose(wine.zscore(np.array([[2.5, 9.0]]), values), [[0, 2]], atol=1e-15)


@pytest.mark.parametrize(("n", "n_train"), [(4898, 4408), (4895, 4406), (15, 14), (5, 5)])
def test_the_number_of_training_rows_is_rounded_like_int32(n, n_train):
    (train, test), other = wine.random_splits(n, 2, 0)
    assert len(train) == n_train
    np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(n))
    assert other[0].tolist() != train.tolist()
    assert wine.random_splits(n, 1, 0)[0][0].tolist() == train.tolist()


def test_grouped_splits_keep_copies_on_one_side(table):
    X = table[:, :11]
    group = wine.groups(X)
    assert group.max() + 1 == len({tuple(row) for row in X}) == 440
    splits = wine.grouped_splits(group, 4, 0)
    for train, test in splits:
        np.testing.assert_array_equal(np.sort(np.concatenate([train, test])), np.arange(len(X)))
        assert not {tuple(row) for row in X[train]} & {tuple(row) for row in X[test]}
        assert 0.07 * len(X) < len(test) < 0.13 * len(X)
    assert len({tuple(test) for _, test in splits}) == 4


def test_the_printed_formula_is_kernel_ridge_regression(split):
    # columns hold the rows here
    np.testing.assert_allclose(
        gauss_kernel(split.X.T, split.X_test.T, 1.4), reference.gaussian(split.X, split.X_test, 1.4), atol=1e-13
    )
    train, test = krr_predict(split.X, split.y, split.X_test, 10.0, 1.4)
    oracle = KernelRidge(kernel="rbf", gamma=1 / (2 * 1.4**2), alpha=10.0).fit(split.X, split.y)
    np.testing.assert_allclose(train, oracle.predict(split.X), atol=1e-12)
    np.testing.assert_allclose(test, oracle.predict(split.X_test), atol=1e-12)


def test_the_methods_are_those_of_the_reference(split):
    # with a mean that is not zero, a penalised intercept makes a difference
    X, y, Z = split.X + 1, split.y + 3, split.X_test + 1
    ones, ones_z = np.insert(X, 0, 1, axis=1), np.insert(Z, 0, 1, axis=1)
    predicted = {method: model.fit(X, y).predict(Z) for method, model in wine.dense().items()}
    for method, penalty in (("LR", 0.0), ("RR", 10.0)):
        beta, _ = reference.ridge(ones, y, penalty)
        np.testing.assert_allclose(predicted[method], (ones_z @ beta)[:, 0], atol=1e-9)
    free, intercept = reference.ridge(X, y, 10.0, fit_intercept=True)
    assert np.abs(predicted["RR"] - (Z @ free + intercept)[:, 0]).max() > 1e-3
    dual = reference.krr_exact(reference.gaussian(X, X, 1.4), y, 10.0)
    np.testing.assert_allclose(predicted["KRR"], (reference.gaussian(Z, X, 1.4) @ dual)[:, 0], atol=1e-10)
    assert list(wine.nystrom([30, 1600], 0)) == ["Nyström, m = 30", "Nyström, m = 1,600"]


def test_the_pipeline_prints_one_json_object_and_writes_its_files(directory, table, tmp_path):
    out = tmp_path / "out"
    counts = ["--landmarks", 90, "--landmarks", 30]
    results = results_of("wine", "--data", directory, "--out", out, "--repeats", 2, *counts)
    assert json.loads((out / "results.json").read_text()) == results
    # linear regression by least squares, on the same splits
    X, y, errors = table[:, :11], table[:, 11], []
    for train, test in wine.random_splits(len(X), 2, 0):
        a, b, c, d = (wine.zscore(values) for values in (X[train], y[train], X[test], y[test]))
        beta = np.linalg.lstsq(a, b, rcond=None)[0]
        errors.append([np.mean((a @ beta - b) ** 2), np.mean((c @ beta - d) ** 2)])
    first, second = results["as_printed"][:2]
    np.testing.assert_allclose([first["mse"], second["mse"]], np.mean(errors, axis=0))
    np.testing.assert_allclose([first["mse_std"], second["mse_std"]], np.std(errors, axis=0, ddof=1))
    # the training error falls with the number of landmarks; ranks are at most the number of distinct rows
    names, errors = ([record[key] for record in results["nystrom"][:3]] for key in ("method", "train_mse"))
    assert names == ["m = 30", "m = 90", "exact KRR"]
    assert errors[0] > errors[1] > errors[2]
    assert results["nystrom"][1]["rank"] <= 90
    honest = {record["method"]: record for record in results["honest"]}
    assert list(honest) == ["LR", "RR", "KRR", "Nyström, m = 400"]
    points = [one["points"] * one["mse"]["test"] ** 0.5 for one in results["runs"]["grouped"] if one["method"] == "KRR"]
    assert honest["KRR"]["test_rmse_points"] == pytest.approx(np.mean(points))
    assert results["formula"][-1]["difference"] < 1e-12
    page = require_page(out)
    assert page.count("<img") == page.count('prefers-color-scheme: dark)" srcset') == 2
    assert "80 rows repeat an earlier row in all attributes, 80 of them in the quality too" in page
    for name in ("as_printed", "nystrom", "honest", "formula"):
        with open(out / f"{name}.csv", encoding="utf-8") as file:
            assert len(list(csv.DictReader(file))) == len(results[name])
    for name in ("nystrom_error", "nystrom_seconds"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_too_many_landmarks_are_refused(directory, tmp_path):
    done = call("wine", "--data", directory, "--out", tmp_path / "out", "--landmarks", 469, code=3)
    assert "n_landmarks=469" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_printed_numbers_are_reproduced_on_the_data(data_dir):
    path = data_dir / "winequality-white.csv"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    blocks = [block[:2] for block in open_source(path, target=-1).blocks()]
    X, y = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
    group = wine.groups(X)
    assert X.shape == (4898, 11)
    assert len(X) - group.max() - 1 == len(X) - wine.groups(np.column_stack([X, y])).max() - 1 == 937
    splits = [wine.standardised(X, y, *ids) for ids in wine.random_splits(4898, 10, 0)]
    assert [len(splits[0].y), len(splits[0].y_test)] == [4408, 490]

    def of_methods(*names):
        return lambda number: {name: wine.dense()[name] for name in names}

    # exact KRR is slow: two splits
    runs = wine.judge_all("", splits, of_methods("LR", "RR"), quiet=True)
    runs += wine.judge_all("", splits[:2], of_methods("KRR"), quiet=True)
    for method, printed in wine_page.PRINTED.items():
        for rows in ("train", "apart"):
            mean, deviation = printed[rows]
            assert wine_page.errors(runs, method, rows).mean() == pytest.approx(mean, abs=deviation), (method, rows)
