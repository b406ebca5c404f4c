"""`kind: ssh`: two sshd servers on loopback with their own host keys; the same bits as here, and no processes left."""

import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from drivers import Driver, wait_until
from machines import fit, free_port, listens, marked, wait_until_gone

from bigkernel import connect
from bigkernel.cluster.certificates import make_certificates
from bigkernel.cluster.cluster_file import read_file
from bigkernel.engine.preflight import wait_for_workers
from bigkernel.errors import ConfigError, StalledError

pytestmark = [pytest.mark.slow, pytest.mark.ssh, pytest.mark.cluster]
SAME = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "MKL_ENABLE_INSTRUCTIONS", "PYTHONPATH")
SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


@dataclass(frozen=True)
class Hosts:
    """A cluster file of two hosts, the home with their .ssh/config, and the mark of their processes."""

    path: Path
    home: Path
    mark: str
    logs: tuple[Path, ...]

    @property
    def file(self):
        return read_file(self.path)

    @property
    def config(self):
        return self.home / ".ssh" / "config"


def new_key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, timeout=30)
    return " ".join(Path(f"{path}.pub").read_text().split()[:2])


@pytest.fixture(scope="module")
def hosts(tmp_path_factory, daemon):
    if not Path(SSHD).exists() or shutil.which("ssh-keygen") is None:
        pytest.skip("sshd and ssh-keygen are not installed (Debian: openssh-server)")
    if os.geteuid() != 0:
        pytest.skip("sshd needs /run/sshd, which only root can make")
    place, mark = tmp_path_factory.mktemp("sshd"), uuid.uuid4().hex
    # it is not removed: servers of another test process may need it
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    place.joinpath("authorized").write_text(new_key(place / "id") + "\n")
    new_key(place / "other")
    # the hosts are this machine: with the same BLAS kernels and the same code
    given = [f"MARK={mark}", *(f"{name}={os.environ[name]}" for name in SAME if name in os.environ)]
    known, logs, port = [], [], free_port()
    for host in ("127.0.0.1", "127.0.0.2"):
        known.append(f"[{host}]:{port} {new_key(place / host)}\n")
        settings = [
            *(f"ListenAddress {host}", f"Port {port}", f"HostKey {place}/{host}", f"SetEnv {' '.join(given)}"),
            *(f"AuthorizedKeysFile {place}/authorized", "StrictModes no", "PermitRootLogin prohibit-password"),
            *("UsePAM no", "PasswordAuthentication no", "PidFile none", "MaxStartups 1000"),
        ]
        place.joinpath(f"{host}.conf").write_text("\n".join(settings) + "\n")
        server = daemon(SSHD, "-D", "-e", "-f", place / f"{host}.conf")
        server.ready(lambda host=host: listens(host, port))
        logs.append(server.log)
    place.joinpath("known").write_text("".join(known))
    place.joinpath(".ssh").mkdir()
    place.joinpath(".ssh", "config").write_text(
        f"Host 127.*\nUser root\nPort {port}\nIdentityFile {place}/id\nUserKnownHostsFile {place}/known\n"
    )
    path = place / "cluster.yaml"
    path.write_text(
        f"""bigkernel:
  cluster:
    kind: ssh
    hosts: [127.0.0.1, 127.0.0.2]
    python: {sys.executable}
    workers: 1
    memory-limit: 1GiB
    directory: {place}
    dashboard: 0
"""
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(place))
        yield Hosts(path, place, mark, tuple(logs))


def test_a_fit_on_two_hosts_gives_the_bits_of_this_one_and_leaves_no_processes(hosts, rows, digest, tmp_path):
    make_certificates(tmp_path / "tls")
    with connect(replace(hosts.file, tls=tmp_path / "tls")) as client:
        wait_for_workers(client, 2, 90)
        workers = client.scheduler_info(n_workers=-1)["workers"]
        assert {address.partition(":")[0] for address in workers} == {"tls"}
        assert {(worker["memory_limit"], worker["nthreads"]) for worker in workers.values()} == {(2**30, 1)}
        threads = client.run(lambda: os.environ["OPENBLAS_NUM_THREADS"])
        assert set(threads.values()) == {"1"}
        assert len(marked(hosts.mark)) >= 5  # a scheduler, two nannies, two workers
        assert fit(rows, client) == digest
    wait_until_gone(hosts.mark)


