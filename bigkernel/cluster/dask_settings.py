"""Configuration of Dask's processes: bounded waits, one BLAS thread, no routes to logs, code or other ports."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import dask

from bigkernel.cluster.attach import PATIENT
from bigkernel.cluster.cluster_file import ClusterFile, memory_bytes
from bigkernel.config import settings
from bigkernel.data.visible import log_of
from bigkernel.engine.process import processors

# read by BLAS libraries when they load, before any code of ours runs in a worker
_ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)
_PAGE = "bigkernel.monitor.dashboard.server"  # the page of jobs, from a scheduler's start on
_log = log_of(__name__)


def start_seconds() -> int:
    """Return the seconds that workers may take to start: at least 30, whatever stall-seconds is."""
    return max(30, settings().stall_seconds)


def memory_limit(file: ClusterFile) -> int:
    """Return the memory limit in bytes of each worker of a cluster."""
    return settings().memory_limit_bytes if file.memory_limit is None else memory_bytes(file.memory_limit)


def n_workers(file: ClusterFile) -> int:
    """Return the number of workers that a cluster starts."""
    each = file.workers or (processors() if file.kind == "local" else 1)
    return each * max(1, len(file.hosts))


def configuration(port: int) -> dict[str, Any]:
    """Return Dask's configuration of a scheduler, with its dashboard on this port of 127.0.0.1, and its workers."""
    config = settings()
    scheduler = ["distributed.http.health", "distributed.http.statics"]
    worker, origins = ["distributed.http.health"], [f"localhost:{port}", f"127.0.0.1:{port}"]
    if find_spec("prometheus_client") is not None:
        scheduler.append("distributed.http.scheduler.prometheus")
        worker.append("distributed.http.worker.prometheus")
    return {
        **PATIENT,
        # Dask's own monitoring, ten times less often than by default: with one task per core it takes their time
        "distributed.worker.profile.interval": "100ms",
        "distributed.admin.tick.interval": "200ms",
        "distributed.admin.system-monitor.interval": "2s",
        "distributed.nanny.pre-spawn-environ": dask.config.get("distributed.nanny.pre-spawn-environ") | _ONE_THREAD,
        "distributed.scheduler.preload": [*dask.config.get("distributed.scheduler.preload"), *[_PAGE] * config.monitor],
        "distributed.scheduler.worker-ttl": f"{config.worker_ttl_seconds}s",
        "distributed.scheduler.allowed-failures": config.allowed_failures,
        # its timer would close a nanny whose worker happens to be restarting when it fires
        "distributed.deploy.lost-worker-timeout": "3650d",
        "distributed.scheduler.no-workers-timeout": f"{config.stall_seconds}s",
        "distributed.scheduler.http.routes": scheduler,
        "distributed.worker.http.routes": worker,
        "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin": origins,
        "distributed.dashboard.link": f"{{scheme}}://127.0.0.1:{port}/{'bigkernel' if config.monitor else 'status'}",
    }


def worker_lines(config: Mapping[str, Any]) -> list[str]:
    """Return lines of a batch script that set one BLAS thread, our settings and Dask's configuration for a worker."""
    merged: dict[str, Any] = {}
    dask.config.set({**config, "bigkernel": dask.config.get("bigkernel")}, config=merged)
    return [
        *(f"export {name}={value}" for name, value in _ONE_THREAD.items()),
        f"export DASK_INTERNAL_INHERIT_CONFIG={dask.config.serialize(merged)}",
    ]


@contextmanager
def environment_kept() -> Iterator[None]:
    """Restore the environment of this process afterwards: nannies set variables for their workers in it."""
    left = {*dask.config.get("distributed.nanny.pre-spawn-environ"), *_ONE_THREAD, "PYTHONHASHSEED"}
    before = {name: os.environ.pop(name, None) for name in left}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def dashboard_port(requested: int | None) -> int:
    """Return the requested port (None: 8787) if free on loopback, else another, with a warning; for 0 any."""
    requested = 8787 if requested is None else requested
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", requested))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    if requested not in (0, port):
        _log.warning("port %d is in use: serving the dashboard at http://127.0.0.1:%d/bigkernel", requested, port)
    return port
