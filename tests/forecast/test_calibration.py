"""Calibration and forecast: hand-computed seconds, curves within what was measured, a file that is not trusted."""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from rates import RATES, calibrated

from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import ConfigError, DataError
from bigkernel.events.kinds import SweepStarted
from bigkernel.events.scope import observe
from bigkernel.forecast import calibration, measuring
from bigkernel.forecast.calibration import rate_of, this_machine
from bigkernel.forecast.time_model import ORDER, Curve, Work, forecast, fresh_bytes
from bigkernel.kernels.feature_maps import IdentityMap, LandmarkMap
from bigkernel.kernels.functions import Gaussian
from bigkernel.statistics.moments import MomentStatistic, Targets
from bigkernel.streaming.plan import Footprint, Plan, plan

D, M = 200, 1000
FOOTPRINT = Footprint(
    flops_per_row=2.0 * M * D + M**2, partial_bytes=8 * M**2, work_bytes=10**7, width=M, dtype="float32"
)
WORK = Work(M)
# of one row: decoded, converted, block, exp, gram, targets
ROW = D / 1e8 + D / 1e8 + 2 * M * D / 2e9 + M / 1e8 + M**2 / 1e9 + 1e-6
FRESH = (8 * M**2 + 4 * (M**2 + 2048 * (M + D))) / 1e9


