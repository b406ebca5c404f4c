"""Metrics for Prometheus: figures of the boards, counters that never fall, few labels; the table, Grafana's board."""

import builtins
import gc
import json
import logging
import re
import time
import urllib.request
from pathlib import Path

import dask
import pytest
import simulated
import yaml
from distributed import Client, LocalCluster, Status

from bigkernel.events.board import Board
from bigkernel.events.plugin import NAME, Monitor, board_of
from bigkernel.events.sinks import install_monitor
from bigkernel.monitor.dashboard import metrics

prometheus_client = pytest.importorskip("prometheus_client")

from prometheus_client.parser import text_string_to_metric_families  # noqa: E402

CLUSTER = Path(__file__).parents[2] / "cluster"


class Scheduler:
    """What the metrics use of a scheduler: its books and its status."""

    status = Status.running

    def __init__(self, board=None):
        self.board = board or Board()

    @property
    def plugins(self):
        monitor = Monitor()
        monitor.board = self.board
        return {NAME: monitor}


def fed(segments=40, workers=3, **options):
    board = Board()
    for message, now in simulated.messages(segments, workers, **options):
        board.apply(message, now)
    return board


def scrape(collector):
    """{(name, labels): value} of what a scrape gives, as prometheus_client's parser reads it."""
    registry = prometheus_client.CollectorRegistry()
    registry.register(collector)
    text = prometheus_client.generate_latest(registry).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            key = sample.name, tuple(sorted(sample.labels.items()))
            assert key not in found, "a series is there twice"
            found[key] = sample.value
    return found


def collected(*schedulers):
    collector = metrics.Collector()
    for scheduler in schedulers:
        collector.add(scheduler)
    return collector


def scraped(board):
    """What a scrape gives of one scheduler, which lives as long as that."""
    scheduler = Scheduler(board)
    return scrape(collected(scheduler))


def value(found, name, **labels):
    return found[name, tuple(sorted(labels.items()))]


OF_SWEEP = {"job_id": "simulated", "sweep": "moments"}


def test_the_figures_are_those_of_the_board():
    board = fed()
    found = scraped(board)
    sweep = board.snapshot(simulated.START)["jobs"][0]["sweeps"][0]
    assert value(found, "bigkernel_running_jobs") == 1
    assert value(found, "bigkernel_sweep_rows", **OF_SWEEP) == sweep["rows"] == 40 * 65_536
    assert value(found, "bigkernel_sweep_done_rows", **OF_SWEEP) == sweep["rows_done"] == 20 * 65_536
    assert value(found, "bigkernel_sweep_resumed_rows", **OF_SWEEP) == 4 * 65_536
    assert value(found, "bigkernel_sweep_under_way_rows", **OF_SWEEP) == sweep["rows_under_way"] > 0
    assert value(found, "bigkernel_planned_bytes", **OF_SWEEP) == 630e6
    assert value(found, "bigkernel_peak_bytes", **OF_SWEEP) == 550e6
    assert value(found, "bigkernel_busy_workers", **OF_SWEEP) == 3
    for state, count in sweep["segments"].items():
        assert value(found, "bigkernel_segments", state=state, **OF_SWEEP) == count
    assert value(found, "bigkernel_finished_segments_total", how="computed") == 16
    assert value(found, "bigkernel_finished_segments_total", how="resumed") == 4
    # rows under way were computed too, and are counted when their segments are done
    assert value(found, "bigkernel_computed_rows_total") == board.totals["rows"]["computed"] >= 16 * 65_536
    assert value(found, "bigkernel_computed_flops_total") == pytest.approx(board.totals["flops"]["computed"])
    assert value(found, "bigkernel_stage_seconds_total", stage="gram") == pytest.approx(sweep["stage_seconds"]["gram"])
    assert value(found, "bigkernel_incidents_total", kind="worker") == sweep["incidents"].get("worker", 0)
    low, expected, high = (
        value(found, "bigkernel_remaining_seconds", bound=bound, **OF_SWEEP) for bound in ("low", "expected", "high")
    )
    assert low <= expected <= high
    info = next(dict(labels) for name, labels in found if name == "bigkernel_job_info")
    assert info == {"job_id": "simulated", "title": "fit simulated", "host": "node1", "run": ""}


def test_a_job_that_has_ended_leaves_counters_and_no_series_of_its_own():
    found = scraped(fed(finished=True))
    assert value(found, "bigkernel_jobs_total", state="finished") == 1
    assert value(found, "bigkernel_sweeps_total", state="finished") == 1
    assert not [labels for _, labels in found if dict(labels).get("job_id")]
    assert value(found, "bigkernel_stage_seconds_total", stage="solve") == 1.5


def test_counters_never_fall_when_segments_are_released():
    scheduler = Scheduler()
    collector = collected(scheduler)
    before = scrape(collector)
    for i, (message, now) in enumerate(simulated.messages(24, 4, finished=True)):
        scheduler.board.apply(message, now)
        if message["kind"] == "merged" or (i % 7 == 0 and message["kind"] == "segment"):
            node = message["node"] if message["kind"] == "merged" else message["receipt"]["node"]
            scheduler.board.apply({"kind": "released", "sweep": message["sweep"], "node": node}, now)
        after = scrape(collector)
        assert not {key for key in before if key[0].endswith("_total") and after[key] < before[key]}
        before = after
    assert value(before, "bigkernel_computed_rows_total") >= 21 * 65_536


def test_a_scheduler_that_is_closed_or_gone_shows_no_job():
    open_one, closed = Scheduler(fed()), Scheduler(fed(job="other"))
    collector = collected(open_one, closed)
    assert value(scrape(collector), "bigkernel_running_jobs") == 2
    closed.status = Status.closed
    assert value(scrape(collector), "bigkernel_running_jobs") == 1
    del open_one
    gc.collect()
    assert value(scrape(collector), "bigkernel_running_jobs") == 0


