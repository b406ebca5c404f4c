"""`connect`: loopback only, one BLAS thread, the memory that was asked for; files are data, checked key by key."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import distributed
import psutil
import pytest
import yaml
from drivers import wait_until

from bigkernel import connect
from bigkernel.cluster.cluster_file import cluster_of, read_file
from bigkernel.engine.process import OneBlasThread, Undisturbed, blas_threads
from bigkernel.errors import ConfigError
from bigkernel.events.plugin import Monitor

LOCAL = "bigkernel:\n  cluster:\n    kind: local\n    workers: 1\n"


ADDRESS = "bigkernel:\n  cluster:\n    kind: address\n    address: tcp://127.0.0.1:1\n"
SHIPPED = Path(__file__).parents[2] / "cluster"


@pytest.fixture
def write(tmp_path):
    """A cluster file with this text."""

    def make(text):
        path = tmp_path / "cluster.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return make


def tree():
    """Return this process and those below it."""
    return [psutil.Process(), *psutil.Process().children(recursive=True)]


@pytest.mark.cluster
def test_a_local_cluster_has_one_blas_thread_and_the_memory_asked_for_and_leaves_no_process(tmp_path):
    children = {process.pid for process in tree()}
    with connect("local", workers=1, memory_limit="700MB", directory=str(tmp_path), dashboard=0) as client:
        (worker,) = client.scheduler_info(n_workers=-1)["workers"].values()
        assert worker["memory_limit"] == 700_000_000
        assert worker["nthreads"] == 1
        assert worker["local_directory"].startswith(str(tmp_path))
        pid = client.submit(os.getpid, pure=False).result(timeout=90)
        assert pid != os.getpid()
        client.register_plugin(OneBlasThread())
        threads = client.submit(blas_threads, pure=False).result(timeout=90)
        assert threads
        assert set(threads.values()) == {1}
        assert client.dashboard_link.startswith("http://127.0.0.1:")
        # the client of the block is the one that estimators find
        assert distributed.default_client() is client
    wait_until(lambda: not {process.pid for process in tree()} - children - _trackers(), what="processes that end")
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    with pytest.raises(ValueError, match="No client"):
        distributed.default_client()


@pytest.mark.slow
@pytest.mark.cluster
def test_without_a_block_a_client_is_open_until_it_is_closed_or_the_process_ends(tmp_path):
    code = f"""
import contextvars, os, sys
from bigkernel import connect
if __name__ == "__main__":
    cell = lambda *words, **more: contextvars.copy_context().run(*words, **more)  # as those of notebooks
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
def test_a_client_that_exists_is_given_back_with_our_plugins(cluster):
    with distributed.Client(cluster, set_as_default=False) as client:
        assert connect(client) is client
        assert client.run_on_scheduler(lambda dask_scheduler: Monitor.name in dask_scheduler.plugins)
        found = client.run(lambda dask_worker: {OneBlasThread.name, Undisturbed.name} <= set(dask_worker.plugins))
        assert len(found) == 2
        assert all(found.values())
        assert client.status == "running"
        with pytest.raises(ConfigError, match="workers: not used with a client, whose cluster already exists"):
            connect(client, workers=2)
    with pytest.raises(ConfigError, match="found one that is closed"):
        connect(client)


@pytest.mark.cluster
def test_an_asynchronous_client_is_refused(cluster):
    async def ask():
        async with distributed.Client(cluster.scheduler_address, asynchronous=True, set_as_default=False) as client:
            with pytest.raises(ConfigError, match=r"asynchronous.*Client\(client\.scheduler\.address\)"):
                connect(client)

    asyncio.run(ask())


def _trackers():
    return {process.pid for process in tree() if "tracker" in " ".join(process.cmdline())}


@pytest.mark.cluster
def test_an_address_and_a_file_of_one_reach_a_running_cluster(cluster, write):
    for where in (
        cluster.scheduler_address,
        write(f"bigkernel:\n  cluster:\n    kind: address\n    address: {cluster.scheduler_address}\n"),
    ):
        with connect(where) as client:
            assert client.scheduler.address == cluster.scheduler_address
            assert client.submit(sum, [1, 2], pure=False).result(timeout=90) == 3
        assert client.status == "closed"
    assert cluster.status.name == "running"  # it is not ours to close


