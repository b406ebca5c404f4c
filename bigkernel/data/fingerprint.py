"""The content of a job: a digest of plain data, and its fields as text.

A resumed run compares the fields and names the first that differs ("statistic.features.kernel.sigma was 0.5, now it is
0.7"). Numbers are compared directly, arrays by shape and digest.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from bigkernel.data import zarr_arrays
from bigkernel.streaming.plan import NOT_COMPARED

_SHORT = 90  # longest text shown as it is
_MOST = 64  # most dataclasses of a tuple shown one by one


def fingerprint(value: Any) -> str:
    """Return the SHA-256 of plain data (dataclasses, arrays, numbers, names), by content."""
    total = hashlib.sha256()
    for name, text in _contents(value, ""):
        total.update(f"{name}={text};".encode())
    return total.hexdigest()


def _contents(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield the fields of plain data by dotted name, as texts that are equal if the content is."""
    if isinstance(value, np.ndarray):
        yield name, f"{value.dtype} {value.shape} {zarr_arrays.digest({'': value})[:32]}"
    elif hasattr(value, "fingerprint"):
        yield name, f"{type(value).__name__} {value.fingerprint()}"
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield name, type(value).__name__
        for field in dataclasses.fields(value):
            if field.metadata != NOT_COMPARED:
                yield from _contents(getattr(value, field.name), f"{name}.{field.name}")
    elif isinstance(value, dict | tuple | list):
        items = dict(sorted(value.items())) if isinstance(value, dict) else dict(enumerate(value))
        if len(items) <= _MOST and all(map(dataclasses.is_dataclass, items.values())):
            yield name, f"{len(items)} of them" if items else "none"
            for key, item in items.items():
                yield from _contents(item, f"{name}.{key}")
        else:
            inside = "".join(f"{key} {fingerprint(item)};" for key, item in items.items())
            yield name, f"{len(items)} items {hashlib.sha256(inside.encode()).hexdigest()}"
    elif not isinstance(value, str) and " at 0x" in repr(value):  # an address, another one in the next process
        kind = type(value).__name__
        raise TypeError(f"{name}: a run compares dataclasses, arrays, numbers and names, found {kind}")
    else:
        yield name, repr(value)


def described(value: Any, name: str) -> dict[str, str]:
    """Return the fields of plain data by dotted name as short texts; equal texts mean equal content.

    Examples
    --------
    >>> from bigkernel.kernels.functions import Gaussian
    >>> described(Gaussian(sigma=0.5), "kernel")
    {'kernel': 'Gaussian', 'kernel.sigma': '0.5'}
    >>> described(np.arange(3.0), "shift")
    {'shift': 'float64 (3,) d0d1dfc4d2568c0e122f396ff186dcd1'}
    """

    def short(text: str) -> str:
        return text if len(text) <= _SHORT else f"{text[:_SHORT]}… {hashlib.sha256(text.encode()).hexdigest()[:16]}"

    return {key: short(text) for key, text in _contents(value, name)}
