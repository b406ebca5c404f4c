"""The board of jobs: messages in any order, what is counted once, and the remaining time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import START, messages

from bigkernel.events.board import ENDED_JOBS, Board
from bigkernel.events.progress import Progress
from bigkernel.streaming.plan import Receipt, leaf, merge_tree, spans


def progress(count=4, rows=100, **options):
    """A sweep of `count` segments of `rows` rows, of 10,000 operations each."""
    plan = {"rows": count * rows, "flops": 1e4 * count * rows}
    return Progress("t", "moments", "dask", START, plan, [rows * (i + 1) for i in range(count)], **options)


def receipt(index, *, resumed=False, worker="w", elapsed=1.0, starts=1, stages=None):
    fields = {"worker": worker, "elapsed": elapsed, "starts": starts, "resumed": resumed, "peak_bytes": 100 + index}
    seconds = {"gram": elapsed} if stages is None else stages
    segment = Receipt(leaf(index), 100 * index, 100 * index + 100, seconds=seconds, **fields)
    return {"kind": "segment", "receipt": segment.to_json()}


def running(index, worker="w"):
    return {"kind": "running", "node": leaf(index), "rows": 0, "worker": worker, "peak_bytes": 7}


def states(sweep):
    return "".join(sweep.states)


def test_a_segment_is_waiting_then_running_then_published_then_merged():
    sweep = progress()
    history = [states(sweep)]
    pulse, merged = {**running(0), "kind": "pulse", "rows": 40}, {"kind": "merged", "node": "1-0"}
    for message in (running(0), pulse, receipt(0), running(1), receipt(1), merged):
        sweep.apply(message, START + 1)
        history.append(states(sweep))
    assert history == ["wwww", "rwww", "rwww", "pwww", "prww", "ppww", "mmww"]
    assert (sweep.rows_done, sweep.rows_under_way, sweep.done) == (200, 0, 2)


def test_a_running_segment_of_a_lost_worker_is_retried_and_a_waiting_one_is_not():
    sweep = progress()
    for message in (running(0), {"kind": "released", "node": leaf(0)}, {"kind": "released", "node": leaf(3)}):
        sweep.apply(message, START)
    assert states(sweep) == "awww"
    sweep.apply(running(0, "other"), START)
    assert sweep.snapshot(START)["attempts"] == {"0": 2}
    assert states(sweep) == "awww"
    sweep.apply(receipt(0, worker="other"), START)
    assert states(sweep) == "pwww"


@pytest.mark.parametrize("run, expected", [("", ("aaww", 0, 0)), ("kept", ("mmww", 200, 1))])
def test_segments_of_a_lost_merge_are_retried_unless_a_run_holds_them(run, expected):
    sweep = progress(run=run)
    merge = [{"kind": kind, "node": "1-0"} for kind in ("merged", "released")]
    for message in (running(0), receipt(0), running(1), receipt(1), *merge):
        sweep.apply(message, START)
    assert (states(sweep), sweep.rows_done, len(sweep.merged_nodes)) == expected


def test_a_repeated_receipt_counts_once():
    sweep = progress()
    bare = receipt(1, worker="", stages={}, elapsed=0.0)
    for message in (bare, receipt(1), receipt(1)):
        sweep.apply(message, START + 1)
    assert (sweep.rows_done, sweep.stage_seconds, sweep.workers["w"].segments) == (100, {"gram": 1.0}, 1)


def test_resumed_segments_are_done_but_not_counted_as_work_of_this_sweep():
    sweep = progress()
    for i in range(2):
        sweep.apply(receipt(i, resumed=True), START)
    assert (sweep.rows_done, sweep.stage_seconds, sweep.workers) == (200, {}, {})
    assert sweep.snapshot(START + 10)["flops_per_second"] == 0
    sweep.apply(receipt(2), START + 10)
    assert sweep.snapshot(START + 10)["flops_per_second"] == pytest.approx(1e6 / 10)
    assert sweep.snapshot(START + 10)["resumed"] == [0, 1]


def test_a_failed_sweep_shows_its_error_and_no_running_segments():
    sweep = progress()
    sweep.apply(running(0), START)
    sweep.apply({"kind": "failed", "node": leaf(1)}, START)
    sweep.apply({"kind": "sweep_ended", "seconds": 3.0, "error": "DataError: row 7"}, START + 3)
    shown = sweep.snapshot(START + 60)
    assert (shown["state"], shown["error"], shown["states"][1]) == ("failed", "DataError: row 7", "f")
    assert (shown["elapsed_seconds"], shown["fractions"]) == (3, {})


def test_the_remaining_time_follows_the_rate_and_its_bounds_the_variation_of_segments():
    equal, varying = progress(), progress()
    for i in range(3):
        equal.apply(receipt(i), START + 1 + i)
        varying.apply(receipt(i, elapsed=(0.5, 1.0, 1.5)[i]), START + 1 + i)
    assert equal.left(START + 3) == pytest.approx((1, 1, 1))
    # two standard deviations 0.5 of the mean of three and of the one to come
    spread = 2 * 0.5 * np.sqrt(1 / 3 + 1)
    assert varying.left(START + 3) == pytest.approx((1, max(0, 1 - spread), 1 + spread))


def test_the_remaining_time_is_unknown_until_rows_are_done():
    sweep = progress()
    assert sweep.left(START + 5) is None
    sweep.apply({**running(0), "kind": "pulse", "rows": 50}, START + 5)
    assert sweep.left(START + 5) == pytest.approx((35, 17.5, 70))


def test_seconds_of_a_stage_only_grow_while_receipts_wait_for_merges_and_end_at_the_total():
    sweep, seconds = progress(), []
    pulses = [{**running(i), "kind": "pulse", "rows": 90, "seconds": {"gram": 0.9}} for i in range(4)]
    published = [{"kind": "published", "node": leaf(i)} for i in range(4)]
    pairs = [message for pair in zip(pulses, published, strict=True) for message in pair]
    merged = [{"kind": "merged", "node": node} for node in ("1-0", "1-1", "2-0")]
    for message in (*pairs, *merged, pulses[0], *(receipt(i) for i in range(4)), pulses[1]):
        sweep.apply(message, START + 1)
        seconds.append(sweep.snapshot(START + 1)["stage_seconds"]["gram"])
    assert seconds == pytest.approx([0.9, 0.9, 1.8, 1.8, 2.7, 2.7, *[3.6] * 6, 3.7, 3.8, 3.9, 4.0, 4.0])


def test_the_rate_history_covers_the_whole_sweep_in_a_bounded_number_of_points():
    count = 3000
    sweep = progress(count, rows=1)
    for i in range(count):
        sweep.apply(receipt(i), START + 2 * (i + 1))
    history = sweep.snapshot(START + 2 * count)["rate_history"]
    assert 100 <= len(history) <= 240
    times, rates = np.array(history).T
    assert np.all(np.diff(times) > 0)
    assert times[-1] > 2 * count * 0.97
    np.testing.assert_allclose(rates, 5000.0)


@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_messages_in_any_order_give_the_same_progress(random, count):
    results = []
    updates = [running(i) for i in range(count)] + [receipt(i) for i in range(count)]
    updates += [{"kind": "merged", "node": node} for node, _, _ in merge_tree(count)]
    for _ in range(2):
        random.shuffle(updates)
        sweep = progress(count, rows=1)
        for message in updates:
            sweep.apply(message, START + 1)
        results.append((states(sweep), sweep.rows_done, sweep.done, sweep.rows_under_way, len(sweep.merged_nodes)))
    assert results[0] == results[1]
    assert results[0][1:] == (count, count, 0, count - 1)


@given(st.integers(1, 200))
def test_the_span_of_a_merge_joins_those_of_its_children(count):
    span = spans(count)
    assert len(span) == 2 * count - 1
    for node, left, right in merge_tree(count):
        assert (span[node], span[left][1]) == ((span[left][0], span[right][1]), span[right][0])


SEGMENTS = 13


def random_messages(seed):
    """Messages of a scheduler in any order: started, running, finished, merged, lost and failed tasks."""
    rng = np.random.default_rng(seed)
    nodes = [node for node, _, _ in merge_tree(SEGMENTS)]
    for _ in range(300):
        kind = str(rng.choice(["running", "pulse", "pulse", "published", "merged", "released", "failed"]))
        message = {"kind": kind, "node": f"0-{rng.integers(SEGMENTS)}"}
        if kind in ("running", "pulse"):
            rows = 0 if kind == "running" else int(rng.integers(1, 10))
            message |= {"worker": f"w{rng.integers(3)}", "rows": rows, "seconds": {"gram": rows / 8}}
        elif kind == "merged" or (kind == "released" and rng.random() < 0.5):
            message["node"] = str(rng.choice(nodes))
        yield message


@pytest.mark.parametrize("seed", range(5))
def test_figures_are_those_of_running_segments_and_a_lost_merge_undoes_those_below_it(seed):
    sweep, span, seconds = progress(SEGMENTS, rows=10), spans(SEGMENTS), 0.0
    for message in random_messages(seed):
        before = set(sweep.merged_nodes)
        sweep.apply(message, START)
        shown = sweep.snapshot(START)
        running_rows = sum(round(10 * fraction) for fraction in shown["fractions"].values())
        assert shown["rows_under_way"] == sweep.rows_under_way == running_rows
        earlier, seconds = seconds, shown["stage_seconds"].get("gram", 0.0)
        assert seconds >= max(earlier, running_rows / 8)
        assert shown["rows_merged"] == 10 * shown["states"].count("m")
        for worker, share in shown["workers"].items():
            assert share["running"] == [int(i) for i, where in shown["running_on"].items() if where == worker]
        if message["kind"] == "released":
            first, stop = span[message["node"]]
            kept = {node for node in before if not first <= span[node][0] <= span[node][1] <= stop}
            assert sweep.merged_nodes == kept
    sweep.apply({"kind": "sweep_ended", "seconds": 1.0}, START + 1)
    assert sweep.rows_under_way == 0
    assert sweep.snapshot(START + 1)["stage_seconds"].get("gram", 0.0) == 0


# ---------------------------------------------------------------- jobs


def board_of(timed):
    board = Board()
    for message, now in timed:
        board.apply(message, now)
    return board


def test_a_finished_job_has_all_its_segments_merges_workers_and_totals():
    board = board_of(messages(60, 5, finished=True))
    (job,) = board.snapshot(START + 1e4)["jobs"]
    (sweep,) = job["sweeps"]
    assert (job["state"], job["title"], sweep["state"]) == ("finished", "fit simulated", "finished")
    assert sweep["states"] == "m" * 60
    assert (sweep["rows_done"], sweep["merges_done"]) == (sweep["rows"], 59)
    assert len(sweep["resumed"]) == 6
    assert job["stage_seconds"] == {"solve": 1.5}
    assert sweep["stage_seconds"]["merge"] == 12
    assert sum(worker["segments"] for worker in sweep["workers"].values()) == 54
    assert board.totals["rows"] == {"computed": 54 * 65_536}
    assert board.totals["segments"] == {"computed": 54, "resumed": 6}
    assert board.totals["jobs"] == {"finished": 1}


def test_messages_of_an_unknown_job_sweep_segment_or_kind_change_nothing():
    board = board_of(messages(8, 2))
    sweep = board.snapshot(START)["jobs"][0]["sweeps"][0]["token"]
    board.apply({"kind": "note", "sweep": sweep, "text": "a point of the rate over time"}, START + 99)
    before = board.snapshot(START + 99)
    for message in (
        {"kind": "pulse", "sweep": "nobody's", "node": "0-1", "rows": 1, "worker": "w"},
        {"kind": "pulse", "sweep": sweep, "node": "0-99", "rows": 1, "worker": "w"},
        {"kind": "merged", "sweep": sweep, "node": "9-9"},
        {"kind": "note", "job": "nobody's", "text": "?"},
        {"kind": "a new one", "sweep": sweep},
    ):
        board.apply(message, START + 99)
    after = board.snapshot(START + 99)
    for snapshot in (before, after):
        snapshot["jobs"][0]["sweeps"][0].pop("rate_history")  # depends on the time, not on messages
    assert after == before


def test_running_jobs_come_first_and_few_ended_jobs_are_kept():
    board = Board()
    for i in range(ENDED_JOBS + 5):
        for message, now in messages(4, 2, job=f"old{i}", finished=True):
            board.apply(message, now + 1000 * i)
    for message, now in messages(4, 2, job="new"):
        board.apply(message, now + 10**6)
    names = [job["id"] for job in board.snapshot(START + 2e6)["jobs"]]
    assert names == ["new", *(f"old{i}" for i in range(ENDED_JOBS + 4, 4, -1))]
    assert board.totals["jobs"]["finished"] == ENDED_JOBS + 5


def test_a_step_between_sweeps_is_shown_until_it_is_done():
    board = board_of(messages(4, 2))
    for done in (1, 2):
        board.apply({"kind": "step", "job": "simulated", "what": "solve", "done": done, "total": 2}, START)
        step = board.snapshot(START)["jobs"][0]["step"]
        assert step == ({"what": "solve", "done": 1, "total": 2} if done == 1 else None)
