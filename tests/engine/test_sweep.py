"""The sweep: one suite for every executor. The serial one is the specification; all give its bits."""

from __future__ import annotations

import contextlib
import threading
import time

import dask
import dask.array as da
import numpy as np
import pytest
import reference
import zarr
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from probes import FailingDisk, Sums, Touch, bits

from bigkernel.config import settings
from bigkernel.data import zarr_arrays
from bigkernel.engine import tasks
from bigkernel.engine.context import executing
from bigkernel.engine.executor import RunningSweep, SweepSpec, schedule
from bigkernel.engine.process import blas_threads, processors
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import choose_executor, plan_sweep, sweep
from bigkernel.engine.tasks import SweepTask
from bigkernel.errors import ConfigError, DataError, ResumeMismatchError
from bigkernel.events.job import JobEnded, JobStarted, Merged, Pulse, SegmentDone, SweepEnded, observe
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.kernels.functions import Gaussian
from bigkernel.statistics.moments import Moments, MomentStatistic, Targets
from bigkernel.streaming.plan import Footprint, Receipt, ancestors_of, leaf, merge_tree, plan
from bigkernel.streaming.row_maps import Scale, UnitNorm

N, D, M = 230, 4, 6
rng = np.random.default_rng(21)
X = rng.normal(size=(N, D))
LARGE = X * 10.0 ** rng.integers(-8, 8, (N, 1))  # the order of summation shows in the bits
Y = rng.integers(-1, 3, N)
WEIGHT = rng.uniform(0, 2, N)
Z = rng.normal(size=(M, D))
STATISTIC = MomentStatistic(LandmarkMap(Gaussian(1.2), Z, np.dtype("f4")), Targets(3, np.arange(3)), "keep")
SOURCES = ["dask", "zarr", "corpus"]

pytestmark = pytest.mark.usefixtures("small_steps")


@pytest.fixture(params=["serial", "threads", pytest.param("dask", marks=pytest.mark.cluster)])
def executor(request):
    """What `sweep` takes as its client."""
    return request.getfixturevalue("client") if request.param == "dask" else request.param


@pytest.fixture
def build(tmp_path, make_corpus):
    """The same rows, from a source of the given kind."""

    def make(kind="corpus", x=X, y=Y):
        weight = WEIGHT[: len(x)]
        if kind == "memory":
            return as_rows(x, y, weight=weight)
        if kind == "corpus":
            return as_rows(make_corpus(x, y=y, weight=weight, classes=(0, 1, 2)))
        if kind == "dask":
            return as_rows(da.from_array(x, chunks=(25, D)), da.from_array(y, chunks=60), weight=weight)
        zarr.create_array(tmp_path / "foreign", chunks=(5, 2), shards=(25, D), data=x)
        return as_rows(zarr.open_array(tmp_path / "foreign", mode="r"), y, weight=weight)

    return make


@pytest.mark.parametrize("kind", ["memory", *SOURCES])
def test_every_executor_gives_the_bits_of_the_serial_one(build, executor, kind):
    rows = build(kind, LARGE)
    for statistic in (STATISTIC, Sums(D)):
        expected = sweep(rows, statistic, client="serial")
        swept = sweep(rows, statistic, client=executor)
        assert bits(swept) == bits(expected)
        assert swept.plan == expected.plan == plan_sweep(rows, statistic)
        assert len(swept.plan.segments) >= 5


@pytest.mark.parametrize("kind", SOURCES)
def test_the_sweep_gives_the_dense_moments(build, executor, kind):
    total = sweep(build(kind).map(Scale(0.5)).map(UnitNorm()), STATISTIC, client=executor).total
    rows = X / np.linalg.norm(X, axis=1)[:, None]
    B, known = reference.gaussian(rows, Z, 1.2), Y >= 0
    one_hot = (Y[known, None] == np.arange(3)).astype(float)
    for group, mask, targets in ((1, known, one_hot), (0, ~known, np.zeros(((~known).sum(), 3)))):
        expected = reference.moments(B[mask], targets, WEIGHT[mask])
        result = Moments.of(total, group)
        for name, values in expected.items():
            assert_allclose(getattr(result, name), values, rtol=1e-5, atol=1e-4, err_msg=name)


