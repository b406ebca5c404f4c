"""What the tests of data share: the real files, an ingest that fails whole, and what is on disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bigkernel.data.corpus import Corpus
from bigkernel.data.ingest import ingest
from bigkernel.data.readers import open_source
from bigkernel.errors import DataError

DATA = Path(os.environ.get("BIGKERNEL_DATA") or Path(__file__).parents[2].parent / "shared" / "data")


@pytest.fixture
def data_file() -> Callable[[str], Path]:
    """The path of a real file, or a skip with its reason."""

    def find(name: str) -> Path:
        if not (DATA / name).is_file():
            pytest.skip(f"{DATA / name} is not there; BIGKERNEL_DATA says where the data files are")
        return DATA / name

    return find


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Corpus]:
    """Open a source and ingest it into a fresh corpus."""

    def run(path: Path, *, classes: Any = "auto", **options: Any) -> Corpus:
        return ingest(open_source(path, **options), tmp_path / "loaded", classes=classes)

    return run


@pytest.fixture
def flip() -> Callable[[Path, int], None]:
    """Flip one bit of a file, drawn by the seed."""

    def run(path: Path, seed: int) -> None:
        content = bytearray(path.read_bytes())
        bit = int(np.random.default_rng(seed).integers(8 * len(content)))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)

    return run


@pytest.fixture
def serve() -> Iterator[Callable[[Any], Any]]:
    """Answer requests to a free port of 127.0.0.1 by a handler; the server has a `url`, and an event `leave`."""
    servers = []

    def start(handler: Any) -> Any:
        server: Any = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        server.url, server.leave = f"http://127.0.0.1:{server.server_address[1]}", threading.Event()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        servers.append((server, thread))
        return server

    yield start
    for server, thread in servers:
        server.leave.set()
        server.shutdown()
        thread.join(5)
        server.server_close()


@pytest.fixture
def refused(tmp_path: Path) -> Callable[..., str]:
    """The message of the DataError that stops an ingest, after which nothing may stand at the target."""

    def run(path: Path, *, classes: Any = "auto", **options: Any) -> str:
        target = tmp_path / "refused"
        with pytest.raises(DataError) as caught:
            ingest(open_source(path, **options), target, classes=classes)
        assert not target.exists()
        assert os.path.basename(path) in str(caught.value)
        return str(caught.value)

    return run


@dataclass
class Synchronised:
    """Inodes on which fsync was called: before each rename, since the rename before it; and after the last."""

    before_renames: list[set[int]] = field(default_factory=list)
    after: set[int] = field(default_factory=set)


@pytest.fixture
def synchronised(monkeypatch: pytest.MonkeyPatch) -> Synchronised:
    """Watches `os.fsync` and `os.replace`."""
    found, fsync, replace = Synchronised(), os.fsync, os.replace

    def note(descriptor: int) -> None:
        fsync(descriptor)
        found.after.add(os.fstat(descriptor).st_ino)

    def rename(*paths: str) -> None:
        replace(*paths)
        found.before_renames.append(found.after)
        found.after = set()

    monkeypatch.setattr("os.fsync", note)
    monkeypatch.setattr("os.replace", rename)
    return found
