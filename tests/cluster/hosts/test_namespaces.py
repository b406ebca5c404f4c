"""Two hosts in network namespaces on a bridge, encrypted: the bits of one process, also when a host is cut off."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from drivers import wait_until
from machines import free_port, listens
from probes import Both, Sleep, Sums, Touch

from bigkernel import connect
from bigkernel.cluster.certificates import make_certificates
from bigkernel.cluster.cluster_file import ClusterFile
from bigkernel.data import zarr_arrays
from bigkernel.engine.preflight import wait_for_workers
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep

pytestmark = [pytest.mark.slow, pytest.mark.namespaces, pytest.mark.cluster]
ROOT = Path(__file__).parents[3]
TTL_SECONDS = 6  # the scheduler gives a silent worker up after this
CUT_SECONDS = 13  # and after 30 s connections end on both sides, and the worker with them, for good


def ip(*words):
    subprocess.run(["ip", *map(str, words)], capture_output=True, text=True, timeout=20, check=True)


@dataclass(frozen=True)
class Network:
    """A bridge with the address `net`.1 here, and hosts with `net`.11, `net`.12, each in a namespace."""

    name: str
    net: str

    def host(self, number):
        return f"{self.net}.1{number}"

    def inside(self, number):
        """The words before a command that runs on this host."""
        return ["ip", "netns", "exec", f"{self.name}h{number}"]

    def cut(self, number):
        ip("link", "set", f"{self.name}v{number}", "down")

    def mend(self, number):
        ip("link", "set", f"{self.name}v{number}", "up")


@pytest.fixture(scope="module")
def network():
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces are made by root with `ip` (Debian: iproute2)")
    # addresses for measuring devices (RFC 2544), which no other network here has; names of at most 15 characters
    made = Network(f"bk{os.getpid() % 10**6}", f"198.18.{os.getpid() % 254 + 1}")
    try:
        ip("link", "add", made.name, "type", "bridge")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"a bridge cannot be made here: {error.stderr.strip()}")
    try:
        ip("address", "add", f"{made.net}.1/24", "dev", made.name)
        ip("link", "set", made.name, "up")
        for number in (1, 2):
            host, here, there = f"{made.name}h{number}", f"{made.name}v{number}", f"{made.name}e{number}"
            ip("netns", "add", host)
            ip("link", "add", here, "type", "veth", "peer", "name", there)
            ip("link", "set", there, "netns", host)
            ip("link", "set", here, "master", made.name, "up")
            for words in (("link", "set", "lo", "up"), ("link", "set", there, "up")):
                ip("-n", host, *words)
            ip("-n", host, "address", "add", f"{made.host(number)}/24", "dev", there)
        yield made
    finally:
        for number in (1, 2):
            subprocess.run(["ip", "netns", "delete", f"{made.name}h{number}"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "delete", made.name], capture_output=True, check=False)


def by_tls(keys):
    return ["--tls-ca-file", keys / "ca.pem", "--tls-cert", keys / "cert.pem", "--tls-key", keys / "key.pem"]


@dataclass(frozen=True)
class Cluster:
    """A scheduler on the bridge, a worker on each host, and how to start one more."""

    network: Network
    file: ClusterFile
    environment: dict[str, str]
    scratch: Path

    def worker(self, number, *before):
        words = [*self.network.inside(number), *before, sys.executable, "-m", "dask", "worker", self.file.address]
        words += ["--host", f"tls://{self.network.host(number)}", "--dashboard-address", "127.0.0.1:0"]
        words += [
            *by_tls(self.file.tls),
            "--nthreads",
            "1",
            "--memory-limit",
            "1GiB",
            "--local-directory",
            self.scratch,
        ]
        return words


@pytest.fixture(scope="module")
def hosts(network, tmp_path_factory, daemon):
    """As cluster/tls.yaml says."""
    place, here = tmp_path_factory.mktemp("tls"), f"{network.net}.1"
    make_certificates(place / "keys")
    environment = {
        **os.environ,
        "DASK_CONFIG": str(ROOT / "cluster" / "dask.yaml"),
        "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": f"{TTL_SECONDS}s",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2] / "support"), os.environ.get("PYTHONPATH", "")]),
    }
    port = free_port()
    words = [
        sys.executable,
        "-m",
        "dask",
        "scheduler",
        *by_tls(place / "keys"),
        "--host",
        f"tls://{here}",
        "--port",
        port,
    ]
    scheduler = daemon(*words, "--dashboard-address", "127.0.0.1:0", env=environment)
    scheduler.ready(lambda: listens(here, port))
    file = ClusterFile(kind="address", address=f"tls://{here}:{port}", tls=place / "keys")
    cluster = Cluster(network, file, environment, place)
    for number in (1, 2):
        daemon(*cluster.worker(number), env=environment)
    return cluster


def addresses(client):
    return sorted(address.split("/")[2].split(":")[0] for address in client.scheduler_info(n_workers=-1)["workers"])


def test_a_host_that_is_cut_off_in_the_middle_and_comes_back_changes_no_bit(hosts, rows, tmp_path):
    touch = Touch(str(tmp_path / "touched"))
    same = zarr_arrays.digest(sweep(as_rows(rows), Sums(16), client="serial").total)
    with connect(hosts.file) as client:
        wait_for_workers(client, 2, 90)

        def cut():
            wait_until(lambda: len(touch.starts()) >= 3)
            hosts.network.cut(1)
            time.sleep(CUT_SECONDS)
            hosts.network.mend(1)

        thread = threading.Thread(target=cut)
        thread.start()
        try:
            slow = Sums(16, Both((touch, Sleep(0.3))))
            swept = sweep(as_rows(rows), slow, client=client, run=tmp_path / "run")
        finally:
            thread.join(120)
        assert zarr_arrays.digest(swept.total) == same
        lost = "; ".join(text for text in swept.report()["incidents"] if "lost" in text)
        assert f"worker tls://{hosts.network.host(1)}:" in lost
        assert "did not respond for too long" in lost
        wait_until(
            lambda: addresses(client) == [hosts.network.host(1), hosts.network.host(2)], what="the host to return"
        )
        again = sweep(as_rows(rows), Sums(16), client=client)
        assert zarr_arrays.digest(again.total) == same
