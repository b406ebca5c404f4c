"""Fixtures of the tests of data: real files, a web server, refused sources, and watched calls of fsync."""

import os
import threading
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer

import numpy as np
import pytest

from bigkernel.data.ingest import ingest
from bigkernel.data.readers import open_source
from bigkernel.errors import DataError


@pytest.fixture
def data_file(data_dir):
    """The path of a real file, or a skip with its reason."""

    def path_of(name):
        if not (data_dir / name).is_file():
            pytest.skip(f"{data_dir / name} is not there; BIGKERNEL_DATA says where the data files are")
        return data_dir / name

    return path_of


@pytest.fixture
def load(tmp_path):
    """Open a source and ingest it into a fresh corpus."""
    return lambda path, **options: ingest(open_source(path, **options), tmp_path / "loaded")


@pytest.fixture
def flip():
    """Flip one bit of a file, chosen by the seed."""

    def run(path, seed):
        content = bytearray(path.read_bytes())
        bit = int(np.random.default_rng(seed).integers(8 * len(content)))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)

    return run


@pytest.fixture
def serve():
    """Answer requests to a free port of 127.0.0.1 by a handler; the server has a `url`, and an event `leave`."""
    servers = []

    def start(handler):
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
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
def refused(tmp_path):
    """The message of the DataError that stops an ingest, after which no target may exist."""

    def run(path, **options):
        with pytest.raises(DataError) as caught:
            ingest(open_source(path, **options), tmp_path / "refused")
        assert not (tmp_path / "refused").exists()
        assert os.path.basename(path) in str(caught.value)
        return str(caught.value)

    return run


@dataclass
class Synchronised:
    """Inodes on which fsync was called: before each rename, since the rename before it; and after the last."""

    before_renames: list[set[int]] = field(default_factory=list)
    after: set[int] = field(default_factory=set)


@pytest.fixture
def synchronised(monkeypatch):
    """Watches `os.fsync` and `os.replace`."""
    calls, fsync, replace = Synchronised(), os.fsync, os.replace

    def note(descriptor):
        fsync(descriptor)
        calls.after.add(os.fstat(descriptor).st_ino)

    def rename(*paths):
        replace(*paths)
        calls.before_renames.append(calls.after)
        calls.after = set()

    monkeypatch.setattr("os.fsync", note)
    monkeypatch.setattr("os.replace", rename)
    return calls
