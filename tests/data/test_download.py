"""Data sets from mirrors: a server on loopback plays all of them, the good and the bad."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from bigkernel.cli import main
from bigkernel.data import download
from bigkernel.data.download import DATASETS, Dataset, RemoteFile, fetch_file
from bigkernel.errors import DataError

CONTENT = bytes(range(256)) * 64
PACKED = gzip.compress(CONTENT, 9, mtime=0)
OTHER = gzip.compress(CONTENT[:-1] + b"!", mtime=0)


class Mirror(BaseHTTPRequestHandler):
    """What each path does is its name."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        getattr(self, "answer_" + self.path.strip("/").replace("-", "_"))()

    def _send(self, body: bytes, status: int = 200, length: int | None = None, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def answer_missing(self) -> None:
        self._send(b"not here", 404)

    def answer_right(self) -> None:
        self._send(PACKED)

    def answer_plain(self) -> None:
        self._send(CONTENT)

    def answer_encoded(self) -> None:
        self._send(gzip.compress(CONTENT, 1), Content_Encoding="gzip")

    def answer_other(self) -> None:
        self._send(OTHER)

    def answer_page(self) -> None:
        self._send(b"<html>moved</html>")

    def answer_early_end(self) -> None:
        self._send(PACKED[: len(PACKED) // 2], length=len(PACKED))

    def answer_truncated(self) -> None:
        self._send(PACKED[: len(PACKED) // 2])

    def answer_hanging(self) -> None:
        self.server.leave.wait(20)  # type: ignore[attr-defined]

    def answer_endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        piece = bytes(2**16)
        for _ in range(1000):
            try:
                self.wfile.write(piece)
            except OSError:
                self.server.broken_off.set()  # type: ignore[attr-defined]
                return

    def answer_bomb(self) -> None:
        self._send(gzip.compress(bytes(10**7)))

    def log_message(self, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def mirror():
    """A server on a free port of 127.0.0.1: `mirror.file("missing", "right")` is a file with these mirrors."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    server.daemon_threads = True
    server.asked, server.leave, server.broken_off = [], threading.Event(), threading.Event()
    base = f"http://127.0.0.1:{server.server_address[1]}"
    digest = hashlib.sha256(CONTENT).hexdigest()
    server.file = lambda *paths, name="d.gz": RemoteFile(
        name, len(CONTENT), digest, tuple(f"{base}/{path}" for path in paths)
    )
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.leave.set()
    server.shutdown()
    thread.join(5)
    server.server_close()


def test_the_first_mirror_with_the_right_content_is_taken(mirror, tmp_path):
    done = fetch_file(mirror.file("missing", "other", "right", "plain"), tmp_path / "new" / "folder")
    assert done.path.read_bytes() == PACKED
    assert urlsplit(done.mirror).path == "/right"
    assert mirror.asked == ["/missing", "/other", "/right"]
    assert "answered 404" in done.failures[0]
    assert f"sent other content (SHA-256 {hashlib.sha256(gzip.decompress(OTHER)).hexdigest()}" in done.failures[1]
    assert [path.name for path in done.path.parent.iterdir()] == ["d.gz"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("missing", "answered 404"),
        ("other", "sent other content"),
        ("page", "sent other content"),
        ("early-end", "IncompleteRead"),
        ("truncated", "truncated: the compressed data stop"),
        ("bomb", "sent other content"),
        ("endless", "sent more than 81,920 bytes, so that it is another file"),
    ],
)
def test_a_bad_mirror_is_named_with_what_it_did_and_nothing_is_left(mirror, tmp_path, path, expected):
    with pytest.raises(DataError, match="no mirror gave it") as caught:
        fetch_file(mirror.file(path), tmp_path)
    assert f"/{path}: " in str(caught.value)
    assert expected in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert path != "endless" or mirror.broken_off.wait(5)


def test_a_mirror_that_hangs_or_is_not_there_is_left_after_a_bounded_wait(mirror, tmp_path):
    file = mirror.file("hanging", "right")
    away = replace(file, mirrors=("http://127.0.0.1:1/d.gz", *file.mirrors))
    done = fetch_file(away, tmp_path, wait_seconds=0.3)
    assert urlsplit(done.mirror).path == "/right"
    assert "ConnectionError" in done.failures[0]
    assert "timed out" in done.failures[1]
    assert [path.name for path in tmp_path.iterdir()] == ["d.gz"]


@pytest.mark.parametrize("path", ["plain", "encoded", "right"])
def test_the_content_counts_however_it_came(mirror, tmp_path, path):
    stored = fetch_file(mirror.file(path), tmp_path).path.read_bytes()
    assert (gzip.decompress(stored) if stored[:2] == b"\x1f\x8b" else stored) == CONTENT


def test_what_is_there_is_kept_and_nobody_is_asked(mirror, tmp_path):
    (tmp_path / "d.gz").write_bytes(gzip.compress(CONTENT, 1))
    before = (tmp_path / "d.gz").read_bytes()
    assert fetch_file(mirror.file("right"), tmp_path).mirror == ""
    assert (mirror.asked, (tmp_path / "d.gz").read_bytes()) == ([], before)


@pytest.mark.parametrize("content", [OTHER, PACKED[:-20], b"", CONTENT + b"more"])
def test_other_content_of_the_same_name_is_left_alone(mirror, tmp_path, content):
    (tmp_path / "d.gz").write_bytes(content)
    with pytest.raises(DataError, match="is there with other content"):
        fetch_file(mirror.file("right"), tmp_path)
    assert (mirror.asked, (tmp_path / "d.gz").read_bytes()) == ([], content)


def test_every_data_set_has_two_mirrors_a_file_and_says_what_comes_next():
    for dataset in DATASETS.values():
        names = {file.name for file in dataset.files}
        for file in dataset.files:
            assert len({urlsplit(url).netloc for url in file.mirrors}) >= 2
            assert all(url.rpartition("/")[2] == file.name for url in file.mirrors)
        for command in dataset.next_commands:
            assert Path(command.split()[2]).name in names


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_the_pinned_digests_are_those_of_the_real_files(data_dir, name):
    for file in DATASETS[name].files:
        assert download.is_there(file, data_dir)


# ---- the command


@pytest.fixture
def run(mirror, monkeypatch):
    """`bigkernel fetch` of a data set "wine" that the server on loopback has."""
    dataset = Dataset("a file", (mirror.file("missing", "right"),), ("bigkernel ingest {dir}/d.gz d.corpus",))
    monkeypatch.setattr(download, "DATASETS", {"wine": dataset})
    monkeypatch.setattr("bigkernel.cli.fetch.DATASETS", {"wine": dataset})
    return lambda *arguments: CliRunner().invoke(main, ["fetch", "wine", *map(str, arguments)])


def test_the_command_says_where_the_file_came_from_and_what_to_ingest_next(run, tmp_path):
    result = run(tmp_path / "new dir")
    assert result.exit_code == 0
    assert "from 127.0.0.1" in result.stdout
    assert f"bigkernel ingest '{tmp_path}/new dir'/d.gz d.corpus" in result.stdout
    again = json.loads(run(tmp_path / "new dir", "--json").stdout)
    assert (again["files"][0]["name"], again["files"][0]["mirror"]) == ("d.gz", "")