REFUSED = {
    "empty": ("", "mapping under bigkernel"),
    "nothing of ours": ("distributed:\n  worker: {}\n", "mapping under bigkernel"),
    "unknown key": (LOCAL + "    nodes: 3\n", "nodes: unknown"),
    "unknown kind": (LOCAL.replace("local", "pbs"), "kind: expected local, address, ssh or slurm, found pbs"),
    "workers beyond all": (LOCAL.replace("1", "100000"), "workers: expected from 1 to 1024"),
    "memory beyond all": (LOCAL + "    memory-limit: 10000000 TiB\n", "memory limit.*1 PiB"),
    "certificates that are not there": (LOCAL + "    tls: nowhere\n", "nowhere: found no certificates"),
    "insecure and local": (LOCAL + "    insecure: true\n", "insecure: only valid with kind: address"),
    "certificates and an open address": (
        ADDRESS + "    tls: keys\n",
        r"certificates \(.*keys\) need an encrypted address",
    ),
    "certificates missing": (
        ADDRESS.replace("tcp", "tls"),
        r"tls://127.0.0.1:1: expected a directory of certificates.*tls: DIR",
    ),
    "another scheme": (ADDRESS.replace("tcp", "http"), "expected the address of a scheduler.*tcp, tls"),
    "a word for an address": (
        ADDRESS.replace("tcp://127.0.0.1:1", "local"),
        "local: expected the address of a scheduler",
    ),
    "no port": (ADDRESS.replace(":1", ""), "expected the address of a scheduler.*port"),
    "port 0": (ADDRESS.replace(":1\n", ":0\n"), "expected the address of a scheduler.*0 is not a port"),
    "directory that cannot be": (LOCAL + "    directory: /proc/nothing\n", "directory|nothing"),
    "no address": ("bigkernel:\n  cluster:\n    kind: address\n", "address: missing"),
    "code": ("bigkernel: !!python/object/apply:os.mkdir [/tmp/bigkernel-was-here]\n", "cannot be read as a YAML"),
}


SSH = "bigkernel:\n  cluster:\n    kind: ssh\n    hosts: [node1, node2]\n"
SLURM = 'bigkernel:\n  cluster:\n    kind: slurm\n    walltime: "01:00:00"\n'
REFUSED |= {
    "no hosts": (SSH.replace("[node1, node2]", "[]"), r"cluster\.hosts: expected from 1 to 1024 hosts, found 0"),
    "hosts missing": (SSH.replace("    hosts: [node1, node2]\n", ""), r"cluster\.hosts: missing"),
    "a host with a command": (SSH.replace("node2", "'node2; reboot'"), "hosts: expected names or addresses of hosts"),
    "a host that is an option": (SSH.replace("node2", "-oProxyCommand=sh"), "hosts: expected names or addresses"),
    "hosts without certificates": (SSH, "kind: ssh: workers on other machines need certificates.*bigkernel certs"),
    "jobs without certificates": (SLURM, "kind: slurm: workers on other machines need certificates.*bigkernel certs"),
    "a host twice": (SSH.replace("node2", "node1"), "hosts: expected distinct hosts"),
    "a partition by SSH": (SSH + "    partition: work\n", "partition: only valid with kind: slurm"),
    "no walltime": (SLURM.replace('    walltime: "01:00:00"\n', ""), "walltime: missing"),
    "walltime without quotes": (SLURM.replace('"01', "10").replace('"', ""), 'walltime: expected "hours:.*found 36000'),
    "walltime of a moment": (SLURM.replace("01:00:00", "00:00:30"), "walltime: expected at least a minute"),
    "a partition with a command": (SLURM + "    partition: work; reboot\n", "partition: expected a word without bl"),
    "a command in a path": (SLURM + "    python: /bin/$(reboot)\n", "python: expected a path without blanks or quotes"),
}


