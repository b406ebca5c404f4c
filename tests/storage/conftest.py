"""What the tests of storage share: which files are on the disk, not only in the cache of the system, and when."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

import pytest


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
