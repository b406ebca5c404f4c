"""Cluster files: `cluster_of` validates a mapping, key by key, and returns plain frozen data, which `connect` takes.

YAML files are read as data only: no tags that make objects, no aliases. `cluster/*.yaml` explain every key.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from dask.utils import parse_bytes

from bigkernel.errors import ConfigError

MOST_WORKERS = 1024
_LARGEST_FILE = 2**16  # characters


# keys of each kind; the first is required unless it is shared by kinds
_STARTED = ("workers", "memory-limit", "directory", "dashboard", "tls")
KINDS = {
    "local": _STARTED,
    "address": ("address", "tls"),
    "ssh": ("hosts", "python", "interface", *_STARTED),
    "slurm": ("walltime", "partition", "account", "python", "interface", *_STARTED),
}
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("kind", "address", "directory", "tls", "python", "interface", "partition", "account"), (str,)),
    **dict.fromkeys(("workers", "dashboard"), (int,)),
    "memory-limit": (int, str),
    "hosts": (list,),
    "walltime": (int, str),  # 10:00:00 without quotes is a number in YAML
}
# what sbatch or a shell reads must be one word
_WORD = (re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.,:@+-]{0,199}"), "a word without blanks or quotes")
_PATH = (re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_.,:@+/=-]{0,4095}"), "a path without blanks or quotes")
_CLOCK = (re.compile(r"(\d{1,2}-)?\d{1,3}:[0-5]\d:[0-5]\d"), '"hours:minutes:seconds" in quotes')
_SAFE = {
    **dict.fromkeys(("partition", "account", "interface"), _WORD),
    **dict.fromkeys(("python", "directory"), _PATH),
    "hosts": (re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:-]{0,252}"), "names or addresses of hosts"),
    "walltime": _CLOCK,
}


@dataclass(frozen=True, kw_only=True)
class ClusterFile:
    """A cluster of one kind: local, address, ssh or slurm; None: not given. `cluster/*.yaml` explain the keys."""

    kind: str = "local"
    workers: int | None = None
    memory_limit: int | str | None = None
    directory: str | None = None
    dashboard: int | None = None
    tls: Path | None = None
    address: str = ""
    hosts: tuple[str, ...] = ()
    python: str | None = None
    interface: str | None = None
    walltime: str = ""
    partition: str | None = None
    account: str | None = None

    @property
    def seconds(self) -> int:
        """The walltime in seconds."""
        days, _, clock = self.walltime.rpartition("-")
        hours, minutes, seconds = map(int, clock.split(":"))
        return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def read_file(path: Path) -> ClusterFile:
    """Read the section of a cluster file that is ours."""
    if not os.path.lexists(path):
        raise ConfigError(f"{path}: expected 'local', an address (tcp://…) or a YAML file, found none")
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_LARGEST_FILE + 1)
        if len(text) > _LARGEST_FILE:
            raise ValueError(f"more than {_LARGEST_FILE} characters")
        content = yaml.load(text, _Loader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as a YAML cluster file: {error}") from error
    ours = content.get("bigkernel") if isinstance(content, dict) else None
    if not isinstance(ours, dict) or not isinstance(ours.get("cluster"), dict):
        raise ConfigError(f"{path}: expected a mapping under bigkernel: cluster:")
    for key in ours:
        if key != "cluster":
            raise ConfigError(
                f"{path}: bigkernel.{show(key)}: expected only `cluster:` in a cluster file; move settings to "
                "~/.config/dask/bigkernel.yaml"
            )
    return cluster_of(ours["cluster"], f"{path}: bigkernel.cluster", path.parent)


def cluster_of(content: Any, at: str, directory: Path) -> ClusterFile:
    """Return a cluster from a mapping with known keys and types; a `ConfigError` names the path of an invalid one.

    `at` is its location for errors: "job.yaml: bigkernel.cluster"; a relative path of certificates starts at
    `directory`.
    """
    given = _checked(content, at)
    kind = given.get("kind")
    if kind not in KINDS:
        raise ConfigError(f"{at}.kind: expected local, address, ssh or slurm, found {show(kind)}")
    for key in given:
        if key != "kind" and key not in KINDS[kind]:
            kinds = " or ".join(name for name, keys in KINDS.items() if key in keys)
            raise ConfigError(f"{at}.{key}: only valid with kind: {kinds}; remove it")
    if kind != "local" and (needed := KINDS[kind][0]) not in given:
        raise ConfigError(f"{at}.{needed}: missing")
    if kind in ("ssh", "slurm"):
        _require_safe(given, at)
    if "tls" in given:
        try:
            given["tls"] = directory / Path(given["tls"]).expanduser()
        except RuntimeError as error:
            raise ConfigError(f"{at}.tls: {given['tls']}: {error}") from error
    values: dict[str, Any] = {key.replace("-", "_"): value for key, value in given.items()}
    made = ClusterFile(**values | {"hosts": tuple(values.get("hosts", ()))})
    require_sizes(made, f"{at}.")
    if len(set(made.hosts)) < len(made.hosts):
        raise ConfigError(f"{at}.hosts: expected distinct hosts; set `workers` for several workers per host")
    if kind == "slurm" and made.seconds < 60:
        raise ConfigError(f"{at}.walltime: expected at least a minute, found {made.walltime}")
    return made


def memory_bytes(value: str | int) -> int:
    """Return the memory limit of a worker, in bytes, from a number or a text such as "2GiB"."""
    try:
        count = int(parse_bytes(value))
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ConfigError(f"memory limit: expected bytes or a text such as 2GiB, found {value!r}") from error
    if not 10**8 <= count <= 2**50:
        raise ConfigError(f"memory limit: expected from 100 MB to 1 PiB, found {value!r}")
    return count


def require_sizes(file: ClusterFile, at: str = "") -> None:
    """Raise an error for impossible numbers of workers, ports and memory limits."""
    if file.workers is not None and not 1 <= file.workers <= MOST_WORKERS:
        raise ConfigError(f"{at}workers: expected from 1 to {MOST_WORKERS}, found {file.workers}")
    if file.dashboard is not None and not 0 <= file.dashboard <= 65535:
        raise ConfigError(f"{at}dashboard: expected a port from 0 to 65535, found {file.dashboard}")
    if file.memory_limit is not None:
        memory_bytes(file.memory_limit)


def _require_safe(given: Mapping[str, Any], at: str) -> None:
    """Raise an error for values that a shell or sbatch would read as more than one word."""
    for key, (pattern, what) in _SAFE.items():
        values = given.get(key, [])
        for value in values if isinstance(values, list) else [values]:
            if not isinstance(value, str) or not pattern.fullmatch(value):
                raise ConfigError(f"{at}.{key}: expected {what}, found {show(value)}")


class _Loader(yaml.SafeLoader):
    """A YAML loader for plain data: aliases, a few of which make 10⁹ values, and duplicate keys are refused."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("an alias (*name)")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := {key for key in keys if keys.count(key) > 1}:
            raise ValueError(f"{show(min(twice))} is given twice")
        return super().construct_mapping(node, deep=deep)


def _checked(content: Any, at: str) -> dict[str, Any]:
    """Return a mapping whose keys are known and of their types; a boolean is no number."""
    if not isinstance(content, dict):
        raise ConfigError(f"{at}: expected a mapping, found {show(content)}")
    for key, value in content.items():
        if not isinstance(key, str) or key not in _TYPES:
            raise ConfigError(f"{at}.{show(key)}: unknown key; expected one of {', '.join(sorted(_TYPES))}")
        kinds = _TYPES[key]
        if not isinstance(value, kinds) or isinstance(value, bool):
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise ConfigError(f"{at}.{key}: expected {expected}, found {show(value)}")
    if not 1 <= len(content.get("hosts", (1,))) <= MOST_WORKERS:
        raise ConfigError(f"{at}.hosts: expected from 1 to {MOST_WORKERS} hosts, found {len(content['hosts'])}")
    return dict(content)


def show(value: object) -> str:
    """Format a value for an error: short, and without quotes if it is a word."""
    return value if isinstance(value, str) and value.isidentifier() and len(value) < 40 else reprlib.repr(value)
