"""The content of a job: a digest of any plain data, and its fields one by one for people.

A resumed run compares the fields and names the first that differs ("statistic.features.kernel.sigma was 0.5, now it is
0.7"), so every number stands for itself and every array for its shape and digest.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from bigkernel.data import zarr_arrays

_SHORT = 60  # characters of a text that is shown as it is
NOT_COMPARED = {"identity": False}  # metadata of a dataclass field that changes no number
_MOST = 64  # items of a tuple that are shown one by one


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of plain data (dataclasses, arrays, numbers, names), by content."""
    total = hashlib.sha256()

    def feed(item: Any) -> None:
        if isinstance(item, np.ndarray):
            total.update(zarr_arrays.digest({"": item}).encode())
        elif hasattr(item, "fingerprint"):
            total.update(item.fingerprint().encode())
        elif dataclasses.is_dataclass(item) and not isinstance(item, type):
            total.update(type(item).__name__.encode())
            for name, part in _compared(item):
                total.update(name.encode())
                feed(part)
        elif isinstance(item, dict):
            for key in sorted(item):
                total.update(str(key).encode())
                feed(item[key])
        elif isinstance(item, tuple | list):
            for part in item:
                feed(part)
        else:
            total.update(repr(item).encode())
        total.update(b";")

    feed(value)
    return total.hexdigest()


def _compared(value: Any) -> list[tuple[str, Any]]:
    """Return the fields that count; those with `NOT_COMPARED` say where something goes, not what it is."""
    return [
        (part.name, getattr(value, part.name)) for part in dataclasses.fields(value) if part.metadata != NOT_COMPARED
    ]


def described(value: Any, name: str) -> dict[str, str]:
    """Return the fields of plain data by dotted name, each as a short text; equal texts mean equal content.

    Examples
    --------
    >>> from bigkernel.kernels.functions import Gaussian
    >>> described(Gaussian(sigma=0.5), "kernel")
    {'kernel': 'Gaussian', 'kernel.sigma': '0.5'}
    >>> described(np.arange(3.0), "shift")
    {'shift': 'float64 (3,) d0d1dfc4d2568c0e'}
    """
    return dict(_fields(value, name))


def _fields(value: Any, name: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, np.ndarray):
        yield name, f"{value.dtype} {value.shape} {zarr_arrays.digest({'': value})[:16]}"
    elif hasattr(value, "fingerprint"):
        yield name, f"{type(value).__name__} {fingerprint(value)[:16]}"
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield name, type(value).__name__
        for field, part in _compared(value):
            yield from _fields(part, f"{name}.{field}")
    elif isinstance(value, tuple) and len(value) <= _MOST and all(map(dataclasses.is_dataclass, value)):
        yield name, f"{len(value)} of them" if value else "none"
        for i, item in enumerate(value):
            yield from _fields(item, f"{name}.{i}")
    else:
        text = value if isinstance(value, str) else repr(value)
        plain = isinstance(value, str | int | float | bool | type(None) | np.generic | np.dtype)
        yield name, text if plain and len(text) <= _SHORT else f"{type(value).__name__} {fingerprint(value)[:16]}"