def test_a_run_changes_no_bit_and_is_resumed_by_any_executor(build, executor, tmp_path):
    rows, touch = build(x=LARGE), Touch(str(tmp_path / "touched"))
    expected = bits(sweep(rows, Sums(D, touch), client="serial"))
    count = len(touch.starts())
    assert bits(sweep(rows, Sums(D, touch), client=executor, run=tmp_path / "run")) == expected
    assert len(touch.starts()) == 2 * count
    for again in (executor, "serial"):
        resumed = sweep(rows, Sums(D, touch), client=again, run=tmp_path / "run", resume=True)
        assert bits(resumed) == expected
        assert all(receipt.resumed for receipt in resumed.receipts)
    assert len(touch.starts()) == 2 * count
    with pytest.raises(ResumeMismatchError, match="statistic"):
        sweep(rows, STATISTIC, client=executor, run=tmp_path / "run", resume=True)


def test_an_error_of_the_disk_that_passes_is_tried_again(build, executor, tmp_path):
    rows = build(x=LARGE)
    clean = bits(sweep(rows, Sums(D), client="serial"))
    passes, stays = (FailingDisk(str(tmp_path / name), 150, times) for name, times in (("2", 2), ("more", 10**6)))
    assert bits(sweep(rows, Sums(D, passes), client=executor)) == clean
    with pytest.raises(DataError, match="Input/output error"):
        sweep(rows, Sums(D, stays), client=executor)
    assert len(Touch(passes.path).starts()) == len(Touch(stays.path).starts()) == 3


def test_rows_that_are_not_finite_and_labels_outside_the_classes_are_named(build, executor):
    x, y = X.copy(), Y.copy()
    x[[57, 58, 190], 1] = np.nan, np.inf, np.nan
    y[57] = 7
    with pytest.raises(DataError, match=r"2 of rows 50 to 74 .*\[57, 58\]|1 of rows 175 to 199 .*\[190\]"):
        sweep(build("dask", x=x), Sums(D), client=executor)
    with pytest.raises(DataError, match=r"y: row 57 has the label .*7.*, which is not one of the classes"):
        sweep(build(y=y), STATISTIC, client=executor)


def test_no_rows_give_the_accumulator_of_no_rows(build, executor):
    rows = build(x=X[:0], y=Y[:0])
    for statistic in (STATISTIC, Sums(D)):
        swept = sweep(rows, statistic, client=executor)
        assert bits(swept) == zarr_arrays.digest(statistic.zero())


def test_receipts_cover_the_rows_in_order_with_bytes_seconds_and_workers(build, executor):
    rows = build()
    swept = sweep(rows, Sums(D), client=executor)
    spans = [(receipt.start, receipt.stop) for receipt in swept.receipts]
    assert spans == [(segment.start, segment.stop) for segment in swept.plan.segments]
    assert [receipt.node for receipt in swept.receipts] == [leaf(segment.index) for segment in swept.plan.segments]
    assert sum(receipt.bytes_read for receipt in swept.receipts) == swept.plan.bytes_read == 8 * N * D
    assert all(receipt.elapsed > 0 and receipt.peak_bytes > 10**7 and receipt.worker for receipt in swept.receipts)
    report = swept.report()
    assert report["rows"] == N
    assert report["executor"] == (executor if isinstance(executor, str) else "dask")
    assert {"read", "convert"} <= set(report["stage_seconds"])
    assert report["peak_bytes"] == max(receipt.peak_bytes for receipt in swept.receipts)
    assert report["gflops_per_second"] == pytest.approx(swept.plan.flops / swept.seconds / 1e9)


