"""Python's collector of cyclic garbage, as the process of a command wants it while it begins and when it ends.

Importing the scientific stack makes hundreds of thousands of objects that stay, through which the collector goes again
and again: 0.6 s of a fit of 4.5 s. Only the process of a command asks for this, never a host that imports us.
"""

from __future__ import annotations

import atexit
import gc

_NEW_OBJECTS = 100_000  # while modules are imported, before the collector looks at the youngest; Python's number is 700
_usual: list[tuple[int, int, int]] = []


def collect_rarely() -> None:
    """Have new objects looked at a hundred times as seldom from now on, and none of them when the process ends."""
    if not _usual:
        _usual.append(gc.get_threshold())
        gc.set_threshold(_NEW_OBJECTS, *_usual[0][1:])
        atexit.register(gc.freeze)


def collect_as_usual() -> None:
    """Go back to Python's own pace, before there is data; what is there already stays, and is not looked at again."""
    if _usual:
        gc.freeze()
        gc.set_threshold(*_usual.pop())