def steps(chunks: int = 8, chunk_rows: int = 8192, segments: int = 4) -> Plan:
    bounds = [chunk_rows * i for i in range(chunks + 1)]
    return plan(bounds, D, 1, FOOTPRINT, segment_rows=chunk_rows * chunks // segments, min_segments=segments)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache directory of its own; the file that is to hold the calibration."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "bigkernel" / "calibration.json"


# ---------------------------------------------------------------- the model of time


def test_the_seconds_of_a_fit_on_two_workers_are_those_computed_by_hand():
    told = forecast(RATES, steps(), WORK, workers=2)
    n, partial = 65_536, 8 * M**2
    flush = M**2 / 1e8  # chunks of 8,192 rows: one each
    segment = 16_384 * ROW + 2 * flush + FRESH + 0.02
    merge = partial / 1e9
    # three merges: two inside the workers, side by side; the last moves a partial; then the total goes home
    tail = merge + partial / 5e8 + 2 * merge / 2 + partial / 2.5e8
    start = 0.5 + 3 * 8 * M * D / 5e8 + 3 * M * D / 1e7
    assert_allclose(told.sweep_seconds, start + 2 * segment + tail)
    landmarks = n * D * (1 - (7 / 8) ** M) / 4e8
    solve = M**2 * (1e-8 + 1e-10 * D) + M**3 / 1e10
    assert_allclose(told.fit_seconds, told.sweep_seconds + landmarks + solve)
    expected = {
        "landmarks": landmarks,
        "start": start + 4 * 0.02,
        "read": n * D / 1e8,
        "convert": n * D / 1e8,
        "block": n * 2 * M * D / 2e9,
        "exp": n * M / 1e8,
        "gram": n * M**2 / 1e9,
        "add": n * 1e-6 + 8 * flush + 4 * FRESH,
        "merge": 3 * merge + partial / 5e8,
        "solve": solve,
    }
    assert list(told.stage_seconds) == [stage for stage in ORDER if stage in expected]
    for stage, seconds in expected.items():
        assert_allclose(told.stage_seconds[stage], seconds, err_msg=stage)
    assert told.unknown == ()


def test_a_run_adds_publishing_and_reading_back_and_moves_nothing_between_workers():
    told, partial = forecast(RATES, steps(), WORK, workers=2, run=True), 8 * M**2
    published = 0.01 + partial / 1e8
    segment = 16_384 * ROW + 2 * M**2 / 1e8 + FRESH + 0.02 + published
    merge = partial / 1e9 + 2 * partial / 2e8
    tail = merge + published + 2 * (merge + published) / 2 + partial / 2e8
    start = 0.5 + 8 * M * D * (1 / 1e8 + 1 / 2e8) + 3 * M * D / 1e7
    assert_allclose(told.sweep_seconds, start + 2 * segment + tail)
    assert_allclose(told.stage_seconds["publish"], 7 * published)
    assert_allclose(told.stage_seconds["merge"], 3 * merge)


def test_the_longest_worker_decides():
    one, two, many = (forecast(RATES, steps(), WORK, workers=count).sweep_seconds for count in (1, 2, 100))
    assert one > two > many
    segment = 16_384 * ROW + 2 * M**2 / 1e8 + FRESH + 0.02
    assert many > segment  # four segments cannot be shared by a hundred workers
    # three segments on two workers take as long as four
    three, four = (forecast(RATES, steps(n, 8192, n), WORK, workers=2) for n in (3, 4))
    assert abs(three.sweep_seconds - four.sweep_seconds) < 0.05 * four.sweep_seconds


def test_segments_are_handed_out_as_the_cluster_begins_them():
    bounds = [0, 10_000, 20_000, 30_000, 40_000, 50_000, 60_000]
    cut = plan(bounds, D, 1, FOOTPRINT, min_segments=4)  # of 10, 20, 10 and 20 thousand rows
    told = calibrated().forecast(cut, WORK, workers=2)
    plain = forecast(RATES, cut, WORK, workers=2)
    assert_allclose(plain.sweep_seconds - told.sweep_seconds, 10_000 * ROW + 2 * M**2 / 1e8, rtol=1e-6)


def test_rows_that_memory_cannot_hold_wait_for_the_disk():
    quick = forecast(RATES, steps(), WORK, workers=2).sweep_seconds
    slow = forecast(RATES, steps(), replace(WORK, stored_bytes=10**12), workers=2).sweep_seconds
    assert slow > 1000 > quick


@pytest.mark.parametrize(
    ("work", "named", "sweep"),
    [
        (replace(WORK, solved="sssl"), "the solve", True),
        (replace(WORK, kernel="laplacian"), "laplacian", False),
        (replace(WORK, dtype="float64"), "float64", False),
        (replace(WORK, unknown=("the sweep of standardize",)), "standardize", True),
        (replace(WORK, kernel="", drawn=False), "the solve", True),
    ],
)
def test_what_was_not_measured_is_named_and_gives_no_total(work, named, sweep):
    told = forecast(RATES, steps(), work, workers=2)
    assert told.fit_seconds is None
    assert (told.sweep_seconds is not None) == sweep
    assert named in " ".join(told.unknown)
    assert all(math.isfinite(seconds) for seconds in told.stage_seconds.values())


def test_another_kernel_costs_its_share():
    plain, matern = (forecast(RATES, steps(), replace(WORK, kernel=name), workers=2) for name in ("gaussian", "matern"))
    assert_allclose(matern.stage_seconds["exp"], 2 * plain.stage_seconds["exp"])
    assert matern.stage_seconds["block"] == plain.stage_seconds["block"]


def test_a_forecast_for_no_worker_is_refused():
    with pytest.raises(ValueError, match="at least 1, found 0"):
        forecast(RATES, steps(), WORK, workers=0)


def test_ten_thousands_of_segments_take_the_mean_of_the_workers_and_no_time_to_forecast():
    begin = time.perf_counter()
    told = forecast(RATES, steps(40_000, 100, 40_000), WORK, workers=16)
    assert time.perf_counter() - begin < 5
    assert told.sweep_seconds > 4_000_000 * ROW / 16


# ---------------------------------------------------------------- curves


@given(
    st.lists(st.tuples(st.integers(1, 10**6), st.floats(1e3, 1e12)), min_size=1, max_size=6, unique_by=lambda p: p[0]),
    st.lists(st.floats(0.5, 2e6), min_size=2, max_size=8),
)
def test_a_curve_stays_between_its_neighbours_and_within_its_ends(points, sizes):
    points.sort()
    curve = Curve(tuple(float(a) for a, _ in points), tuple(b for _, b in points))
    assert_allclose([curve(a) for a, _ in points], [b for _, b in points], rtol=1e-9)
    for size in sizes:
        below = [rate for at, rate in points if at <= size][-1:]
        above = [rate for at, rate in points if at >= size][:1]
        near = below + above
        assert min(near) * (1 - 1e-9) <= curve(size) <= max(near) * (1 + 1e-9)


def test_a_rising_curve_rises_everywhere():
    curve = Curve((100.0, 1000.0, 4000.0), (1e9, 4e9, 5e9))
    values = [curve(size) for size in np.geomspace(10, 10**5, 200)]
    assert values == sorted(values)
    assert (values[0], values[-1]) == (pytest.approx(1e9), pytest.approx(5e9))
    assert_allclose(curve(10**2.5), 2e9)  # half way in the logarithm of both


@pytest.mark.parametrize(
    ("sizes", "rates"),
    [
        ((), ()),
        ((1.0, 1.0), (1.0, 2.0)),
        ((2.0, 1.0), (1.0, 2.0)),
        ((1.0,), (0.0,)),
        ((1.0,), (math.nan,)),
        ((1.0,), ()),
    ],
)
def test_a_curve_that_cannot_be_is_refused(sizes, rates):
    with pytest.raises(ValueError, match="expected as many rates as ascending sizes"):
        Curve(sizes, rates)


# ---------------------------------------------------------------- the rate of a sweep


def statistic(features):
    return MomentStatistic(features, Targets(1))


def test_the_rate_of_a_plan_is_its_flops_over_the_seconds_of_one_worker(cache):
    calibrated().save()
    features = LandmarkMap(Gaussian(1.0), np.zeros((M, D)), np.dtype(np.float32))
    cut = plan([0, 8192, 16_384], D, 1, statistic(features).footprint(2048))
    seconds = 16_384 * ROW + 2 * M**2 / 1e8
    assert_allclose(rate_of(cut), cut.flops / seconds)


def test_a_plan_of_no_gram_matrix_or_of_a_dtype_not_measured_has_no_rate(cache):
    calibrated().save()
    plain = Footprint(flops_per_row=10.0, partial_bytes=80, work_bytes=80)
    assert rate_of(plan([0, 100], D, 1, plain)) == 0.0
    rows = statistic(IdentityMap(np.zeros(D))).footprint(2048)  # float64
    assert rate_of(plan([0, 100], D, 1, rows)) == 0.0
    assert rate_of(plan([0], D, 1, FOOTPRINT)) == 0.0


def test_a_rate_costs_less_than_a_millisecond_and_is_zero_without_a_calibration(cache):
    assert rate_of(steps()) == 0.0
    calibrated().save()
    assert rate_of(steps()) > 0
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        rate_of(steps(2, 8192, 2))
        times.append(time.perf_counter() - begin)
    assert min(times) < 1e-3


def test_a_rate_never_raises(cache, monkeypatch):
    calibrated().save()
    monkeypatch.setattr(calibration, "flops_per_second", lambda *_: 1 / 0)
    assert rate_of(steps()) == 0.0
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(calibration.Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    assert rate_of(steps()) == 0.0
    assert calibration.load() is None


# ---------------------------------------------------------------- the stored calibration


def test_a_calibration_comes_back_as_it_was_stored(cache):
    stored = calibrated()
    assert stored.save() == cache
    assert calibration.load() == stored
    assert [path.name for path in cache.parent.iterdir()] == [cache.name]
    later = replace(stored, host="node2", rates=replace(RATES, decode=2e8))
    later.save()
    assert calibration.load() == later


def test_without_one_there_is_none(cache):
    assert calibration.look() == (None, "this machine is not calibrated")


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("100000000.0", "900000000.0"),
        lambda text: "",
        lambda text: "[1, 2]",
        lambda text: json.dumps({**json.loads(text), "format": 99}),
    ],
    ids=["cut", "changed", "empty", "list", "format"],
)
def test_a_damaged_calibration_is_refused_quietly(cache, damage):
    calibrated().save()
    cache.write_text(damage(cache.read_text()))
    found, why = calibration.look()
    assert found is None
    assert "damaged or of another format" in why


