"""`connect`: a Dask client from one word, an address or a file.

Loopback only unless asked, encrypted beyond it, memory limits explicit, processes with one BLAS thread each. Of a file
only the part under `bigkernel:` is read: Dask's own configuration can load code, ours cannot.

    bigkernel:
      cluster:
        kind: local             # or: address, ssh, slurm; cluster/*.yaml shows the keys of each
        workers: 2              # processes, one task each; default: one a processor
        memory-limit: 2GiB      # of each worker
        directory: /scratch     # where workers spill; default: a temporary directory
        dashboard: 8787         # port on 127.0.0.1; 0: any free one
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster

from bigkernel.cluster.attach import attach, security_of
from bigkernel.cluster.cluster_file import (
    AddressFile,
    ClusterFile,
    LocalFile,
    SshFile,
    memory_bytes,
    read_file,
    require_sizes,
)
from bigkernel.cluster.dask_settings import (
    START_SECONDS,
    configuration,
    dashboard_port,
    first_cause,
    one_blas_thread,
    pages_load,
)
from bigkernel.cluster.held import adopted, closing, held
from bigkernel.cluster.slurm import slurm_cluster
from bigkernel.cluster.ssh import ssh_cluster
from bigkernel.cluster.tls_files import ROLES
from bigkernel.config import settings
from bigkernel.data.visible import log_of
from bigkernel.engine.context import is_loopback, processors
from bigkernel.engine.worker_plugins import Undisturbed
from bigkernel.errors import ConfigError, Stalled
from bigkernel.events.plugin import Monitor
from bigkernel.events.sinks import install_monitor
from bigkernel.monitor.dashboard import server as dashboard_server

_log = log_of(__name__)


def connect(
    cluster: str | Path | ClusterFile | Client = "local",
    *,
    workers: int | None = None,
    memory_limit: str | int | None = None,
    directory: str | None = None,
    dashboard: int = 8787,
    host: str | None = None,
    tls: str | os.PathLike[str] | None = None,
) -> Client:
    """A client of a cluster, which estimators find; what was started for it ends when it is closed.

    It is closed at the end of a `with` block, by `close()`, or when the process ends: in a notebook no block is needed.

    Parameters
    ----------
    cluster : "local", an address ("tcp://…", "tls://…"), a YAML file, what `cluster_files.cluster_of` gives, or a
        client that exists: it is given back with the plugins that jobs want, and remains the caller's to close (a
        `with` block of what is given back leaves it open).
    workers : int or None
        Processes of a local cluster, of each host by SSH, or jobs of SLURM; None: one a processor, one job.
    memory_limit : bytes, text such as "2GiB", or None (`bigkernel.memory-limit-bytes`)
        Of each worker.
    directory : where workers spill; None: a temporary directory
    dashboard : port of the dashboard on 127.0.0.1; another free one is taken where it is in use
    host : address that a local cluster listens on; None: 127.0.0.1. Any that other machines reach needs `tls`, and is
        logged as a warning. The dashboard, which nothing protects, stays on 127.0.0.1.
    tls : directory of certificates, made by `bigkernel certs`; None: no encryption, on loopback only

    Raises
    ------
    ConfigError
        The file has an unknown key or a value that does not fit; a certificate or key is missing, expired, or open to
        others; an address beyond this machine without encryption; certificates that the scheduler does not accept; or
        what `ssh` and `slurm` refuse; a client that is asynchronous or closed.
    Stalled
        No scheduler answers at the address, or a host or SLURM does not.

    Examples
    --------
    >>> with connect("local", workers=1) as client:  # doctest: +SKIP
    ...     KernelRidge(n_landmarks=1000).fit(open_corpus("digits.corpus"))
    >>> client = connect("local", workers=2)  # doctest: +SKIP
    >>> client.close()  # doctest: +SKIP
    """
    own: dict[str, Any] = {"workers": workers, "memory_limit": memory_limit, "directory": directory, "host": host}
    own["tls"] = None if tls is None else Path(tls)
    if isinstance(cluster, Client):
        return adopted(cluster, [name for name, value in own.items() if value is not None])
    return held(_opened(_with(_described(cluster), own, dashboard)))


@contextmanager
def _opened(found: ClusterFile) -> Iterator[Client]:
    """The client of a cluster that is described, for a block; what it takes is started, and ended with it."""
    if isinstance(found, LocalFile):
        with _local(found) as client:
            yield client
    elif isinstance(found, AddressFile):
        with _attached(found.address, found.tls, insecure=found.insecure) as client:
            yield client
    elif isinstance(found, SshFile):
        with ssh_cluster(found) as (address, certificates), _attached(address, certificates) as client:
            yield client
    else:
        with slurm_cluster(found) as running, closing(Client(running)) as client:
            install_monitor(client, shown=settings().monitor)
            yield client


@contextmanager
def _attached(address: str, tls: Path | None, *, insecure: bool = False) -> Iterator[Client]:
    with attach(address, tls, insecure=insecure) as client:
        install_monitor(client, shown=settings().monitor)
        yield client


def _described(cluster: str | Path | ClusterFile) -> ClusterFile:
    """Return the cluster that a word, an address or a path names."""
    if not isinstance(cluster, str | os.PathLike):
        return cluster
    text = str(cluster)
    if text == "local":
        return LocalFile()
    return AddressFile(text) if "://" in text else read_file(Path(text))


def _with(found: ClusterFile, own: Mapping[str, Any], dashboard: int) -> ClusterFile:
    """Return the settings of a file, with the arguments on top that were given and that have a meaning for its kind."""
    chosen = {name: value for name, value in own.items() if value is not None and hasattr(found, name)}
    if not isinstance(found, AddressFile):
        if found.dashboard is None:
            chosen["dashboard"] = dashboard
        require_sizes(vars(found) | chosen)
    return replace(found, **chosen)


@contextmanager
def _local(file: LocalFile) -> Iterator[Client]:
    limit = settings().memory_limit_bytes if file.memory_limit is None else memory_bytes(file.memory_limit)
    host, directory, tls = file.host or "127.0.0.1", file.directory, file.tls
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
    port, pages, count = dashboard_port(file.dashboard or 0), pages_load(), file.workers or processors()
    seconds = max(START_SECONDS, settings().stall_seconds)
    with dask.config.set(configuration(port, pages=pages)), one_blas_thread():
        try:
            cluster = LocalCluster(
                n_workers=count,
                threads_per_worker=1,
                processes=True,
                memory_limit=limit,
                host=f"[{host}]" if ":" in host else host,
                security=security,
                dashboard_address=f"127.0.0.1:{port}",
                scheduler_kwargs={"dashboard": pages, **_watched_from_its_start(count)},
                # None: metrics and health on `host`, without pages that nobody opens and their 18 MB in each worker
                worker_dashboard_address=None if is_loopback(host) else "127.0.0.1:0",
                local_directory=directory,
                death_timeout=seconds,
            )
        except (RuntimeError, OSError) as error:
            raise Stalled(
                f"the local cluster did not start ({first_cause(error)}; it has {seconds} s); its log is above; and a "
                "script that calls connect does so under `if __name__ == '__main__':`, because workers import it"
            ) from error
        with cluster, closing(Client(cluster)) as client:
            client.register_plugin(Undisturbed())
            install_monitor(client, shown=settings().monitor)
            yield client


def _watched_from_its_start(workers: int) -> dict[str, Any]:
    """Arguments of a scheduler whose page about jobs answers while its workers start."""
    if not settings().monitor:
        return {}
    preload = dask.config.get("distributed.scheduler.preload") or [dashboard_server.__name__]
    return {"plugins": [Monitor(expected_workers=workers)], "preload": preload}


def _require_bindable(host: str) -> None:
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.bind(place)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"host: expected an address of this machine, found {host!r}: {error}") from error
