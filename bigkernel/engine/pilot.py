"""Time estimates: run a short piece of a job's first long sweep and extrapolate by the plan.

The job runs as usual, with the same rows, statistic and executor. In its first long sweep, pieces of growing size are
swept in place of all rows, until one takes a second; then the job is abandoned. Nothing is written.

Seconds of a sweep are modelled as a + b·rows, from the last two pieces. What follows the sweeps (solves, rounds that a
fit may add) is not part of the estimate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from bigkernel.engine.executor import SweepSpec
from bigkernel.engine.preflight import check_cluster
from bigkernel.engine.sweep import before_sweep, run_sweep
from bigkernel.streaming.plan import Plan, Segment

LONG_ROWS = 8192  # a sweep of no more rows is run whole
ENOUGH_SECONDS = 1.0  # seconds of a piece that need not grow, if it took
ENOUGH_GROWTH = 1.5  # times as long as the previous one: the rows dominate its time
MOST_SECONDS = 10.0  # seconds of all pieces, after which none is begun
MARGIN = 1.25  # factor by which a machine may be faster or slower later on
_FIRST_ROWS = 512  # rows of a segment of the first piece, which also warms up the workers
_SEGMENTS_A_SLOT = 2  # segments of a piece, so that its time includes merges
_MOST_ROWS = 65_536  # most rows of a segment of a piece


@dataclass(frozen=True)
class Piece:
    """A timed short sweep."""

    rows: int  # rows that it swept
    seconds: float  # from the first task to the merged total


@dataclass(frozen=True)
class Estimate:
    """The expected time of the sweeps of a job."""

    seconds: float  # expected, of what precedes the first long sweep and of all sweeps: the middle of the range
    # least, most: the range that the pilot supports
    least: float
    most: float
    before_seconds: float  # of what precedes the first long sweep: landmarks, previews; measured
    # pilot_seconds, pilot_rows: what the pilot itself took, and rows that it swept; 0 where the whole job was run
    pilot_seconds: float
    pilot_rows: int
    worker_bytes: int = 0  # announced peak of the fullest worker; 0 without workers, or where the whole job was run


class _Stopped(BaseException):
    """Ends a job whose first long sweep was timed; `except Exception` in the job does not catch it."""

    def __init__(self, plan: Plan, slots: int, pieces: list[Piece], worker_bytes: int) -> None:
        self.plan, self.slots, self.pieces, self.worker_bytes = plan, slots, pieces, worker_bytes


def pilot(job: Callable[[], object], *, flops: float | None = None, workers: int | None = None) -> Estimate:
    """Estimate the seconds of a job from a short piece of its first long sweep; measure one that has no long sweep.

    Parameters
    ----------
    job : starts the job in the surrounding `executing`: `lambda: model.fit(rows)`
    flops : of all sweeps of the job, from its plan; None: those of the first long sweep
    workers : number of concurrent tasks to extrapolate to; None: as many as in the pilot
    """
    start = time.perf_counter()
    token = before_sweep.set(_stop_if_long)
    try:
        job()
    except _Stopped as stopped:
        timed = stopped
    else:
        seconds = time.perf_counter() - start
        return Estimate(seconds, seconds, seconds, seconds, seconds, 0)
    finally:
        before_sweep.reset(token)
    spent = time.perf_counter() - start
    before = max(0.0, spent - sum(piece.seconds for piece in timed.pieces))
    times = 1.0 if flops is None else flops / max(timed.plan.flops, 1.0)
    least, most = extrapolate(timed.pieces, timed.plan, timed.slots, workers or timed.slots)
    return Estimate(
        seconds=before + times * (least * most) ** 0.5,
        least=before + times * least / MARGIN,
        most=before + times * most * MARGIN,
        before_seconds=before,
        pilot_seconds=spent,
        pilot_rows=sum(piece.rows for piece in timed.pieces),
        worker_bytes=timed.worker_bytes,
    )


def extrapolate(pieces: list[Piece], plan: Plan, slots: int, workers: int) -> tuple[float, float]:
    """Return the least and most seconds of a sweep on so many workers, from pieces on so many slots.

    In the least, the constant term occurs once; in the most, the whole time of the last piece grows with the rows.
    """
    last = pieces[-1]
    before = pieces[-2] if len(pieces) > 1 else Piece(0, 0.0)
    all_in = last.seconds / last.rows
    # noise can make the added rows seem cheaper than none, or more expensive than all
    per_row = min(max(0.0, last.seconds - before.seconds) / max(1, last.rows - before.rows), all_in)
    count = max(1, len(plan.segments))
    rounds = -(-count // workers)  # workers may be idle in the last one
    rows = slots * plan.n_rows * rounds / count
    least = per_row * rows + last.seconds - per_row * last.rows
    return least, max(least, all_in * rows)


def _stop_if_long(spec: SweepSpec) -> None:
    """Time pieces of a long sweep and end its job; do nothing before a short one, or one that prepares another."""
    jobs, peak, spec = bool(spec.rows.x.segment_rows), 0, replace(spec, look=None)  # jobs are of no rows
    if not jobs and (spec.plan.n_rows <= LONG_ROWS or spec.statistic.prepares):
        return
    if spec.client is not None:  # refuses what the job would be refused for
        peak = check_cluster(spec.client, spec.rows, spec.plan, spec.config, owner=spec.owner, card=spec.card).announced
    slots = min(spec.slots()[1], len(spec.plan.segments))  # once there are workers
    if jobs:
        pieces = [_timed(replace(spec, plan=_piece(spec.plan, slots, 1), location=None, what="pilot"))]
    else:
        pieces = _timed_pieces(spec, slots)
    raise _Stopped(spec.plan, slots, pieces, peak)


def _timed_pieces(spec: SweepSpec, slots: int) -> list[Piece]:
    """Sweep pieces, each with twice the rows of the previous one, until the last two give the time per row."""
    longest = min(_MOST_ROWS, max(segment.stop - segment.start for segment in spec.plan.segments))
    pieces: list[Piece] = []
    rows = min(_FIRST_ROWS, longest // 2)
    while True:
        piece = _piece(spec.plan, _SEGMENTS_A_SLOT * slots, rows)
        pieces.append(_timed(replace(spec, plan=piece, location=None, what="pilot")))
        if rows >= longest or (len(pieces) > 1 and _enough(pieces)):
            return pieces
        rows = min(2 * rows, longest)


def _enough(pieces: list[Piece]) -> bool:
    before, last = pieces[-2:]
    grown = last.seconds >= ENOUGH_SECONDS and last.seconds >= ENOUGH_GROWTH * before.seconds
    return grown or sum(piece.seconds for piece in pieces) >= MOST_SECONDS


def _piece(plan: Plan, count: int, rows: int) -> Plan:
    """Return the plan of the first rows of some segments, from all over the input."""
    total = len(plan.segments)
    count = min(count, total)
    chosen = [plan.segments[total * i // count] for i in range(count)]
    stops = [min(segment.stop, segment.start + rows) for segment in chosen]
    segments = tuple(
        Segment(i, (*(bound for bound in segment.bounds if bound < stop), stop))
        for i, (segment, stop) in enumerate(zip(chosen, stops, strict=True))
    )
    swept = sum(segment.stop - segment.start for segment in segments)
    share = swept / max(1, plan.n_rows)
    return replace(
        plan, n_rows=swept, segments=segments, flops=plan.flops * share, bytes_read=int(plan.bytes_read * share)
    )


def _timed(spec: SweepSpec) -> Piece:
    return Piece(spec.plan.n_rows, run_sweep(spec).seconds)
