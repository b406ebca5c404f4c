"""`connect`: loopback addresses, one BLAS thread and the given memory; cluster files are data, checked key by key."""

import asyncio
import gc
import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import dask.array as da
import distributed
import numpy as np
import psutil
import pytest
import yaml
from distributed.core import Status
from drivers import wait_until

from bigkernel import KernelRidge, connect
from bigkernel.cluster.cluster_file import cluster_of, read_file
from bigkernel.engine.process import OneBlasThread, Undisturbed, blas_threads
from bigkernel.errors import ConfigError
from bigkernel.events.plugin import Monitor

SHIPPED = Path(__file__).parents[2] / "cluster"
LOCAL = {"kind": "local", "workers": 1}
ADDRESS = {"kind": "address", "address": "tcp://127.0.0.1:1"}
SSH = {"kind": "ssh", "hosts": ["node1", "node2"]}
SLURM = {"kind": "slurm", "walltime": "01:00:00"}


@pytest.fixture
def write(tmp_path):
    """Write a cluster file."""

    def make(cluster):
        path = tmp_path / "cluster.yaml"
        path.write_text(yaml.safe_dump({"bigkernel": {"cluster": cluster}}), encoding="utf-8")
        return path

    return make


@pytest.mark.parametrize("status, ends", [(Status.running, False), (Status.closing, True)])
def test_a_worker_logs_nothing_while_it_closes(status, ends):
    try:
        Undisturbed().teardown(SimpleNamespace(nanny="tcp://127.0.0.1:1", status=status))
        assert logging.getLogger("distributed.worker").isEnabledFor(logging.ERROR) != ends
    finally:
        logging.disable(logging.NOTSET)
        gc.unfreeze()


def processes():
    """Descendants of this process, without resource trackers."""
    result = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it ends now
            result |= {process.pid} - {process.pid for word in process.cmdline() if "tracker" in word}
    return result


@pytest.mark.cluster
def test_a_local_cluster_has_one_blas_thread_and_the_given_memory_and_leaves_no_process(tmp_path):
    before = processes()
    with connect("local", workers=1, memory_limit="700MB", directory=str(tmp_path), dashboard=0) as client:
        (worker,) = client.scheduler_info(n_workers=-1)["workers"].values()
        assert (worker["memory_limit"], worker["nthreads"]) == (700_000_000, 1)
        assert worker["local_directory"].startswith(str(tmp_path))
        pid = client.submit(os.getpid, pure=False).result(timeout=90)
        assert pid != os.getpid()
        client.register_plugin(OneBlasThread())
        assert set(client.submit(blas_threads, pure=False).result(timeout=90).values()) == {1}
        assert client.dashboard_link.startswith("http://127.0.0.1:")
        assert distributed.default_client() is client  # estimators use it in the block
    wait_until(lambda: not processes() - before, what="processes that end")
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    with pytest.raises(ValueError, match="No client"):
        distributed.default_client()


@pytest.mark.slow
@pytest.mark.cluster
def test_without_a_block_a_client_is_open_until_it_is_closed_or_the_process_ends(tmp_path):
    code = f"""
import contextvars, os, sys
from bigkernel import KernelRidge, connect, executing
if __name__ == "__main__":
    cell = lambda *args, **options: contextvars.copy_context().run(*args, **options)  # as cells of notebooks
    first = cell(connect, "local", workers=1, dashboard=0, directory={str(tmp_path)!r})
    print(cell(first.submit, os.getpid).result(), flush=True)
    cell(first.close)
    first.close()
    second = cell(connect, "local", workers=1, dashboard=0, directory={str(tmp_path)!r})
    print(first.status, cell(second.submit, os.getpid).result(), flush=True)
"""
    script = tmp_path / "notebook.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    one, status, two = done.stdout.split()
    assert status == "closed"
    wait_until(lambda: not (psutil.pid_exists(int(one)) or psutil.pid_exists(int(two))), what="workers that end")


@pytest.mark.cluster
def test_an_existing_client_is_used_as_it_is_and_its_workers_get_our_plugins(cluster):
    with distributed.Client(cluster) as client:
        rows = da.from_array(np.eye(8), chunks=(4, 8))
        fitted = KernelRidge(n_landmarks=4).fit(rows, da.from_array(np.arange(8.0), chunks=4))
        assert fitted.fit_report()["sweep"]["executor"] == "dask"
        assert client.run_on_scheduler(lambda dask_scheduler: Monitor.name in dask_scheduler.plugins)
        plugins = client.run(lambda dask_worker: {OneBlasThread.name, Undisturbed.name} <= set(dask_worker.plugins))
        assert list(plugins.values()) == [True, True]
        with pytest.raises(ConfigError, match=r"needs no connect.*executing\(client\)"):
            connect(client)


