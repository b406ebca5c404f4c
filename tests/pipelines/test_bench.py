"""The benchmarks: their figures are consistent, and their tables fit a terminal."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.testing import assert_array_equal
from pipeline_runs import fits_eighty_columns

from bigkernel import Gaussian, KernelRidgeClassifier
from pipelines.bench import gpu as bench_gpu
from pipelines.bench import gram as bench_gram
from pipelines.bench import numbers as bench_numbers
from pipelines.bench import pictures
from pipelines.bench import serve as bench_serve
from pipelines.bench.command import bench
from pipelines.shared.timed_sweeps import SIGMA


def run(*arguments):
    result = CliRunner().invoke(bench, [str(argument) for argument in arguments], env={"COLUMNS": "80"})
    assert result.exit_code == 0, (result.output, result.exception)
    return result.stdout


@pytest.fixture
def where(tmp_path):
    """Options for random rows and a directory of the test."""
    return ["--out", tmp_path, "--data", tmp_path / "none"]


def test_a_sweep_is_compared_with_its_two_products_and_the_stages_add_up_to_its_time(where, monkeypatch):
    monkeypatch.setattr(bench_gram, "GEMM_SIZE", 64)
    options = ["--rows", 3000, "--landmarks", 40, "--repeats", 2, "--seconds", 0.01, "--threads"]
    result = json.loads(run("gram", *where, *options, "--json"))
    for turn in range(2):
        limit, gemm, rate = (result[f"{name}_gflops"][turn] for name in ("limit", "gemm", "sweep"))
        assert result["limit_ratio"][turn] == pytest.approx(rate / limit)
        assert result["gemm_ratio"][turn] == pytest.approx(rate / gemm)
        assert result["processor_ratio"][turn] > 0
    assert result["limit_ratio_median"] == pytest.approx(np.mean(result["limit_ratio"]))
    seconds = 3000 * (2 * 40 * 784 + 40**2) / 1e9 / result["sweep_gflops"][-1] * result["cores"]
    assert {"block", "exp", "add", "gram", *bench_gram.BESIDE} <= result["shares"].keys()
    assert sum(result["shares"].values()) == pytest.approx(1)
    for stage, spent in result["stage_seconds"].items():
        assert result["shares"][stage] == pytest.approx(spent / seconds)
    assert result["stage_gflops"]["gram"] == pytest.approx(3000 * 40**2 / 1e9 / result["stage_seconds"]["gram"])


def test_the_limit_is_the_sum_over_workers_that_do_both_products_one_after_the_other():
    fast, slow = {"block": 4.0, "gram": 2.0}, {"block": 2.0, "gram": 1.0}
    # a row takes 8 and 2 flops: 2 s + 1 s, and 4 s + 2 s
    limit = bench_gram.limit_flops_per_second([fast, slow], {"block": 8.0, "gram": 2.0})
    assert limit == pytest.approx(10 / 3 + 10 / 6)


@pytest.mark.slow
def test_peaks_of_memory_are_compared_with_the_plan(where):
    options = ["--small", 4000, "--large", 8000, "--landmarks", 50, "--sizes", "60", "--sizes-rows", 4000]
    result = json.loads(run("memory", *where, *options, "--json"))
    assert [one["rows"] for one in result["runs"]] == [4000, 8000]
    assert [(one["landmarks"], one["executor"]) for one in result["sizes"]] == [(60, "processes"), (60, "threads")]
    for one in result["runs"] + result["sizes"]:
        assert 50_000_000 < one["peak_bytes"] <= one["planned_bytes"]
        assert one["ratio"] == one["planned_bytes"] / one["peak_bytes"]


@pytest.mark.slow
def test_fits_of_all_condition_numbers_are_right_or_warn(where):
    result = json.loads(run("numbers", *where, "--rows", 500, "--landmarks", 40, "--json"))
    assert result["fits"] == 320
    assert result["silently_wrong"] == 0
    assert result["swept_again"] > 0
    assert {cell["sums"] for cell in result["cells"]} >= {"float32", "float64"}
    assert 0.1 < result["estimated_over_error"][2] < 10


def test_a_silently_wrong_cell_fails_the_command(where, monkeypatch):
    cell = bench_numbers.Cell("ridge", "t", "float32", 1.0, 1.0, 1e3, 0.1, 1e-5, False, "float32", "float32", 1, 0.1)
    monkeypatch.setattr(bench_numbers, "cells", lambda *_: iter([cell]))
    result = CliRunner().invoke(bench, ["numbers", *map(str, where)], env={"COLUMNS": "80"})
    assert result.exit_code == 1
    assert "SILENT" in result.stdout
    assert "1 of 1 silently wrong" in result.stdout
    fits_eighty_columns(result.stdout)


@pytest.mark.parametrize("device", ["cpu", "strict"])
def test_all_checks_of_a_gpu_run_at_tiny_sizes_on_processors(device, tmp_path, monkeypatch):
    if device == "strict":
        pytest.importorskip("array_api_strict")
    file = tmp_path / "figures.json"
    text = run("gpu", "--all", "--device", device, "--json", file)
    made = json.loads(file.read_text())
    assert [*made["steps"]] == [*bench_gpu.STEPS]
    assert made["device"].startswith(device)
    assert bench_gpu.wrong(made) == []
    fits_eighty_columns(text)
    swept = made["steps"]["sweeps"]["m = 40"]
    assert swept["of the limit"] == pytest.approx(swept["limit, s"] / swept["sweep, s"])
    assert set(made["steps"]["bits"].values()) == {"same"}
    monkeypatch.setitem(bench_gpu.STEPS, "bits", lambda _: {"fit": "DIFFERENT"})
    monkeypatch.setitem(bench_gpu.STEPS, "factors", lambda _: 1 / 0)
    options = ["--step", "bits", "--step", "factors", "--device", device, "--json", str(file)]
    result = CliRunner().invoke(bench, ["gpu", *options])
    assert (result.exit_code, result.output.splitlines()[-1]) == (1, "look at: factors, bits")
    assert "ZeroDivisionError" in json.loads(file.read_text())["steps"]["factors"]["FAILED"]
    late = [*bench_gpu.measure(device, file, seconds=0.0, tiny=True)][-1]
    assert "left out" in late["steps"]["predictions"]


@pytest.mark.slow
def test_serving_compares_equal_predictions(where, monkeypatch):
    monkeypatch.setattr(bench_serve, "MANY", 7)
    monkeypatch.setattr(bench_serve, "LOADS", 1)
    result = json.loads(run("serve", *where, "--rows", 500, "--landmarks", 40, "--rounds", 2, "--json"))
    cases = [(case["dtype"], case["rows"]) for case in result["cases"]]
    assert cases == [("float32", 1), ("float32", 7), ("float64", 1), ("float64", 7)]
    assert all(case["ratios"]["numpy"] == 1 for case in result["cases"])
    assert {*result["loading"]} == {"NumPy", "predictor", "model"}
    X = np.random.default_rng(0).random((90, 784))
    model = KernelRidgeClassifier(Gaussian(SIGMA), n_landmarks=40, random_state=0).fit(X, np.arange(90) % 3)
    assert_array_equal(bench_serve.plain(model, "float64")(X), model.predict(X))


def test_the_pictures_of_the_page_are_made_from_its_tables():
    page = (pictures.DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert all(png.startswith(b"\x89PNG") for png in (pictures.peers(page), pictures.mnist(page)))
    with pytest.raises(ValueError, match="could not convert"):
        pictures.peers(page.replace("| 2.32 |", "| fast |"))
