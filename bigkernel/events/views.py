"""Who shows a job: functions that packages register as entry points of the group `bigkernel.views`.

`scheduler` is called once with a scheduler that keeps books (`plugin.board_of`), `run` with a run directory whose job
has ended. What a view does wrong is logged: no view may ever stop a job.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points

from distributed import Scheduler

from bigkernel.data.visible import log_of

GROUP = "bigkernel.views"
_log = log_of(__name__)


def show_scheduler(dask_scheduler: Scheduler) -> None:
    """Show the books of a scheduler in all views; for `Client.run_on_scheduler`."""
    _call("scheduler", dask_scheduler)


def show_run(directory: str) -> None:
    """Show a run whose job has ended in all views."""
    _call("run", directory)


@cache
def _views(name: str) -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=GROUP, name=name))


def _call(name: str, subject: object) -> None:
    for view in _views(name):
        try:
            view.load()(subject)
        except Exception as error:
            _log.warning("%s: nothing is shown of %s (%s: %s)", view.value, subject, type(error).__name__, error)
