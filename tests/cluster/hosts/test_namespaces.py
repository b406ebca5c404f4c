"""Two hosts in network namespaces on an encrypted bridge: one that is disconnected for a while changes no bit."""

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
DASK = [sys.executable, "-m", "dask"]
TTL_SECONDS = 6  # the scheduler removes a silent worker after this
CUT_SECONDS = 13  # after 30 s both sides would close their connections, and the worker would end


def ip(*arguments):
    subprocess.run(["ip", *map(str, arguments)], capture_output=True, text=True, timeout=20, check=True)


@dataclass(frozen=True)
class Network:
    """A bridge with the address `net`.1, and hosts with `net`.11 and `net`.12, each in a namespace."""

    name: str
    net: str

    def host(self, number):
        return f"{self.net}.1{number}"

    def inside(self, number):
        """The prefix of a command that runs on this host."""
        return ["ip", "netns", "exec", f"{self.name}h{number}"]

    def connect(self, number, state):
        ip("link", "set", f"{self.name}v{number}", state)


@pytest.fixture(scope="module")
def network():
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces are made by root with `ip` (Debian: iproute2)")
    # addresses for benchmarks (RFC 2544), which no other network here uses; names have at most 15 characters
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
            for device in ("lo", there):
                ip("-n", host, "link", "set", device, "up")
            ip("-n", host, "address", "add", f"{made.host(number)}/24", "dev", there)
        yield made
    finally:
        for number in (1, 2):
            subprocess.run(["ip", "netns", "delete", f"{made.name}h{number}"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "delete", made.name], capture_output=True, check=False)


def tls_options(keys):
    return ["--tls-ca-file", keys / "ca.pem", "--tls-cert", keys / "cert.pem", "--tls-key", keys / "key.pem"]


@dataclass(frozen=True)
class Cluster:
    """A scheduler on the bridge, and the command of a worker on a host."""

    network: Network
    file: ClusterFile
    scratch: Path

    def worker(self, number):
        command = [*self.network.inside(number), *DASK, "worker", self.file.address, *tls_options(self.file.tls)]
        command += ["--host", f"tls://{self.network.host(number)}", "--local-directory", self.scratch]
        return command + ["--dashboard-address", "127.0.0.1:0", "--nthreads", "1", "--memory-limit", "1GiB"]


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
    command = [*DASK, "scheduler", *tls_options(place / "keys"), "--host", f"tls://{here}", "--port", port]
    scheduler = daemon(*command, "--dashboard-address", "127.0.0.1:0", env=environment)
    scheduler.ready(lambda: listens(here, port))
    file = ClusterFile(kind="address", address=f"tls://{here}:{port}", tls=place / "keys")
    cluster = Cluster(network, file, place)
    for number in (1, 2):
        daemon(*cluster.worker(number), env=environment)
    return cluster


def addresses(client):
    return sorted(address.split("/")[2].split(":")[0] for address in client.scheduler_info(n_workers=-1)["workers"])


def test_a_host_that_is_disconnected_for_a_while_changes_no_bit(hosts, rows, tmp_path):
    touch = Touch(str(tmp_path / "touched"))
    expected = zarr_arrays.digest(sweep(as_rows(rows), Sums(16), client="serial").total)
    with connect(hosts.file) as client:
        wait_for_workers(client, 2, 90)

        def disconnect():
            wait_until(lambda: len(touch.starts()) >= 3)
            hosts.network.connect(1, "down")
            time.sleep(CUT_SECONDS)
            hosts.network.connect(1, "up")

        thread = threading.Thread(target=disconnect)
        thread.start()
        try:
            slow = Sums(16, Both((touch, Sleep(0.3))))
            swept = sweep(as_rows(rows), slow, client=client, run=tmp_path / "run")
        finally:
            thread.join(120)
        assert zarr_arrays.digest(swept.total) == expected
        lost = "; ".join(text for text in swept.report()["incidents"] if "lost" in text)
        assert f"worker tls://{hosts.network.host(1)}:" in lost
        assert "did not respond for too long" in lost
        both = [hosts.network.host(1), hosts.network.host(2)]
        wait_until(lambda: addresses(client) == both, what="the host to return")
        again = sweep(as_rows(rows), Sums(16), client=client)
        assert zarr_arrays.digest(again.total) == expected
