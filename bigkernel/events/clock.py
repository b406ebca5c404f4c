"""The time in which books are kept: seconds since 1970 as the clock said when this process began, and steady since.

A clock that is set while a job runs would make its rates and its time left wrong by the hour.
"""

from __future__ import annotations

import time

_BEGUN = time.time() - time.monotonic()


def steady() -> float:
    """Seconds since 1970, which never fall and never jump."""
    return _BEGUN + time.monotonic()
