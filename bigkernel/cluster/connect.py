"""`connect`: a Dask client from a word, an address or a file (`cluster/*.yaml`).

Loopback by default, encrypted beyond it, explicit memory limits, processes with one BLAS thread each.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
from distributed import Client, LocalCluster

from bigkernel.cluster.attach import attach, require_encrypted
from bigkernel.cluster.certificates import security_of
from bigkernel.cluster.cluster_file import KINDS, ClusterFile, read_file, require_sizes
from bigkernel.cluster.dask_settings import configuration, dashboard_port, environment_kept, memory_limit, start_seconds
from bigkernel.cluster.launchers import launched, require_launchable
from bigkernel.config import settings
from bigkernel.engine.process import Undisturbed, processors
from bigkernel.errors import ConfigError, StalledError
from bigkernel.events.sinks import install_monitor


def connect(
    cluster: str | Path | ClusterFile = "local",
    *,
    workers: int | None = None,
    memory_limit: str | int | None = None,
    directory: str | None = None,
    dashboard: int = 8787,
    tls: str | os.PathLike[str] | None = None,
) -> Client:
    """Return a client of a cluster, which estimators then use; closing it ends what was started for it.

    It is closed at the end of a `with` block, by `close()`, or when the process ends: in a notebook no block is needed.
    A client of your own needs no `connect`: estimators use the current one, and that of `executing`.

    Parameters
    ----------
    cluster : "local", an address ("tcp://…", "tls://…"), a YAML file, or what `cluster_file.cluster_of` gives
    workers : int or None
        Processes of a local cluster, of each host by SSH, or jobs of SLURM; None: one a processor, one, one.
    memory_limit : bytes, text such as "2GiB", or None (`bigkernel.memory-limit-bytes`)
        Of each worker.
    directory : where workers spill; None: a temporary directory
    dashboard : port of the dashboard on 127.0.0.1; another free one is taken where it is in use
    tls : directory of certificates, made by `bigkernel certs`; None: no encryption, on loopback only

    Raises
    ------
    ConfigError
        A key or value of the file, a certificate, an address beyond this machine without encryption, or what hosts or
        SLURM refuse.
    StalledError
        No scheduler answers at the address, or a host or SLURM does not.

    Examples
    --------
    >>> with connect("local", workers=1) as client:  # doctest: +SKIP
    ...     KernelRidge(n_landmarks=1000).fit(open_corpus("digits.corpus"))
    >>> client = connect("local", workers=2)  # doctest: +SKIP
    >>> client.close()  # doctest: +SKIP
    """
    if isinstance(cluster, Client):
        raise ConfigError(
            "cluster: found a client; it needs no connect: it is used as it is, if it is the current one or "
            "that of executing(client)"
        )
    own: dict[str, Any] = {"workers": workers, "memory_limit": memory_limit, "directory": directory}
    own["tls"] = None if tls is None else Path(tls)
    return _held(_opened(described(cluster, own, dashboard)))


def _held(opened: AbstractContextManager[Client]) -> Client:
    """Enter a context, and leave it when its client is closed, or when the process ends.

    Unlike Dask's own block, this sets no context variable: notebook cells run in contexts of their own.
    """
    client = opened.__enter__()

    def close(*args: Any, **kwargs: Any) -> None:
        """Close the client, and end what was started for it."""
        if vars(client).pop("close", None) is not None:  # once; the context closes the client by its own method
            atexit.unregister(close)
            opened.__exit__(None, None, None)

    client.close = close
    atexit.register(close)
    return client


@contextmanager
def _opened(file: ClusterFile) -> Iterator[Client]:
    """Yield the client of a described cluster; what is started for it ends with the block."""
    if file.kind == "address":
        opened = attach(file.address, file.tls)
    else:
        opened = _local(file) if file.kind == "local" else launched(file)
    with opened as client:
        install_monitor(client, shown=settings().monitor)
        yield client


def described(cluster: str | Path | ClusterFile, own: Mapping[str, Any], dashboard: int) -> ClusterFile:
    """Return the cluster that a word, an address or a path names, with the arguments that apply to its kind.

    Nothing is started or reached: `ConfigError` for an invalid file, a missing package, certificates and addresses.
    """
    text = str(cluster)
    if isinstance(cluster, ClusterFile):
        file = cluster
    elif "://" in text:
        file = ClusterFile(kind="address", address=text)
    else:
        file = ClusterFile() if text == "local" else read_file(Path(text))
    known = KINDS[file.kind]
    chosen = {name: value for name, value in own.items() if value is not None and name.replace("_", "-") in known}
    if file.dashboard is None:
        chosen["dashboard"] = dashboard
    made = replace(file, **chosen)
    require_sizes(made)
    if made.kind in ("ssh", "slurm"):
        require_launchable(made)
    elif made.kind == "address":
        require_encrypted(made.address, made.tls)
    if made.tls is not None:
        security_of(made.tls)
    return made


@contextmanager
def _local(file: ClusterFile) -> Iterator[Client]:
    limit = memory_limit(file)
    if file.directory is not None:
        try:
            os.makedirs(file.directory, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"directory: {file.directory} cannot be created: {error.strerror}") from error
    security = None if file.tls is None else security_of(file.tls)
    port = dashboard_port(file.dashboard)
    with dask.config.set(configuration(port)), environment_kept():
        try:
            cluster = LocalCluster(
                n_workers=file.workers or processors(),
                threads_per_worker=1,
                processes=True,
                memory_limit=limit,
                host="127.0.0.1",
                security=security,
                dashboard_address=f"127.0.0.1:{port}",
                # None: metrics and health only, without pages that nobody opens and their 18 MB in each worker
                worker_dashboard_address=None,
                local_directory=file.directory,
                death_timeout=start_seconds(),
            )
        except (RuntimeError, OSError) as error:
            raise StalledError(
                f"the local cluster did not start ({error.__cause__ or error}; limit {start_seconds()} s); see its "
                "log above, and call connect under `if __name__ == '__main__':` in a script, because workers import "
                "it"
            ) from error
        with _closing(cluster), closing(Client(cluster)) as client:
            client.register_plugin(Undisturbed())
            yield client


@contextmanager
def _closing(cluster: LocalCluster) -> Iterator[None]:
    """Close a cluster after the block; workers that take longer than Dask's 4 s to end are killed without a warning."""
    log = logging.getLogger("distributed.nanny")
    try:
        yield
    finally:
        level = log.level
        log.setLevel(logging.ERROR)
        try:
            with suppress(TimeoutError):  # a killed worker has not ended in 5 s
                cluster.close()
        finally:
            log.setLevel(level)
