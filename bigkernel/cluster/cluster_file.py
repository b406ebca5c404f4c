"""A cluster as a file describes it: `cluster_of` checks a mapping, key by key, and gives plain frozen data.

`connect` takes what comes out of here, and `clusters.read_file` reads a file of its own; other files may hold such a
mapping too. `cluster/*.yaml` are examples, with every key explained.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from dask.utils import parse_bytes

from bigkernel.cluster.yaml_files import Kind, ListOf, check_mapping, expanded, read_mapping, show
from bigkernel.errors import ConfigError

MOST_WORKERS = 1024
_KEYS: dict[str, Kind] = {
    "kind": (str,),
    "workers": (int,),
    "memory-limit": (int, str),
    "directory": (str,),
    "dashboard": (int,),
    "host": (str,),
    "tls": (str,),
    "address": (str,),
    "insecure": (bool,),
    "hosts": ListOf((str,), most=MOST_WORKERS),
    "scheduler": (str,),
    "user": (str,),
    "port": ListOf((int,), most=MOST_WORKERS, or_one=True),
    "key": (str,),
    "known-hosts": (str,),
    "python": (str,),
    "partition": (str,),
    "account": (str,),
    "qos": (str,),
    "constraint": (str,),
    "reservation": (str,),
    "exclude": (str,),
    "walltime": (int, str),  # 10:00:00 without quotes is a number for YAML
    "interface": (str,),
    "logs": (str,),
}
_OPTIONS = {"qos", "constraint", "reservation", "exclude"}  # of sbatch, handed on as they are
_COMMON = {"kind", "workers", "memory-limit", "directory", "dashboard", "tls"}
_OF_KIND = {
    "local": _COMMON | {"host"},
    "address": {"kind", "address", "tls", "insecure"},
    "ssh": _COMMON | {"hosts", "scheduler", "user", "port", "key", "known-hosts", "python"},
    "slurm": _COMMON | _OPTIONS | {"host", "interface", "python", "partition", "account", "walltime", "logs"},
}
_NEEDED = {"local": (), "address": ("address",), "ssh": ("hosts",), "slurm": ("walltime",)}
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252}[A-Za-z0-9_])?")
# of an option of sbatch, which reads such lines itself; and of a path, which a shell reads
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:@&|*/+\[\]()-]{0,199}")
_SHELL_PATH = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_.,:@+/=-]{0,4095}")
_PATH = re.compile(r"[^\x00-\x1f\x7f]{1,4096}")
_WALLTIME = re.compile(r"(\d{1,2}-)?\d{1,3}:[0-5]\d:[0-5]\d")


@dataclass(frozen=True)
class LocalFile:
    """Worker processes on this machine; see cluster/local.yaml. What is None was not given."""

    kind: ClassVar[str] = "local"
    workers: int | None = None
    memory_limit: int | str | None = None
    directory: str | None = None
    dashboard: int | None = None
    host: str | None = None
    tls: Path | None = None


@dataclass(frozen=True)
class AddressFile:
    """A scheduler that runs already; see cluster/existing.yaml and cluster/tls.yaml."""

    kind: ClassVar[str] = "address"
    address: str
    tls: Path | None = None
    insecure: bool = False


@dataclass(frozen=True)
class SshFile:
    """Workers on hosts that are reached by SSH; see cluster/ssh.yaml.

    `scheduler` is a host of its own, or the first of `hosts`; `ports` has one for each of `hosts`.
    """

    kind: ClassVar[str] = "ssh"
    hosts: tuple[str, ...]
    scheduler: str
    ports: tuple[int, ...]
    user: str | None = None
    key: Path | None = None
    known_hosts: Path | None = None
    python: str | None = None
    workers: int | None = None
    memory_limit: int | str | None = None
    directory: str | None = None
    dashboard: int | None = None
    tls: Path | None = None


@dataclass(frozen=True)
class SlurmFile:
    """Workers that are jobs of SLURM; see cluster/slurm.yaml. `options` are those of sbatch, such as qos."""

    kind: ClassVar[str] = "slurm"
    walltime: str
    seconds: int
    workers: int
    options: Mapping[str, str]
    partition: str | None = None
    account: str | None = None
    host: str | None = None
    interface: str | None = None
    python: str | None = None
    memory_limit: int | str | None = None
    directory: str | None = None
    logs: str | None = None
    dashboard: int | None = None
    tls: Path | None = None


ClusterFile: TypeAlias = LocalFile | AddressFile | SshFile | SlurmFile


def read_file(path: Path) -> ClusterFile:
    """The part of a cluster file that is ours.

    Raises
    ------
    ConfigError
        No file, no YAML, or a key that is unknown or not of its type, by its whole path.
    """
    if not os.path.lexists(path):
        raise ConfigError(f"{path}: expected 'local', an address (tcp://…) or a YAML file, and there is none")
    content = read_mapping(path, "a cluster")
    ours = content.get("bigkernel") if isinstance(content, dict) else None
    if not isinstance(ours, dict) or not isinstance(ours.get("cluster"), dict):
        raise ConfigError(f"{path}: expected a mapping under bigkernel: cluster:")
    others = [key for key in ours if key != "cluster"]
    if others:
        raise ConfigError(
            f"{path}: bigkernel.{show(others[0])}: a cluster file holds `cluster:` alone; settings go to "
            "~/.config/dask/bigkernel.yaml"
        )
    return cluster_of(ours["cluster"], f"{path}: bigkernel.cluster", path.parent)


def cluster_of(found: Any, at: str, directory: Path) -> ClusterFile:
    """A cluster from a mapping, every key known and of its type.

    Parameters
    ----------
    found : as it was read; must be a mapping with `kind`
    at : where it stands, for errors: "job.yaml: bigkernel.cluster"
    directory : where relative paths of certificates, keys and known hosts start

    Raises
    ------
    ConfigError
        Names the whole path of the key.
    """
    given = check_mapping(found, _KEYS, at)
    kind = given.pop("kind", None)
    if kind not in _OF_KIND:
        raise ConfigError(f"{at}.kind: expected local, address, ssh or slurm, found {show(kind)}")
    for key in given:
        if key not in _OF_KIND[kind]:
            kinds = " or ".join(name for name, keys in _OF_KIND.items() if key in keys)
            raise ConfigError(f"{at}.{key}: has a meaning with kind: {kinds} only; remove it")
    for key in _NEEDED[kind]:
        if key not in given:
            raise ConfigError(f"{at}.{key}: missing")
    for key in ("tls", "key", "known-hosts"):
        if key in given:
            given[key] = directory / expanded(given[key], f"{at}.{key}")
    values = {key.replace("-", "_"): value for key, value in given.items()}
    require_sizes(values, at)
    if kind == "local":
        return LocalFile(**values)
    if kind == "address":
        return AddressFile(**values)
    return _ssh(values, at) if kind == "ssh" else _slurm(values, at)


def memory_bytes(value: str | int) -> int:
    """The memory limit of a worker, in bytes, from a number or a text such as "2GiB".

    Raises
    ------
    ConfigError
    """
    try:
        count = int(parse_bytes(value))
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ConfigError(f"memory limit: expected bytes or a text such as 2GiB, found {value!r}") from error
    if not 10**8 <= count <= 2**50:
        raise ConfigError(
            f"memory limit: expected from 100 MB, which a worker needs to start, to 1 PiB; found {value!r}"
        )
    return count


def _ssh(values: dict[str, Any], at: str) -> SshFile:
    hosts = tuple(values.pop("hosts"))
    scheduler = values.pop("scheduler", hosts[0])
    for host in (*hosts, scheduler):
        _require_host(host, f"{at}.hosts")
    if len(set(hosts)) < len(hosts):
        twice = next(host for host in hosts if hosts.count(host) > 1)
        raise ConfigError(f"{at}.hosts: {twice} stands there twice; `workers` is how many each host has")
    ports = tuple(values.pop("port", [22]))
    if len(ports) == 1:
        ports *= len(hosts)
    elif len(ports) != len(hosts) or scheduler not in hosts:
        raise ConfigError(f"{at}.port: expected one, or one for each of {len(hosts)} hosts; found {len(ports)}")
    for port in ports:
        if not 0 < port < 2**16:
            raise ConfigError(f"{at}.port: expected ports from 1 to 65535, found {port}")
    _require(values, "user", _NAME, "the name of a user", at)
    for name in ("python", "directory"):
        _require(values, name, _PATH, "a path on the hosts", at)
    return SshFile(hosts=hosts, scheduler=scheduler, ports=ports, **values)


def _slurm(values: dict[str, Any], at: str) -> SlurmFile:
    walltime = values["walltime"]
    if not isinstance(walltime, str) or not _WALLTIME.fullmatch(walltime):
        raise ConfigError(f'{at}.walltime: expected "hours:minutes:seconds" in quotes, found {show(walltime)}')
    days, _, clock = walltime.rpartition("-")
    hours, minutes, seconds = map(int, clock.split(":"))
    total = ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds
    if total < 60:
        raise ConfigError(f"{at}.walltime: expected at least a minute, found {walltime}")
    for name in ("partition", "account", "qos", "constraint", "reservation", "exclude", "interface"):
        _require(values, name, _WORD, "a word without blanks or quotes", at)
    for name in ("python", "directory", "logs"):
        _require(values, name, _SHELL_PATH, "a path without blanks or quotes", at)
    if "host" in values:
        _require_host(values["host"], f"{at}.host")
    if "host" in values and "interface" in values:
        raise ConfigError(f"{at}.host: takes an address, `interface` the name of one; give one of the two")
    options: dict[str, str] = {}
    for name in sorted(_OPTIONS & values.keys()):
        options[name] = values.pop(name)
    return SlurmFile(seconds=total, workers=values.pop("workers", 1), options=options, **values)


def require_sizes(values: Mapping[str, Any], at: str = "") -> None:
    """Refuse `workers`, `dashboard` and `memory_limit` (None: not given) that no cluster can have.

    Raises
    ------
    ConfigError
    """
    workers, dashboard, memory = (values.get(name) for name in ("workers", "dashboard", "memory_limit"))
    at = f"{at}." if at else ""
    if workers is not None and not 1 <= workers <= MOST_WORKERS:
        raise ConfigError(f"{at}workers: expected from 1 to {MOST_WORKERS}, found {workers}")
    if dashboard is not None and not 0 <= dashboard <= 65535:
        raise ConfigError(f"{at}dashboard: expected a port from 0 to 65535, found {dashboard}")
    if memory is not None:
        memory_bytes(memory)


def _require(values: Mapping[str, Any], name: str, pattern: re.Pattern[str], what: str, at: str) -> None:
    found = values.get(name)
    if found is not None and not pattern.fullmatch(found):
        raise ConfigError(f"{at}.{name}: expected {what}, found {show(found)}")


def _require_host(host: str, at: str) -> None:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if not _NAME.fullmatch(host):
            raise ConfigError(f"{at}: expected names or addresses of hosts, found {show(host)}") from None
