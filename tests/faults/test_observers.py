"""F38: failures of displays do not end a job; the scheduler reports sweeps to drivers and pages."""

import logging
import subprocess
import sys
from collections import Counter

import pytest
from drivers import SEGMENTS, D, N, wait_until
from probes import Sleep, Sums

from bigkernel import connect, executing, sweep
from bigkernel.data import zarr_arrays
from bigkernel.events.job import Merged, Pulse, SegmentDone, observe
from bigkernel.events.plugin import state_of
from bigkernel.streaming.plan import leaf, merge_tree

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("fault_segments")]
SLEEPY = Sums(D, Sleep(0.03))  # two chunks a segment


def state(client):
    return client.run_on_scheduler(state_of)


def job(client, title):
    """Return the latest job of this title on the scheduler's board."""
    return next(job for job in state(client)["jobs"] if job["title"] == title)


def test_the_board_of_the_scheduler_agrees_with_the_receipts(rows, client, tmp_path):
    with executing(client, run=tmp_path / "run", command=["known"]):
        swept = sweep(rows, SLEEPY, what="sums")
    known = job(client, "known")
    (shown,) = known["sweeps"]
    assert (known["state"], shown["state"], shown["states"]) == ("finished", "finished", "m" * SEGMENTS)
    assert shown["rows_done"] == sum(receipt.rows for receipt in swept.receipts) == N
    segments = Counter(receipt.worker for receipt in swept.receipts)
    assert {name: share["segments"] for name, share in shown["workers"].items()} == segments
    assert shown["stops"] == [receipt.stop for receipt in swept.receipts]
    assert shown["plan"] == swept.plan.summary()
    stages, expected = shown["stage_seconds"], swept.report()["stage_seconds"]
    assert {**stages, "merge": 0} == pytest.approx({**expected, "merge": 0})
    assert set(state(client)["workers"]) == set(client.scheduler_info(n_workers=-1)["workers"])


def test_running_segments_and_merges_are_reported_to_the_driver(rows, client):
    events = []
    with observe(events.append):
        sweep(rows, Sums(D, Sleep(0.25)), client=client)
    pulses = [event for event in events if isinstance(event, Pulse)]
    assert {pulse.node for pulse in pulses} <= {leaf(i) for i in range(SEGMENTS)}
    assert len({pulse.node for pulse in pulses if pulse.rows == 0}) >= SEGMENTS // 2
    assert any(0 < pulse.rows < N for pulse in pulses)
    assert {event.node for event in events if isinstance(event, Merged)} <= {node for node, *_ in merge_tree(SEGMENTS)}
    assert [event.done for event in events if isinstance(event, SegmentDone)] == list(range(1, SEGMENTS + 1))


def test_the_job_of_a_killed_driver_is_shown_as_lost(rows, client, fault_corpus, tmp_path):
    code = f"""
import dask, os, sys
sys.path[:0] = {sys.path!r}
from distributed import Client
from probes import Sleep, Sums
from bigkernel import executing, open_corpus, sweep
from bigkernel.engine.rows import as_rows
with Client({client.scheduler.address!r}) as client, executing(client, command=["doomed"]):
    sweep(as_rows(open_corpus({fault_corpus.path!r})), Sums({D}, Sleep(5)))
"""
    driver = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: any(job["title"] == "doomed" and job["sweeps"] for job in state(client)["jobs"]))
    finally:
        driver.kill()
        driver.wait()
    wait_until(lambda: job(client, "doomed")["state"] != "running")
    assert job(client, "doomed")["state"] == "lost"


@pytest.mark.slow
def test_a_page_that_cannot_be_installed_costs_one_warning(rows, clean, monkeypatch, caplog):
    import bigkernel.monitor.dashboard.server as server

    def broken(scheduler):
        raise ValueError("no such template")

    monkeypatch.setattr(server, "install", broken)
    with caplog.at_level(logging.WARNING, "bigkernel"), connect("local", workers=1, dashboard=0) as client:
        assert zarr_arrays.digest(sweep(rows, Sums(D), client=client).total) == clean
    texts = [record.getMessage() for record in caplog.records if record.name.startswith("bigkernel")]
    assert texts == ["bigkernel.monitor.dashboard.server: not shown (ValueError: no such template)"]
