"""F38: whatever shows a job may fail, and the job goes on; and what the scheduler tells a driver of its own sweeps.

That a job runs without bokeh, and where the dashboard's port is taken, is in `test_security.py`.
"""

import logging
import subprocess
import sys

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
    """The latest job of this title on the scheduler's board."""
    return next(job for job in state(client)["jobs"] if job["title"] == title)


def test_the_scheduler_knows_of_a_sweep_what_its_receipts_say(rows, client, tmp_path):
    with executing(client, run=tmp_path / "run", command=["known"]):
        swept = sweep(rows, SLEEPY, what="sums")
    found = job(client, "known")
    (told,) = found["sweeps"]
    assert (found["state"], told["state"], told["states"]) == ("finished", "finished", "m" * SEGMENTS)
    assert told["rows_done"] == sum(receipt.rows for receipt in swept.receipts) == N
    assert {name: share["segments"] for name, share in told["workers"].items()} == {
        worker: sum(receipt.worker == worker for receipt in swept.receipts)
        for worker in {receipt.worker for receipt in swept.receipts}
    }
    assert told["stops"] == [receipt.stop for receipt in swept.receipts]
    assert told["plan"] == swept.plan.summary()
    stages = {name: seconds for name, seconds in told["stage_seconds"].items() if name != "merge"}
    assert stages == pytest.approx(
        {name: value for name, value in swept.report()["stage_seconds"].items() if name != "merge"}
    )
    assert set(state(client)["workers"]) == set(client.scheduler_info(n_workers=-1)["workers"])


def test_running_segments_and_merges_are_told_to_the_driver_while_they_run(rows, client):
    events = []
    with observe(events.append):
        sweep(rows, Sums(D, Sleep(0.25)), client=client)
    pulses = [event for event in events if isinstance(event, Pulse)]
    assert {pulse.node for pulse in pulses} <= {leaf(i) for i in range(SEGMENTS)}
    assert len({pulse.node for pulse in pulses if pulse.rows == 0}) >= SEGMENTS // 2
    assert any(0 < pulse.rows < N for pulse in pulses)
    assert {event.node for event in events if isinstance(event, Merged)} <= {node for node, *_ in merge_tree(SEGMENTS)}
    assert [event.done for event in events if isinstance(event, SegmentDone)] == list(range(1, SEGMENTS + 1))


def test_a_driver_that_dies_has_lost_its_job_and_one_that_ends_has_not(rows, client, fault_corpus, tmp_path):
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
