"""Access and listening sockets: F31 (TLS), F32 (sockets), F33 (HTTP routes), F34 (BLAS), F38 (dashboard).

Schedulers and workers that are started by hand are processes of `python -m distributed.cli.…`, with the files that
`bigkernel certs` writes. In-process workers (F34) are in tests/engine/test_sweep_dask.py.
"""

import asyncio
import http.client
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import dask
import numpy as np
import psutil
import pytest
from distributed import Security, default_client, rpc
from drivers import wait_until
from probes import Hold, Sums

from bigkernel import Gaussian, KernelRidge, connect, executing, sweep
from bigkernel.cluster.certificates import FILES, make_certificates
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import plan_sweep
from bigkernel.errors import ConfigError, StalledError

CLUSTER = Path(__file__).parents[2] / "cluster"
HIDDEN = [
    "/info/main/logs.html",
    "/info/main/workers.html",
    "/info/logs/x.html",
    "/json/identity.json",
    "/json/counts.json",
    "/json/index.html",
    "/proxy/8787/127.0.0.1/status",
    "/api/v1",
    "/jupyter",
    *([] if find_spec("prometheus_client") else ["/metrics"]),
]


@pytest.fixture(scope="module")
def tls(tmp_path_factory):
    """Certificates of the cluster."""
    path = tmp_path_factory.mktemp("certificates") / "tls"
    make_certificates(path)
    return path


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    """Certificates of another authority."""
    path = tmp_path_factory.mktemp("others") / "tls"
    make_certificates(path)
    return path


@pytest.fixture
def corpus(make_corpus):
    """300 rows in 12 chunks."""
    rng = np.random.default_rng(31)
    X = rng.normal(size=(300, 4))
    return make_corpus(X, y=np.sin(X[:, 0]) + rng.normal(size=300))


def fitted(corpus):
    model = KernelRidge(Gaussian(1.0), alpha=0.1, n_landmarks=20, random_state=0)
    return model.fit(corpus)


@pytest.fixture
def expected(corpus):
    """The coefficients of a fit on threads."""
    with executing("threads"):
        return fitted(corpus).dual_coef_


@pytest.fixture
def write(tmp_path):
    """Write a cluster file with these lines under bigkernel: cluster:."""

    def make(*lines):
        path = tmp_path / "cluster.yaml"
        path.write_text("bigkernel:\n  cluster:\n" + "".join(f"    {line}\n" for line in lines))
        return path

    return make


@contextmanager
def by_hand(role, *arguments, config, label, **environment):
    """Start a scheduler or worker process; yield it and the word after `label` in its log."""
    command = [sys.executable, "-m", f"distributed.cli.dask_{role}", *map(str, arguments)]
    support = str(Path(__file__).parents[1] / "support")
    variables = {**os.environ, "DASK_CONFIG": str(config), "PYTHONPATH": support, **environment}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables)
    log, values = [], []

    def read():
        for line in process.stderr:
            log.append(line)
            values.extend(re.findall(rf"{label}:?\s+(\S+)", line))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        wait_until(lambda: values or process.poll() is not None, what=f"'{label}' in the log of the {role}")
        assert values, "".join(log)
        yield process, values[0]
    finally:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
            child.kill()
        process.kill()
        process.wait(30)
        reader.join(30)
        process.stderr.close()


@pytest.fixture(scope="module")
def secured(tls, tmp_path_factory):
    """The address of a TLS scheduler with one worker, each a process as described in cluster/tls.yaml."""
    config = tmp_path_factory.mktemp("config")
    shutil.copy(CLUSTER / "dask.yaml", config)
    free = [word.replace(":8787", ":0") for word in documented("scheduler", tls)]
    with (
        by_hand("scheduler", *free, "--port", 0, config=config, label="Scheduler at") as (scheduler, address),
        by_hand("worker", address, *documented("worker", tls)[1:], config=config, label="Registered to") as (worker, _),
    ):
        assert address.startswith("tls://127.0.0.1:")
        yield address, scheduler, worker


def documented(role, tls):
    """Return the arguments of the command in cluster/tls.yaml for this machine."""
    lines = (CLUSTER / "tls.yaml").read_text().splitlines()
    (line,) = [line for line in lines if f" dask {role} " in line]
    (options,) = [line.split('"')[1] for line in lines if "TLS=" in line]
    line = re.sub("node[12]", "127.0.0.1", line).replace("$TLS", options.replace("certificates", str(tls)))
    return line.split(f" dask {role} ")[1].split()


def listening(*pids):
    """Return (IP, port) of every listening socket of these processes and their children."""
    roots = [psutil.Process(pid) for pid in pids or [os.getpid()]]
    processes = [process for root in roots for process in (root, *root.children(recursive=True))]
    connections = [connection for process in processes for connection in process.net_connections("inet")]
    return {tuple(connection.laddr) for connection in connections if connection.status == psutil.CONN_LISTEN}


