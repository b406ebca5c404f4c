"""F53: a network that loses and delays packets, is cut for a while, or ends every connection.

All that client, scheduler and workers say to each other goes through relays, see `bad_network`. Hosts that are cut off
by their network interface are in `../cluster/hosts`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import dask
import pytest
from bad_network import relay
from drivers import D, leftovers, wait_until
from machines import Daemon, free_port, listens
from probes import Both, Sleep, Sums, Touch

from bigkernel import connect
from bigkernel.data import zarr_arrays
from bigkernel.engine.sweep import sweep
from bigkernel.errors import Stalled

pytestmark = [pytest.mark.slow, pytest.mark.cluster]
SUPPORT = str(Path(__file__).parents[1] / "support")
WORKERS = 2


@pytest.fixture
def network(fault_segments, tmp_path):
    """Start a scheduler and two workers; the address of the scheduler, and the relays before all three."""
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({"bigkernel.stall-seconds": 60}))

        def start(name, *words):
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join([SUPPORT, os.environ.get("PYTHONPATH", "")])}
            command = [sys.executable, "-m", "dask", *words, "--dashboard-address", "127.0.0.1:0"]
            daemon = Daemon(command, tmp_path / f"{name}.log", env=environment)
            stack.callback(daemon.end)
            return daemon

        def make(**habits):
            ports = [free_port() for _ in range(1 + WORKERS)]
            relays = [stack.enter_context(relay(port, **habits)) for port in ports]
            scheduler = start("scheduler", "scheduler", "--host", "tcp://127.0.0.1", "--port", str(ports[0]))
            scheduler.ready(lambda: listens("127.0.0.1", ports[0]))
            address = f"tcp://127.0.0.1:{relays[0].port}"
            for number in range(1, 1 + WORKERS):
                start(
                    str(number), "worker", address, "--nthreads", "1", "--memory-limit", "1GiB",
                    "--listen-address", f"tcp://127.0.0.1:{ports[number]}",
                    "--contact-address", f"tcp://127.0.0.1:{relays[number].port}",
                    "--local-directory", str(tmp_path), "--death-timeout", "60",
                )  # fmt: skip
            return address, relays

        yield make


def joined(client):
    """Wait for all workers."""
    wait_until(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == WORKERS, what="the workers")


def bits(swept):
    return zarr_arrays.digest(swept.total)


@pytest.mark.parametrize("keep", [False, True], ids=["no run", "a run"])
def test_F53_packets_that_are_lost_and_late_cost_time_alone(rows, clean, tmp_path, network, keep):
    address, relays = network(delay=0.01, loss=0.02)
    with connect(address) as client:
        joined(client)
        swept = sweep(rows, Sums(D), client=client, run=tmp_path / "run" if keep else None)
    assert sum(one.lost for one in relays) > 3
    assert bits(swept) == clean
    assert swept.report()["lost_workers"] == 0
    assert not keep or leftovers(tmp_path / "run") == []


def test_F53_a_network_that_is_cut_for_some_seconds_costs_them_alone(rows, clean, tmp_path, network):
    seen = Touch(str(tmp_path / "seen"))
    address, relays = network()
    with connect(address) as client:
        joined(client)

        def cut():
            wait_until(lambda: len(seen.starts()) > 4, what="some segments")
            for one in relays:
                one.cut()
            time.sleep(6)
            for one in relays:
                one.mend()

        thread = threading.Thread(target=cut)
        thread.start()
        begun = time.monotonic()
        swept = sweep(rows, Sums(D, seen), client=client, run=tmp_path / "run")
        took = time.monotonic() - begun
        thread.join(60)
    assert bits(swept) == clean
    assert took > 5
    assert leftovers(tmp_path / "run") == []


def test_F53_connections_that_all_end_are_a_named_error_that_a_new_cluster_goes_on_from(rows, clean, tmp_path, network):
    run, seen = tmp_path / "run", Touch(str(tmp_path / "seen"))
    slow = Sums(D, Both((seen, Sleep(0.1))))
    address, relays = network()

    def end():
        wait_until(lambda: len(seen.starts()) > 6, what="some segments")
        for one in relays:
            one.end_connections()

    thread = threading.Thread(target=end)
    with connect(address) as client:
        joined(client)
        thread.start()
        with pytest.raises(Stalled, match=r"(?s)the cluster was lost .* start it again and resume"):
            sweep(rows, slow, client=client, run=run)
    thread.join(60)
    address, _ = network()  # workers of Dask's own command end with their connection
    with connect(address) as client:
        joined(client)
        swept = sweep(rows, slow, client=client, run=run, resume=True)
    assert bits(swept) == clean
    assert swept.report()["resumed_segments"] >= 2
    assert leftovers(run) == []
