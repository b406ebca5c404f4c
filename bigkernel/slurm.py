"""Clusters whose workers are jobs of SLURM: the scheduler in this process, a job a worker, by dask-jobqueue.

The batch script holds what a cluster file says and no other configuration, each value checked by `cluster_files`,
because the lines of the script are read by a shell. Jobs end by themselves before SLURM would end them, and others are
submitted in their place, as often as it takes. Whole jobs in one allocation: cluster/slurm/job.sbatch.
"""

from __future__ import annotations

import importlib
import re
import shutil
import ssl
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import Security
from tornado.ioloop import PeriodicCallback

from bigkernel.cluster_files import SlurmFile, memory_bytes
from bigkernel.config import settings
from bigkernel.credentials import ROLES, check_credentials
from bigkernel.dask_settings import START_SECONDS, configuration, dashboard_port, first_cause, pages_load, worker_lines
from bigkernel.errors import ConfigError, Stalled
from bigkernel.execution import is_loopback

_REPLACE_SECONDS = 30  # jobs that ended are looked for this often
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
    wanted = settings()
    memory = wanted.memory_limit_bytes if file.memory_limit is None else memory_bytes(file.memory_limit)
    make = _jobqueue()
    if shutil.which("sbatch") is None:
        raise ConfigError("kind: slurm needs sbatch, and there is none here; run this on a machine that submits jobs")
    if file.tls is None and not (file.host and is_loopback(file.host)):
        raise ConfigError(
            "kind: slurm: jobs run on other machines, and whoever reaches a scheduler runs code on it; make "
            "certificates in a directory that all nodes share (bigkernel certs DIR) and name them (tls: DIR)"
        )
    security = None if file.tls is None else _security(file.tls.absolute())
    port, pages = dashboard_port(8787 if file.dashboard is None else file.dashboard), pages_load()
    # a graceful end takes a moment, and not all jobs at once
    spare = min(300, file.seconds // 4)
    ours = configuration(port, pages=pages)
    scheduler = {"dashboard_address": f"127.0.0.1:{port}", "dashboard": pages}
    scheduler |= {"host": file.host} if file.host else {"interface": file.interface}
    with dask.config.set({**ours, "distributed.deploy.lost-worker-timeout": "30s", "jobqueue.slurm": _NOTHING}):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                cluster = make(
                    n_workers=0,
                    queue=file.partition,
                    account=file.account,
                    cores=1,
                    processes=1,
                    memory=memory,
                    walltime=file.walltime,
                    python=file.python or sys.executable,
                    interface=None if file.host else file.interface,
                    local_directory=file.directory,
                    log_directory=file.logs,
                    death_timeout=max(START_SECONDS, wanted.stall_seconds),
                    security=security,
                    job_name="bigkernel-worker",
                    job_extra_directives=[f"--{name}={value}" for name, value in file.options.items()],
                    job_script_prologue=worker_lines(ours, encrypted=security is not None),
                    worker_extra_args=[
                        *("--lifetime", f"{file.seconds - spare}s", "--lifetime-stagger", f"{spare // 2}s"),
                        *("--dashboard-address", "127.0.0.1:0"),
                    ],
                    scheduler_options=scheduler,
                )
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(f"kind: slurm: the scheduler cannot start here: {first_cause(error)}") from error
        with cluster:
            _submit(cluster, file.workers)
            keeping = PeriodicCallback(lambda: cluster.scale(jobs=file.workers), _REPLACE_SECONDS * 1000)
            cluster.loop.add_callback(keeping.start)
            try:
                yield cluster
            finally:
                cluster.loop.add_callback(keeping.stop)


def _submit(cluster: Any, jobs: int) -> None:
    """Hand the jobs to SLURM, and hear at once what it says against them."""

    async def settled() -> None:
        await cluster

    cluster.scale(jobs=jobs)
    seconds = settings().stall_seconds
    try:
        cluster.sync(settled, callback_timeout=seconds)
    except TimeoutError as error:
        raise Stalled(f"SLURM did not take the jobs within {seconds} s; does `squeue` answer?") from error
    except RuntimeError as error:
        said = " ".join(re.findall(r"sbatch: error: (.*)", str(error))) or str(error)
        if "contact" in said or "timed out" in said:
            raise Stalled(f"SLURM does not answer: {said}; does `squeue`?") from error
        raise ConfigError(f"kind: slurm: SLURM does not take the jobs: {said}") from error


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
            return importlib.import_module("dask_jobqueue").SLURMCluster
    except ImportError as error:
        raise ConfigError(f'kind: slurm needs dask-jobqueue ({error}): pip install "bigkernel[slurm]"') from error