def test_one_of_a_later_format_is_refused_though_it_is_whole(cache):
    from bigkernel.data.run_directory import write_sealed

    calibrated().save()
    write_sealed(cache, {"format": 99, **asdict(calibrated())})
    assert "of another format" in calibration.look()[1]
    write_sealed(cache, {"format": 1, **asdict(calibrated()), "machine": {"processor": "x"}})
    assert calibration.load() is None


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"processor": "Z80"}, "processor: Z80, now"),
        ({"processors": 4096}, "processors: 4096, now"),
        ({"blas_threads": "77"}, "BLAS threads of the driver: 77, now"),
        ({"versions": {"numpy": "0.1"}}, "numpy: 0.1, now"),
    ],
)
def test_one_of_other_hardware_or_versions_is_refused_by_the_field_that_differs(cache, changed, named):
    here = this_machine()
    versions = {**here.versions, **changed.get("versions", {})}
    calibrated(machine=replace(here, **{**changed, "versions": versions})).save()
    found, why = calibration.look()
    assert found is None
    assert named in why
    assert "node1, 2026-11-21" in why


def test_a_place_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match="XDG_CACHE_HOME names another place"):
        calibrated().save()


# ---------------------------------------------------------------- measuring


@pytest.mark.parametrize("seconds", [0, -1.0])
def test_no_time_to_measure_is_refused(seconds):
    with pytest.raises(ConfigError, match="seconds: expected a number above 0"):
        measuring.calibrate(seconds=seconds)


