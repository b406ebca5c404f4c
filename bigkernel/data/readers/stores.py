"""zarr arrays of other programs: on disk, or at URLs that fsspec opens (http, https, s3, memory).

x (n, d) or (n, h, w), and y (n,), are an array, or two of a group. Rows are copied chunk by chunk, a bounded number of
bytes at a time; a missing chunk is an error, not zeros. Passwords and queries in URLs are never printed or stored.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.storage import FsspecStore, LocalStore, WrapperStore

from bigkernel.data.cf import decoded
from bigkernel.data.readers.arrays import X_NAMES, Y_NAMES
from bigkernel.data.readers.source import Source, block_rows, in_native_order, source_of_arrays
from bigkernel.errors import BigKernelError, ChunkMissingError, ConfigError, DataError

PROTOCOLS = ("http", "https", "s3", "memory")
MOST_CHUNK_BYTES = 2**28
CONNECT_SECONDS = 10.0
READ_SECONDS = 30.0  # seconds between two pieces of a response
ANSWER_SECONDS = 300.0  # seconds for a whole one
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(::|://)")
_METADATA = ("zarr.json", ".zarray", ".zgroup", ".zattrs", ".zmetadata")


class _Strict(WrapperStore[Any]):
    """A store in which missing chunks and chunks larger than their values are errors."""

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        value = await super().get(key, prototype, byte_range)
        if value is not None and len(value) > 2 * MOST_CHUNK_BYTES:
            raise DataError(f"{key}: expected at most {2 * MOST_CHUNK_BYTES:,} bytes, found {len(value):,}")
        if value is None and key.rpartition("/")[2] not in _METADATA:
            raise ChunkMissingError(
                f"chunk {key} is missing: it was lost, or holds only the fill value; copy the store again, or write "
                "it with write_empty_chunks=True"
            )
        return value


@dataclass(frozen=True)
class _Array:
    """An array of a store, and its name in messages."""

    name: str
    array: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(int, self.array.shape))

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(str(self.array.dtype))

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=object)) * self.dtype.itemsize

    @property
    def step(self) -> int:
        """Rows read at once: whole chunks, about a block."""
        rows = int((self.array.shards or self.array.chunks)[0])
        if rows * self.row_bytes > MOST_CHUNK_BYTES and self.array.shards:
            rows = int(self.array.chunks[0])
        return rows * max(1, block_rows(self.row_bytes) // rows)

    def rows(self, step: int) -> Iterator[NDArray[Any]]:
        for start in range(0, self.shape[0], step):
            stop = min(start + step, self.shape[0])
            with naming(self.name, f"rows {start}:{stop}"):
                rows = np.asarray(self.array[start:stop])
            yield in_native_order(rows)


def is_url(path: str) -> bool:
    """Return True if a source is named by a URL."""
    return _SCHEME.match(path) is not None


def shown(url: str) -> str:
    """Return a URL without user, password, query and fragment, for printing and storing."""
    if not is_url(url):
        return url
    split = urlsplit(url.partition("::")[0])  # the first link of a chain: the others may hold passwords too
    host = split.netloc.rpartition("@")[2]
    return f"{split.scheme}://{host}{split.path}"


def read(path: str, *, x: str | None = None, y: str | None = None) -> Source:
    """Open a zarr array or group (format 2 or 3) at a directory, or a URL of http, https, s3 (with s3fs) or memory.

    A corpus of ours is refused, unless x is named: rows and labels alone are taken then.

    x and y are names of the arrays of a group; None: "x", "X" or "data" and "y", "labels" or "target"; y="none": none.
    """
    name = shown(path)
    with naming(name, "its metadata"):
        node = zarr.open(store=_Strict(open_store(path)), mode="r")
    if isinstance(node, zarr.Array):
        if x is not None or y not in (None, "none"):
            raise DataError(f"{name}: found a single array; leave out x and y")
        return _source(name, _Array(name, decoded(node)), None)
    rows = _pick(node, name, x, X_NAMES)
    if rows is None:
        raise DataError(f"{name}: found no array {x or ' or '.join(X_NAMES)} in this group; pass x=NAME")
    labels = None if y == "none" else _pick(node, name, y, Y_NAMES)
    if labels is None and y not in (None, "none"):
        raise DataError(f"{name}: found no array {y} in this group; pass y=NAME, or y='none'")
    if x is None and "bigkernel" in node.attrs.asdict():
        raise DataError(
            f"{name}: is a corpus, and its other columns and attributes would be lost; copy it with write_corpus, or "
            "name the matrix (x='x', --x x) to read rows and labels only"
        )
    return _source(name, rows, labels)


def _source(name: str, rows: _Array, labels: _Array | None) -> Source:
    for array in filter(None, (rows, labels)):
        held = min(array.step, array.shape[0]) * array.row_bytes if array.shape else 0
        if held > MOST_CHUNK_BYTES:
            raise DataError(
                f"{array.name}: expected rows of a chunk of at most {MOST_CHUNK_BYTES:,} bytes, found {held:,}; "
                "write the array in smaller chunks"
            )
    if len(rows.shape) < 2:
        raise DataError(f"{rows.name}: expected numbers (n, d) or (n, height, width), found shape {rows.shape}")
    return source_of_arrays("zarr", name, rows, labels, step=rows.step)


def _pick(group: Any, name: str, requested: str | None, usual: tuple[str, ...]) -> _Array | None:
    for key in usual if requested is None else (requested,):
        with naming(f"{name}/{key}", "its metadata"):
            item = group.get(key)
        if isinstance(item, zarr.Array):
            return _Array(f"{name}/{key}", decoded(item))
        if item is not None:
            raise DataError(f"{name}/{key}: expected an array, found a group")
    return None


def open_store(path: str, *, read_only: bool = True) -> Any:
    """Open the store at a directory or URL, with limits of time for http and s3."""
    if not is_url(path):
        return LocalStore(path, read_only=read_only)
    protocol = path.partition("://")[0].lower()
    if protocol not in PROTOCOLS or "::" in path:
        raise ConfigError(f"{shown(path)}: expected an address that begins with {', '.join(PROTOCOLS)}, without ::")
    if urlsplit(path).query:
        raise DataError(f"{shown(path)}: expected a URL without a query (?…), as names of chunks are appended")
    options: dict[str, Any] = {}
    try:
        importlib.import_module("fsspec")
        if protocol in ("http", "https"):
            import aiohttp

            limits = aiohttp.ClientTimeout(ANSWER_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
            options = {"client_kwargs": {"timeout": limits}}
        elif protocol == "s3":
            importlib.import_module("s3fs")
            options = {"config_kwargs": {"connect_timeout": CONNECT_SECONDS, "read_timeout": READ_SECONDS}}
    except ImportError as error:
        package = '"bigkernel[s3]"' if error.name == "s3fs" else '"bigkernel[data]"'
        raise ConfigError(f"{protocol}: {error.name} is not installed: pip install {package}") from None
    return FsspecStore.from_url(path, storage_options=options, read_only=read_only)


@contextlib.contextmanager
def naming(name: str, what: str) -> Iterator[None]:
    """Turn any error of a store, a codec or the network into a DataError that names the array."""
    try:
        yield
    except ConfigError:
        raise
    except BigKernelError as error:
        raise type(error)(f"{name}: {error}") from None
    except FileNotFoundError:
        raise DataError(f"{name}: expected a zarr array or group, found none ({what} is missing)") from None
    except Exception as error:  # messages of the network contain whole URLs, with their secrets
        reason = re.sub(r"[a-z0-9+]+://\S*", "…", f"{type(error).__name__}: {error}".split("\n")[0])
        # includes errors of aiohttp and botocore
        if isinstance(error, TimeoutError) or "Connect" in type(error).__name__:
            reason = f"the server cannot be reached or did not answer in time; check its name ({reason})"
        raise DataError(f"{name}: cannot read {what}: {reason}") from None