def test_observers_get_an_event_for_every_segment(build, executor):
    rows, events = build(), []
    with observe(events.append):
        swept = sweep(rows, Sums(D), client=executor, what="counting")
    sweep(rows, Sums(D), client=executor)
    opening, started, *_, ended, ending = events
    segments = [event for event in events if isinstance(event, SegmentDone)]
    count = len(swept.plan.segments)
    assert (opening, ending) == (JobStarted("counting"), JobEnded("finished"))
    assert (started.what, started.executor, started.plan) == ("counting", swept.executor, swept.plan)
    assert [(event.done, event.total) for event in segments] == [(i + 1, count) for i in range(count)]
    assert {event.receipt.node for event in segments} == {leaf(i) for i in range(count)}
    assert ended == SweepEnded(swept.seconds, stages={"merge": swept.merge_seconds})
    if executor in ("serial", "threads"):
        assert {event.node for event in events if isinstance(event, Pulse)} == {leaf(i) for i in range(count)}
        assert {event.node for event in events if isinstance(event, Merged)} == {node for node, *_ in merge_tree(count)}


def test_a_running_segment_sends_its_rows_block_by_block_and_the_seconds_of_its_stages(build, monkeypatch):
    monkeypatch.setattr(tasks, "PULSE_SECONDS", 0.0)
    events = []
    with observe(events.append):
        swept = sweep(build(), STATISTIC, client="serial")
    for segment, receipt in zip(swept.plan.segments, swept.receipts, strict=True):
        pulses = [event for event in events if isinstance(event, Pulse) and event.node == receipt.node]
        rows = [pulse.rows for pulse in pulses]
        assert (rows[0], rows[-1]) == (0, segment.stop - segment.start)
        assert 0 <= min(np.diff(rows)) <= max(np.diff(rows)) <= settings().block_rows < max(np.diff(segment.bounds))
        assert pulses[-1].seconds == receipt.seconds
        assert {"read", "block", "gram"} <= set(pulses[0].seconds | pulses[1].seconds)


def test_an_observer_that_raises_is_dropped_with_one_warning(build, executor):
    events, calls = [], []

    def broken(event):
        calls.append(event)
        if len(calls) == 2:
            raise RuntimeError("port taken")

    with (
        observe(broken, events.append),
        pytest.warns(RuntimeWarning, match="dropping an observer.*port taken") as caught,
    ):
        swept = sweep(build(), Sums(D), client=executor)
    assert swept.total["rows"] == [N]
    assert len(calls) == 2
    assert len(caught) == 1
    assert sum(isinstance(event, SegmentDone) for event in events) == len(swept.plan.segments)


def test_the_choice_of_client_and_run_holds_inside_a_block(build, executor, tmp_path):
    rows = build()
    with executing(executor, run=tmp_path / "runs"):
        swept = sweep(rows, Sums(D), what="counting")
    assert swept.executor == (executor if isinstance(executor, str) else "dask")
    assert (tmp_path / "runs" / "counting" / "manifest.json").is_file()
    with executing(executor, run=tmp_path / "runs", resume=True):
        assert bits(sweep(rows, Sums(D), what="counting")) == bits(swept)
    with executing(executor):
        assert sweep(rows, Sums(D), client="serial").executor == "serial"
    assert choose_executor(rows) == "threads"


@given(
    n=st.integers(0, 200),
    settings=st.fixed_dictionaries(
        {
            "bigkernel.chunk-bytes": st.integers(1024, 4000),
            "bigkernel.min-segments": st.integers(1, 12),
            "bigkernel.segment-rows": st.integers(1, 100),
            "bigkernel.block-rows": st.integers(1, 100),
        }
    ),
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=8),
)
def test_any_plan_gives_the_same_numbers_to_rounding(n, settings, sizes):
    with dask.config.set(settings):
        for rows, x in (
            (as_rows(X[:n]), X[:n]),
            (as_rows(da.from_array(X[: sum(sizes)], chunks=(tuple(sizes), D))), X[: sum(sizes)]),
        ):
            for client in ("serial", "threads"):
                total = sweep(rows, Sums(D), client=client).total
                assert total["rows"] == [len(x)]
                assert_allclose(total["sum"], x.sum(axis=0), rtol=1e-12, atol=1e-11)


def test_an_invalid_client_is_refused(build):
    rows = build()
    for wrong in ("processes", "dask", 3, object()):
        with pytest.raises(ConfigError, match=r"client: expected a distributed\.Client, 'serial', 'threads' or None"):
            sweep(rows, Sums(D), client=wrong)


