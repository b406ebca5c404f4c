"""`connect`: a Dask client from one word, an address or a file.

Loopback only, memory limits explicit, processes with one BLAS thread each. Of a file only the part under `bigkernel:`
is read: Dask's own configuration can load code, ours cannot.

    bigkernel:
      cluster:
        kind: local             # or: address
        workers: 2              # processes, one task each; default: one a processor
        memory-limit: 2GiB      # of each worker
        directory: /scratch     # where workers spill; default: a temporary directory
        dashboard: 8787         # port on 127.0.0.1; 0: any free one
        # address: tcp://host:8786   (kind: address)
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import yaml
from dask.utils import parse_bytes
from distributed import Client, LocalCluster

from bigkernel.config import settings
from bigkernel.errors import ConfigError, Stalled
from bigkernel.sweep import processors

# Dask's own watching of itself, ten times less often than by default: with one task a core it takes the tasks' time
_QUIET = {
    "distributed.worker.profile.interval": "100ms",
    "distributed.admin.tick.interval": "200ms",
    "distributed.admin.system-monitor.interval": "2s",
}
_KEYS = {"kind", "workers", "memory-limit", "directory", "dashboard", "address"}


@contextmanager
def connect(
    cluster: str | Path = "local",
    *,
    workers: int | None = None,
    memory_limit: str | int | None = None,
    directory: str | None = None,
    dashboard: int = 8787,
) -> Iterator[Client]:
    """A client of a cluster, closed (with the cluster, if it was started here) at the end of the block.

    Parameters
    ----------
    cluster : "local", an address ("tcp://…", "tls://…") or a YAML file
    workers : int or None
        Processes of a local cluster; None: one a processor.
    memory_limit : bytes, text such as "2GiB", or None (`bigkernel.memory-limit-bytes`)
        Of each local worker.
    directory : where local workers spill; None: a temporary directory
    dashboard : port of the dashboard on 127.0.0.1; another free one is taken where it is in use

    Raises
    ------
    ConfigError
        The file has an unknown key or a value that does not fit.
    Stalled
        No scheduler answers at the address.

    Examples
    --------
    >>> with connect("local", workers=1) as client:  # doctest: +SKIP
    ...     KernelRidge(n_landmarks=1000).fit(open_corpus("digits.corpus"))
    """
    text = str(cluster)
    if text.startswith(("tcp://", "tls://", "ucx://", "inproc://")):
        with _attach(text) as client:
            yield client
        return
    if text == "local":
        with _local(workers, memory_limit, directory, dashboard) as client:
            yield client
        return
    found = _read(Path(text))
    if found["kind"] == "address":
        with _attach(found["address"]) as client:
            yield client
        return
    with _local(
        workers or found.get("workers"),
        memory_limit or found.get("memory-limit"),
        directory or found.get("directory"),
        found.get("dashboard", dashboard),
    ) as client:
        yield client


@contextmanager
def _local(
    workers: int | None, memory_limit: str | int | None, directory: str | None, dashboard: int
) -> Iterator[Client]:
    limit = settings().memory_limit_bytes if memory_limit is None else _bytes(memory_limit)
    count = processors() if workers is None else workers
    if count < 1:
        raise ConfigError(f"workers: expected at least 1, found {count}")
    if directory is not None:
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"directory: {directory} cannot be made: {error.strerror}") from error
    with (
        dask.config.set(_QUIET),
        LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            memory_limit=limit,
            host="127.0.0.1",
            dashboard_address=f"127.0.0.1:{_free_port(dashboard)}",
            worker_dashboard_address="127.0.0.1:0",
            local_directory=directory,
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@contextmanager
def _attach(address: str) -> Iterator[Client]:
    seconds = min(30, settings().stall_seconds)
    try:
        client = Client(address, timeout=seconds)
    except (OSError, TimeoutError) as error:
        raise Stalled(f"{address}: no scheduler answered within {seconds} s ({error}); is it running?") from error
    except ValueError as error:
        raise ConfigError(f"{address}: not an address of a scheduler ({error})") from error
    with client:
        yield client


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: expected 'local', an address (tcp://…) or a YAML file, and there is none") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from error
    ours = content.get("bigkernel") if isinstance(content, dict) else None
    found = ours.get("cluster") if isinstance(ours, dict) else None
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: expected a mapping under bigkernel: cluster:")
    unknown = sorted(set(map(str, found)) - _KEYS)
    if unknown:
        raise ConfigError(f"{path}: bigkernel.cluster.{unknown[0]}: unknown; the keys are {', '.join(sorted(_KEYS))}")
    kinds: dict[str, type] = {"workers": int, "dashboard": int, "directory": str, "address": str}
    for key, kind in kinds.items():
        if key in found and (not isinstance(found[key], kind) or isinstance(found[key], bool)):
            raise ConfigError(f"{path}: bigkernel.cluster.{key}: expected {kind.__name__}, found {found[key]!r}")
    if not 0 <= found.get("dashboard", 0) <= 65535:
        raise ConfigError(f"{path}: bigkernel.cluster.dashboard: expected a port, found {found['dashboard']!r}")
    if found.get("kind") not in ("local", "address"):
        raise ConfigError(f"{path}: bigkernel.cluster.kind: expected local or address, found {found.get('kind')!r}")
    if found["kind"] == "address" and "address" not in found:
        raise ConfigError(f"{path}: bigkernel.cluster.address: missing")
    return found


def _bytes(value: str | int) -> int:
    try:
        count = int(parse_bytes(value))
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"memory limit: expected bytes or a text such as 2GiB, found {value!r}") from error
    if count < 10**8:
        raise ConfigError(f"memory limit: a worker needs at least 100 MB to start, found {value!r}")
    return count


def _free_port(wanted: int) -> int:
    """`wanted` if it is free on loopback, else 0 (any)."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            return 0
    return wanted
