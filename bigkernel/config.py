"""Settings, validated once and passed on as frozen data.

They live under the `bigkernel:` key of Dask's configuration (`bigkernel.yaml` beside this file holds the defaults and
describes each key), so `dask.config.set`, a file in `~/.config/dask` and `DASK_BIGKERNEL__…` variables all work. Only
that subtree is read. Dask accepts unknown keys and wrong types; `settings()` does not.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import dask.config
import yaml

from bigkernel.errors import ConfigError

DEFAULTS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("bigkernel.yaml").read_text())["bigkernel"]
dask.config.update_defaults({"bigkernel": DEFAULTS})


def _within(least: int, most: int) -> dict[str, tuple[int, int]]:
    """Return the metadata of a setting that is a whole number from `least` to `most`."""
    return {"range": (least, most)}


@dataclass(frozen=True)
class Settings:
    """Validated settings; `bigkernel.yaml` describes each one."""

    segment_rows: int = field(metadata=_within(1, 2**40))
    min_segments: int = field(metadata=_within(1, 2**20))
    block_rows: int = field(metadata=_within(1, 2**20))
    chunk_bytes: int = field(metadata=_within(1024, 2**31))
    stall_seconds: int = field(metadata=_within(1, 30 * 86400))
    retries: int = field(metadata=_within(0, 100))
    grace_seconds: int = field(metadata=_within(0, 86400))
    worker_ttl_seconds: int = field(metadata=_within(1, 86400))
    allowed_failures: int = field(metadata=_within(0, 1000))
    memory_limit_bytes: int = field(metadata=_within(100_000_000, 2**50))
    worker_base_bytes: int = field(metadata=_within(0, 2**40))
    block_cache: int | str
    device: str
    monitor: bool
    page_hosts: tuple[str, ...]

    @property
    def reserved_bytes(self) -> int:
        """Least memory of a worker process beside its tasks: `worker_base_bytes` if above the default, else 0."""
        default: int = DEFAULTS["worker-base-bytes"]
        return self.worker_base_bytes if self.worker_base_bytes > default else 0


_DEVICES = ("cpu", "cuda", "auto", "torch", "strict")  # the last two are for tests
_RANGES = {one.name: one.metadata["range"] for one in fields(Settings) if one.metadata}


# those of the driver, in a task that runs a job of its own
given_settings: ContextVar[Settings | None] = ContextVar("bigkernel_settings", default=None)
given_device: ContextVar[str | None] = ContextVar("bigkernel_device", default=None)  # by `executing`, for its block


def settings(**overrides: int | str | None) -> Settings:
    """Read the `bigkernel:` subtree of Dask's configuration, with `overrides` (None: not given) on top.

    Raises
    ------
    ConfigError
        Unknown key, wrong type or value out of range; names the key's path.
    """
    overrides = {"device": given_device.get(), **overrides}
    if (given := given_settings.get()) is not None:
        changed: dict[str, Any] = {key: value for key, value in overrides.items() if value is not None}
        return replace(given, **changed)
    found = dask.config.get("bigkernel")
    if not isinstance(found, dict):
        raise ConfigError(f"bigkernel: expected a mapping of settings, found {type(found).__name__}")
    values = {str(key).replace("-", "_"): value for key, value in found.items()}
    values.update({key: value for key, value in overrides.items() if value is not None})
    known = [field.name for field in fields(Settings)]
    if unknown := sorted(set(values) - set(known)):
        raise ConfigError(f"bigkernel.{unknown[0]}: unknown setting; expected one of {', '.join(known)}")
    for key, (least, most) in _RANGES.items():
        value = values.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(f"bigkernel.{key}: expected an integer from {least} to {most}, found {value!r}")
    cache = values.get("block_cache")
    if cache != "auto" and (isinstance(cache, bool) or not isinstance(cache, int) or not 0 <= cache <= 2**50):
        raise ConfigError(f"bigkernel.block_cache: expected 'auto' or a number of bytes, found {cache!r}")
    if values.get("device") not in _DEVICES:
        raise ConfigError(f"bigkernel.device: expected one of cpu, cuda, auto, found {values.get('device')!r}")
    if not isinstance(values.get("monitor"), bool):
        raise ConfigError(f"bigkernel.monitor: expected true or false, found {values.get('monitor')!r}")
    hosts = values.get("page_hosts")
    if not isinstance(hosts, list | tuple) or not all(isinstance(name, str) for name in hosts):
        raise ConfigError(f"bigkernel.page_hosts: expected a list of names, found {hosts!r}")
    return Settings(**values | {"page_hosts": tuple(hosts)})
