"""`bigkernel plan`: calibrates, forecasts where the machine is calibrated, and says what it does not know."""

import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from rates import RATES, calibrated

from bigkernel.cli import main
from bigkernel.data.corpus import CorpusInfo, CorpusWriter
from bigkernel.events.kinds import Step
from bigkernel.events.scope import emit
from bigkernel.forecast import calibration, measuring
from bigkernel.forecast.calibration import this_machine

N, D = 3000, 12
BEFORE = {  # the keys of --json since its first version
    *("rows", "features", "segments", "segment_rows", "chunk_rows", "flops", "bytes_read", "partial_bytes"),
    *("task_bytes", "worker_bytes", "of_it_process_bytes", "workers", "gemm_gflops_per_second_each"),
    *("sweep_seconds", "sweep_hours"),
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A working directory with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(path, y, classes=()):
    x = np.random.default_rng(0).integers(0, 255, (N, D), dtype=np.uint8)
    info = CorpusInfo("c", classes=classes)
    with CorpusWriter(path, n_features=D, dtype=x.dtype, columns={"y": y.dtype}, info=info, chunk_rows=500) as writer:
        writer.append(x=x, y=y)


@pytest.fixture
def corpus():
    """A corpus of three classes."""
    write("c", np.arange(N) % 3, (0, 1, 2))
    return "c"


@pytest.fixture
def numbers():
    """A corpus of numbers."""
    write("n", np.arange(N) * 0.5)
    return "n"


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["plan", *map(str, arguments)], env={"COLUMNS": "80"})
    assert result.exit_code == code, (result.output, result.exception)
    assert "Traceback" not in result.output
    return result


def told(*arguments):
    return json.loads(run(*arguments, "--json").stdout)


def test_without_a_calibration_the_time_is_that_of_the_matrix_product_and_the_advice_is_to_calibrate(corpus):
    figures = told(corpus, "--landmarks", 50)
    assert set(figures) >= BEFORE
    assert figures["calibration"] is None
    assert "fit_seconds" not in figures
    rate = figures["gemm_gflops_per_second_each"] * 1e9 * figures["workers"]
    assert figures["sweep_seconds"] == pytest.approx(figures["flops"] / rate)
    text = run(corpus, "--landmarks", 50).stdout
    assert "this machine is not calibrated" in text
    assert "plan --calibrate" in text


def test_a_calibrated_machine_forecasts_the_fit_by_stage(corpus, monkeypatch):
    calibrated().save()
    monkeypatch.setattr(
        "bigkernel.forecast.measuring.tasks.gemm_flops_per_second", lambda: pytest.fail("nothing is measured now")
    )
    figures = told(corpus, "--landmarks", 50, "--workers", 2)
    assert set(figures) >= BEFORE
    stages = figures["stage_seconds"]
    assert list(stages) == [*("landmarks", "start", "read", "convert", "block", "exp", "gram", "add", "merge", "solve")]
    assert stages["gram"] == pytest.approx(N * 50**2 / 1e9)
    assert stages["read"] == pytest.approx(N * D / RATES.decode)
    assert figures["fit_seconds"] == pytest.approx(figures["sweep_seconds"] + stages["landmarks"] + stages["solve"])
    assert figures["sweep_hours"] == pytest.approx(figures["sweep_seconds"] / 3600)
    assert figures["not_forecast"] == []
    assert (figures["calibration"]["host"], figures["calibration"]["processors"]) == (
        "node1",
        this_machine().processors,
    )
    published = told(corpus, "--landmarks", 50, "--workers", 2, "--with-run")
    assert published["stage_seconds"]["publish"] > 0
    assert published["fit_seconds"] > figures["fit_seconds"]


@pytest.mark.parametrize("stored", [False, True])
def test_people_get_80_columns_and_what_the_forecast_is_worth(corpus, stored):
    if stored:
        calibrated().save()
    text = run(corpus, "--landmarks", 50, "--with-run").stdout
    assert max(map(len, text.splitlines())) <= 80
    if stored:
        assert "calibrated 2026-11-21 on node1" in text
        assert "±25 %" in text
        assert "fit seconds" in text
        assert "publish" in text


