"""Who is let in, and what listens where: F31 (TLS), F32 (sockets), F33 (HTTP routes), F34 (BLAS), F38 (dashboard).

Schedulers and workers that are started by hand are processes of `python -m distributed.cli.…`, with the files that
`bigkernel certs` writes. In-process workers (F34) are in tests/engine/test_sweep_dask.py.
"""

import asyncio
import http.client
import logging
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
from contextlib import ExitStack, contextmanager
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
from bigkernel.engine.process import blas_threads, processors
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
    """The coefficients by threads of this process."""
    with executing("threads"):
        return fitted(corpus).dual_coef_


@pytest.fixture
def write(tmp_path):
    """A cluster file with these lines under bigkernel: cluster:."""

    def make(*lines):
        path = tmp_path / "cluster.yaml"
        path.write_text("bigkernel:\n  cluster:\n" + "".join(f"    {line}\n" for line in lines))
        return path

    return make


@contextmanager
def by_hand(role, *arguments, config, says, **environment):
    """A scheduler or worker process that is started by hand; yields it and the word after `says` in its log."""
    words = [sys.executable, "-m", f"distributed.cli.dask_{role}", *map(str, arguments)]
    variables = {
        **os.environ,
        "DASK_CONFIG": str(config),
        "PYTHONPATH": str(Path(__file__).parents[1] / "support"),
        **environment,
    }
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=variables)
    log, found = [], []

    def read():
        for line in process.stderr:
            log.append(line)
            found.extend(re.findall(rf"{says}:?\s+(\S+)", line))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        wait_until(lambda: found or process.poll() is not None, what=f"'{says}' in the log of the {role}")
        assert found, "".join(log)
        yield process, found[0]
    finally:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
            child.kill()
        process.kill()
        process.wait(30)
        reader.join(30)
        process.stderr.close()


@pytest.fixture(scope="module")
def secured(tls, tmp_path_factory):
    """The address of a TLS scheduler with one worker, each a process started by hand as cluster/tls.yaml says."""
    config = tmp_path_factory.mktemp("config")
    shutil.copy(CLUSTER / "dask.yaml", config)
    free = [word.replace(":8787", ":0") for word in documented("scheduler", tls)]
    with (
        by_hand("scheduler", *free, "--port", 0, config=config, says="Scheduler at") as (scheduler, address),
        by_hand("worker", address, *documented("worker", tls)[1:], config=config, says="Registered to") as (worker, _),
    ):
        assert address.startswith("tls://127.0.0.1:")
        yield address, scheduler, worker


def documented(role, tls):
    """The arguments of the command in cluster/tls.yaml, on this machine."""
    lines = (CLUSTER / "tls.yaml").read_text().splitlines()
    (line,) = [line for line in lines if f" dask {role} " in line]
    (options,) = [line.split('"')[1] for line in lines if "TLS=" in line]
    line = re.sub("node[12]", "127.0.0.1", line).replace("$TLS", options.replace("certificates", str(tls)))
    return line.split(f" dask {role} ")[1].split()


def tree(*pids):
    """The processes, and those below them."""
    roots = [psutil.Process(pid) for pid in pids or [os.getpid()]]
    return [process for root in roots for process in (root, *root.children(recursive=True))]


def listening(*pids):
    """(process, IP, port) of every listening socket of these processes and those below them."""
    found = set()
    for process in tree(*pids):
        for connection in process.net_connections("inet"):
            if connection.status == psutil.CONN_LISTEN:
                found.add((process.pid, connection.laddr.ip, connection.laddr.port))
    return found


