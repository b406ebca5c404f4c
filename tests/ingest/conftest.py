"""Where the real files are, and an ingest that promises to leave nothing behind when it fails."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bigkernel.errors import DataError
from bigkernel.ingest.convert import ingest
from bigkernel.ingest.readers import open_source
from bigkernel.storage.corpus import Corpus

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
        assert str(path) in str(caught.value)
        return str(caught.value)

    return run
