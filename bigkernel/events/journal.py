"""The journal of a run: `journal.jsonl` in its directory, a line for every message, which survives the driver.

    {"time": 1763750000.1, "kind": "segment", "job": "…", "sweep": "…", "receipt": {…}}

Lines are appended and flushed, not synchronised: the journal informs people, receipts determine what is done. A
truncated line is skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from bigkernel.events.board import steady
from bigkernel.events.job import Event, Pulse, Scope, message_of

NAME = "journal.jsonl"
_PULSE_SECONDS = 2.0  # seconds between two lines about a running segment
_LONGEST_LINE = 2**24


class Journal:
    """Writes the messages of one job; a sink of its scope."""

    def __init__(self, run: str | os.PathLike[str], scope: Scope) -> None:
        self._scope, self._path = scope, Path(run) / NAME
        self._file: IO[bytes] | None = None
        self._pulsed: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        """Append a line."""
        now = steady()
        if isinstance(event, Pulse):
            if now - self._pulsed.get(event.node, 0.0) < _PULSE_SECONDS:
                return
            self._pulsed[event.node] = now
        message = message_of(event, self._scope.job, self._scope.sweep)
        line = json.dumps({"time": round(now, 3), **message}, allow_nan=False)
        if self._file is None:
            self._file = open(self._path, "ab+")  # noqa: SIM115 (closed with the job)
            if self._file.tell():
                self._file.seek(-1, os.SEEK_END)
                if self._file.read() != b"\n":  # its writer died, or the disk was full
                    self._file.write(b"\n")
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def read(run: str | os.PathLike[str], *, start: int = 0) -> Iterator[tuple[dict[str, Any] | None, int]]:
    """Yield the messages of a journal from byte `start` on, each with the offset of the next one.

    Invalid lines yield None; an incomplete last line is left for the next reading. Without a journal there are none.
    """
    try:
        with open(Path(run) / NAME, "rb") as file:
            file.seek(start)
            while (line := file.readline(_LONGEST_LINE)).endswith(b"\n"):
                try:
                    message = json.loads(line)
                except (ValueError, RecursionError):
                    message = None
                sound = isinstance(message, dict) and {"kind", "time"} <= message.keys()
                yield message if sound else None, file.tell()
    except FileNotFoundError:
        return