@pytest.mark.cluster
def test_an_address_or_a_file_with_it_reaches_a_running_cluster_also_from_an_event_loop(cluster, write):
    address = cluster.scheduler_address

    def use(where):
        with connect(where) as client:
            assert client.scheduler.address == address
            assert client.submit(sum, [1, 2], pure=False).result(timeout=90) == 3
        assert client.status == "closed"

    async def cell():  # of a notebook
        use(address)

    use(write({"kind": "address", "address": address}))
    asyncio.run(cell())
    assert cluster.status.name == "running"  # `connect` did not start it


REFUSED = {
    "unknown key": (LOCAL | {"nodes": 3}, "nodes: unknown"),
    "unknown kind": (LOCAL | {"kind": "pbs"}, "kind: expected local, address, ssh or slurm, found pbs"),
    "too many workers": (LOCAL | {"workers": 100000}, "workers: expected from 1 to 1024"),
    "too much memory": (LOCAL | {"memory-limit": "10000000 TiB"}, "memory limit.*1 PiB"),
    "missing certificates": (LOCAL | {"tls": "nowhere"}, "nowhere: found no certificates"),
    "insecure": (ADDRESS | {"insecure": True}, "insecure: unknown key"),
    "an address and local": (LOCAL | {"address": "tcp://a:1"}, "address: only valid with kind: address"),
    "an impossible directory": (LOCAL | {"directory": "/proc/nothing"}, "directory|nothing"),
    "no address": ({"kind": "address"}, "address: missing"),
    "certificates and tcp": (ADDRESS | {"tls": "keys"}, r"certificates \(.*keys\) need an encrypted address"),
    "tls without certificates": (
        ADDRESS | {"address": "tls://127.0.0.1:1"},
        r"tls://127.0.0.1:1: expected a directory of certificates.*tls: DIR",
    ),
    "another scheme": (ADDRESS | {"address": "http://h:1"}, "expected the address of a scheduler.*tcp, tls"),
    "a word": (ADDRESS | {"address": "local"}, "local: expected the address of a scheduler"),
    "no port": (ADDRESS | {"address": "tcp://h"}, "expected the address of a scheduler.*port"),
    "port 0": (ADDRESS | {"address": "tcp://h:0"}, "expected the address of a scheduler.*0 is not a port"),
    "no hosts": (SSH | {"hosts": []}, r"cluster\.hosts: expected from 1 to 1024 hosts, found 0"),
    "hosts missing": ({"kind": "ssh"}, r"cluster\.hosts: missing"),
    "a host with a command": (SSH | {"hosts": ["node2; reboot"]}, "hosts: expected names or addresses of hosts"),
    "a host that is an option": (SSH | {"hosts": ["-oProxyCommand=sh"]}, "hosts: expected names or addresses"),
    "a host twice": (SSH | {"hosts": ["node1", "node1"]}, "hosts: expected distinct hosts"),
    "hosts without certificates": (SSH, "kind: ssh: workers on other machines need certificates.*bigkernel certs"),
    "jobs without certificates": (SLURM, "kind: slurm: workers on other machines need certificates.*bigkernel certs"),
    "a partition by SSH": (SSH | {"partition": "work"}, "partition: only valid with kind: slurm"),
    "no walltime": ({"kind": "slurm"}, "walltime: missing"),
    "walltime as a number": (SLURM | {"walltime": 36000}, 'walltime: expected "hours:.*found 36000'),
    "a short walltime": (SLURM | {"walltime": "00:00:30"}, "walltime: expected at least a minute"),
    "a partition with a command": (SLURM | {"partition": "w; reboot"}, "partition: expected a word without bl"),
    "a command in a path": (SLURM | {"python": "/bin/$(reboot)"}, "python: expected a path without blanks or quotes"),
}


@pytest.mark.parametrize("cluster, message", REFUSED.values(), ids=REFUSED)
def test_an_invalid_cluster_file_is_refused_with_its_key(write, cluster, message):
    with pytest.raises(ConfigError, match=message) as caught, connect(write(cluster)):
        pass
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("cluster, module, extra", [(SSH, "asyncssh", "ssh"), (SLURM, "dask_jobqueue", "slurm")])
def test_a_missing_package_is_named_with_its_extra(write, monkeypatch, cluster, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf'pip install "bigkernel\[{extra}\]"'), connect(write(cluster)):
        pass


