"""Clusters started by Dask's own launchers: hosts by `distributed.SSHCluster`, jobs of SLURM by dask-jobqueue.

Beyond loopback all traffic between scheduler, workers and driver is encrypted with the certificates of `tls:`, which
have the same path everywhere. Words that end up in shell lines were checked by `cluster_file`.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import dask
from distributed import Client, Scheduler, SchedulerPlugin, SSHCluster
from distributed.core import Status
from distributed.utils import LoopRunner, sync
from tornado.ioloop import PeriodicCallback

import bigkernel
from bigkernel.cluster.attach import attach, is_loopback
from bigkernel.cluster.certificates import FILES
from bigkernel.cluster.cluster_file import ClusterFile
from bigkernel.cluster.dask_settings import configuration, dashboard_port, memory_limit, start_seconds, worker_lines
from bigkernel.config import settings
from bigkernel.data.visible import log_of
from bigkernel.errors import BigKernelError, ConfigError, StalledError

LOST_SECONDS = 30  # a job of SLURM whose worker has been gone for so long has ended
REPLACE_SECONDS = 30  # seconds between checks for ended jobs
_END_SECONDS = 30  # most seconds for the cluster to end
_log = log_of(__name__)


@contextmanager
def launched(file: ClusterFile) -> Iterator[Client]:
    """Start scheduler and workers for a block; jobs of SLURM may wait in its queue meanwhile."""
    ssh, library = file.kind == "ssh", require_launchable(file)
    port = dashboard_port(file.dashboard)
    config = configuration(port) | _encryption(file)
    if ssh:
        config["distributed.scheduler.preload"] = [*config["distributed.scheduler.preload"], __name__]
    own = {} if ssh else {"distributed.deploy.lost-worker-timeout": f"{LOST_SECONDS}s"}
    with dask.config.set(config | own):
        try:
            if ssh:
                # a busy sshd drops some connections of many at once (MaxStartups)
                dropped = (ConnectionResetError, library.ConnectionLost)
                runner, cluster = _begin(lambda: _hosts(file, port), jobs=0, again=dropped)
            else:
                runner, cluster = _begin(lambda: _queue(file, port, worker_lines(config)), jobs=file.workers or 1)
        except Exception as error:
            raise (_refused_by_ssh(error, file) if ssh else _refused_by_slurm(error)) from error
        try:
            with attach(cluster.scheduler_address, file.tls) as client:
                yield client
        finally:
            with suppress(Exception):
                sync(runner.loop, cluster.close, callback_timeout=_END_SECONDS)
            runner.stop()


def require_launchable(file: ClusterFile) -> Any:
    """Return the library that starts this kind; raise `ConfigError` if it, or certificates beyond loopback, lack."""
    ssh = file.kind == "ssh"
    library = _imported("asyncssh" if ssh else "dask_jobqueue", file.kind)
    if file.tls is None and not (ssh and all(map(is_loopback, file.hosts))):
        raise ConfigError(
            f"kind: {file.kind}: workers on other machines need certificates, as anyone who reaches a scheduler can "
            "run code on it; create them in a shared directory (bigkernel certs DIR) and set tls: DIR"
        )
    return library


def dask_setup(scheduler: Scheduler) -> None:
    """End a scheduler on a host that has no client; called by Dask for a preloaded module."""
    plugin = EndWithClients()
    scheduler.add_plugin(plugin)
    plugin.remove_client(scheduler, "")


class EndWithClients(SchedulerPlugin):
    """Ends a scheduler, with its workers, when it has had no client for some time."""

    name = "bigkernel-end-with-clients"

    def remove_client(self, scheduler: Scheduler, client: str) -> None:
        """Check again after the time in which workers start and a client connects."""
        scheduler.loop.call_later(start_seconds() + 30, self._end, scheduler)

    def _end(self, scheduler: Scheduler) -> None:
        if set(scheduler.clients) <= {"fire-and-forget"}:
            scheduler.loop.add_callback(scheduler.close, reason="the driver is gone")


def _encryption(file: ClusterFile) -> dict[str, Any]:
    """Return Dask's configuration of processes that read their certificates themselves."""
    if file.tls is None:
        return {}
    ca, cert, key = (str(file.tls.absolute() / name) for name in FILES)
    comm: dict[str, Any] = {"default-scheme": "tls", "require-encryption": True}
    comm |= {"tls.min-version": 1.3, "tls.ca-file": ca}
    comm |= {f"tls.{role}": {"cert": cert, "key": key} for role in ("scheduler", "worker", "client")}
    return {f"distributed.comm.{name}": value for name, value in comm.items()}


def _begin(make: Callable[[], Any], jobs: int, again: tuple[type[Exception], ...] = ()) -> tuple[LoopRunner, Any]:
    """Start a cluster with so many jobs, on its own event loop and in bounded time; jobs that end are replaced.

    After an error of `again` it is tried twice more.
    """

    async def start(attempts: int = 3) -> Any:
        cluster = make()
        for _ in range(jobs):
            cluster.worker_spec.update(cluster.new_worker_spec())
        try:
            await asyncio.wait_for(cluster, start_seconds())
        except BaseException as error:
            await _drop_unstarted(cluster)
            with suppress(Exception):
                await asyncio.wait_for(cluster.close(), _END_SECONDS)
            if attempts == 1 or not isinstance(error.__cause__ or error, again):
                raise
            _log.warning("a host dropped a connection (%s): restarting all hosts", error.__cause__ or error)
            await asyncio.sleep(1)
            return await start(attempts - 1)
        if jobs:
            PeriodicCallback(lambda: _submit_again(cluster), REPLACE_SECONDS * 1000).start()
        return cluster

    runner = LoopRunner()
    runner.start()
    try:
        return runner, sync(runner.loop, start)
    except BaseException:
        runner.stop()
        raise