def status(url):
    """Status of a GET without any credential."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


# F31 ------------------------------------------------------------------------------------------------------------------


async def identity(address, security):
    async with rpc(address, timeout=60, connection_args=security.get_connection_args("client")) as scheduler:
        return await scheduler.identity()


def ask(address, security):
    """What a plain Dask client, without our checks, gets to hear."""
    return asyncio.run(asyncio.wait_for(identity(address, security), 60))


def own(directory):
    return keys(directory, directory)


def keys(authority, directory):
    """The security of a client that trusts one directory and shows the certificate of another."""
    cert, key = (f"{directory}/{name}" for name in FILES[1:])
    return Security(tls_ca_file=f"{authority}/ca.pem", tls_client_cert=cert, tls_client_key=key)


def intruders(tls, others):
    """What somebody may try who holds no valid key: a name, the scheme, and the security of the attempt."""
    return {
        "plain": ("tcp", Security()),
        "no certificate": ("tls", Security(tls_ca_file=f"{tls}/ca.pem")),
        "another authority": ("tls", own(others)),
        "another authority, but the right one trusted": ("tls", keys(tls, others)),
    }


@pytest.mark.cluster
def test_intruders_are_refused_at_once_and_the_running_job_does_not_notice(secured, tls, others, corpus, tmp_path):
    address, scheduler, _ = secured
    assert ask(address, own(tls))["type"] == "Scheduler"
    rows = as_rows(corpus)
    clean = sweep(rows, Sums(4), client="serial").total["sum"]
    hold = Hold(plan_sweep(rows, Sums(4)).segments[-1].start, str(tmp_path / "gate"))
    results = []

    def work(client):
        results.append(sweep(rows, Sums(4, hold), client=client))

    with connect(address, tls=tls) as client:
        job = threading.Thread(target=work, args=(client,))
        job.start()
        try:
            for name, (scheme, security) in intruders(tls, others).items():
                start = time.monotonic()
                # Dask says TypeError where a certificate is missing, and kinds of OSError otherwise
                with pytest.raises((OSError, TypeError)):
                    print(name, ask(address.replace("tls", scheme), security))
                assert time.monotonic() - start < 30, name  # and not when a wait runs out, after 60
            speak(address, b"GET /info/main/logs.html HTTP/1.1\r\n\r\n")
            speak(address, os.urandom(4096))
            assert job.is_alive()
        finally:
            Path(hold.gate).touch()
            job.join(60)
        assert not job.is_alive()
        assert scheduler.poll() is None
    np.testing.assert_array_equal(results[0].total["sum"], clean)
    assert sum(receipt.rows for receipt in results[0].receipts) == 300


def speak(address, words):
    """Say something that is not TLS, and hear at most an alert."""
    host, port = address.removeprefix("tls://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(words)
        try:
            answer = connection.recv(100)
        except ConnectionResetError:
            return
        assert len(answer) < 20


@pytest.mark.cluster
def test_connect_names_what_is_wrong_with_certificates_within_seconds(secured, tls, others):
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
        assert time.monotonic() - start < 20, where  # a wait that runs out takes 30
    with pytest.raises(ValueError, match="No client"):
        default_client()


def test_tls_to_a_scheduler_without_it_is_named(cluster, tls):
    with (
        pytest.raises(ConfigError, match=r"no encrypted connection could be made.*the scheduler uses tcp://"),
        connect(cluster.scheduler_address.replace("tcp", "tls"), tls=tls),
    ):
        pass


def test_a_workers_address_is_not_taken_for_a_schedulers(cluster):
    worker = next(iter(cluster.scheduler_info["workers"]))
    with pytest.raises(ConfigError, match="expected a scheduler, found a Worker"), connect(worker):
        pass


@pytest.mark.parametrize("scheme", ["tcp", "tls"])
def test_a_listener_that_never_speaks_is_stalled_in_the_time_that_is_set(scheme, tls):
    """A bare distributed.Client waits for such a one for ever."""
    with socket.create_server(("127.0.0.1", 0)) as mute, dask.config.set({"bigkernel.stall-seconds": 1}):
        address = f"{scheme}://127.0.0.1:{mute.getsockname()[1]}"
        start = time.monotonic()
        with (
            pytest.raises(StalledError, match=f"{address}: no scheduler answered within 1 s"),
            connect(address, tls=tls if scheme == "tls" else None),
        ):
            pass
        assert time.monotonic() - start < 20  # Dask's own wait takes 30


FAR = ["tcp://192.0.2.1:8786", "tcp://node1:8786", "tcp://0.0.0.0:8786", "ucx://10.0.0.4:8786", "tcp://[2001:db8::1]:1"]


@pytest.mark.parametrize("address", [*FAR, "192.0.2.1:8786"])
def test_an_open_connection_beyond_this_machine_is_refused(address, write):
    start = time.monotonic()
    with (
        pytest.raises(ConfigError, match="another machine is not encrypted"),
        connect(write("kind: address", f'address: "{address}"')),
    ):
        pass
    assert time.monotonic() - start < 20  # it is not tried, which takes 30


def test_one_that_is_asked_for_is_tried_with_one_warning(write, caplog):
    path = write("kind: address", 'address: "tcp://localhost.invalid:8786"', "insecure: true")
    with dask.config.set({"bigkernel.stall-seconds": 1}), pytest.raises(StalledError), connect(path):
        pass
    warned = [record for record in caplog.records if record.name.startswith("bigkernel")]
    assert [record.levelno for record in warned] == [logging.WARNING]
    assert "not encrypted (insecure: true)" in warned[0].getMessage()


# F32, F33 -------------------------------------------------------------------------------------------------------------

WAYS = {
    "the word local": lambda write, tls: ("local", {"workers": 1, "dashboard": 0}),
    "a file with tls": lambda write, tls: (write("kind: local", "workers: 1", "dashboard: 0", f"tls: {tls}"), {}),
}


@pytest.mark.cluster
@pytest.mark.parametrize("way", [WAYS["the word local"], pytest.param(WAYS["a file with tls"], marks=pytest.mark.slow)])
def test_a_local_cluster_listens_on_loopback_only_hides_logs_keys_and_proxies_and_serves_no_page_of_another_site(
    way, write, tls, caplog
):
    before = listening()
    kept, variables = dask.config.get("distributed"), environment()
    cluster, arguments = way(write, tls)
    with connect(cluster, **arguments) as client:
        opened = listening() - before
        assert len(opened) >= 5  # scheduler, its pages, nanny, worker, its health
        assert {ip for _, ip, _ in opened} == {"127.0.0.1"}
        assert client.scheduler.address.startswith("tls:" if "tls" in str(client.scheduler.address) else "tcp:")
        assert (client.security.require_encryption or False) is ("tls" in client.scheduler.address)
        pages = client.dashboard_link.removesuffix("/bigkernel")
        assert pages.startswith("http://127.0.0.1:")
        shown = {path: status(pages + path) for path in ("/status", "/workers", "/health", "/statics/css/base.css")}
        assert set(shown.values()) == {200}, shown
        assert {path: status(pages + path) for path in HIDDEN} == dict.fromkeys(HIDDEN, 404)
        page_port = int(pages.rpartition(":")[2])
        for port in {port for _, _, port in opened} - {page_port}:
            answers = quiet(port)
            assert set(answers.values()) <= {404, None}, answers
        for name in ("localhost", "127.0.0.1"):
            assert origin(page_port, f"http://{name}:{page_port}") != 403
        for name in (
            "http://evil.example",
            f"http://evil.example:{page_port}",
            "http://localhost",
            "http://localhost:80",
        ):
            assert origin(page_port, name) == 403
        assert dask.config.get("distributed.scheduler.allowed-failures") == 5
        assert dask.config.get("distributed.comm.retry.count") == 3
    assert dask.config.get("distributed") == kept
    assert environment() == variables
    assert not [record for record in caplog.records if record.name.startswith("bigkernel")]


def environment():
    """The variables of this process, but for the one by which Dask knows its own children."""
    return {name: value for name, value in os.environ.items() if name != "__DASK_PARENT_PID"}


def quiet(port):
    """What a port that is not the dashboard's says to the same requests; None where it does not speak HTTP."""
    answers = {}
    for path in [*HIDDEN, "/status"]:
        try:
            answers[path] = status(f"http://127.0.0.1:{port}{path}")
        except (OSError, http.client.HTTPException):
            answers[path] = None
            break
    return answers


