"""YAML files that people write for us: bounded reading, then every key known and every value of its type.

A file is data and nothing else: no tags that make objects, no aliases (a few of them make 10⁹ values), no key twice.
What may stand in it is a table of keys: types of a value, `ListOf` types, or a table of a nested mapping. `int` takes
no truth value, and `(int, float)` no number that is infinite or none.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bigkernel.errors import ConfigError

_LARGEST_FILE = 2**16  # characters


@dataclass(frozen=True)
class ListOf:
    """A list of one to `most` values of these types; with `or_one` a value without a list will do."""

    items: tuple[type, ...]
    most: int = 1024
    or_one: bool = False


Kind = tuple[type, ...] | Mapping[str, Any] | ListOf


class _Loader(yaml.SafeLoader):
    """Plain data alone: aliases and keys that are given twice are refused."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("an alias (*name)")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise ValueError(f"line {key.start_mark.line + 1}: {show(key.value)} is given twice")
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
        return super().construct_mapping(node, deep=deep)


def read_mapping(path: Path, what: str) -> Any:
    """Read a small YAML file as plain data; `what` it describes is for errors: "a cluster", "a job"."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_LARGEST_FILE + 1)
        if len(text) > _LARGEST_FILE:
            raise ValueError(f"more than {_LARGEST_FILE} characters")
        return yaml.load(text, _Loader)
    except FileNotFoundError:
        raise ConfigError(f"{path}: expected a YAML file of {what}, and there is none") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML of {what}: {error}") from error


def check_mapping(found: Any, keys: Mapping[str, Kind], at: str) -> dict[str, Any]:
    """Return a mapping in which every key is known and of its type, in nested mappings too.

    `at` is where it stands, for errors: "job.yaml: bigkernel.job.landmarks: expected int, found many".
    """
    if not isinstance(found, dict):
        raise ConfigError(f"{at}: expected a mapping, found {show(found)}")
    for key in found:
        if not isinstance(key, str) or key not in keys:
            raise ConfigError(f"{at}.{show(key)}: unknown; the keys are {', '.join(sorted(keys))}")
    return {key: _checked(value, keys[key], f"{at}.{key}") for key, value in found.items()}


def expanded(text: str, at: str) -> Path:
    """Return a path that may begin with ~; a `ConfigError` where that is nobody's home."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{at}: {text}: {error}") from error


def show(value: object) -> str:
    """Return a value for an error: short, and without quotes where it is a word."""
    return value if isinstance(value, str) and value.isidentifier() and len(value) < 40 else reprlib.repr(value)


def _checked(value: Any, kind: Kind, at: str) -> Any:
    if isinstance(kind, Mapping):
        return check_mapping(value, kind, at)
    if isinstance(kind, ListOf):
        if kind.or_one and not isinstance(value, list):
            return [_checked(value, kind.items, at)]
        if not isinstance(value, list):
            raise ConfigError(f"{at}: expected a list, found {show(value)}")
        if not 1 <= len(value) <= kind.most:
            raise ConfigError(f"{at}: expected from 1 to {kind.most} values, found {len(value)}")
        return [_checked(item, kind.items, f"{at}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kind):
        raise ConfigError(f"{at}: expected {' or '.join(one.__name__ for one in kind)}, found {show(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{at}: expected a finite number, found {value}")
    return value
