"""Scaling: limits of the model, what is measured and how, and a page and tables of one quick run."""

import csv
import json
import math
from dataclasses import replace

import pytest
from click.testing import CliRunner

from bigkernel.config import settings
from bigkernel.engine.schedule import schedule
from bigkernel.errors import ConfigError
from bigkernel.forecast.time_model import Curve, Rates, Stages
from bigkernel.streaming.plan import plan
from pipelines.__main__ import main
from pipelines.scaling import page as scaling_page
from pipelines.scaling import scheduler
from pipelines.scaling import workers as scaling_workers
from pipelines.scaling.model import (
    BASE_BYTES,
    BLOCK_ROWS,
    LEAST_SEGMENTS,
    SEGMENT_ROWS,
    Cluster,
    Fit,
    corrected,
    largest,
    most_workers,
    segment_seconds,
    solve_seconds,
    times,
)
from pipelines.scaling.scheduler import Cost
from pipelines.scaling.workers import Timing

GIGA = 1e9


def flat(rate):
    return Curve((1.0, 1e4), (rate, rate))


STAGES = Stages(
    block=flat(100 * GIGA),
    features=Curve((1.0, 784.0), (1.0, 1.0)),
    gram=flat(100 * GIGA),
    flush=flat(GIGA),
    fresh=flat(GIGA),
    exp=flat(GIGA),
    kernels={"gaussian": 1.0},
    convert=GIGA,
    targets=1e7,
)
RATES = Rates(
    stages={"float32": STAGES},
    decode=GIGA,
    take=GIGA,
    disk=GIGA,
    prepare=GIGA,
    merge=GIGA,
    transfer=GIGA,
    home=GIGA,
    publish=GIGA,
    publish_seconds=0.001,
    retrieve=GIGA,
    sweep_seconds=0.5,
    task_seconds=0.01,
    core=(1e-8, 1e-9),
    solve=flat(50 * GIGA),
)
CLUSTER = Cluster(RATES, scheduler_seconds=0.004, storage_bytes=5 * GIGA, stored_share=0.2)


def test_one_worker_does_all_segments_one_after_the_other():
    fit = Fit(10_000_000, 1000)
    told = times(fit, CLUSTER, 1)
    assert told.tasks == pytest.approx(fit.segments * segment_seconds(fit, CLUSTER))
    # only the total travels, to the driver
    assert told.merges == pytest.approx(fit.footprint.partial_bytes / RATES.home)
    assert told.total == pytest.approx(told.start + told.tasks + told.merges + solve_seconds(fit, CLUSTER))
    assert told.bound == "workers"


def test_the_seconds_of_a_segment_are_those_of_its_stages():
    fit = Fit(60_000 * 8, 1000, 784)
    p, n, partial = 1000, 60_000, fit.footprint.partial_bytes
    rows = n * (2 * p * 784 / 1e11 + p / 1e9 + p**2 / 1e11 + 784 / 1e9 + 784 / 1e9 + 1e-7 + p**2 / 1e9 / 8192)
    fresh = (8 * p**2 + 4 * (p**2 + BLOCK_ROWS * (p + 784))) / 1e9
    assert segment_seconds(fit, CLUSTER) == pytest.approx(rows + 0.01 + fresh + partial / 1e9)


def test_many_workers_are_bound_by_the_scheduler_where_rows_are_many_and_by_the_tree_where_they_are_few():
    many = Fit(10**9, 100)
    told = times(many, CLUSTER, 10**6)
    assert told.bound == "scheduler"
    assert told.total >= many.segments * CLUSTER.scheduler_seconds
    free = replace(
        CLUSTER, scheduler_seconds=1e-9, rates=replace(RATES, transfer=1e8, solve=flat(1e15), core=(0.0, 0.0))
    )
    few = Fit(100_000_000, 8000)
    told = times(few, free, 10**6)
    assert told.bound == "merges"
    levels, partial = math.ceil(math.log2(few.segments)), few.footprint.partial_bytes
    assert told.merges == pytest.approx(levels * partial / 1e8 + (levels + 1) * partial / GIGA)
    assert told.tasks == pytest.approx(segment_seconds(few, free))  # a segment a worker; the rest are idle


def test_slow_storage_bounds_any_number_of_workers():
    told = times(Fit(10**9, 100), replace(CLUSTER, storage_bytes=1e7), 1000)
    assert told.bound == "storage"
    assert told.storage == pytest.approx(10**9 * 784 * 0.2 / 1e7)


