"""The scaling experiment: speed-ups from timings, and the page and tables of a quick run."""

import json

import pytest
from pipeline_runs import call

from pipelines.scaling import workers as scaling_workers
from pipelines.scaling.workers import Timing


def timing(workers, rows, seconds, gemm, load=0.1):
    return Timing(workers, rows, seconds, 8, 1e9 * rows / seconds, gemm, load)


def test_speed_ups_are_of_medians_and_are_compared_with_that_of_the_processor():
    rounds = [
        *(timing(1, 1000, s, 50e9) for s in (20.0, 22.0, 90.0)),
        *(timing(2, 1000, s, 40e9) for s in (10.0, 11.0, 70.0)),
        *(timing(1, 500, s, 50e9) for s in (10.0, 9.9, 80.0)),
    ]
    result = scaling_workers.compare(rounds)
    assert result["strong"]["speed_up"] == pytest.approx(2.0)
    assert result["weak"]["efficiency"] == pytest.approx(10.0 / 11.0)
    assert result["gemm"]["speed_up"] == pytest.approx(1.6)
    assert result["explained"] == pytest.approx(2.0 / 1.6)


@pytest.mark.slow
def test_a_quick_run_writes_its_page_and_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(scaling_workers, "GEMM_SECONDS", 0.05)
    out = tmp_path / "out"
    sizes = ["--rows", 4000, "--landmarks", 32, "--crowd", 2, "--segments", "4,12"]
    printed = call("scaling", "--quick", *sizes, "--out", out, "--data", tmp_path / "none").stdout
    assert printed.rstrip().endswith(f"report: {out / 'report.html'}")
    results = json.loads((out / "results.json").read_text())
    timings = results["measured"]["timings"]
    assert [(t["workers"], t["rows"]) for t in timings] == [(1, 4000), (2, 4000), (1, 2000)]
    assert all(t["gemm_flops_per_second"] > 0 and t["seconds"] > 0 for t in timings)
    assert [(r["task"], r["run"]) for r in results["segments"]] == [(1, False), (1, True), (16, False)]
    assert results["limit"]["scheduler_seconds"] == results["segments"][0]["scheduler"]
    seconds = results["measured"]["strong"]["one_seconds"] / 4000 * 65_536
    assert results["limit"]["segment_seconds"] == pytest.approx(seconds)
    assert "workers busy" in (out / "report.html").read_text()