def status(url):
    """Return the status of a GET without credentials; None if there is no HTTP server."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except (OSError, http.client.HTTPException):
        return None


async def identity(address, security):
    async with rpc(address, timeout=60, connection_args=security.get_connection_args("client")) as scheduler:
        return await scheduler.identity()


def answer_of(address, security):
    """Return the answer of a scheduler to a plain Dask client."""
    return asyncio.run(asyncio.wait_for(identity(address, security), 60))


def keys(authority, directory):
    """Return the security of a client that trusts one directory and shows the certificate of another."""
    cert, key = (f"{directory}/{name}" for name in FILES[1:])
    return Security(tls_ca_file=f"{authority}/ca.pem", tls_client_cert=cert, tls_client_key=key)


@pytest.mark.cluster
def test_intruders_are_refused_at_once_and_the_running_job_is_undisturbed(secured, tls, others, corpus, tmp_path):
    address, scheduler, _ = secured
    assert answer_of(address, keys(tls, tls))["type"] == "Scheduler"
    rows = as_rows(corpus)
    clean = sweep(rows, Sums(4), client="serial").total["sum"]
    hold = Hold(plan_sweep(rows, Sums(4)).segments[-1].start, str(tmp_path / "gate"))
    attempts = {
        "plain": ("tcp", Security()),
        "no certificate": ("tls", Security(tls_ca_file=f"{tls}/ca.pem")),
        "another authority": ("tls", keys(others, others)),
        "another authority, but the right one trusted": ("tls", keys(tls, others)),
    }
    with connect(address, tls=tls) as client, ThreadPoolExecutor(1) as pool:
        job = pool.submit(sweep, rows, Sums(4, hold), client=client)
        try:
            for name, (scheme, security) in attempts.items():
                start = time.monotonic()
                # Dask raises TypeError without a certificate
                with pytest.raises((OSError, TypeError)):
                    answer_of(address.replace("tls", scheme), security)
                assert time.monotonic() - start < 30, name  # before the timeout of 60 s
            speak(address, b"GET /info/main/logs.html HTTP/1.1\r\n\r\n")
            speak(address, os.urandom(4096))
            assert job.running()
        finally:
            Path(hold.gate).touch()
        swept = job.result(60)
        assert scheduler.poll() is None
    np.testing.assert_array_equal(swept.total["sum"], clean)
    assert sum(receipt.rows for receipt in swept.receipts) == 300


def speak(address, content):
    """Send bytes that are not TLS, and assert that the answer is at most an alert."""
    host, port = address.removeprefix("tls://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(content)
        try:
            answer = connection.recv(100)
        except ConnectionResetError:
            return
        assert len(answer) < 20


@pytest.mark.cluster
def test_connect_names_certificate_errors_within_seconds(secured, tls, others):
    address, *_ = secured
    port = address.rpartition(":")[2]
    cases = [
        (address, {}, r"expected a directory of certificates.*tls=DIR"),
        (address, {"tls": others}, r"no encrypted connection could be made.*other certificates than .*tls"),
        (address, {"tls": tls / "nowhere"}, r"nowhere: .*bigkernel certs"),
        (f"tcp://127.0.0.1:{port}", {}, r"closed the connection before answering.*tls://"),
        (f"tcp://127.0.0.1:{port}", {"tls": tls}, r"need an encrypted address"),
    ]
    for where, arguments, message in cases:
        start = time.monotonic()
        with pytest.raises(ConfigError, match=message), connect(where, **arguments):
            pass
        assert time.monotonic() - start < 20, where  # before the timeout of 30 s
    with pytest.raises(ValueError, match="No client"):
        default_client()


def test_tls_to_a_scheduler_without_tls_and_the_address_of_a_worker_are_refused(cluster, tls):
    for address, security, message in (
        (cluster.scheduler_address.replace("tcp", "tls"), tls, r"no encrypted .* made.*the scheduler uses tcp://"),
        (next(iter(cluster.scheduler_info["workers"])), None, "expected a scheduler, found a Worker"),
    ):
        with pytest.raises(ConfigError, match=message), connect(address, tls=security):
            pass


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_a_silent_listener_is_a_stall_after_the_set_time(scheme, tls):
    """A plain distributed.Client waits for ever."""
    with socket.create_server(("127.0.0.1", 0)) as mute, dask.config.set({"bigkernel.stall-seconds": 1}):
        address = f"{scheme}://127.0.0.1:{mute.getsockname()[1]}"
        start = time.monotonic()
        with (
            pytest.raises(StalledError, match=f"{address}: no scheduler answered within 1 s"),
            connect(address, tls=tls if scheme == "tls" else None),
        ):
            pass
        assert time.monotonic() - start < 20  # Dask waits for 30 s


FAR = ["tcp://192.0.2.1:8786", "tcp://node1:8786", "tcp://0.0.0.0:8786", "ucx://10.0.0.4:8786", "tcp://[2001:db8::1]:1"]


@pytest.mark.parametrize("address", [*FAR, "192.0.2.1:8786"])
def test_an_unencrypted_connection_to_another_machine_is_refused(address, write):
    start = time.monotonic()
    with (
        pytest.raises(ConfigError, match="another machine is not encrypted"),
        connect(write("kind: address", f'address: "{address}"')),
    ):
        pass
    assert time.monotonic() - start < 20  # a connection attempt takes 30 s


@pytest.mark.cluster
@pytest.mark.parametrize("encrypted", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_local_cluster_listens_on_loopback_without_logs_keys_and_proxies(encrypted, write, tls, caplog):
    before = listening()
    kept, variables = dask.config.get("distributed"), environment()
    lines = "kind: local", "workers: 1", "dashboard: 0", f"tls: {tls}"
    cluster, arguments = (write(*lines), {}) if encrypted else ("local", {"workers": 1, "dashboard": 0})
    with connect(cluster, **arguments) as client:
        opened = listening() - before
        assert len(opened) >= 5  # scheduler, its pages, nanny, worker, its health
        assert {ip for ip, _ in opened} == {"127.0.0.1"}
        assert client.scheduler.address.startswith("tls:" if encrypted else "tcp:")
        assert bool(client.security.require_encryption) is encrypted
        pages = client.dashboard_link.removesuffix("/bigkernel")
        assert pages.startswith("http://127.0.0.1:")
        shown = {path: status(pages + path) for path in ("/status", "/workers", "/health", "/statics/css/base.css")}
        assert set(shown.values()) == {200}, shown
        assert {path: status(pages + path) for path in HIDDEN} == dict.fromkeys(HIDDEN, 404)
        page_port = int(pages.rpartition(":")[2])
        for port in {port for _, port in opened} - {page_port}:
            assert set(statuses(port)) <= {404, None}, port
        for name in ("localhost", "127.0.0.1"):
            assert origin(page_port, f"http://{name}:{page_port}") != 403
        for name in ("evil.example", f"evil.example:{page_port}", "localhost", "localhost:80"):
            assert origin(page_port, f"http://{name}") == 403
        assert dask.config.get("distributed.scheduler.allowed-failures") == 5
        assert dask.config.get("distributed.comm.retry.count") == 3
    assert dask.config.get("distributed") == kept
    assert environment() == variables
    assert not [record for record in caplog.records if record.name.startswith("bigkernel")]


def environment():
    """Return the environment variables without the one that Dask sets for its children."""
    return {name: value for name, value in os.environ.items() if name != "__DASK_PARENT_PID"}


def statuses(port):
    """Yield the statuses of hidden paths and /status at a port, up to the first None."""
    for path in [*HIDDEN, "/status"]:
        yield (code := status(f"http://127.0.0.1:{port}{path}"))
        if code is None:
            return


def origin(port, name):
    """Return the status of a request for the dashboard's websocket from a page of this origin."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Origin": name, "Sec-WebSocket-Version": "13"}
    headers |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": "bokeh, token"}
    connection.request("GET", "/status/ws", headers=headers)
    answer = connection.getresponse().status
    connection.close()
    return answer


