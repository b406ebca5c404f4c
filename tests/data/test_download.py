"""Data sets from mirrors: a server on loopback plays all of them, good and bad ones."""

import gzip
import hashlib
import json
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
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
AGAIN = gzip.compress(CONTENT, 1)  # other bytes of the same content
OTHER = gzip.compress(CONTENT[:-1] + b"!", mtime=0)


def encoded(handler):
    body = gzip.compress(CONTENT, 1)
    handler.start(200, len(body), Content_Encoding="gzip")
    handler.wfile.write(body)


def endless(handler):
    handler.start(200)
    for _ in range(1000):
        try:
            handler.wfile.write(bytes(2**16))
        except OSError:
            handler.server.broken_off.set()
            return


# path -> the body that is sent (and its stated length), or a function that answers
ANSWERS = {
    "right": PACKED,
    "plain": CONTENT,
    "other": OTHER,
    "page": b"<html>moved</html>",
    "truncated": PACKED[: len(PACKED) // 2],
    "early-end": (PACKED[: len(PACKED) // 2], len(PACKED)),
    "bomb": gzip.compress(bytes(10**7)),
    "encoded": encoded,
    "endless": endless,
    "hanging": lambda handler: handler.server.leave.wait(20),
    "missing": lambda handler: handler.start(404, 0),
}


class Mirror(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requested.append(self.path)
        answer = ANSWERS[self.path.strip("/")]
        if callable(answer):
            answer(self)
            return
        body, length = answer if isinstance(answer, tuple) else (answer, len(answer))
        self.start(200, length)
        self.wfile.write(body)

    def start(self, status, length=None, **headers):
        self.send_response(status)
        for name, value in ({} if length is None else {"Content-Length": length} | headers).items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def log_message(self, *args):
        """Log nothing."""


@pytest.fixture
def mirror(serve):
    """A server; `mirror.file("missing", "right")` is a file with these mirrors."""
    server = serve(Mirror)
    server.requested, server.broken_off = [], threading.Event()
    digest = hashlib.sha256(CONTENT).hexdigest()
    urls = lambda paths: tuple(f"{server.url}/{path}" for path in paths)  # noqa: E731
    server.file = lambda *paths: RemoteFile("d.gz", len(CONTENT), digest, urls(paths))
    return server


def test_the_first_mirror_with_the_right_content_is_used(mirror, tmp_path):
    folder = tmp_path / "new" / "folder"
    assert urlsplit(fetch_file(mirror.file("missing", "other", "right", "plain"), folder)).path == "/right"
    assert (folder / "d.gz").read_bytes() == PACKED
    assert mirror.requested == ["/missing", "/other", "/right"]
    assert [path.name for path in folder.iterdir()] == ["d.gz"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("missing", "HTTP status 404"),
        ("other", f"sent unexpected content (SHA-256 {hashlib.sha256(gzip.decompress(OTHER)).hexdigest()}"),
        ("page", "sent unexpected content"),
        ("early-end", "IncompleteRead"),
        ("truncated", "truncated: the compressed data end early"),
        ("bomb", "sent unexpected content"),
        ("endless", "sent more than 81,920 bytes, expected a smaller file"),
    ],
)
def test_a_bad_mirror_is_named_with_its_fault_and_no_file_remains(mirror, tmp_path, path, expected):
    with pytest.raises(DataError, match="download failed from all mirrors") as caught:
        fetch_file(mirror.file(path), tmp_path)
    assert f"/{path}: " in str(caught.value)
    assert expected in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert path != "endless" or mirror.broken_off.wait(5)


def test_a_mirror_that_hangs_or_is_unreachable_is_skipped_after_a_timeout(mirror, tmp_path):
    file = mirror.file("hanging", "right")
    away = replace(file, mirrors=("http://127.0.0.1:1/d.gz", *file.mirrors))
    assert urlsplit(fetch_file(away, tmp_path, wait_seconds=0.3)).path == "/right"
    assert [path.name for path in tmp_path.iterdir()] == ["d.gz"]


@pytest.mark.parametrize("path", ["plain", "encoded", "right"])
def test_content_is_compared_after_decompression(mirror, tmp_path, path):
    fetch_file(mirror.file(path), tmp_path)
    stored = (tmp_path / "d.gz").read_bytes()
    assert (gzip.decompress(stored) if stored[:2] == b"\x1f\x8b" else stored) == CONTENT


@pytest.mark.parametrize("content", [AGAIN, OTHER, PACKED[:-20], b"", CONTENT + b"more"])
def test_an_existing_file_is_kept_and_refused_if_its_content_is_another(mirror, tmp_path, content):
    (tmp_path / "d.gz").write_bytes(content)
    if content is AGAIN:
        assert fetch_file(mirror.file("right"), tmp_path) == ""
    else:
        with pytest.raises(DataError, match="file exists with content other than"):
            fetch_file(mirror.file("right"), tmp_path)
    assert (mirror.requested, (tmp_path / "d.gz").read_bytes()) == ([], content)


def test_every_file_has_two_mirrors_and_every_data_set_commands_that_use_it():
    for dataset in DATASETS.values():
        names = {file.name for file in dataset.files}
        for file in dataset.files:
            assert len({urlsplit(url).netloc for url in file.mirrors}) >= 2
            assert all(url.rpartition("/")[2] == file.name for url in file.mirrors)
        for command in dataset.next_commands:
            assert Path(command.split()[2]).name in names


@pytest.mark.parametrize("name", sorted(DATASETS))
def test_pinned_digests_match_the_real_files(data_dir, name):
    for file in DATASETS[name].files:
        assert download.is_there(file, data_dir)


# ---- the command


@pytest.fixture
def run(mirror, monkeypatch):
    """`bigkernel fetch` of a data set "wine" on the server."""
    dataset = Dataset("a file", (mirror.file("missing", "right"),), ("bigkernel ingest {dir}/d.gz d.corpus",))
    monkeypatch.setattr(download, "DATASETS", {"wine": dataset})
    monkeypatch.setattr("bigkernel.cli.fetch.DATASETS", {"wine": dataset})
    return lambda *arguments: CliRunner().invoke(main, ["fetch", "wine", *map(str, arguments)])


def test_the_command_prints_the_mirror_and_the_next_command(run, tmp_path):
    result = run(tmp_path / "new dir")
    assert result.exit_code == 0
    assert "from 127.0.0.1" in result.stdout
    assert f"bigkernel ingest '{tmp_path}/new dir'/d.gz d.corpus" in result.stdout
    again = json.loads(run(tmp_path / "new dir", "--json").stdout)
    assert again["files"] == {"d.gz": "already present"}
