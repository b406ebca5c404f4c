"""Importing it makes publishes of a run slow from the third segment on: whoever then ends the job has time to hit it.

Drivers import it where `drivers.HELD` is in their environment, and so do their workers, by a preload of Dask.
A file "held" in the working directory tells that a publish waits; a file "go" there ends the delays.
"""

import time
from pathlib import Path

from bigkernel.data.run_directory import Run

FREE = 3  # segments that are published without delay
SECONDS = 2.0  # of delay: with sixteen segments a machine may stand still for some ten of them
_publish = Run.publish


def _slowly(self, *arguments):
    if len(list(self.root.glob("receipts/0-*.json"))) >= FREE:
        Path("held").touch()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and not Path("go").exists():
            time.sleep(0.02)
    return _publish(self, *arguments)


Run.publish = _slowly
