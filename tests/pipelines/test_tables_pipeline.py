"""The tables pipeline on scikit-learn's small tables: every method, units, mean errors and ranks."""

import numpy as np
import pytest
from pipeline_runs import call, results_of

from pipelines import tables


@pytest.mark.parametrize(
    "names", [("iris", "wine"), pytest.param(tables.OWN, marks=pytest.mark.slow)], ids=["two", "all"]
)
def test_small_tables_compare_all_methods(tmp_path, monkeypatch, names):
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    monkeypatch.setattr(tables, "OWN", names)
    results = results_of("tables", "small", "--landmarks", 30, "--out", tmp_path)
    methods = {line["method"] for line in results["tables"]}
    assert methods == {"one kernel", "metric", "metric, leaves", "HistGradientBoosting"}
    assert {line["table"] for line in results["tables"]} == set(names)
    assert max(line["error"] for line in results["tables"]) < 0.3
    of_kernel = [line["error"] for line in results["tables"] if line["method"] == "one kernel"]
    np.testing.assert_allclose(results["methods"][0]["error"], np.mean(of_kernel))
    np.testing.assert_allclose(sum(line["rank"] for line in results["methods"]), 1 + 2 + 3 + 4)


def test_regressions_begin_with_a_trend(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    monkeypatch.setattr(tables, "flights", lambda name: (X, 20 * X[:, 0] + np.sin(3 * X[:, 1])))
    call("tables", "air_time", "--landmarks", 40, "--leaves", 2, "--out", tmp_path / "wide")
    results = results_of("tables", "air_time", "--landmarks", 40, "--leaves", 2, "--student", "--out", tmp_path)
    errors = {line["method"]: line["error"] for line in results["tables"]}
    teacher, student = (errors[name] for name in ("HistGradientBoosting", "student of HistGradientBoosting"))
    assert 0.5 < student / teacher < 1.5
    assert student != errors["metric, leaves"]
    assert errors["metric"] < 0.8 * errors["one kernel"] < 0.8


def test_bands_hold_about_nine_tenths_of_the_rows_of_a_table(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    monkeypatch.setattr(tables, "OWN", ())
    monkeypatch.setattr(tables, "TAILS", ())
    monkeypatch.setattr(tables, "numbers", lambda name, seed: (X, np.sin(X[:, 0]) + noise))
    rng = np.random.default_rng(2)
    X, noise = rng.normal(size=(500, 3)), 0.3 * rng.normal(size=500)
    (line,) = results_of("tables", "bands", "--landmarks", 40, "--out", tmp_path)["bands"]
    shares = {name: share for name, share in line.items() if name != "table"}
    assert set(shares) >= {"folds", "GCV", "exact", "search", "leaves"}
    assert all(0.8 < share <= 0.99 for share in shares.values()), shares