@pytest.mark.parametrize(
    ("options", "named", "sweep"),
    [
        (["--method", "sssl"], "the solve", True),
        (["--alpha", "gcv"], "the solve", True),
        (["--kernel", "laplacian"], "laplacian", False),
        (["--dtype", "float64"], "float64", False),
        (["--transform", "standardize"], "standardize", True),
    ],
)
def test_what_is_not_known_is_named_and_no_total_is_told(corpus, options, named, sweep):
    calibrated().save()
    figures = told(corpus, "--landmarks", 50, *options)
    assert figures["fit_seconds"] is None
    assert (figures["sweep_seconds"] is not None) == sweep
    assert named in " ".join(figures["not_forecast"])
    assert "not forecast" in run(corpus, "--landmarks", 50, *options).stdout


def test_linear_methods_have_a_plan_of_their_moments(numbers):
    figures = told(numbers, "--method", "ridge")
    assert (figures["rows"], figures["features"]) == (N, D)
    assert figures["partial_bytes"] == 8 * (D * D + 2 * D + 4)
    assert figures["flops"] == N * (D + D * D + 4 * D)
    assert figures == {**told(numbers, "--method", "linear"), **_timed(figures)}


def _timed(figures):
    names = ("gemm_gflops_per_second_each", "sweep_seconds", "sweep_hours")
    return {name: figures[name] for name in names}


def test_conjugate_gradients_are_planned_by_their_sweeps_and_not_by_stage(corpus):
    options = ("--landmarks", 20, "--solver", "cg")
    plain = told(corpus, *options)
    calibrated().save()
    figures = told(corpus, *options)
    assert figures["solver"] == "cg"
    assert figures["sweeps"] > 2
    assert figures["driver_bytes"] > 0
    assert figures["flops"] == plain["flops"] > told(corpus, "--landmarks", 20)["flops"]
    assert figures["sweep_seconds"] > 0
    assert "the preconditioner is not forecast" in " ".join(run(corpus, *options).output.split())


@pytest.mark.parametrize("method", ["sssl", "xnv", "ridge", "linear"])
def test_other_methods_have_no_conjugate_gradients(numbers, method):
    assert f"{method} is solved directly" in run(numbers, "--method", method, "--solver", "cg", code=8).stderr


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_neither_a_corpus_nor_a_calibration_is_wrong_usage(arguments):
    assert "CORPUS is missing" in run(*arguments, code=2).stderr


def test_a_corpus_that_cannot_be_planned_is_told_before_anything_is_measured(corpus, monkeypatch):
    monkeypatch.setattr(measuring, "calibrate", lambda **_: pytest.fail("measured first"))
    assert "nothing to adapt to" in run(corpus, "--method", "artl", "--calibrate", code=3).stderr


@pytest.mark.parametrize("seconds", ["0", "-1", "soon"])
def test_a_time_that_cannot_be_measured_is_wrong_usage(seconds):
    assert "--calibration-seconds" in run("--calibrate", "--calibration-seconds", seconds, code=2).stderr


def test_a_calibration_of_another_machine_is_not_used_and_one_line_says_so(corpus):
    calibrated(machine=replace(this_machine(), processor="Z80")).save()
    text = " ".join(run(corpus, "--landmarks", 50).stdout.split())
    assert "of another machine or version (processor: Z80, now" in text
    assert told(corpus, "--landmarks", 50)["calibration"] is None


def test_calibrating_stores_what_plans_then_forecast_with(corpus):
    measured = told("--calibrate", "--calibration-seconds", 0.05)
    found = calibration.load()
    assert found is not None
    assert measured["float32_block_gflops_per_second"].keys() == {"128"}
    assert measured["decode_bytes_per_second"] == int(found.rates.decode)
    assert measured["calibration_seconds"] == pytest.approx(found.seconds)
    figures = told(corpus, "--landmarks", 50)
    assert 0 < figures["fit_seconds"] < 600
    assert figures["calibration"]["date"] == found.date


def test_a_calibration_is_shown_in_80_columns_and_progress_goes_to_the_other_stream(monkeypatch):
    def measured(**_):
        emit(Step(f"{measuring.STEP}solves", 6, 7))
        emit(Step("calibrate", 7, 7))
        return calibrated()

    monkeypatch.setattr(measuring, "calibrate", measured)
    told = run("--calibrate")
    shown = told.stdout
    assert told.stderr.splitlines()[1:] == ["  7 of 7: solves …"]
    assert max(map(len, shown.splitlines())) <= 80
    assert "node1" in shown
    assert calibration.load() == calibrated()


def test_a_calibration_that_others_disturbed_says_so(corpus):
    replace(calibrated(), share=0.61).save()
    text = " ".join(run(corpus, "--landmarks", 50).stdout.split())
    assert "other programs had 39% of its processors meanwhile" in text
    calibrated().save()
    assert "other programs" not in run(corpus, "--landmarks", 50).stdout