def test_workers_are_measured_and_the_forecast_of_a_fit_is_of_its_order(cache, client, make_corpus, rng):
    corpus = make_corpus(rng.integers(0, 255, (2000, 64), dtype=np.uint8), chunk_rows=500, y=np.zeros(2000))
    found = measuring.calibrate(corpus=corpus, seconds=0.05, client=client)
    assert found.machine == this_machine()
    found.save()
    assert calibration.load() == found
    numbers = [*_numbers(asdict(found.rates))]
    assert len(numbers) > 40
    assert all(math.isfinite(number) and number >= 0 for number in numbers)
    assert set(found.rates.stages) == {"float32", "float64"}
    assert 0 < found.share <= 1
    told = found.forecast(steps(), WORK, workers=2)
    assert 0.01 < told.fit_seconds < 10_000
    assert not list(cache.parent.glob("calibrate-*"))  # what was written to be measured is gone


class Slow:
    """A machine on which a point or a solve takes as long as its width says, by its own clock."""

    def __init__(self, seconds_at_1024):
        self.now, self.each = 0.0, seconds_at_1024 / 1024

    def perf_counter(self):
        return self.now

    def solve(self, m):
        self.now += self.each * m
        return 1.0


@pytest.mark.parametrize(
    ("until", "widest"), [(math.inf, (4096, 2048)), (7.0, (2048, 1024)), (3.0, (1024, 512)), (0.0, (512, 512))]
)
def test_a_slow_machine_leaves_out_the_widest_points_the_same_in_every_round(monkeypatch, client, until, widest):
    slow = Slow(1.0)
    monkeypatch.setattr(measuring, "time", slow)
    crew, effort, times = measuring._Crew(client, 3), measuring._Effort(4.0), {}
    crew.until = until
    found = []
    for dtype, width in measuring._points(crew, effort, times):
        slow.solve(width)
        found.append(("update", dtype, width))
    assert tuple(max(w for _, of, w in found if of == dtype) for dtype in ("float32", "float64")) == widest
    assert sum(width <= 512 for *_, width in found) == 4
    crew.until, again = 1e9, {key: [{}] for key in found}
    assert [("update", *point) for point in measuring._points(crew, effort, again)] == found
    assert len(list(crew.rounds)) == 3
    crew.until = -1.0
    assert list(crew.rounds) == [0]


@pytest.mark.parametrize(("until", "sizes"), [(1e9, (128, 512, 1024, 3584)), (8.0, (128, 512, 1024)), (-1.0, (128,))])
def test_solves_that_a_slow_machine_has_no_time_for_are_left_out(monkeypatch, until, sizes):
    slow = Slow(1.0)
    monkeypatch.setattr(measuring, "time", slow)
    monkeypatch.setattr(measuring.tasks, "solve_seconds", slow.solve)
    monkeypatch.setattr(measuring.tasks, "core_seconds", lambda m, d: 1.0)
    assert measuring._solving(measuring._Effort(4.0), until)["solve"].sizes == sizes


def _numbers(value):
    if isinstance(value, dict):
        for item in value.values():
            yield from _numbers(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _numbers(item)
    else:
        yield value


def test_the_memory_that_is_new_to_a_task_is_counted_by_the_width_of_its_numbers():
    assert fresh_bytes(10, 3, 5, "float32") == 800 + 4 * (100 + 65)
    assert fresh_bytes(10, 3, 5, "float64") == 800 + 8 * (100 + 65)


def test_a_sweep_is_announced_with_the_rate_that_this_machine_was_measured_to_have(cache, rng):
    calibrated().save()
    statistic = MomentStatistic(LandmarkMap(Gaussian(1.0), rng.normal(size=(8, 4)), np.dtype("f4")), Targets(1))
    events = []
    with observe(events.append):
        swept = sweep(as_rows(rng.normal(size=(50, 4)), np.zeros(50)), statistic, client="serial")
    (started,) = [event for event in events if isinstance(event, SweepStarted)]
    assert started.calibrated == rate_of(swept.plan) > 0
