"""Public data sets, fetched once and verified: MNIST, USPS and wine quality.

Every file has several mirrors and one SHA-256, that of its decoded content: mirrors compress differently, and some
serve without encryption, which is all right only because of this digest. A file appears under its name when it is whole
and right; a mirror that fails, hangs, sends too much or something else is left for the next.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bigkernel.data.atomic_write import require_free, writing
from bigkernel.data.readers.source import is_gzip, open_stream
from bigkernel.data.visible import log_of
from bigkernel.errors import ConfigError, DataError

WAIT_SECONDS = 20.0  # to connect, and between two pieces of an answer
RATE_BYTES = 20_000  # a second: a mirror has WAIT_SECONDS and the time that its file takes at this rate
_SLACK_BYTES = 2**16  # compressed or decoded content may exceed the stated size by so much
_PIECE_BYTES = 2**16
_logger = log_of(__name__)

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class RemoteFile:
    """A file of a data set.

    Attributes
    ----------
    name : under which it is stored; .gz: gzip
    content_bytes : size of the decoded content
    sha256 : of the decoded content
    mirrors : URLs, tried in order
    """

    name: str
    content_bytes: int
    sha256: str
    mirrors: tuple[str, ...]


@dataclass(frozen=True)
class Dataset:
    """Files that belong together, what they are, and the next commands (`{dir}` stands for the directory)."""

    description: str
    files: tuple[RemoteFile, ...]
    next_commands: tuple[str, ...]


@dataclass(frozen=True)
class Fetched:
    """A file that lies in its folder, and the mirror that gave it ("": it was there)."""

    path: Path
    mirror: str
    failures: tuple[str, ...] = ()


_RAW = "https://raw.githubusercontent.com"
_ESL_COPY = f"{_RAW}/dgkim5360/the-elements-of-statistical-learning-notebooks/2c13a4818379451bcce802bcd7917f4878e12977"


def _mnist(name: str, content_bytes: int, sha256: str, *more: str) -> RemoteFile:
    hosts = (
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        "http://yann.lecun.com/exdb/mnist",
    )
    return RemoteFile(name, content_bytes, sha256, (*(f"{host}/{name}" for host in hosts), *more))


def _usps(name: str, content_bytes: int, sha256: str) -> RemoteFile:
    hosts = (
        "https://hastie.su.domains/ElemStatLearn/datasets",
        "https://web.stanford.edu/~hastie/ElemStatLearn/datasets",
        f"{_ESL_COPY}/data/zipcode",
    )
    return RemoteFile(name, content_bytes, sha256, tuple(f"{host}/{name}" for host in hosts))


DATASETS: Mapping[str, Dataset] = {
    "mnist": Dataset(
        "MNIST, 60,000 and 10,000 digits of 28×28 pixels",
        (
            _mnist(
                "train-images-idx3-ubyte.gz",
                47_040_016,
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            _mnist(
                "train-labels-idx1-ubyte.gz",
                60_008,
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            _mnist(
                "t10k-images-idx3-ubyte.gz",
                7_840_016,
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                f"{_RAW}/h-poincare/Neural-Network-from-Scratch/a278e0d59df223d4a2cb8033f64b622649291089/data/"
                "t10k-images-idx3-ubyte.gz",
            ),
            _mnist(
                "t10k-labels-idx1-ubyte.gz",
                10_008,
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
        (
            "bigkernel ingest {dir}/train-images-idx3-ubyte.gz train.corpus",
            "bigkernel ingest {dir}/t10k-images-idx3-ubyte.gz test.corpus",
        ),
    ),
    "usps": Dataset(
        "USPS zip codes, 7,291 and 2,007 digits of 16×16 grey values",
        (
            _usps("zip.train.gz", 14_512_253, "abc9f5c75b997cabe66b5d01727d5a681c69298e1641a8d37b55433a52129dc0"),
            _usps("zip.test.gz", 2_029_542, "6bde17b4f1cd68e0630cd2751d6495b5795d9165ab2dc4a0be8b7002b732f4cc"),
        ),
        (
            "bigkernel ingest {dir}/zip.train.gz usps.corpus",
            "bigkernel ingest {dir}/zip.test.gz usps-test.corpus",
        ),
    ),
    "wine": Dataset(
        "UCI wine quality, white: 4,898 wines of 11 properties",
        (
            RemoteFile(
                "winequality-white.csv",
                264_426,
                "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836",
                (
                    "https://archive.ics.uci.edu/ml/machine-learning-databases/wine-quality/winequality-white.csv",
                    f"{_RAW}/auxa/Wine-Quality-Prediction/13f35ab1aea80d0f6131ca45e9770f6aa6e2cd3e/"
                    "winequality-white.csv",
                ),
            ),
        ),
        ("bigkernel ingest {dir}/winequality-white.csv wine.corpus --labels-are numbers",),
    ),
}
"""Name -> data set. Digests are of the content after gzip."""


class _Sink:
    """Takes what a mirror sends, up to a number of bytes and until it is closed."""

    def __init__(self, handle: BinaryIO, most_bytes: int, update: Progress) -> None:
        self._handle, self._most_bytes, self._update = handle, most_bytes, update
        self.count = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        """Store a piece."""
        if self.closed:
            raise DataError("given up")
        self.count += len(data)
        if self.count > self._most_bytes:
            raise DataError(f"sent more than {self._most_bytes:,} bytes, so that it is another file")
        self._update(self.count, None)
        return self._handle.write(data)

    def flush(self) -> None:
        """Nothing: the file is flushed when it is whole."""


def is_there(file: RemoteFile, folder: str | os.PathLike[str]) -> bool:
    """Return True where the file lies in `folder` with the right content.

    Raises
    ------
    DataError
        Something of its name is there with other content, which is left alone.
    """
    path = Path(folder, file.name)
    if not os.path.lexists(path):
        return False
    try:
        right = path.is_file() and _digest(str(path), file.content_bytes) == file.sha256
    except DataError:  # damaged, such as a truncated gzip
        right = False
    if not right:
        raise DataError(
            f"{path}: is there with other content than that of SHA-256 {file.sha256}; move it elsewhere, or choose "
            "another directory"
        )
    return True


def fetch_file(
    file: RemoteFile,
    folder: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    wait_seconds: float = WAIT_SECONDS,
) -> Fetched:
    """Put one file into `folder`, which is made, from the first mirror that gives the right content.

    Parameters
    ----------
    file : RemoteFile
    folder : path
    progress : callable or None
        Called with the bytes received, and the size where it is known.
    wait_seconds : bounds the wait for a connection and between two pieces of an answer

    Returns
    -------
    Fetched

    Raises
    ------
    DataError
        No mirror gave it (says why, mirror by mirror), or another file of its name is there. Nothing is left then.
    ConfigError
        pooch is not installed.
    PlanTooLarge
        The file does not fit on the disk.
    """
    target = Path(folder, file.name)
    if is_there(file, folder):
        return Fetched(target, "")
    require_free(folder, 2 * file.content_bytes, file.name)
    update: Progress = progress or (lambda done, total: None)
    failures: list[str] = []
    with writing(target, passing=False):
        Path(folder).mkdir(parents=True, exist_ok=True)
        for url in file.mirrors:
            with _scratch(target) as partial:
                try:
                    _download(url, partial, file, update, wait_seconds)
                    found = _digest(str(partial), file.content_bytes)
                    if found != file.sha256:
                        raise DataError(f"sent other content (SHA-256 {found}, expected {file.sha256})")
                    _publish(partial, target)
                except DataError as error:
                    failures.append(f"{url}: {str(error).replace(str(partial), 'the file')}")
                    _logger.info("%s", failures[-1])
                    continue
            return Fetched(target, url, tuple(failures))
    raise DataError(f"{file.name}: no mirror gave it: " + "; ".join(failures))


def _download(url: str, partial: Path, file: RemoteFile, update: Progress, wait_seconds: float) -> None:
    """One attempt at one mirror, in a thread of its own, so that one that drips is given up as well."""
    try:
        import pooch  # type: ignore[import-untyped]
    except ImportError as error:
        raise ConfigError(f'{error.name} fetches files, and is not installed: pip install "bigkernel[data]"') from None
    failure: list[str] = []
    limit_seconds = wait_seconds + file.content_bytes / RATE_BYTES
    with partial.open("wb") as handle:
        sink = _Sink(handle, file.content_bytes + _SLACK_BYTES, update)
        get = pooch.HTTPDownloader(chunk_size=_PIECE_BYTES, timeout=wait_seconds)

        def attempt() -> None:
            try:
                get(url, sink, None)
            except DataError as error:
                failure.append(str(error))
            except Exception as error:  # whatever a thread raised would be lost with it
                failure.append(_reason(error, wait_seconds))

        thread = threading.Thread(target=attempt, name="bigkernel-fetch", daemon=True)
        thread.start()
        thread.join(limit_seconds)
        if thread.is_alive():
            sink.closed = True
            raise DataError(f"not whole after {limit_seconds:,.0f} s ({sink.count:,} bytes)")
    if failure:
        raise DataError(failure[0])


def _reason(error: Exception, wait_seconds: float) -> str:
    """Of what pooch raises (requests' errors)."""
    text = str(error).split("\n")[0]
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return f"answered {status}"
    if "timed out" in text.lower() or "Timeout" in type(error).__name__:
        return f"nothing for {wait_seconds:g} s"
    for known in ("Connection refused", "Name or service not known", "Network is unreachable", "IncompleteRead"):
        if known in text:
            return {"IncompleteRead": "the connection ended early"}.get(known, known.lower())
    return f"{type(error).__name__}: {text[:200]}"


@contextlib.contextmanager
def _scratch(target: Path) -> Iterator[Path]:
    """A hidden name beside `target`, of which nothing is left after the block."""
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    try:
        yield partial
    finally:
        for left in (partial, partial.with_suffix(".coded")):
            left.unlink(missing_ok=True)


def _publish(partial: Path, target: Path) -> None:
    """Give the file its name; one that came decoded is compressed where the name says so, and the reverse."""
    if is_gzip(str(partial)) != target.name.endswith(".gz"):
        coded = partial.with_suffix(".coded")
        with contextlib.ExitStack() as stack:
            if target.name.endswith(".gz"):
                read: BinaryIO = stack.enter_context(partial.open("rb"))
                raw = stack.enter_context(coded.open("wb"))
                write: BinaryIO = stack.enter_context(gzip.GzipFile("", "wb", 9, raw, mtime=0))  # type: ignore[assignment]
            else:
                read = stack.enter_context(gzip.open(partial, "rb"))  # type: ignore[assignment]
                write = stack.enter_context(coded.open("wb"))
            shutil.copyfileobj(read, write, _PIECE_BYTES)
        os.replace(coded, partial)
    with partial.open("rb+") as handle:
        os.fsync(handle.fileno())
    os.replace(partial, target)


def _digest(path: str, content_bytes: int) -> str:
    """SHA-256 of the decoded content, of which no more is read than it should have."""
    total, left = hashlib.sha256(), content_bytes + 1
    with open_stream(path) as stream:
        while left > 0 and (piece := stream.read(min(_PIECE_BYTES, left))):
            total.update(piece)
            left -= len(piece)
    return total.hexdigest()