@pytest.mark.parametrize("text, message", REFUSED.values(), ids=REFUSED)
def test_a_file_that_does_not_fit_is_refused_by_key(write, text, message):
    with pytest.raises(ConfigError, match=message) as caught, connect(write(text)):
        pass
    assert isinstance(caught.value, ValueError)
    assert not os.path.exists("/tmp/bigkernel-was-here")


@pytest.mark.parametrize(
    "kind, module, extra", [(SSH, "asyncssh", "ssh"), (SLURM, "dask_jobqueue", "slurm")], ids=["ssh", "slurm"]
)
def test_a_package_that_is_missing_is_named_with_the_command_that_installs_it(write, monkeypatch, kind, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf'pip install "bigkernel\[{extra}\]"'), connect(write(kind)):
        pass


def test_a_mapping_of_another_file_is_a_cluster_too(tmp_path):
    found = cluster_of({"kind": "address", "address": "tls://a:1", "tls": "keys"}, "job.yaml: cluster", tmp_path)
    assert (found.address, found.tls) == ("tls://a:1", tmp_path / "keys")
    with pytest.raises(ConfigError, match=f"^{tmp_path}/keys: found no certificates"), connect(found):
        pass
    with pytest.raises(ConfigError, match=r"^job\.yaml: cluster\.nodes: unknown"):
        cluster_of({"kind": "local", "nodes": 3}, "job.yaml: cluster", tmp_path)
    with pytest.raises(ConfigError, match=r"^job\.yaml: cluster: expected a mapping, found 3"):
        cluster_of(3, "job.yaml: cluster", tmp_path)


def test_what_is_neither_word_nor_address_nor_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="found none"), connect("kubernetes"):
        pass
    with pytest.raises(ConfigError, match="cannot be read"), connect(tmp_path):
        pass


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"workers": 0}, "workers"),
        ({"workers": 10**9}, "workers: expected from 1 to 1024"),
        ({"memory_limit": "lots"}, "memory"),
        ({"memory_limit": 5}, "100 MB"),
        ({"dashboard": 65536}, "dashboard: expected a port from 0 to 65535"),
        ({"tls": "/nowhere"}, "/nowhere: found no certificates"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_a_process_starts(arguments, message):
    before = len(tree())
    with pytest.raises(ConfigError, match=message), connect("local", **arguments):
        pass
    assert len(tree()) == before


def test_a_relative_directory_of_certificates_starts_at_the_file(write, tmp_path, monkeypatch):
    monkeypatch.chdir("/")
    path = write(ADDRESS.replace("tcp", "tls") + "    tls: keys\n")
    with pytest.raises(ConfigError, match=f"{tmp_path}/keys: found no certificates"), connect(path):
        pass
    with pytest.raises(ConfigError, match=r"^/elsewhere: found no certificates"), connect(path, tls="/elsewhere"):
        pass


@pytest.mark.parametrize(
    "text, message",
    [
        ("a: &x 1\nb: *x\n", r"an alias \(\*name\)"),
        ("kind: local\nkind: ssh\n", "kind is given twice"),
        ("a: !!python/name:os.system\n", "cannot be read as a YAML cluster file"),
        ("#" * 70_000, "more than 65536 characters"),
    ],
)
def test_a_file_that_is_more_than_data_is_refused(tmp_path, text, message):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_file(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["local.yaml", "existing.yaml", "tls.yaml", "ssh.yaml", "slurm.yaml"])
def test_the_shipped_cluster_files_are_read(name):
    found = read_file(SHIPPED / name)
    shown = {line.lstrip("# ").split(":")[0] for line in (SHIPPED / name).read_text().splitlines()}
    assert {key.replace("_", "-") for key, value in vars(found).items() if value} <= shown
    assert not found.insecure


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
    # the only code that it names
    assert shipped["distributed"]["scheduler"].pop("preload") == ["bigkernel.monitor.dashboard.server"]
    assert "preload" not in str(shipped)


@pytest.mark.cluster
def test_an_address_is_reached_from_inside_a_running_event_loop(cluster):
    """As in a notebook."""

    async def cell():
        with connect(cluster.scheduler_address) as client:
            return client.submit(sum, [1, 2], pure=False).result(timeout=90)

    assert asyncio.run(cell()) == 3