def test_more_rows_and_more_landmarks_take_longer_and_more_workers_never_lengthen_the_tasks():
    seconds = [times(Fit(n, 1000), CLUSTER, 16).total for n in (10**5, 10**6, 10**7, 10**8, 10**9)]
    assert seconds == sorted(seconds)
    seconds = [times(Fit(10**8, m), CLUSTER, 16).total for m in (10, 100, 1000, 5000, 20_000)]
    assert seconds == sorted(seconds)
    fit, before = Fit(10**8, 1000), math.inf
    for workers in range(1, 3000, 7):
        told = times(fit, CLUSTER, workers)
        assert told.tasks <= before
        assert told.tasks >= fit.segments * segment_seconds(fit, CLUSTER) / workers * (1 - 1e-12)
        before = told.tasks


def test_workers_beyond_those_that_the_scheduler_keeps_busy_are_of_no_use():
    fit = Fit(10**10, 500)
    most = most_workers(fit, CLUSTER)
    below, above = times(fit, CLUSTER, round(most * 0.5)), times(fit, CLUSTER, round(most * 1.5))
    assert below.tasks > below.scheduler
    assert above.tasks < above.scheduler
    assert above.total == pytest.approx(times(fit, CLUSTER, round(most * 3)).total, rel=0.01)


def test_fewer_than_one_worker_is_refused():
    with pytest.raises(ValueError, match="expected at least 1, found 0"):
        times(Fit(1000, 10), CLUSTER, 0)


@pytest.mark.parametrize("n", [5_000, 35_000, 320_000, 1_234_567, 8_100_000])
def test_segments_and_memory_are_those_of_the_plan(n):
    fit = Fit(n, 300)
    bounds = (*range(0, n, 10_000), n)
    steps = plan(
        bounds,
        784,
        1,
        fit.footprint,
        column_bytes=8,
        segment_rows=settings().segment_rows,
        min_segments=settings().min_segments,
    )
    assert fit.segments == len(steps.segments)
    assert fit.worker_bytes == steps.worker_bytes(settings().worker_base_bytes)


@pytest.mark.parametrize(("landmarks", "workers", "together"), [(2000, 1000, 2), (500, 1000, 8), (500, 5000, 4)])
def test_tasks_have_as_many_segments_as_the_cluster_gives_them(landmarks, workers, together):
    fit = Fit(10**10, landmarks)
    steps = plan(
        [fit.chunk_rows * i for i in range(6001)],
        784,
        1,
        fit.footprint,
        segment_rows=settings().segment_rows,
    )
    # the plan of a share of the rows, on a share of the workers
    share = len(steps.segments) / fit.segments
    assert schedule(steps, None).segments_a_task(round(workers * share)) == together
    assert fit.segments_a_task(workers) == together


def test_a_segment_costs_the_scheduler_a_part_of_its_task_and_a_part_of_its_own():
    found = replace(CLUSTER, scheduler_seconds=0.0016, shared_seconds=0.0002)
    assert [found.segment_cost(k) for k in (1, 16)] == pytest.approx([0.0016, 0.0002])
    a_task = (0.0016 - 0.0002) / (1 - 1 / 16)
    assert found.segment_cost(4) == pytest.approx(0.0016 - a_task * 3 / 4)
    assert CLUSTER.segment_cost(16) == CLUSTER.scheduler_seconds  # not measured


def test_the_model_takes_the_settings_that_are_shipped():
    wanted = settings()
    assert (wanted.segment_rows, wanted.min_segments) == (SEGMENT_ROWS, LEAST_SEGMENTS)
    assert (wanted.block_rows, wanted.worker_base_bytes) == (BLOCK_ROWS, BASE_BYTES)


@pytest.mark.parametrize(("workers", "hours", "why"), [(1, 1, "time"), (1000, 24, "memory")])
def test_the_largest_m_fits_and_a_larger_one_does_not(workers, hours, why):
    memory = 4 * 2**30
    m, bound = largest(10**9, CLUSTER, workers=workers, hours=hours, memory_bytes=memory)
    assert bound == why

    def fits(count):
        fit = Fit(10**9, count)
        return fit.worker_bytes <= memory and times(fit, CLUSTER, workers).total <= 3600 * hours

    assert fits(m)
    assert not fits(m + 10 ** max(1, len(str(m)) - 2))


def test_no_landmark_fits_where_the_rows_alone_take_too_long_and_all_rows_where_they_are_few():
    assert largest(10**10, CLUSTER, workers=1, hours=0.01, memory_bytes=1e12) == (0, "time")
    assert largest(500, CLUSTER, workers=1, hours=1, memory_bytes=1e12) == (500, "rows")


def test_the_correction_makes_the_model_meet_the_measured_sweep():
    fit = Fit(320_000, 2000)
    told = times(fit, corrected(CLUSTER, fit, 60.0), 1)
    assert RATES.sweep_seconds + told.tasks + told.merges == pytest.approx(60.0)


def timing(workers, rows, seconds, gemm, load=0.1):
    return Timing(workers, rows, seconds, 8, 1e9 * rows / seconds, gemm, load)


