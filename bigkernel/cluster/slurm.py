"""Clusters whose workers are jobs of SLURM: the scheduler in this process, a job a worker, by dask-jobqueue.

The batch script holds what a cluster file says and no other configuration, each value checked by `cluster_files`,
because the lines of the script are read by a shell. Jobs end by themselves before SLURM would end them, and others are
submitted in their place, as often as it takes. Whole jobs in one allocation: cluster/slurm/job.sbatch.
"""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import Security
from distributed.deploy.spec import ProcessInterface
from distributed.utils import get_ip
from tornado.ioloop import PeriodicCallback

from bigkernel.cluster.cluster_file import SlurmFile, memory_bytes
from bigkernel.cluster.dask_settings import (
    START_SECONDS,
    configuration,
    dashboard_port,
    first_cause,
    pages_load,
    worker_lines,
)
from bigkernel.cluster.tls_files import ROLES, check_credentials
from bigkernel.config import settings
from bigkernel.data.visible import log_of
from bigkernel.engine.context import is_loopback
from bigkernel.errors import ConfigError, Stalled

_ASK_SECONDS = 60  # SLURM itself gives up after less
LOST_SECONDS = 30  # a worker that is gone for this long does not come back: its job has ended
REPLACE_SECONDS = 30  # jobs that ended are looked for this often
_SHELL_SAFE = re.compile(r"/[A-Za-z0-9_.,:@+/=-]*")
# what a user's own jobqueue.yaml says would end in the batch script too
_NOTHING: dict[str, Any] = {
    **dict.fromkeys(("cores", "memory", "processes", "python", "interface", "local-directory", "log-directory")),
    **dict.fromkeys(("shared-temp-directory", "extra", "queue", "account", "walltime", "env-extra", "job-extra")),
    **dict.fromkeys(("job-cpu", "job-mem", "death-timeout", "project", "header-skip")),
    "name": "bigkernel-worker",
    "worker-command": "distributed.cli.dask_worker",
    "worker-extra-args": [],
    "shebang": "#!/bin/bash",
    "job-script-prologue": [],
    "job-extra-directives": [],
    "job-directives-skip": [],
    "scheduler-options": {},
}
_log = log_of(__name__)


@contextmanager
def slurm_cluster(file: SlurmFile) -> Iterator[Any]:
    """Submit the jobs and hold the cluster for the length of a block; jobs may wait in SLURM's queue meanwhile.

    Yields
    ------
    a cluster of Dask, for `Client`

    Raises
    ------
    ConfigError
        dask-jobqueue or sbatch is missing, an address that other machines reach without certificates, or one that is
        not of this machine.
    Stalled
        SLURM does not take the jobs; says what sbatch said.
    """
    jobqueue = _jobqueue()
    if shutil.which("sbatch") is None:
        raise ConfigError("kind: slurm needs sbatch, and there is none here; run this on a machine that submits jobs")
    if file.tls is None and not (file.host and is_loopback(file.host)):
        raise ConfigError(
            "kind: slurm: jobs run on other machines, and whoever reaches a scheduler runs code on it; make "
            "certificates in a directory that all nodes share (bigkernel certs DIR) and name them (tls: DIR)"
        )
    with _cluster(jobqueue, file) as cluster:
        _require_taken(cluster.job_script())
        cluster.scale(jobs=file.workers)
        keeping = PeriodicCallback(lambda: _submit_again(cluster, file.workers), REPLACE_SECONDS * 1000)
        cluster.loop.add_callback(keeping.start)
        try:
            yield cluster
        finally:
            cluster.loop.add_callback(keeping.stop)


