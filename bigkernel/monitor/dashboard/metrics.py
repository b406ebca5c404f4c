"""Prometheus metrics of the jobs on a scheduler: one collector over the boards of all schedulers in this process.

Dask's route `/metrics` writes what is registered with prometheus_client, including ours; `cluster/METRICS.md` lists the
metrics. Gauges are those of running jobs, so that series end with their jobs; counters last as long as the scheduler.
Without prometheus_client there are no metrics; nothing else changes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distributed import Status

from bigkernel.data.visible import all_visible, log_of
from bigkernel.events.board import steady
from bigkernel.events.plugin import board_of

if TYPE_CHECKING:
    from distributed import Scheduler
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

MOST_WORKERS = 20  # most workers of a sweep with series of their own, those with the highest peaks
MOST_LETTERS = 200  # longest label
MOST_NAMES = 32  # most values of a label that comes with the messages; the others are added up as "other"
_log = log_of(__name__)

_STATES = ("finished", "failed", "interrupted", "lost")
# key of `Board.totals`, name (`_total` is added), label or "" for the one known value, help, values known beforehand
_COUNTERS: tuple[tuple[str, str, str, str, Sequence[str]], ...] = (
    ("jobs", "bigkernel_jobs", "state", "Ended jobs, by outcome", _STATES),
    ("sweeps", "bigkernel_sweeps", "state", "Ended sweeps, by outcome", ("finished", "failed", "ended early")),
    ("segments", "bigkernel_finished_segments", "how", "Finished segments", ("computed", "resumed")),
    ("rows", "bigkernel_computed_rows", "", "Rows computed, not resumed", ("computed",)),
    ("flops", "bigkernel_computed_flops", "", "Floating-point operations, as planned for these rows", ("computed",)),
    ("stage_seconds", "bigkernel_stage_seconds", "stage", "Time in each stage, summed over workers and driver", ()),
    ("incidents", "bigkernel_incidents", "kind", "Faults survived by a job", ("retry", "worker", "repeat", "damage")),
)
_OF_SWEEP = ("job_id", "sweep")  # not `job`, which is Prometheus' own
# of a running sweep: key of its snapshot, name, help
_GAUGES = (
    ("rows", "bigkernel_sweep_rows", "Rows of a running sweep"),
    ("rows_done", "bigkernel_sweep_done_rows", "Rows of finished segments, resumed ones included"),
    ("rows_under_way", "bigkernel_sweep_under_way_rows", "Rows done in unfinished segments"),
    ("rows_resumed", "bigkernel_sweep_resumed_rows", "Rows resumed from the run"),
    ("elapsed_seconds", "bigkernel_sweep_elapsed_seconds", "Time since a running sweep began"),
    ("flops_per_second", "bigkernel_flops_per_second", "Mean rate, resumed segments not included"),
    ("planned_bytes", "bigkernel_planned_bytes", "Planned peak memory of a worker process"),
)


def totals_of(boards: Iterable[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the sums of the totals of several boards."""
    sums: dict[str, dict[str, float]] = {name: {} for name, *_ in _COUNTERS}
    for totals in boards:
        for name, into in sums.items():
            for label, value in dict(totals.get(name, {})).items():
                into[label] = into.get(label, 0) + value
    return sums


