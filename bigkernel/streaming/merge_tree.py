"""The fixed binary tree in which the partial results of segments are merged.

A node is named by its level and place: "0-3" is segment 3, "1-1" the merge of segments 2 and 3. The tree depends on the
number of segments alone, so that sums are rounded alike whoever computes them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import numpy as np
from numpy.typing import NDArray

Accumulator = dict[str, NDArray[np.float64]]  # a partial result: sums over rows, by name
Merge = tuple[str, str, str]  # node, left, right


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