@contextmanager
def _cluster(jobqueue: Any, file: SlurmFile) -> Iterator[Any]:
    """Hold dask-jobqueue's cluster, which has no job yet."""
    wanted = settings()
    security = None if file.tls is None else _security(file.tls.absolute())
    port, pages = dashboard_port(8787 if file.dashboard is None else file.dashboard), pages_load()
    ours = configuration(port, pages=pages)
    # Dask itself would listen at every address of this machine, and of the nodes
    host = None if file.interface else file.host or get_ip()
    here = {"interface": file.interface} if host is None else {"host": host}
    python = file.python or sys.executable
    own_address = [] if host is None else [_own_address(python, host)]
    with dask.config.set(
        {**ours, "distributed.deploy.lost-worker-timeout": f"{LOST_SECONDS}s", "jobqueue.slurm": _NOTHING}
    ):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cluster = jobqueue.SLURMCluster(
                    n_workers=0,
                    job_cls=_patient(jobqueue.slurm.SLURMJob),
                    queue=file.partition,
                    account=file.account,
                    cores=1,
                    processes=1,
                    memory=wanted.memory_limit_bytes if file.memory_limit is None else memory_bytes(file.memory_limit),
                    walltime=file.walltime,
                    python=python,
                    interface=file.interface,
                    local_directory=file.directory,
                    log_directory=file.logs,
                    death_timeout=max(START_SECONDS, wanted.stall_seconds),
                    security=security,
                    job_name="bigkernel-worker",
                    job_extra_directives=[f"--{name}={value}" for name, value in file.options.items()],
                    job_script_prologue=[*worker_lines(ours, encrypted=security is not None), *own_address],
                    worker_extra_args=_worker_options(file, host),
                    scheduler_options={"dashboard_address": f"127.0.0.1:{port}", "dashboard": pages, **here},
                )
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"kind: slurm: the scheduler cannot start here: {first_cause(error)}") from error
        with cluster:
            yield cluster


def _worker_options(file: SlurmFile, host: str | None) -> list[str]:
    """Return options of a worker's command line: it ends by itself, and listens where its node faces `host`."""
    # a graceful end takes a moment, and not all jobs at once
    spare = min(300, file.seconds // 4)
    return [
        *("--lifetime", f"{file.seconds - spare}s", "--lifetime-stagger", f"{spare // 2}s"),
        *("--dashboard-address", "127.0.0.1:0"),
        *(() if host is None else ("--host", "$worker_host")),
    ]


def _own_address(python: str, host: str) -> str:
    """A line of a batch script: the address of its node that faces the scheduler's `host` is worker_host."""
    facing = get_ip() if host in ("0.0.0.0", "::") else host
    code = f"from distributed.utils import get_ip; print(get_ip({facing!r}))"
    return f"worker_host=$({shlex.quote(python)} -c {shlex.quote(code)}) || exit 1"


def _require_taken(script: str) -> None:
    """Ask SLURM whether it would take the job, without submitting it."""
    seconds = min(_ASK_SECONDS, settings().stall_seconds)
    try:
        asked = subprocess.run(
            ["sbatch", "--test-only"], input=script, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Stalled(f"SLURM did not answer within {seconds} s; does `squeue`?") from error
    except OSError as error:
        raise ConfigError(f"kind: slurm: sbatch cannot be run: {error}") from error
    if asked.returncode:
        lines = [line.partition("error: ")[2] or line for line in asked.stderr.strip().splitlines()]
        said = "; ".join(lines)[-500:] or f"sbatch ended with {asked.returncode}"
        if any(words in said for words in ("contact", "timed out", "refused")):
            raise Stalled(f"SLURM does not answer: {said}; does `squeue`?")
        raise ConfigError(f"kind: slurm: SLURM does not take the jobs: {said}")


def _submit_again(cluster: Any, jobs: int) -> None:
    """Submit jobs in the place of those that ended or that SLURM did not take; runs in the cluster's loop."""
    for name, job in list(cluster.workers.items()):
        if job.job_id is None:
            del cluster.workers[name]
    cluster.scale(jobs=jobs)


def _patient(job: Any) -> Any:
    """A kind of job that is not lost when SLURM does not take it: `_submit_again` sees that it has no number."""

    class Patient(job):
        async def start(self) -> None:
            try:
                await super().start()
            except (RuntimeError, ValueError) as error:
                _log.warning("SLURM did not take a job; it is submitted again soon: %s", error)
                await ProcessInterface.start(self)

    return Patient


def _security(tls: Path) -> Security:
    """As `attach.security_of`; keys are named apart from certificates, because they end on command lines of workers."""
    if not _SHELL_SAFE.fullmatch(str(tls)):
        raise ConfigError(f"tls: {tls} ends in a line of a shell; move it to a path without blanks and quotes")
    files = check_credentials(tls, ROLES)
    own = {f"tls_{role}_{part}": files[role] for role in ROLES for part in ("cert", "key")}
    return Security(require_encryption=True, tls_ca_file=files["ca"], tls_min_version=ssl.TLSVersion.TLSv1_3, **own)


def _jobqueue() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module("dask_jobqueue")
    except ImportError as error:
        raise ConfigError(f'kind: slurm needs dask-jobqueue ({error}): pip install "bigkernel[slurm]"') from error
