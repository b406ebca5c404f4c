"""What the tests of data share: the real files, an ingest that fails whole, and what is on disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