@pytest.mark.cluster
def test_a_scheduler_started_by_hand_listens_on_loopback_without_logs_and_keys(secured):
    _, scheduler, worker = secured
    opened = listening(scheduler.pid, worker.pid)
    assert {ip for ip, _ in opened} == {"127.0.0.1"}
    served = [port for _, port in opened if status(f"http://127.0.0.1:{port}/health") == 200]
    assert len(served) >= 2  # the scheduler's and the worker's
    for port in served:
        assert set(statuses(port)) <= {404, 200}
        assert {status(f"http://127.0.0.1:{port}{path}") for path in HIDDEN if path != "/metrics"} == {404}


WITHOUT_BOKEH = """
import sys, urllib.request
import numpy as np
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "bokeh" else real(name, *more)
sys.modules["bokeh"] = None
from bigkernel import Gaussian, KernelRidge, connect, open_corpus

if __name__ == "__main__":
    with connect("local", workers=1, dashboard=0) as client:
        model = KernelRidge(Gaussian(1.0), alpha=0.1, n_landmarks=20, random_state=0).fit(open_corpus(sys.argv[1]))
        page = urllib.request.urlopen(client.dashboard_link, timeout=60).read().decode()
    np.save(sys.argv[2], model.dual_coef_)
    print(model.sweep_["executor"], "<title>bigkernel</title>" in page)
"""


@pytest.mark.slow
@pytest.mark.cluster
def test_without_bokeh_the_job_runs_and_has_its_page(tmp_path, corpus, expected):
    script, result = tmp_path / "job.py", tmp_path / "weights.npy"
    script.write_text(WITHOUT_BOKEH)
    command = [sys.executable, str(script), str(corpus.path), str(result)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["dask", "True"]
    assert "bokeh" not in done.stderr.lower()
    np.testing.assert_array_equal(np.load(result), expected)


@pytest.mark.slow
@pytest.mark.cluster
def test_a_port_in_use_is_replaced_with_one_warning(caplog, corpus, expected):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with connect("local", workers=1, dashboard=port) as client:
            np.testing.assert_array_equal(fitted(corpus).dual_coef_, expected)
            link = client.dashboard_link
            assert status(link) == 200
    warned = [record.getMessage() for record in caplog.records if record.name.startswith("bigkernel")]
    assert warned == [f"port {port} is in use: serving the dashboard at {link}"]
    assert f":{port}/" not in link