def families(totals: Mapping[str, Mapping[str, float]], jobs: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """Yield all metrics, for totals and the jobs of snapshots (`Board.snapshot`)."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

    for key, name, label, text, known in _COUNTERS:
        counter = CounterMetricFamily(name, text, labels=[label] if label else [])
        counts = {**dict.fromkeys(known, 0.0), **totals.get(key, {})}
        for value, count in _bounded(counts).items() if label else [("", counts[known[0]])]:
            counter.add_metric([value] if label else [], count)
        yield counter

    running = [job for job in jobs if job["state"] == "running"]
    yield GaugeMetricFamily("bigkernel_running_jobs", "Running jobs", value=len(running))
    info = InfoMetricFamily("bigkernel_job", "Title, host and run directory of a running job", labels=["job_id"])
    started = GaugeMetricFamily("bigkernel_job_start_time_seconds", "When a running job began", labels=["job_id"])
    pieces = ("job_id", "step")
    step_done = GaugeMetricFamily("bigkernel_step_done", "Pieces done of the current step of the driver", labels=pieces)
    step_all = GaugeMetricFamily("bigkernel_step_pieces", "Pieces in the current step of the driver", labels=pieces)
    for job in running:
        info.add_metric([job["id"]], {key: str(job[key]) for key in ("title", "host", "run")})
        started.add_metric([job["id"]], job["started"])
        if job["step"]:
            step_done.add_metric([job["id"], job["step"]["what"]], job["step"]["done"])
            step_all.add_metric([job["id"], job["step"]["what"]], job["step"]["total"])
    yield from (info, started, step_done, step_all)
    # by name, so that each has one series: a job has one running sweep, the latest
    sweeps = {(job["id"], s["what"]): s for job in running for s in job["sweeps"] if s["ended"] is None}
    yield from _sweep_families(sweeps)


def _sweep_families(sweeps: Mapping[tuple[str, str], Mapping[str, Any]]) -> Iterator[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    for key, name, text in _GAUGES:
        gauge = GaugeMetricFamily(name, text, labels=_OF_SWEEP)
        for labels, sweep in sweeps.items():
            if sweep[key] or key != "planned_bytes":
                gauge.add_metric(labels, sweep[key])
        yield gauge
    segments = GaugeMetricFamily("bigkernel_segments", "Segments of a running sweep", labels=[*_OF_SWEEP, "state"])
    bounds = "Remaining time of a running sweep: expected, and limits of about 95 % (low, high)"
    left = GaugeMetricFamily("bigkernel_remaining_seconds", bounds, labels=[*_OF_SWEEP, "bound"])
    workers = GaugeMetricFamily("bigkernel_busy_workers", "Workers with a segment under way", labels=_OF_SWEEP)
    peak = GaugeMetricFamily("bigkernel_peak_bytes", "Highest peak memory of a worker process", labels=_OF_SWEEP)
    highest_of = f"Peak memory of a worker process, for the {MOST_WORKERS} highest of a sweep"
    peaks = GaugeMetricFamily("bigkernel_worker_peak_bytes", highest_of, labels=[*_OF_SWEEP, "worker"])
    for labels, sweep in sweeps.items():
        for state, count in sweep["segments"].items():
            segments.add_metric([*labels, state], count)
        for bound, seconds in (sweep["remaining_seconds"] or {}).items():
            left.add_metric([*labels, bound], seconds)
        workers.add_metric(labels, len(set(sweep["running_on"].values())))
        known = {name: share["peak_bytes"] for name, share in sweep["workers"].items() if share["peak_bytes"]}
        highest = sorted(known, key=lambda name: (-known[name], name))
        if highest:
            peak.add_metric(labels, known[highest[0]])
        for name in highest[:MOST_WORKERS]:
            peaks.add_metric([*labels, name], known[name])
    yield from (segments, left, workers, peak, peaks)


def _bounded(counts: Mapping[str, float]) -> dict[str, float]:
    """Keep the first `MOST_NAMES` names, and add up the others."""
    names = list(counts)
    kept = {name: counts[name] for name in names[:MOST_NAMES]}
    if len(names) > MOST_NAMES:
        kept["other"] = kept.get("other", 0) + sum(counts[name] for name in names[MOST_NAMES:])
    return kept


class Collector:
    """Collects from the boards of live schedulers; prometheus_client calls `collect` on every scrape."""

    def __init__(self) -> None:
        self._schedulers: weakref.WeakSet[Scheduler] = weakref.WeakSet()
        self._failed = False

    def add(self, scheduler: Scheduler) -> None:
        """Collect from the board of a scheduler as long as it exists."""
        self._schedulers.add(scheduler)

    def describe(self) -> list[Metric]:
        """Return the metrics without values, used for checking duplicate names."""
        return list(families({}, ()))

    def collect(self) -> list[Metric]:
        """Return all metrics; failures are logged once, and the other metrics are returned."""
        try:
            living = [scheduler for scheduler in self._schedulers if scheduler.status is not Status.closed]
            boards = [board for scheduler in living if (board := board_of(scheduler)) is not None]
            jobs = [job for board in boards for job in board.snapshot(steady())["jobs"]]
            metrics = list(families(totals_of(board.totals for board in boards), jobs))
            for metric in metrics:  # labels are made printable ASCII
                letters = (one._replace(labels=all_visible(one.labels, most=MOST_LETTERS)) for one in metric.samples)
                metric.samples = list(letters)
            return metrics
        except Exception as error:
            if not self._failed:
                _log.warning("no job metrics: %s: %s", type(error).__name__, error)
            self._failed = True
            return []


_collector: Collector | None = None
_registering = threading.Lock()


def install(scheduler: Scheduler, *, registry: CollectorRegistry | None = None) -> bool:
    """Add the board of a scheduler to Prometheus; return whether prometheus_client is there.

    Registered once a process, in `registry` (default: that of the process, which Dask's route writes).
    """
    global _collector
    try:
        from prometheus_client import REGISTRY
    except ImportError:
        _log.info("prometheus_client is not installed: /metrics has no job metrics (pip install bigkernel[metrics])")
        return False
    with _registering:
        if _collector is None:
            made = Collector()
            (registry or REGISTRY).register(made)
            _collector = made
    _collector.add(scheduler)
    return True