async def _submit_again(cluster: Any) -> None:
    """Submit jobs in place of those that ended or that SLURM rejected."""
    if cluster.status == Status.running:
        await _drop_unstarted(cluster)
        try:
            await cluster
        except Exception as error:
            _log.warning("SLURM rejected a job: %s; submitting it again", error)


async def _drop_unstarted(cluster: Any) -> None:
    """End and forget jobs that did not start: Dask counts them, and does not close a cluster that has some."""
    for process in (*cluster._created, cluster.scheduler):
        if process is not None and process.status == Status.created:
            with suppress(Exception):
                await process.close()
            process.status = Status.failed
    for name, worker in list(cluster.workers.items()):
        if worker.status == Status.failed:
            del cluster.workers[name]


def _hosts(file: ClusterFile, port: int) -> Any:
    """Create the cluster of hosts, the scheduler on the first; ~/.ssh/config says how they are reached."""
    seconds = min(30, settings().stall_seconds)
    where = {"interface": file.interface} if file.interface else {"host": "127.0.0.1"} if file.tls is None else {}
    scheduler = {"port": 0, "protocol": "tcp" if file.tls is None else "tls"}
    worker: dict[str, Any] = {"n_workers": file.workers or 1, "nthreads": 1, "memory_limit": memory_limit(file)}
    worker |= {"local_directory": file.directory, "death_timeout": start_seconds(), "dashboard_address": "127.0.0.1:0"}
    return SSHCluster(
        [file.hosts[0], *file.hosts],
        # keepalive: notices a lost host
        connect_options={"connect_timeout": seconds, "login_timeout": seconds, "keepalive_interval": 15},
        worker_options=worker | where,
        scheduler_options={**scheduler, **where, "dashboard_address": f"127.0.0.1:{port}"},
        remote_python=file.python or sys.executable,
        asynchronous=True,
    )


def _refused_by_ssh(error: Exception, file: ClusterFile) -> BigKernelError:
    asyncssh, hosts = _imported("asyncssh", "ssh"), ", ".join(file.hosts)
    cause = error if isinstance(error, TimeoutError) else error.__cause__ or error
    if isinstance(cause, asyncssh.HostKeyNotVerifiable):
        return ConfigError(f"{hosts}: {cause}; compare its key with that of the host: ssh-keyscan HOST, known_hosts")
    if isinstance(cause, asyncssh.PermissionDenied):
        return ConfigError(f"{hosts}: {cause}; check that `ssh HOST` works without a password (~/.ssh/config)")
    if isinstance(cause, OSError | asyncssh.Error):
        reason = str(cause) or type(cause).__name__
        return StalledError(
            f"{hosts}: scheduler and workers did not start in time ({reason}); check that all hosts are reachable"
        )
    return ConfigError(
        f"{hosts}: the started process ended at once ({cause}; see its log above); install bigkernel "
        f"{bigkernel.__version__} there, and set its interpreter (python:)"
    )


def _queue(file: ClusterFile, port: int, prologue: list[str]) -> Any:
    """Create a cluster without jobs, with its scheduler in this process; a job is one worker."""
    # workers end by themselves before SLURM ends them: gracefully, and not all jobs at once
    spare = min(300, file.seconds // 4)
    lifetime = ["--lifetime", f"{file.seconds - spare}s", "--lifetime-stagger", f"{spare // 2}s"]
    where = {"interface": file.interface} if file.interface else {}
    return _imported("dask_jobqueue", "slurm").SLURMCluster(
        queue=file.partition,
        account=file.account,
        cores=1,
        processes=1,
        memory=memory_limit(file),
        walltime=file.walltime,
        python=file.python or sys.executable,
        interface=file.interface,
        protocol="tls://",
        local_directory=file.directory,
        death_timeout=start_seconds(),
        job_name="bigkernel-worker",
        job_script_prologue=[*dask.config.get("jobqueue.slurm.job-script-prologue"), *prologue],
        worker_extra_args=[*lifetime, "--dashboard-address", "127.0.0.1:0"],
        scheduler_options={"dashboard_address": f"127.0.0.1:{port}", **where},
        asynchronous=True,
    )


def _refused_by_slurm(error: Exception) -> BigKernelError:
    if isinstance(error, FileNotFoundError):
        return ConfigError(f"kind: slurm: {error}; run this on a machine that submits jobs (sbatch)")
    lines = str(error.__cause__ or error).splitlines()
    said = "; ".join(line.partition("error: ")[2] for line in lines if "error: " in line) or str(error)
    if isinstance(error, TimeoutError) or any(word in said for word in ("contact", "timed out", "refused")):
        return StalledError(f"SLURM does not answer: {said or 'in time'}; check `squeue`")
    return ConfigError(f"kind: slurm: SLURM rejected the jobs, or the scheduler cannot start: {said}")


def _imported(module: str, extra: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f'kind: {extra} needs {module} ({error}): pip install "bigkernel[{extra}]"') from error