def test_blas_has_one_thread_during_a_sweep_and_its_own_again_after_it():
    class Spy(Sums):
        def update(self, total, chunk):
            counts.update(blas_threads().values())
            super().update(total, chunk)

    before = blas_threads()
    for client in ("serial", "threads"):
        counts: set[int] = set()
        sweep(as_rows(X), Spy(D), client=client)
        assert counts == {1}
        with contextlib.suppress(DataError):
            sweep(as_rows(X * np.nan), Sums(D), client=client)
        assert blas_threads() == before


def test_threads_begin_the_next_segments_before_partials_are_merged(monkeypatch):
    class Patient(Sums):
        def zero(self):
            begun.append(1)
            if len(begun) == 4:
                all_begun.set()
            return super().zero()

        def merge(self, a, b, **how):
            waited.append(all_begun.wait(60))
            return super().merge(a, b, **how)

    begun, waited, all_begun = [], [], threading.Event()
    monkeypatch.setattr("bigkernel.engine.sweep.processors", lambda: 2)
    rows = as_rows(X)
    assert len(plan_sweep(rows, Sums(D)).segments) >= 4
    assert sweep(rows, Patient(D), client="threads").total["rows"] == [N]
    assert all(waited)


def test_an_error_stops_the_threads_and_is_raised_as_it_is(tmp_path):
    class Slow(Touch):
        def __call__(self, chunk):
            super().__call__(chunk)
            time.sleep(0.2 * (chunk.start > 0))  # the first chunk fails meanwhile

    touch, x = Slow(str(tmp_path / "touched")), LARGE.copy()
    x[3] = np.nan
    with pytest.raises(DataError, match=r"\[3\]"):
        sweep(as_rows(x), Sums(D, touch), client="threads")
    assert len(touch.starts()) <= processors() + 1


@given(count=st.integers(1, 300))
def test_the_tree_merges_every_segment_once_in_order(count):
    merges = merge_tree(count)
    assert len(merges) == count - 1
    held = {leaf(i): [i] for i in range(count)}
    for node, left, right in merges:
        # children before parents, each used once, and the left one is the earlier
        held[node] = held.pop(left) + held.pop(right)
    (order,) = held.values()
    assert order == list(range(count))
    depth = max((int(node.split("-")[0]) for node, _, _ in merges), default=0)
    assert depth <= int(np.ceil(np.log2(count))) + (count == 0)


@given(count=st.integers(1, 60), data=st.data())
def test_partials_may_finish_in_any_order(count, data):
    order = data.draw(st.permutations(range(count)))
    values = 10.0 ** np.random.default_rng(count).integers(-12, 12, (count, 1))

    steps = plan(range(count + 1), 1, 8, Footprint(1.0, 8, 8), segment_rows=1)
    spec = SweepSpec(as_rows(values), Sums(1), steps, settings(), "sums", "serial", None, 1, None)

    def merged(order):
        work = RunningSweep(spec, SweepTask(Sums(1), 16), schedule(steps), "", None)
        for i in order:
            work.hold(({"sum": values[i].copy(), "rows": np.ones(1)}, Receipt(leaf(i), i, i + 1)))
        ((total, _),) = work.held.values()
        return total

    assert zarr_arrays.digest(merged(order)) == zarr_arrays.digest(merged(range(count)))


@given(count=st.integers(1, 100))
def test_the_ancestors_of_a_node_are_those_that_contain_it_nearest_first(count):
    merges = merge_tree(count)
    inside = {leaf(i): {i} for i in range(count)}
    for node, left, right in merges:
        inside[node] = inside[left] | inside[right]
    above = ancestors_of(merges)
    for node, rows in inside.items():
        containing = sorted((name for name in inside if inside[name] > rows), key=lambda name: len(inside[name]))
        assert list(above.get(node, ())) == containing


@pytest.mark.parametrize(
    ("script", "title"), [("/a/pipelines/__main__.py", "pipelines"), ("/a/fit.py", "fit.py"), ("", "python")]
)
def test_a_job_without_a_command_has_the_name_of_its_script_or_package(monkeypatch, script, title):
    monkeypatch.setattr("sys.argv", [script] if script else [])
    events = []
    with observe(events.append), executing("serial"):
        pass
    assert events[0] == JobStarted(title)
