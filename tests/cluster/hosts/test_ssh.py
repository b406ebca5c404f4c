"""`kind: ssh`: two sshd servers on loopback, each with a host key of its own; the same bits as here, and no remains."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import psutil
import pytest
from drivers import Driver, wait_until
from machines import fit, free_port, listens, marked, wait_until_gone

from bigkernel import connect
from bigkernel.cluster.cluster_file import SshFile, read_file
from bigkernel.cluster.dask_settings import START_SECONDS
from bigkernel.cluster.ssh import _Start, _started
from bigkernel.cluster.ssh_remote import BEAT_SECONDS
from bigkernel.cluster.tls_authority import make_certificates
from bigkernel.config import settings
from bigkernel.engine.preflight import wait_for_workers
from bigkernel.errors import ConfigError, Stalled

pytestmark = [pytest.mark.slow, pytest.mark.ssh, pytest.mark.cluster]
BLAS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "MKL_ENABLE_INSTRUCTIONS")
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


@dataclass(frozen=True)
class Hosts:
    """A cluster file of two hosts, and the mark of all processes of their sessions."""

    path: Path
    mark: str

    @property
    def file(self) -> SshFile:
        """The file, as `connect` takes it."""
        found = read_file(self.path)
        assert isinstance(found, SshFile)
        return found


def new_key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, timeout=30)
    return " ".join(path.with_suffix(".pub").read_text().split()[:2])


@pytest.fixture(scope="module")
def hosts(tmp_path_factory, daemon):
    if not Path(SSHD).exists() or shutil.which("ssh-keygen") is None:
        pytest.skip("sshd and ssh-keygen are not installed (Debian: openssh-server)")
    if os.geteuid() != 0:
        pytest.skip("sshd needs /run/sshd, which only root can make")
    place, mark = tmp_path_factory.mktemp("sshd"), uuid.uuid4().hex
    made = not Path("/run/sshd").exists()
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    place.joinpath("authorized").write_text(new_key(place / "id") + "\n")
    new_key(place / "stranger")
    # hosts are this machine: their BLAS is to take the kernels that are forced here
    given = [f"MARK={mark}", *(f"{name}={os.environ[name]}" for name in BLAS if name in os.environ)]
    known, ports = [], []
    for number in (1, 2):
        host = f"127.0.0.{number}"
        ports.append(free_port(host))
        known.append(f"[{host}]:{ports[-1]} {new_key(place / f'host{number}')}\n")
        settings = [
            *(f"ListenAddress {host}", f"Port {ports[-1]}", f"HostKey {place}/host{number}"),
            *(f"AuthorizedKeysFile {place}/authorized", "StrictModes no", "PermitRootLogin prohibit-password"),
            *("UsePAM no", "PasswordAuthentication no", "PidFile none", f"SetEnv {' '.join(given)}"),
        ]
        place.joinpath(f"sshd{number}").write_text("\n".join(settings) + "\n")
        daemon(SSHD, "-D", "-e", "-f", place / f"sshd{number}").ready(lambda at=(host, ports[-1]): listens(*at))
    place.joinpath("known").write_text("".join(known))
    path = place / "cluster.yaml"
    path.write_text(
        f"""bigkernel:
  cluster:
    kind: ssh
    hosts: [127.0.0.1, 127.0.0.2]
    port: {ports}
    user: root
    key: id
    known-hosts: known
    python: {sys.executable}
    workers: 1
    memory-limit: 1GiB
    directory: {place}
    dashboard: 0
"""
    )
    yield Hosts(path, mark)
    if made:
        shutil.rmtree("/run/sshd", ignore_errors=True)


def test_a_fit_on_two_hosts_gives_the_bits_of_this_one_and_leaves_nothing_running(
    hosts, rows, wanted, tmp_path, monkeypatch
):
    monkeypatch.setattr("bigkernel.cluster.ssh.AGAIN_SECONDS", 0.5)
    monkeypatch.setattr("bigkernel.cluster.ssh.BEAT_SECONDS", 0.5)
    make_certificates(tmp_path / "tls")
    with connect(replace(hosts.file, tls=tmp_path / "tls")) as client:
        wait_for_workers(client, 2, 90)
        workers = client.scheduler_info(n_workers=-1)["workers"]
        assert {address.split(":")[1] for address in workers} == {"//127.0.0.1", "//127.0.0.2"}
        assert {address.split(":")[0] for address in workers} == {"tls"}
        assert {worker["memory_limit"] for worker in workers.values()} == {2**30}
        threads = client.run(lambda: os.environ["OPENBLAS_NUM_THREADS"])
        assert set(threads.values()) == {"1"}
        assert fit(rows, client) == wanted
        assert len(marked(hosts.mark)) >= 5  # a scheduler, two nannies, two workers
        second = next(address for address in workers if "127.0.0.2" in address)
        nanny = psutil.Process(client.run(os.getpid, workers=[second])[second]).parent()
        nanny.kill()  # as if the host were lost
        wait_until(lambda: second not in client.scheduler_info(n_workers=-1)["workers"])
        wait_for_workers(client, 2, 90)
        assert fit(rows, client) == wanted
    wait_until_gone(hosts.mark)
    with connect("local", workers=2, dashboard=0) as client:
        assert fit(rows, client) == wanted


def test_nothing_is_left_on_the_hosts_when_the_driver_is_killed(hosts, tmp_path):
    code = f"""
