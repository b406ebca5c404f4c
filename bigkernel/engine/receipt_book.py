"""The receipts of a sweep's segments, as they come, and what observers are told of each."""

from __future__ import annotations

from bigkernel.data.run_directory import Receipt
from bigkernel.engine.schedule import Schedule
from bigkernel.events.kinds import Incident, SegmentDone
from bigkernel.events.scope import emit


class ReceiptBook:
    """Collects the receipts of segments and tells observers of them, first of those that the run held already."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._receipts = list(schedule.recovered)
        self._done = 0
        for node, wrong in schedule.damaged.items():
            what = f"{schedule.name_of(node)}: what the run holds is damaged and is computed again ({wrong})"
            emit(Incident("damage", what))
        for receipt in schedule.recovered:
            self.tell_done(receipt)

    def add(self, receipt: Receipt) -> None:
        """Collect a receipt and tell what went wrong meanwhile."""
        self._receipts.append(receipt)
        emit_receipt_incidents(receipt, self._schedule.name_of(receipt.node))

    def tell_done(self, receipt: Receipt) -> None:
        """Tell that a segment is finished."""
        self._done += 1
        emit(SegmentDone(receipt, self._done, len(self._schedule.plan.segments)))

    def ordered(self) -> tuple[Receipt, ...]:
        """All receipts in the order of their rows."""
        return tuple(sorted(self._receipts, key=lambda receipt: receipt.start))


def emit_receipt_incidents(receipt: Receipt, what: str) -> None:
    """Tell observers of the attempts that failed before a receipt."""
    for reason in receipt.retries:
        emit(Incident("retry", f"{what}: tried again after {reason}"))
    if receipt.starts > 1 and not receipt.resumed:
        emit(Incident("repeat", f"{what}: begun {receipt.starts} times"))