def test_a_mapping_of_another_file_is_a_cluster_too(tmp_path):
    file = cluster_of({"kind": "address", "address": "tls://a:1", "tls": "keys"}, "job.yaml: cluster", tmp_path)
    assert (file.address, file.tls) == ("tls://a:1", tmp_path / "keys")
    with pytest.raises(ConfigError, match=f"^{tmp_path}/keys: found no certificates"), connect(file):
        pass
    with pytest.raises(ConfigError, match=r"^job\.yaml: cluster\.nodes: unknown"):
        cluster_of({"kind": "local", "nodes": 3}, "job.yaml: cluster", tmp_path)
    with pytest.raises(ConfigError, match=r"^job\.yaml: cluster: expected a mapping, found 3"):
        cluster_of(3, "job.yaml: cluster", tmp_path)


def test_an_unknown_name_and_a_directory_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="found none"), connect("kubernetes"):
        pass
    with pytest.raises(ConfigError, match="cannot be read"), connect(tmp_path):
        pass


@pytest.mark.parametrize(
    "options, message",
    [
        ({"workers": 0}, "workers"),
        ({"workers": 10**9}, "workers: expected from 1 to 1024"),
        ({"memory_limit": "lots"}, "memory"),
        ({"memory_limit": 5}, "100 MB"),
        ({"dashboard": 65536}, "dashboard: expected a port from 0 to 65535"),
        ({"tls": "/nowhere"}, "/nowhere: found no certificates"),
    ],
)
def test_invalid_options_are_refused_before_a_process_starts(options, message):
    before = processes()
    with pytest.raises(ConfigError, match=message), connect("local", **options):
        pass
    assert processes() == before


def test_a_relative_directory_of_certificates_starts_at_the_file(write, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    path = write({"kind": "address", "address": "tls://127.0.0.1:1", "tls": "keys"})
    with pytest.raises(ConfigError, match=f"{tmp_path}/keys: found no certificates"), connect(path):
        pass
    with pytest.raises(ConfigError, match=r"^/elsewhere: found no certificates"), connect(path, tls="/elsewhere"):
        pass


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "mapping under bigkernel"),
        ("distributed:\n  worker: {}\n", "mapping under bigkernel"),
        ("a: &x 1\nb: *x\n", r"an alias \(\*name\)"),
        ("kind: local\nkind: ssh\n", "kind is given twice"),
        *(
            (f"bigkernel: {{cluster: {{}}, {key}: 3}}", rf"bigkernel\.'?{key}'?: expected only `cluster:` in a")
            for key in ("preload", "segment-rows", "clusters")
        ),
        ("a: !!python/name:os.system\n", "cannot be read as a YAML cluster file"),
        ("bigkernel: !!python/object/apply:os.mkdir [made]\n", "cannot be read as a YAML cluster file"),
        ("#" * 70_000, "more than 65536 characters"),
    ],
)
def test_a_file_that_is_not_plain_data_for_us_is_refused(tmp_path, monkeypatch, text, message):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_file(path)
    assert str(path) in str(caught.value)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["local.yaml", "existing.yaml", "tls.yaml", "ssh.yaml", "slurm.yaml"])
def test_the_shipped_cluster_files_are_read(name):
    file = read_file(SHIPPED / name)
    keys = {line.lstrip("# ").split(":")[0] for line in (SHIPPED / name).read_text().splitlines()}
    assert {key.replace("_", "-") for key, value in vars(file).items() if value} <= keys


def test_every_key_of_the_shipped_dask_configuration_is_one_of_dasks_own():
    shipped = yaml.safe_load((SHIPPED / "dask.yaml").read_text())
    known = yaml.safe_load((Path(distributed.__file__).parent / "distributed.yaml").read_text())

    def compare(ours, theirs, path):
        assert isinstance(theirs, dict), path
        for key, value in ours.items():
            assert key in theirs, f"{path}.{key}"
            if isinstance(value, dict):
                compare(value, theirs[key], f"{path}.{key}")

    compare(shipped, known, "")
    # the only code in it
    assert shipped["distributed"]["scheduler"].pop("preload") == ["bigkernel.monitor.dashboard.server"]
    assert "preload" not in str(shipped)
