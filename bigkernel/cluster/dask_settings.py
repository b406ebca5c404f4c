"""Settings of Dask's processes: bounded waits, one BLAS thread, and no route that shows logs, code or other ports.

`connect` does it for processes of this machine, `hosted` on others, `slurm` for those that SLURM starts.
"""

from __future__ import annotations

import importlib
import os
import socket
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import dask

from bigkernel.cluster.attach import PATIENT
from bigkernel.config import settings
from bigkernel.data.visible import log_of

# Dask's own watching of itself, ten times less often than by default: with one task a core it takes the tasks' time
_QUIET = {
    "distributed.worker.profile.interval": "100ms",
    "distributed.admin.tick.interval": "200ms",
    "distributed.admin.system-monitor.interval": "2s",
}
# read by BLAS libraries when they load, that is before any code of ours runs in a worker
_BLAS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
START_SECONDS = 30  # a worker process may take so long to start, however small stall-seconds is
_log = log_of(__name__)


def first_cause(error: BaseException) -> str:
    """Describe the first cause of an error."""
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def configuration(port: int, *, pages: bool) -> dict[str, Any]:
    """Dask's configuration of a scheduler and its workers.

    Parameters
    ----------
    port : of the dashboard, on 127.0.0.1 of the scheduler's machine
    pages : whether the dashboard has pages; see `pages_load`
    """
    wanted = settings()
    page = "bigkernel" if wanted.monitor else "status"
    metrics = find_spec("prometheus_client") is not None
    scheduler = ["distributed.http.health", "distributed.http.statics"]
    worker = ["distributed.http.health"]
    if metrics:
        scheduler.append("distributed.http.scheduler.prometheus")
        worker.append("distributed.http.worker.prometheus")
    if not pages:
        scheduler.append("distributed.http.scheduler.missing_bokeh")
    return {
        **_QUIET,
        **PATIENT,
        "distributed.scheduler.worker-ttl": f"{wanted.worker_ttl_seconds}s",
        "distributed.scheduler.allowed-failures": wanted.allowed_failures,
        # its timer would close the nanny of a worker that happens to be starting again when it fires
        "distributed.deploy.lost-worker-timeout": "3650d",
        "distributed.scheduler.no-workers-timeout": f"{wanted.stall_seconds}s",
        "distributed.scheduler.http.routes": scheduler,
        "distributed.worker.http.routes": worker,
        "distributed.scheduler.dashboard.bokeh-application.allow_websocket_origin": [
            f"localhost:{port}",
            f"127.0.0.1:{port}",
        ],
        "distributed.dashboard.link": f"{{scheme}}://127.0.0.1:{port}/{page}",
    }


def worker_lines(wanted: Mapping[str, Any], *, encrypted: bool) -> list[str]:
    """Lines of a batch script that give a worker one BLAS thread, our settings and this configuration of Dask."""
    found: dict[str, Any] = {}
    tls = {"distributed.comm.require-encryption": True, "distributed.comm.tls.min-version": 1.3} if encrypted else {}
    dask.config.set({**wanted, **tls, "bigkernel": dask.config.get("bigkernel")}, config=found)
    return [
        *(f"export {name}=1" for name in _BLAS),
        f"export DASK_INTERNAL_INHERIT_CONFIG={dask.config.serialize(found)}",
    ]


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Give worker processes one BLAS thread by their environment, and this process its own environment back."""
    # nannies leave what they give their workers in the environment of this process
    left = {*_BLAS, *dask.config.get("distributed.nanny.pre-spawn-environ"), "PYTHONHASHSEED"}
    before = {name: os.environ.get(name) for name in left}
    os.environ.update(dict.fromkeys(_BLAS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def pages_load() -> bool:
    """Tell whether Dask's own pages can be served, and warn where they cannot though there is a Bokeh."""
    if find_spec("bokeh") is None:
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("distributed.dashboard.scheduler")
    except Exception as error:  # whatever it is, the job is worth more than its dashboard
        _log.warning("no pages of Dask: they cannot be loaded (%s: %s)", type(error).__name__, error)
        return False
    return True


def dashboard_port(wanted: int) -> int:
    """`wanted` if it is free on loopback, else another, with a warning; for 0 any."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    if wanted not in (0, port):
        _log.warning("port %d is in use: the dashboard is at http://127.0.0.1:%d/bigkernel", wanted, port)
    return port
