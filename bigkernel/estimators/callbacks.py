"""Callbacks of scikit-learn 1.9 and later: sweeps are the tasks of a fit, and segments those of a sweep.

Rounds, steps of conjugate gradients and kernels of a search are sweeps, too. Only the end of a fit has a model to
score. Earlier versions of scikit-learn have no callbacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from bigkernel.arrays import ColumnLike, RowsLike
from bigkernel.events.job import Event, SegmentDone, SweepEnded, SweepStarted, observe

if TYPE_CHECKING:
    from sklearn.callback import CallbackContext

try:
    from sklearn.callback import CallbackSupportMixin as CallbackSupportMixin
    from sklearn.callback import with_callbacks
except ImportError:

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing, before scikit-learn 1.9."""


class _Tasks:
    """Passes the sweeps of a fit to the callbacks of its estimator."""

    def __init__(self, estimator: CallbackSupportMixin, fit: CallbackContext) -> None:
        self._estimator, self._fit, self._sweep = estimator, fit, fit

    def __call__(self, event: Event) -> None:
        if isinstance(event, SweepStarted):
            count = len(event.plan.segments) - event.resumed
            self._sweep = self._fit.subcontext(task_name=event.what, max_subtasks=count)
            self._sweep.call_on_fit_task_begin(estimator=self._estimator)
        elif isinstance(event, SegmentDone) and not event.receipt.resumed:
            segment = self._sweep.subcontext(task_name="segment")
            segment.call_on_fit_task_begin(estimator=self._estimator)
            segment.call_on_fit_task_end(estimator=self._estimator)
        elif isinstance(event, SweepEnded):
            self._sweep.call_on_fit_task_end(estimator=self._estimator)


@contextmanager
def calling_back(estimator: CallbackSupportMixin, X: RowsLike, y: ColumnLike) -> Iterator[None]:
    """Call the callbacks of an estimator around its fit, and at the tasks of it."""
    if not getattr(estimator, "_skl_callbacks", None):
        yield
        return
    context = estimator._init_callback_context(max_subtasks=None)
    try:
        context.call_on_fit_task_begin(estimator=estimator, X=X, y=y)
        with observe(_Tasks(estimator, context)):
            yield
        # the copy that they get has all attributes of the fit
        context.call_on_fit_task_end(estimator=estimator, X=X, y=y, reconstruction_attributes={})
    finally:
        with_callbacks(lambda _: None)(estimator)  # it calls `teardown` after the function that it decorates
