"""A split of rows by a hash of their number or group: which corpus a row goes to, whatever else is in the file.

The hash is that of `folds.HashFolds`: the same row or group falls on the same side on every machine and in every pass,
and rows that are added at a file's end move none of those before.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import ConfigError
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.folds import HashFolds

_PARTS = 10**6  # shares are counted in millionths
_FILE_ROWS = 2**40  # row i of file f has the number f·2⁴⁰ + i, so that rows of one file do not move those of another
_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")


@dataclass(frozen=True)
class Split:
    """Named shares of the rows, each to a corpus of its own; the rest stays."""

    shares: Mapping[str, float]  # above 0, their sum below 1; resolved to a millionth
    by: Literal["row", "group"] = "row"
    seed: int = 0  # another seed, other rows

    def __post_init__(self) -> None:
        for name, share in self.shares.items():
            if not _NAME.fullmatch(name):
                raise ConfigError(f"split: the name {name!r}; expected letters, digits and _, such as test")
            if not 1 / _PARTS <= share < 1:
                raise ConfigError(f"split: {name}={share}; expected a share of the rows between 0 and 1, such as 0.1")
        if not self.shares or sum(self.shares.values()) >= 1:
            raise ConfigError(f"split: {self}; expected shares whose sum is below 1")
        if self.by not in ("row", "group"):
            raise ConfigError(f"split: by {self.by!r}; expected row or group")

    def __str__(self) -> str:
        shares = " ".join(f"{name}={share:g}" for name, share in self.shares.items())
        return f"{shares} by {self.by}, seed {self.seed}"

    def sides(self, start: int, rows: int, *, file: int = 0, group: NDArray[Any] | None = None) -> NDArray[np.int64]:
        """Return the side of each of the rows `start` and up of a file, (rows,): 0 stays, 1 is the first share, …

        `group` is (rows,) int64, where `by` is "group".
        """
        chunk = Chunk(np.empty((rows, 0)), file * _FILE_ROWS + start, group=group)
        place = HashFolds(_PARTS, self.seed, self.by).of(chunk)
        ends = np.round(np.cumsum(list(self.shares.values())) * _PARTS).astype(np.int64)
        side = np.searchsorted(ends, place, side="right") + 1
        return np.where(side > len(ends), 0, side).astype(np.int64)

    def share_of(self, name: str) -> float:
        """The share of `name`; of "" what stays."""
        return self.shares[name] if name else 1 - sum(self.shares.values())


def split_path(target: str | os.PathLike[str], name: str) -> Path:
    """Return the path of a share of the corpus at `target`: train-test.corpus beside train.corpus; "": `target`."""
    path = Path(target)
    return path.with_name(f"{path.stem}-{name}{path.suffix}") if name else path