def test_speed_ups_are_those_of_medians_and_are_held_against_the_processors_own():
    rounds = [
        *(timing(1, 1000, s, 50e9) for s in (20.0, 22.0, 90.0)),
        *(timing(2, 1000, s, 40e9) for s in (10.0, 11.0, 70.0)),
        *(timing(1, 500, s, 50e9) for s in (10.0, 9.9, 80.0)),
    ]
    found = scaling_workers.compare(rounds)
    assert found["strong"]["speed_up"] == pytest.approx(2.0)
    assert found["weak"]["efficiency"] == pytest.approx(10.0 / 11.0)
    assert found["gemm"]["speed_up"] == pytest.approx(1.6)
    assert found["explained"] == pytest.approx(2.0 / 1.6)


def test_what_a_segment_costs_is_the_slope_over_their_numbers():
    costs = [
        Cost(n, 1.5 + 0.01 * n, {"driver": 0.002 * n, "scheduler": 1 + 0.003 * n, "workers": 0.0}) for n in (10, 20, 70)
    ]
    found = scheduler.line(costs)
    assert found["seconds"] == pytest.approx(0.01)
    assert found["fixed"] == pytest.approx(1.5)
    assert (found["driver"], found["scheduler"]) == (pytest.approx(0.002), pytest.approx(0.003))
    with pytest.raises(ValueError, match="at least two"):
        scheduler.line(costs[:1])


def scaling(*arguments):
    return CliRunner().invoke(main, ["scaling", *map(str, arguments)], env={"COLUMNS": "80"}, catch_exceptions=False)


@pytest.mark.slow
def test_a_quick_run_measures_and_leaves_page_tables_and_pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    out = tmp_path / "out"
    sizes = ["--rows", 4000, "--landmarks", 32, "--crowd", 2, "--segments", "4,12"]
    result = scaling("--quick", *sizes, "--out", out, "--data", tmp_path / "none")
    assert result.exit_code == 0, result.output
    *lines, last = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert last.endswith(f"report: {out / 'report.html'}")
    assert not (tmp_path / "cache" / "bigkernel" / "calibration.json").exists()  # the calibration was for this page
    results = json.loads((out / "results.json").read_text())
    timings = results["measured"]["timings"]
    assert [(t["workers"], t["rows"]) for t in timings] == [(1, 4000), (2, 4000), (1, 2000)]
    assert all(t["gemm_flops_per_second"] > 0 and t["seconds"] > 0 for t in timings)
    assert {(r["monitor"], r["run"]) for r in results["segments"]} == {
        (a, b) for a in (True, False) for b in (True, False)
    }
    cluster_seconds = results["model"]["scheduler_seconds"]
    watched = next(r for r in results["segments"] if r["monitor"] and not r["run"])
    assert cluster_seconds == max(watched["scheduler"], 1e-6)
    assert results["short_segment"].keys() == results["bare_task"].keys()
    assert 0 < results["model"]["shared_seconds"] <= cluster_seconds
    assert results["bare_task"].keys() == {"seconds", "fixed", *scheduler.ROLES}
    page = (out / "report.html").read_text()
    assert "assumed, not measured" in page
    assert page.count("data:image/png") == 4  # two pictures, each for light and dark
    with open(out / "hours.csv", newline="") as file:
        records = list(csv.DictReader(file))
    assert len(records) == len(scaling_page.ROWS) * len(scaling_page.WORKERS)
    assert all(float(record["speed_up"]) <= 1.001 * int(record["workers"]) for record in records)


def test_a_dry_run_says_what_would_be_measured_and_writes_nothing(tmp_path):
    result = scaling("--dry-run", "--out", tmp_path / "out")
    assert result.exit_code == 0
    assert "320,000 rows on 1 worker and on 2" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert not (tmp_path / "out").exists()


def test_quick_sizes_go_with_those_that_are_given(tmp_path):
    result = scaling("--quick", "--rows", 3000, "--dry-run", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "3,000 rows on 1 worker and on 2" in result.stdout
    assert "64 landmarks" in result.stdout
    assert "sweeps of 20, 60 segments that cost nothing, on 4 workers" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--segments", "5"], "two numbers or more"),
        (["--rows", 1000, "--landmarks", 600], "600 landmarks: expected at most half of the 1,000 rows"),
        (["--rows", 1000], "give fewer --landmarks or more --rows"),
        (["--memory-limit", "much"], "--memory-limit: expected bytes"),
        (["--storage", "0"], "--storage: expected at least one byte"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_measured(tmp_path, options, message):
    result = scaling(*options, "--out", tmp_path / "out")
    assert result.exit_code == ConfigError.exit_code
    assert message in result.stderr
    assert not (tmp_path / "out").exists()
