"""The fixed binary tree in which the partial results of segments are merged.

A node is named by its level and place: "0-3" is segment 3, "1-1" the merge of segments 2 and 3. The tree depends on the
number of segments alone, so that sums are rounded alike whoever computes them. A finished node
leaves a receipt.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Accumulator = dict[str, NDArray[np.float64]]  # a partial result: sums over rows, by name
Merge = tuple[str, str, str]  # node, left, right
_MOST_SECONDS = 1e11


@dataclass(frozen=True)
class Receipt:
    """The record that a finished task leaves: who, what, how long."""

    node: str  # of the merge tree, "0-3" for segment 3
    start: int  # rows start … stop
    stop: int
    digest: str = ""  # SHA-256 of the partial; empty where it was not published
    seconds: dict[str, float] = field(default_factory=dict)  # per stage; read: spent waiting for rows
    elapsed: float = 0.0  # seconds in all
    bytes_read: int = 0
    worker: str = ""
    peak_bytes: int = 0  # highest resident memory of the worker's process so far
    skipped: int = 0  # rows left out because they were not finite
    starts: int = 1  # how often a worker began it, where the run has counted
    retries: tuple[str, ...] = ()  # why it was tried again, once for each time
    resumed: bool = False  # found in the run, not computed again
    ended: float = 0.0  # seconds since 1970 on the worker's clock

    @property
    def rows(self) -> int:
        """Rows covered."""
        return self.stop - self.start

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @classmethod
    def of_json(cls, stored: dict[str, Any]) -> Receipt:
        """Make a receipt of plain data; a ValueError or TypeError where a figure is none, or a text is none."""
        receipt = cls(**{**stored, "retries": tuple(stored["retries"])})
        counts = (receipt.start, receipt.stop, receipt.bytes_read, receipt.peak_bytes, receipt.skipped, receipt.starts)
        times = (receipt.elapsed, receipt.ended, *receipt.seconds.values())
        texts = (receipt.node, receipt.digest, receipt.worker, *receipt.retries)
        if not all(type(count) is int and 0 <= count < 2**63 for count in counts) or receipt.start > receipt.stop:
            raise ValueError("expected whole numbers of rows and bytes")
        if not all(type(time) in (int, float) and abs(time) < _MOST_SECONDS for time in times):  # NaN is not
            raise ValueError("expected seconds")
        if not all(isinstance(text, str) for text in (*texts, *receipt.seconds)):
            raise ValueError("expected texts")
        return receipt


def leaf(index: int) -> str:
    """Name the node of a segment."""
    return f"0-{index}"


def merge_tree(count: int) -> list[Merge]:
    """List the merges over `count` segments: (node, left, right), children before parents."""
    level, names, merges = 0, [leaf(i) for i in range(count)], []
    while len(names) > 1:
        level += 1
        above = []
        for i in range(0, len(names) - 1, 2):
            node = f"{level}-{i // 2}"
            merges.append((node, names[i], names[i + 1]))
            above.append(node)
        names = above + names[len(names) - len(names) % 2 :]
    return merges


def spans(count: int) -> dict[str, tuple[int, int]]:
    """Return, of every node, the first segment that it covers and one past the last."""
    found = {leaf(i): (i, i + 1) for i in range(count)}
    for node, left, right in merge_tree(count):
        found[node] = found[left][0], found[right][1]
    return found


def ancestors_of(merges: list[Merge]) -> dict[str, tuple[str, ...]]:
    """For every node, the nodes that contain it, nearest first."""
    parent = {child: node for node, left, right in merges for child in (left, right)}
    above: dict[str, tuple[str, ...]] = {}
    for node in {*parent, *parent.values()}:
        path, here = [], node
        while here in parent:
            here = parent[here]
            path.append(here)
        above[node] = tuple(path)
    return above


def covered(node: str, finished: Container[str], above: Mapping[str, tuple[str, ...]]) -> bool:
    """Tell if a node, or one that contains it, is finished."""
    return node in finished or any(name in finished for name in above.get(node, ()))
