"""YAML files that people write for us: bounded reading, then every key known and every value of its type.

A file is data and nothing else: no tags that make objects, no aliases (a few of them make 10⁹ values), no key twice.
What may stand in it is a table:

    KEYS = {
        "corpus": (str,),                              # a text
        "alpha": (int, float),                         # a finite number; true and false are none
        "hosts": ListOf((str,)),                       # a list of texts
        "landmarks": {"count": (int,), "seed": (int,)},    # a mapping, with a table of its own
    }
    job = check_mapping(read_mapping(path, "a job"), KEYS, f"{path}")
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bigkernel.errors import ConfigError

_LARGEST_FILE, _DEEPEST = 2**16, 16  # characters and levels


@dataclass(frozen=True)
class ListOf:
    """A list of values of these types, or of mappings with this table of keys.

    Parameters
    ----------
    items : types of a value, or the table of a mapping
    least, most : values that the list may have
    or_one : whether one value without a list will do; it comes back as a list of one
    """

    items: tuple[type, ...] | Mapping[str, Any]
    least: int = 1
    most: int = 1024
    or_one: bool = False


Kind = tuple[type, ...] | Mapping[str, Any] | ListOf


def read_mapping(path: Path, what: str) -> Any:
    """The YAML of a small file, read as plain data.

    Parameters
    ----------
    path : of the file
    what : what the file describes, for errors: "a cluster", "a job"

    Returns
    -------
    what the file holds: dicts, lists, texts, numbers, dates; see `check_mapping`

    Raises
    ------
    ConfigError
        No file, more than 65,536 characters or 16 levels, an alias, a key given twice, or no YAML.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_LARGEST_FILE + 1)
        if len(text) > _LARGEST_FILE:
            raise ValueError(f"more than {_LARGEST_FILE} characters")
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST or isinstance(event, yaml.AliasEvent):
                raise ValueError(f"an alias (*name), or more than {_DEEPEST} levels")
        _require_keys_once(yaml.compose(text, yaml.SafeLoader))
        return yaml.safe_load(text)
    except FileNotFoundError:
        raise ConfigError(f"{path}: expected a YAML file of {what}, and there is none") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML of {what}: {error}") from error


def check_mapping(found: Any, keys: Mapping[str, Kind], at: str, *, needed: Sequence[str] = ()) -> dict[str, Any]:
    """Every key known and of its type, in nested mappings too.

    Parameters
    ----------
    found : what was read; must be a mapping
    keys : what each key may hold: types, the table of a nested mapping, or `ListOf`. `int` takes no truth value, and
        `float` (write `(int, float)` for numbers) none that is infinite or not a number
    at : where `found` stands, for errors: "job.yaml: bigkernel.job"
    needed : keys that must be there

    Returns
    -------
    dict with the keys that were given

    Raises
    ------
    ConfigError
        Names the whole path of the key: "job.yaml: bigkernel.job.landmarks: expected int, found many".
    """
    if not isinstance(found, dict):
        raise ConfigError(f"{at}: expected a mapping, found {show(found)}")
    checked = {}
    for key, value in found.items():
        kind = keys.get(key) if isinstance(key, str) else None
        if kind is None:
            raise ConfigError(f"{at}.{show(key)}: unknown; the keys are {', '.join(sorted(keys))}")
        checked[key] = _checked(value, kind, f"{at}.{key}")
    for key in needed:
        if key not in checked:
            raise ConfigError(f"{at}.{key}: missing")
    return checked


def expanded(text: str, at: str) -> Path:
    """A path that may begin with ~; a `ConfigError` where that is nobody's home."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{at}: {text}: {error}") from error


def show(value: object) -> str:
    """A value for an error: short, and without quotes where it is a word."""
    return value if isinstance(value, str) and value.isidentifier() and len(value) < 40 else reprlib.repr(value)


def _checked(value: Any, kind: Kind, at: str) -> Any:
    if isinstance(kind, Mapping):
        return check_mapping(value, kind, at)
    if isinstance(kind, ListOf):
        if not isinstance(value, list):
            if not kind.or_one:
                raise ConfigError(f"{at}: expected a list, found {show(value)}")
            return [_checked(value, kind.items, at)]
        if not kind.least <= len(value) <= kind.most:
            raise ConfigError(f"{at}: expected from {kind.least} to {kind.most} values, found {len(value)}")
        return [_checked(item, kind.items, f"{at}[{i}]") for i, item in enumerate(value)]
    if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kind):
        names = " or ".join(one.__name__ for one in kind)
        raise ConfigError(f"{at}: expected {names}, found {show(value)}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{at}: expected a finite number, found {value}")
    return value


def _require_keys_once(node: Any) -> None:
    """YAML's own readers take the last of two values of a key, in silence."""
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise ValueError(f"line {key.start_mark.line + 1}: {show(key.value)} is given twice")
                seen.add((key.tag, key.value))
            _require_keys_once(value)
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _require_keys_once(item)