def origin(port, name):
    """Status of the opening of a dashboard's websocket from a page of this origin."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Origin": name, "Sec-WebSocket-Version": "13"}
    headers |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": "bokeh, token"}
    connection.request("GET", "/status/ws", headers=headers)
    answer = connection.getresponse().status
    connection.close()
    return answer


@pytest.mark.cluster
def test_a_scheduler_by_hand_listens_on_loopback_and_hides_the_same(secured):
    _, scheduler, worker = secured
    opened = listening(scheduler.pid, worker.pid)
    assert {ip for _, ip, _ in opened} == {"127.0.0.1"}
    served = [port for _, _, port in opened if 200 in {ok(port, "/health")}]
    assert len(served) >= 2  # the scheduler's and the worker's
    for port in served:
        assert set(quiet(port).values()) <= {404, 200}
        assert {status(f"http://127.0.0.1:{port}{path}") for path in HIDDEN if path != "/metrics"} == {404}


def ok(port, path):
    try:
        return status(f"http://127.0.0.1:{port}{path}")
    except (OSError, http.client.HTTPException):
        return None


# F34 ------------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.cluster
def test_a_worker_without_nanny_is_held_to_one_blas_thread(tmp_path, corpus, expected):
    config = tmp_path / "config"
    config.mkdir()
    here = ["--host", "127.0.0.1"]
    cores = {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    with ExitStack() as stack:
        pages = ["--dashboard-address", "127.0.0.1:0"]
        _, address = stack.enter_context(
            by_hand("scheduler", *here, "--port", 0, *pages, config=config, says="Scheduler at")
        )
        stack.enter_context(
            by_hand(
                *("worker", address, *here, "--nthreads", 1, "--no-nanny", "--no-dashboard"),
                config=config,
                says="Registered to",
                **cores,
            )
        )
        with connect(address) as client:
            (raw,) = client.run(blas_threads).values()
            assert not raw or processors() < 2 or set(raw.values()) == {2}
            np.testing.assert_array_equal(fitted(corpus).dual_coef_, expected)
            (threads,) = client.run(blas_threads).values()
            assert threads
            assert set(threads.values()) == {1}


# F38 ------------------------------------------------------------------------------------------------------------------

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
    words = [sys.executable, str(script), str(corpus.path), str(result)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["dask", "True"]
    assert "bokeh" not in done.stderr.lower()
    np.testing.assert_array_equal(np.load(result), expected)


@pytest.mark.slow
@pytest.mark.cluster
def test_where_the_port_is_taken_the_job_runs_on_another_with_one_warning(caplog, corpus, expected):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with connect("local", workers=1, dashboard=port) as client:
            np.testing.assert_array_equal(fitted(corpus).dual_coef_, expected)
            link = client.dashboard_link
            assert status(link) == 200
    warned = [record.getMessage() for record in caplog.records if record.name.startswith("bigkernel")]
    assert warned == [f"port {port} is in use: serving the dashboard at {link}"]
    assert f":{port}/" not in link