def test_no_process_is_left_on_the_hosts_when_the_driver_is_killed(hosts, tmp_path):
    code = f"""
import time
import dask
from bigkernel import connect
from bigkernel.engine.preflight import wait_for_workers
with dask.config.set({{"bigkernel.stall-seconds": 1}}), connect({str(hosts.path)!r}) as client:
    wait_for_workers(client, 2, 90)
    print("ready", flush=True)
    time.sleep(300)
"""
    driver = Driver(code, tmp_path)
    try:
        wait_until(lambda: driver.process.poll() is not None or driver.out.read_text() == "ready\n")
        assert driver.process.poll() is None, driver.errors()
    finally:
        driver.end()
    wait_until_gone(hosts.mark)


def test_a_dropped_connection_is_retried(hosts, monkeypatch):
    """A relay before the first host drops the first connection, as sshd does beyond MaxStartups."""
    with socket.create_server(("127.0.0.3", free_port())) as relay:
        kept, dropped = hosts.config.read_text(), []
        port, other = int(kept.partition("Port ")[2].split()[0]), relay.getsockname()[1]
        hosts.config.write_text(f"Host 127.0.0.3\nPort {other}\n{kept}")
        known = (hosts.home / "known").read_text()
        first = known.splitlines()[0].partition(" ")[2]
        (hosts.home / "known").write_text(f"{known}[127.0.0.3]:{other} {first}\n")

        def serve():
            with suppress(OSError):
                while True:
                    near, _ = relay.accept()
                    if not dropped:
                        dropped.append(near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)))
                        near.close()
                        continue
                    far = socket.create_connection(("127.0.0.1", port))
                    for pair in ((near, far), (far, near)):
                        threading.Thread(target=copy, args=pair, daemon=True).start()

        def copy(source, target):
            with suppress(OSError):
                while data := source.recv(65536):
                    target.sendall(data)
            with suppress(OSError), target:
                target.shutdown(socket.SHUT_RDWR)

        threading.Thread(target=serve, daemon=True).start()
        try:
            with connect(replace(hosts.file, hosts=("127.0.0.3", "127.0.0.2"))) as client:
                wait_for_workers(client, 2, 90)
        finally:
            hosts.config.write_text(kept)
            (hosts.home / "known").write_text(known)
            relay.shutdown(socket.SHUT_RDWR)
    assert dropped
    wait_until_gone(hosts.mark)


REFUSED = {
    "no known hosts": ({"UserKnownHostsFile": "#"}, ConfigError, "Host key is not trusted.*ssh-keyscan"),
    "another host key": ({"/known": "/swapped"}, ConfigError, "Host key is not trusted.*ssh-keyscan"),
    "another key": ({"/id": "/other"}, ConfigError, "Permission denied for user root .*without a password"),
    "no server": ({"Port ": "Port 1\n#"}, StalledError, "did not start in time .*all hosts are reachable"),
    "no package": ("/bin/false", ConfigError, r"ended at once .* install bigkernel \S+ there"),
    "a program that hangs": ("sleep 15;", StalledError, r"did not start in time \(TimeoutError\)"),
}


@pytest.mark.parametrize("change, error, message", REFUSED.values(), ids=REFUSED)
def test_a_failed_connection_is_explained_in_bounded_time(hosts, monkeypatch, change, error, message):
    lines = [line.split(" ", 1) for line in (hosts.home / "known").read_text().splitlines()]
    swapped = [f"{a[0]} {b[1]}\n" for a, b in zip(lines, reversed(lines), strict=True)]
    (hosts.home / "swapped").write_text("".join(swapped))
    monkeypatch.setattr("bigkernel.cluster.launchers.start_seconds", lambda: 5 if error is StalledError else 60)
    kept, file = hosts.config.read_text(), hosts.file
    if isinstance(change, str):
        file = replace(file, python=change)
    else:
        ((old, new),) = change.items()
        hosts.config.write_text(kept.replace(old, new))
    start = time.monotonic()
    try:
        with pytest.raises(error, match=message), connect(file):
            pass
    except BaseException:
        print(*(f"{log}\n{log.read_text()[-3000:]}" for log in hosts.logs), sep="\n")
        raise
    finally:
        hosts.config.write_text(kept)
    assert error is not StalledError or time.monotonic() - start < 28
    wait_until_gone(hosts.mark)
