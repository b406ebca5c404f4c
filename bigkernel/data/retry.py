"""One way to try again: after an error that may pass, a few times, with pauses that double."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_LONGEST_PAUSE_SECONDS = 2.0


def retry(
    task: Callable[[], T],
    *,
    times: int,
    passing: Callable[[Exception], bool],
    failed: Callable[[Exception], None] = lambda error: None,
    pause_seconds: float = 0.1,
) -> T:
    """Return what `task` returns, tried again up to `times` times after errors that are `passing`.

    `failed` is told of each error that is tried again. The error of the last attempt, and any other one, is raised.
    """
    for attempt in range(times):
        try:
            return task()
        except Exception as error:
            if not passing(error):
                raise
            failed(error)
        time.sleep(min(_LONGEST_PAUSE_SECONDS, pause_seconds * 2**attempt))
    return task()
