"""`connect`: a Dask client from one word, an address or a file.

Loopback only unless asked, encrypted beyond it, memory limits explicit, processes with one BLAS thread each. Of a file
only the part under `bigkernel:` is read: Dask's own configuration can load code, ours cannot.

    bigkernel:
      cluster:
        kind: local             # or: address
        workers: 2              # processes, one task each; default: one a processor
        memory-limit: 2GiB      # of each worker
        directory: /scratch     # where workers spill; default: a temporary directory
        dashboard: 8787         # port on 127.0.0.1; 0: any free one
        # host: 10.0.0.4        # (kind: local) listen beyond loopback; needs tls
        # tls: certificates     # made by `bigkernel certs`; a relative path starts at this file
        # address: tls://host:8786    (kind: address)
        # insecure: true        # (kind: address) go unencrypted to another machine, with a warning
"""

from __future__ import annotations

import importlib
import logging
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster

from bigkernel.attach import PATIENT, attach, security_of
from bigkernel.cluster_files import MOST_WORKERS, AddressFile, ClusterFile, LocalFile, memory_bytes, read_file
from bigkernel.config import settings
from bigkernel.credentials import ROLES
from bigkernel.errors import ConfigError, Stalled
from bigkernel.execution import is_loopback, processors
from bigkernel.monitor.plugin import install
from bigkernel.worker import Undisturbed

# Dask's own watching of itself, ten times less often than by default: with one task a core it takes the tasks' time
_QUIET = {
    "distributed.worker.profile.interval": "100ms",
    "distributed.admin.tick.interval": "200ms",
    "distributed.admin.system-monitor.interval": "2s",
}
# read by BLAS libraries when they load, that is before any code of ours runs in a worker
_BLAS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
_START_SECONDS = 30  # a worker process may take so long to start, however small stall-seconds is
_log = logging.getLogger(__name__)


@contextmanager
def connect(
    cluster: str | Path | ClusterFile = "local",
    *,
    workers: int | None = None,
    memory_limit: str | int | None = None,
    directory: str | None = None,
    dashboard: int = 8787,
    host: str | None = None,
    tls: str | os.PathLike[str] | None = None,
) -> Iterator[Client]:
    """A client of a cluster, closed (with the cluster, if it was started here) at the end of the block.

    Parameters
    ----------
    cluster : "local", an address ("tcp://…", "tls://…"), a YAML file, or what `cluster_files.cluster_of` gives
    workers : int or None
        Processes of a local cluster; None: one a processor.
    memory_limit : bytes, text such as "2GiB", or None (`bigkernel.memory-limit-bytes`)
        Of each local worker.
    directory : where local workers spill; None: a temporary directory
    dashboard : port of the dashboard on 127.0.0.1; another free one is taken where it is in use
    host : address that a local cluster listens on; None: 127.0.0.1. Any that other machines reach needs `tls`, and is
        logged as a warning. The dashboard, which nothing protects, stays on 127.0.0.1.
    tls : directory of certificates, made by `bigkernel certs`; None: no encryption, on loopback only

    Raises
    ------
    ConfigError
        The file has an unknown key or a value that does not fit; a certificate or key is missing, expired, or open to
        others; an address beyond this machine without encryption; or certificates that the scheduler does not accept.
    Stalled
        No scheduler answers at the address.

    Examples
    --------
    >>> with connect("local", workers=1) as client:  # doctest: +SKIP
    ...     KernelRidge(n_landmarks=1000).fit(open_corpus("digits.corpus"))
    """
    certificates = None if tls is None else Path(tls)
    found = _described(cluster)
    if isinstance(found, LocalFile):
        with _local(
            workers or found.workers,
            memory_limit or found.memory_limit,
            directory or found.directory,
            dashboard if found.dashboard is None else found.dashboard,
            host or found.host or "127.0.0.1",
            certificates or found.tls,
        ) as client:
            yield client
    elif isinstance(found, AddressFile):
        with attach(found.address, certificates or found.tls, insecure=found.insecure) as client:
            install(client, shown=settings().monitor)
            yield client
    else:
        raise ConfigError(f"kind: {found.kind} cannot be started from here")


def _described(cluster: str | Path | ClusterFile) -> ClusterFile:
    """What a word, an address or a path means."""
    if not isinstance(cluster, str | os.PathLike):
        return cluster
    text = str(cluster)
    if text == "local":
        return LocalFile()
    return AddressFile(text) if "://" in text else read_file(Path(text))


@contextmanager
def _local(
    workers: int | None,
    memory_limit: str | int | None,
    directory: str | None,
    dashboard: int,
    host: str,
    tls: Path | None,
) -> Iterator[Client]:
    limit = settings().memory_limit_bytes if memory_limit is None else memory_bytes(memory_limit)
    count = processors() if workers is None else workers
    if not 1 <= count <= MOST_WORKERS:
        raise ConfigError(f"workers: expected from 1 to {MOST_WORKERS}, found {count}")
    if not 0 <= dashboard <= 65535:
        raise ConfigError(f"dashboard: expected a port from 0 to 65535, found {dashboard}")
    if directory is not None:
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"directory: {directory} cannot be made: {error.strerror}") from error
    _require_bindable(host)
    security = None if tls is None else security_of(tls, ROLES)
    if not is_loopback(host):
        if security is None:
            raise ConfigError(
                f"host: {host} can be reached from other machines, and whoever reaches a scheduler runs code on it; "
                "make certificates (bigkernel certs DIR) and name them (tls: DIR)"
            )
        _log.warning("the cluster listens on %s, beyond this machine; it lets in who holds a key of %s", host, tls)
    port, pages = _dashboard_port(dashboard), _pages_load()
    seconds = max(_START_SECONDS, settings().stall_seconds)
    with dask.config.set(_configuration(port, pages=pages)), _one_blas_thread():
        try:
            cluster = LocalCluster(
                n_workers=count,
                threads_per_worker=1,
                processes=True,
                memory_limit=limit,
                host=f"[{host}]" if ":" in host else host,
                security=security,
                dashboard_address=f"127.0.0.1:{port}",
                scheduler_kwargs={"dashboard": pages},
                # None: metrics and health on `host`, without pages that nobody opens and their 18 MB in each worker
                worker_dashboard_address=None if is_loopback(host) else "127.0.0.1:0",
                local_directory=directory,
                death_timeout=seconds,
            )
        except (RuntimeError, OSError) as error:
            raise Stalled(
                f"the local cluster did not start ({_first_cause(error)}; it has {seconds} s); its log is above; and a "
                "script that calls connect does so under `if __name__ == '__main__':`, because workers import it"
            ) from error
        with cluster, Client(cluster) as client:
            client.register_plugin(Undisturbed())
            install(client, shown=settings().monitor)
            yield client


def _first_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error) or type(error).__name__


def _configuration(port: int, *, pages: bool) -> dict[str, Any]:
    """Dask's configuration of a local cluster: bounded waits, and no route that shows logs, code or other ports."""
    wanted = settings()
    page = "bigkernel" if pages and wanted.monitor else "status"
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


@contextmanager
def _one_blas_thread() -> Iterator[None]:
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


def _require_bindable(host: str) -> None:
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(place)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host: expected an address of this machine, found {host!r}: {error}") from error


def _pages_load() -> bool:
    """Whether the dashboard's pages can be served; a warning where they cannot."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("distributed.dashboard.scheduler")
    except Exception as error:  # whatever it is, the job is worth more than its dashboard
        _log.warning("no dashboard: it cannot be loaded (%s: %s)", type(error).__name__, error)
        return False
    return True


def _dashboard_port(wanted: int) -> int:
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