import time
from bigkernel import connect
from bigkernel.engine.preflight import wait_for_workers
with connect({str(hosts.path)!r}) as client:
    wait_for_workers(client, 2, 90)
    print("there", flush=True)
    time.sleep(300)
"""
    driver = Driver(code, tmp_path)
    try:
        wait_until(lambda: driver.process.poll() is not None or driver.out.read_text() == "there\n")
        assert driver.process.poll() is None, driver.errors()
    finally:
        driver.end()
    wait_until_gone(hosts.mark)


def test_a_host_whose_key_is_another_is_not_trusted(hosts, tmp_path):
    first, second = hosts.file.known_hosts.read_text().splitlines()
    tmp_path.joinpath("known").write_text(f"{first}\n{second.split()[0]} {' '.join(first.split()[1:])}\n")
    with (
        pytest.raises(
            ConfigError, match=r"127.0.0.2 \(port \d+\): its host key is not the one in .*known .*ssh-keyscan"
        ),
        connect(replace(hosts.file, known_hosts=tmp_path / "known")),
    ):
        pass
    assert marked(hosts.mark) == []


def test_without_known_hosts_no_host_is_trusted(hosts, tmp_path):
    with (
        pytest.raises(ConfigError, match="nowhere: no file of known hosts, and hosts whose key is not known are not"),
        connect(replace(hosts.file, known_hosts=tmp_path / "nowhere")),
    ):
        pass


def test_a_key_that_hosts_do_not_know_is_refused_by_name_and_soon(hosts):
    start = time.monotonic()
    with (
        pytest.raises(ConfigError, match=r"127.0.0.\d \(port \d+\): refuses user root with the key .*stranger"),
        connect(replace(hosts.file, key=hosts.file.key.with_name("stranger"))),
    ):
        pass
    assert time.monotonic() - start < 28  # a login is awaited for 30
    wait_until_gone(hosts.mark)


def test_a_key_that_others_can_read_is_refused(hosts, tmp_path):
    shutil.copy(hosts.file.key, tmp_path / "id")
    tmp_path.joinpath("id").chmod(0o644)
    with (
        pytest.raises(ConfigError, match=r"id: can be read by other users \(mode 0644\); chmod 600"),
        connect(replace(hosts.file, key=tmp_path / "id")),
    ):
        pass


def test_a_host_without_the_package_is_named(hosts):
    with (
        pytest.raises(ConfigError, match=r"127.0.0.1: `/bin/false -m .*; it said nothing; install bigkernel \S+ there"),
        connect(replace(hosts.file, python="/bin/false")),
    ):
        pass
    wait_until_gone(hosts.mark)


def test_a_host_without_an_ssh_server_is_named(hosts):
    ports = (free_port(), hosts.file.ports[1])
    with pytest.raises(Stalled, match=rf"127.0.0.1 \(port {ports[0]}\): no SSH server let us in"):  # noqa: SIM117
        with connect(replace(hosts.file, ports=ports)):
            pass
    assert marked(hosts.mark) == []


def test_a_host_waits_longer_than_a_beat_may_take_however_short_stalls_are(tmp_path):
    file = SshFile(hosts=("127.0.0.1",), scheduler="127.0.0.1", ports=(22,))
    orders = [
        _Start(file, replace(settings(), stall_seconds=seconds), 1, None).order("worker", "a", "127.0.0.1")
        for seconds in (1, 500)
    ]
    assert [order["silence_seconds"] for order in orders] == [START_SECONDS + 3 * BEAT_SECONDS, 500]


def test_a_session_hears_of_its_driver_before_it_has_started_anything(monkeypatch):
    monkeypatch.setattr("bigkernel.cluster.ssh.BEAT_SECONDS", 0.01)
    monkeypatch.setattr("bigkernel.cluster.ssh.START_SECONDS", 5)
    file = SshFile(hosts=("127.0.0.1",), scheduler="127.0.0.1", ports=(22,))
    start = _Start(file, replace(settings(), stall_seconds=5), 1, None)

    async def begin():
        heard = Slow()
        sessions = []
        found = await _started(start, heard, start.order("worker", "a", "127.0.0.1"), sessions)
        await sessions[0].end()
        return found, heard.lines

    found, lines = asyncio.run(begin())
    assert found == ["tcp://there"]
    assert json.loads(lines[0])["role"] == "worker"
    assert lines[1:] == ["\n"] * 3


class Slow:
    """Stands for a connection, its process and the streams of that: tells its address after three beats."""

    def __init__(self):
        self.stdin = self.stdout = self.stderr = self
        self.lines, self.beaten = [], asyncio.Event()

    async def create_process(self, command, encoding):
        return self

    def is_closing(self):
        return self.beaten.is_set()

    def write(self, text):
        self.lines.append(text)
        if len(self.lines) == 4:
            self.beaten.set()

    def write_eof(self):
        pass

    async def wait_closed(self):
        pass

    async def readline(self):
        await self.beaten.wait()
        return '{"addresses": ["tcp://there"]}'

    def __aiter__(self):
        return self

    async def __anext__(self):
        raise StopAsyncIteration


def test_what_runs_on_a_host_ends_when_its_driver_says_nothing(tmp_path):
    order = {
        **{"role": "scheduler", "name": "here", "host": "127.0.0.1", "dashboard": 0, "tls": {}, "silence_seconds": 2},
        "settings": asdict(settings()),
    }
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bigkernel.cluster.ssh_remote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["addresses"][0].startswith("tcp://127.0.0.1:")
        process.wait(90)  # and its input stays open
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
