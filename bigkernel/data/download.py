"""Public data sets, downloaded once by pooch and verified: MNIST, USPS and wine quality.

Every file has several mirrors and one SHA-256, of its decoded content: mirrors compress differently, and some serve
without encryption, which the digest makes safe. A file appears under its name only when it is complete and correct; a
mirror that fails, hangs, or sends too much or other content is skipped.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from bigkernel.data.atomic_write import replacing, require_free
from bigkernel.data.readers.source import load_library, open_stream
from bigkernel.errors import DataError

WAIT_SECONDS = 20.0  # seconds to connect, and between two pieces of a response
_SLACK_BYTES = 2**16  # compressed or decoded content may exceed the stated size by so much
_PIECE_BYTES = 2**16

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True)
class RemoteFile:
    """A file of a data set: its name, size and SHA-256 of its decoded content, and URLs, tried in order."""

    name: str
    content_bytes: int
    sha256: str
    mirrors: tuple[str, ...]


@dataclass(frozen=True)
class Dataset:
    """A set of files, their description, and the next commands (`{dir}` stands for the directory)."""

    description: str
    files: tuple[RemoteFile, ...]
    next_commands: tuple[str, ...]


_RAW = "https://raw.githubusercontent.com"
_ESL_COPY = f"{_RAW}/dgkim5360/the-elements-of-statistical-learning-notebooks/2c13a4818379451bcce802bcd7917f4878e12977"


def _at(hosts: tuple[str, ...], name: str, content_bytes: int, sha256: str, *more: str) -> RemoteFile:
    return RemoteFile(name, content_bytes, sha256, (*(f"{host}/{name}" for host in hosts), *more))


_MNIST_HOSTS = (
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    "https://storage.googleapis.com/cvdf-datasets/mnist",
    "http://yann.lecun.com/exdb/mnist",
)
_USPS_HOSTS = (
    "https://hastie.su.domains/ElemStatLearn/datasets",
    "https://web.stanford.edu/~hastie/ElemStatLearn/datasets",
    f"{_ESL_COPY}/data/zipcode",
)
_WINE_HOSTS = (
    "https://archive.ics.uci.edu/ml/machine-learning-databases/wine-quality",
    f"{_RAW}/auxa/Wine-Quality-Prediction/13f35ab1aea80d0f6131ca45e9770f6aa6e2cd3e",
)
_T10K = "t10k-images-idx3-ubyte.gz"
_T10K_COPY = f"{_RAW}/h-poincare/Neural-Network-from-Scratch/a278e0d59df223d4a2cb8033f64b622649291089/data/{_T10K}"
# name, bytes and SHA-256 of the decompressed content
_MNIST_FILES = (
    ("train-images-idx3-ubyte.gz", 47_040_016, "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"),
    ("train-labels-idx1-ubyte.gz", 60_008, "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"),
    (_T10K, 7_840_016, "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7", _T10K_COPY),
    ("t10k-labels-idx1-ubyte.gz", 10_008, "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
)
_USPS_FILES = (
    ("zip.train.gz", 14_512_253, "abc9f5c75b997cabe66b5d01727d5a681c69298e1641a8d37b55433a52129dc0"),
    ("zip.test.gz", 2_029_542, "6bde17b4f1cd68e0630cd2751d6495b5795d9165ab2dc4a0be8b7002b732f4cc"),
)
_WINE_FILE = ("winequality-white.csv", 264_426, "76c3f809815c17c07212622f776311faeb31e87610d52c26d87d6e361b169836")

DATASETS: Mapping[str, Dataset] = {
    "mnist": Dataset(
        "MNIST, 60,000 and 10,000 digits of 28×28 pixels",
        tuple(_at(_MNIST_HOSTS, *file) for file in _MNIST_FILES),
        (
            "bigkernel ingest {dir}/train-images-idx3-ubyte.gz train.corpus",
            "bigkernel ingest {dir}/t10k-images-idx3-ubyte.gz test.corpus",
        ),
    ),
    "usps": Dataset(
        "USPS zip codes, 7,291 and 2,007 digits of 16×16 grey values",
        tuple(_at(_USPS_HOSTS, *file) for file in _USPS_FILES),
        ("bigkernel ingest {dir}/zip.train.gz usps.corpus", "bigkernel ingest {dir}/zip.test.gz usps-test.corpus"),
    ),
    "wine": Dataset(
        "UCI wine quality, white: 4,898 wines of 11 properties",
        (_at(_WINE_HOSTS, *_WINE_FILE),),
        ("bigkernel ingest {dir}/winequality-white.csv wine.corpus --labels-are numbers",),
    ),
}


class _Sink:
    """A file object that accepts at most a given number of bytes from a mirror."""

    def __init__(self, handle: BinaryIO, most_bytes: int, update: Progress) -> None:
        self._handle, self._most_bytes, self._update = handle, most_bytes, update
        self._count = 0

    def write(self, data: bytes) -> int:
        """Store received bytes."""
        self._count += len(data)
        if self._count > self._most_bytes:
            raise DataError(f"sent more than {self._most_bytes:,} bytes, expected a smaller file")
        self._update(self._count, None)
        return self._handle.write(data)

    def flush(self) -> None:
        """Do nothing; the complete file is flushed later."""


def is_there(file: RemoteFile, folder: str | os.PathLike[str]) -> bool:
    """Return True if the file is in `folder` with the right content; raise DataError if it has other content."""
    path = Path(folder, file.name)
    if not os.path.lexists(path):
        return False
    try:
        right = path.is_file() and _digest(path, file.content_bytes) == file.sha256
    except DataError:  # damaged, such as a truncated gzip
        right = False
    if not right:
        raise DataError(
            f"{path}: file exists with content other than SHA-256 {file.sha256}; move it elsewhere, or choose "
            "another directory"
        )
    return True


def fetch_file(
    file: RemoteFile,
    folder: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    wait_seconds: float = WAIT_SECONDS,
) -> str:
    """Put one file into `folder`, which is made, from the first mirror that gives the right content; return its URL.

    The URL is "" if the file was there. `progress` is called with the bytes received, and the size where it is known.
    `wait_seconds` bounds the wait for a connection and between two pieces of an answer. `DataError`: no mirror gave it
    (says why, mirror by mirror), or another file of its name is there; nothing is left then.
    """
    target = Path(folder, file.name)
    if is_there(file, folder):
        return ""
    require_free(folder, 2 * file.content_bytes, file.name)
    Path(folder).mkdir(parents=True, exist_ok=True)
    failures: list[str] = []
    for url in file.mirrors:
        try:
            with replacing(target) as partial:
                _download(url, partial, file, progress or (lambda done, total: None), wait_seconds)
                digest = _digest(partial, file.content_bytes)
                if digest != file.sha256:
                    raise DataError(f"sent unexpected content (SHA-256 {digest}, expected {file.sha256})")
        except DataError as error:
            failures.append(f"{url}: {str(error).replace(str(partial), 'the file')}")
            continue
        return url
    raise DataError(f"{file.name}: download failed from all mirrors: " + "; ".join(failures))


def _download(url: str, partial: Path, file: RemoteFile, update: Progress, wait_seconds: float) -> None:
    """Download from one mirror, once."""
    pooch = load_library("pooch", "downloads need pooch")
    with partial.open("wb") as handle:
        sink = _Sink(handle, file.content_bytes + _SLACK_BYTES, update)
        try:
            pooch.HTTPDownloader(chunk_size=_PIECE_BYTES, timeout=wait_seconds)(url, sink, None)
        except DataError:
            raise
        except OSError as error:  # base class of all errors of requests
            status = getattr(getattr(error, "response", None), "status_code", None)
            reason = f"{type(error).__name__}: {str(error)[:200]}" if status is None else f"HTTP status {status}"
            raise DataError(reason) from None


def _digest(path: Path, content_bytes: int) -> str:
    """Return the SHA-256 of the decoded content, reading at most the expected size."""
    total, left = hashlib.sha256(), content_bytes + 1
    with open_stream(str(path)) as stream:
        while left > 0 and (piece := stream.read(min(_PIECE_BYTES, left))):
            total.update(piece)
            left -= len(piece)
    return total.hexdigest()