def test_dask_shows_the_metrics_of_a_scheduler_that_a_job_ran_on():
    with (
        dask.config.set({"distributed.scheduler.http.routes": ["distributed.http.scheduler.prometheus"]}),
        LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        assert install_monitor(client)
        for message, _ in simulated.messages(40, 3, job="shown"):
            client.run_on_scheduler(_apply, message)
        port = cluster.scheduler.http_server.port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            text = answer.read().decode()
    series = [s for f in text_string_to_metric_families(text) for s in f.samples]
    assert {"bigkernel_segments", "dask_scheduler_workers"} <= {sample.name for sample in series}
    done = [s.value for s in series if s.name == "bigkernel_sweep_done_rows" and s.labels["job_id"] == "shown"]
    assert done == [20 * 65_536]


def _apply(message, dask_scheduler):
    board_of(dask_scheduler).apply(message, time.time())


def test_series_stay_few_however_many_workers_jobs_and_names_there_are():
    board = Board()
    for job in range(5):
        for message, now in simulated.messages(200, 100, job=f"job-{job}", finished=job > 0):
            board.apply(message, now)
    for i in range(100):
        spent = {"kind": "spent", "job": "job-0", "sweep": "", "stage": f"stage-{i}", "seconds": 1.0}
        board.apply(spent, now)
    found = scraped(board)
    workers = [labels for name, labels in found if name == "bigkernel_worker_peak_bytes"]
    assert len(workers) == metrics.MOST_WORKERS
    stages = {
        dict(labels)["stage"]: v for (name, labels), v in found.items() if name == "bigkernel_stage_seconds_total"
    }
    assert len(stages) == metrics.MOST_NAMES + 1
    assert stages["other"] > 0
    assert sum(stages.values()) == pytest.approx(sum(board.totals["stage_seconds"].values()))
    assert len(found) < 120


def test_a_board_that_fails_is_logged_once_and_leaves_the_metrics_of_others_alone(caplog):
    scheduler = Scheduler()
    scheduler.board.snapshot = lambda now: 1 / 0
    registry = prometheus_client.CollectorRegistry()
    registry.register(collected(scheduler))
    prometheus_client.Gauge("other", "of somebody else", registry=registry).set(3)
    for _ in range(3):
        assert b"\nother 3.0\n" in prometheus_client.generate_latest(registry)
    assert [record.getMessage() for record in caplog.records] == ["no job metrics: ZeroDivisionError: division by zero"]


def test_installing_twice_registers_one_collector(monkeypatch):
    registry = prometheus_client.CollectorRegistry()
    monkeypatch.setattr(metrics, "_collector", None)
    schedulers = [Scheduler(fed()), Scheduler(fed(job="other"))]
    assert [metrics.install(scheduler, registry=registry) for scheduler in schedulers] == [True, True]
    assert b"bigkernel_running_jobs 2.0" in prometheus_client.generate_latest(registry)


def test_without_prometheus_client_there_is_one_line_in_the_log_and_nothing_else(monkeypatch, caplog):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("prometheus_client"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(metrics, "_collector", None)
    monkeypatch.setattr(builtins, "__import__", without)
    with caplog.at_level(logging.INFO):
        assert metrics.install(Scheduler()) is False
    assert ["prometheus_client is not installed" in record.getMessage() for record in caplog.records] == [True]
    assert {record.levelname for record in caplog.records} == {"INFO"}


# ---------------------------------------------------------------- the files in cluster/


def described():
    """{name of a family: (type, labels)} of all metrics, labels from a job with everything."""
    board = fed(60, 4)
    board.apply({"kind": "step", "job": "simulated", "sweep": "", "what": "solves", "done": 1, "total": 2}, 0.0)
    families = metrics.families(board.totals, board.snapshot(simulated.START + 1)["jobs"])
    found = {}
    for family in families:
        for sample in family.samples:
            unit = found.setdefault(sample.name, (family.type, set()))
            unit[1].update(sample.labels)
    return found


def table():
    """Rows of the table of metrics: name, type, unit, labels."""
    row = r"^\| `(bigkernel_\w+)` \| (\w+) \|([^|]*)\|([^|]*)\|"
    return re.findall(row, (CLUSTER / "METRICS.md").read_text(), re.M)


def test_the_table_of_metrics_names_those_that_there_are_with_types_and_labels():
    known = described()
    assert {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, _, labels in table()} == known
    assert set(re.findall(r"\bbigkernel_\w+", (CLUSTER / "METRICS.md").read_text())) == set(known)


def test_the_board_of_grafana_names_only_metrics_and_labels_that_there_are():
    board = json.loads((CLUSTER / "grafana.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
    expressions += [v["query"]["query"] for v in board["templating"]["list"] if v["type"] == "query"]
    assert len(expressions) >= 12
    known = described()
    used = set()
    for expression in expressions:
        names = set(re.findall(r"\bbigkernel_\w+", expression))
        assert names, expression
        assert names <= set(known), expression
        used |= names
        for name, matchers in re.findall(r"(bigkernel_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)\s*[=!]~?", matchers)) <= known[name][1], expression
    assert len(used) >= 12


def test_prometheus_asks_loopback_only_and_where_cluster_dask_yaml_serves_metrics():
    config = yaml.safe_load((CLUSTER / "prometheus.yml").read_text())
    targets = [t for job in config["scrape_configs"] for group in job["static_configs"] for t in group["targets"]]
    assert "127.0.0.1:8787" in targets
    assert all(target.startswith("127.0.0.1:") for target in targets)
    assert all(job.get("metrics_path", "/metrics") == "/metrics" for job in config["scrape_configs"])
