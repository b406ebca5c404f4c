"""The books of jobs: any order of messages, what is counted once, and the time left."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import START, messages

from bigkernel.events.board import ENDED_JOBS, Board
from bigkernel.events.progress import Progress
from bigkernel.streaming.plan import Receipt, leaf, merge_tree, spans

PLAN = {"rows": 400, "flops": 4e6}


def progress(**changes):
    """A sweep of four segments of a hundred rows."""
    return Progress("t", "moments", "dask", START, PLAN, [100, 200, 300, 400], **changes)


def receipt(index, *, resumed=False, worker="w", elapsed=1.0, starts=1, stages=None):
    about = {"worker": worker, "elapsed": elapsed, "starts": starts, "resumed": resumed, "peak_bytes": 100 + index}
    seconds = {"gram": elapsed} if stages is None else stages
    found = Receipt(leaf(index), 100 * index, 100 * index + 100, seconds=seconds, **about)
    return {"kind": "segment", "receipt": found.to_json()}


def running(index, worker="w"):
    return {"kind": "running", "node": leaf(index), "rows": 0, "worker": worker, "peak_bytes": 7}


def states(sweep):
    return "".join(sweep.states)


def test_a_segment_goes_from_waiting_over_running_and_published_to_merged():
    sweep = progress()
    seen = [states(sweep)]
    for message in (
        running(0),
        {**running(0), "kind": "pulse", "rows": 40},
        receipt(0),
        running(1),
        receipt(1),
        {"kind": "merged", "node": "1-0"},
    ):
        sweep.apply(message, START + 1)
        seen.append(states(sweep))
    assert seen == ["wwww", "rwww", "rwww", "pwww", "prww", "ppww", "mmww"]
    assert (sweep.rows_done, sweep.rows_under_way, sweep.done) == (200, 0, 2)


def test_a_segment_whose_worker_died_is_begun_again_and_counted():
    sweep = progress()
    for message in (running(0), {"kind": "released", "node": leaf(0)}):
        sweep.apply(message, START)
    assert states(sweep) == "awww"
    sweep.apply(running(0, "other"), START)
    assert sweep.snapshot(START)["attempts"] == {"0": 2}
    assert states(sweep) == "awww"
    sweep.apply(receipt(0, worker="other"), START)
    assert states(sweep) == "pwww"


def test_a_task_that_had_not_begun_when_its_worker_died_was_not_tried():
    sweep = progress()
    sweep.apply({"kind": "released", "node": leaf(3)}, START)
    assert states(sweep) == "wwww"


def test_a_lost_merge_takes_its_segments_back_unless_a_run_has_them():
    for run, expected in (("", "aaww"), ("kept", "mmww")):
        sweep = progress(run=run)
        for i in (0, 1):
            sweep.apply(running(i), START)
            sweep.apply(receipt(i), START)
        sweep.apply({"kind": "merged", "node": "1-0"}, START)
        sweep.apply({"kind": "released", "node": "1-0"}, START)
        assert states(sweep) == expected
        assert (sweep.rows_done, len(sweep.merged_nodes)) == ((200, 1) if run else (0, 0))


def test_a_receipt_that_comes_twice_counts_once():
    sweep = progress()
    bare = receipt(1, worker="", stages={}, elapsed=0.0)
    for message in (bare, receipt(1), receipt(1)):
        sweep.apply(message, START + 1)
    assert (sweep.rows_done, sweep.stage_seconds, sweep.workers["w"].segments) == (100, {"gram": 1.0}, 1)


def test_resumed_segments_are_done_but_are_no_work_of_this_sweep():
    sweep = progress()
    for i in range(2):
        sweep.apply(receipt(i, resumed=True), START)
    assert (sweep.rows_done, sweep.stage_seconds, sweep.workers) == (200, {}, {})
    assert sweep.snapshot(START + 10)["flops_per_second"] == 0
    sweep.apply(receipt(2), START + 10)
    assert sweep.snapshot(START + 10)["flops_per_second"] == pytest.approx(1e6 / 10)
    assert sweep.snapshot(START + 10)["resumed"] == [0, 1]


def test_a_failed_sweep_says_so_and_what_was_under_way_is_not():
    sweep = progress()
    sweep.apply(running(0), START)
    sweep.apply({"kind": "failed", "node": leaf(1)}, START)
    sweep.apply({"kind": "sweep_ended", "seconds": 3.0, "error": "DataError: row 7"}, START + 3)
    found = sweep.snapshot(START + 60)
    assert (found["state"], found["error"], found["states"][1]) == ("failed", "DataError: row 7", "f")
    assert found["elapsed_seconds"] == 3
    assert found["fractions"] == {}


def test_the_time_left_comes_from_the_rate_and_its_ends_from_how_segments_differ():
    alike, unlike = progress(), progress()
    for i in range(3):
        alike.apply(receipt(i), START + 1 + i)
        unlike.apply(receipt(i, elapsed=(0.5, 1.0, 1.5)[i]), START + 1 + i)
    assert alike.left(START + 3) == pytest.approx((1, 1, 1))
    expected, low, high = unlike.left(START + 3)
    # two standard deviations 0.5 of the mean of three and of the one to come
    spread = 2 * 0.5 * np.sqrt(1 / 3 + 1)
    assert (expected, low, high) == pytest.approx((1, max(0, 1 - spread), 1 + spread))


def test_nothing_is_said_of_the_time_left_before_anything_is_known():
    sweep = progress()
    assert sweep.left(START + 5) is None
    sweep.apply({**running(0), "kind": "pulse", "rows": 50}, START + 5)
    assert sweep.left(START + 5) == pytest.approx((35, 17.5, 70))


def test_the_rate_over_time_spans_the_whole_sweep_in_a_bounded_number_of_points():
    count = 3000
    sweep = Progress("t", "x", "dask", START, {"rows": count, "flops": 2.0 * count}, list(range(1, count + 1)))
    for i in range(count):
        sweep.apply(receipt(i), START + 2 * (i + 1))
    history = sweep.snapshot(START + 2 * count)["rate_history"]
    assert 100 <= len(history) <= 240
    times, rates = np.array(history).T
    assert np.all(np.diff(times) > 0)
    assert times[-1] > 2 * count * 0.97
    np.testing.assert_allclose(rates, 1.0)


@given(st.randoms(use_true_random=False), st.integers(1, 40))
def test_messages_in_any_order_end_in_the_same_books(random, count):
    found = []
    told = [running(i) for i in range(count)] + [receipt(i) for i in range(count)]
    told += [{"kind": "merged", "node": node} for node, _, _ in merge_tree(count)]
    for _ in range(2):
        random.shuffle(told)
        sweep = Progress("t", "x", "dask", START, {"rows": count, "flops": 1.0}, list(range(1, count + 1)))
        for message in told:
            sweep.apply(message, START + 1)
        found.append((states(sweep), sweep.rows_done, sweep.done, sweep.rows_under_way, len(sweep.merged_nodes)))
    assert found[0] == found[1]
    assert found[0][1:] == (count, count, 0, count - 1)


@given(st.integers(1, 200))
def test_spans_of_the_tree_are_those_of_its_merges(count):
    found = spans(count)
    assert len(found) == 2 * count - 1
    for node, left, right in merge_tree(count):
        assert (found[node], found[left][1]) == ((found[left][0], found[right][1]), found[right][0])


SEGMENTS = 13
STOPS = [10 * (i + 1) for i in range(SEGMENTS)]


def thirteen():
    return Progress("s", "moments", "dask", 0.0, {"rows": STOPS[-1], "flops": 1.0}, STOPS)


def anything(seed):
    """What a scheduler may tell, in any order: begins, pulses, finished tasks, merges and losses."""
    rng = np.random.default_rng(seed)
    nodes = [node for node, _, _ in merge_tree(SEGMENTS)]
    for _ in range(300):
        leaf = f"0-{rng.integers(SEGMENTS)}"
        kind = str(rng.choice(["running", "pulse", "pulse", "published", "merged", "released", "failed"]))
        message = {"kind": kind, "sweep": "s", "node": leaf}
        if kind in ("running", "pulse"):
            rows = 0 if kind == "running" else int(rng.integers(1, 10))
            spent = {"gram": rows / 8}
            message |= {"worker": f"w{rng.integers(3)}", "rows": rows, "peak_bytes": 1, "seconds": spent}
        elif kind == "merged" or (kind == "released" and rng.random() < 0.5):
            message["node"] = str(rng.choice(nodes))
        yield message


@pytest.mark.parametrize("seed", range(5))
def test_rows_under_way_and_what_runs_where_are_those_of_the_running_segments(seed):
    books, seconds = thirteen(), 0.0
    for message in anything(seed):
        books.apply(message, 1.0)
        shown = books.snapshot(1.0)
        counted = sum(round(10 * fraction) for fraction in shown["fractions"].values())
        assert shown["rows_under_way"] == books.rows_under_way == counted
        before, seconds = seconds, shown["stage_seconds"].get("gram", 0.0)
        assert seconds >= max(before, counted / 8)
        assert shown["rows_merged"] == 10 * shown["states"].count("m")
        for worker, share in shown["workers"].items():
            assert share["running"] == [int(i) for i, where in shown["running_on"].items() if where == worker]
    books.apply({"kind": "sweep_ended", "sweep": "s", "seconds": 1.0}, 2.0)
    assert books.rows_under_way == 0
    assert books.snapshot(2.0)["stage_seconds"].get("gram", 0.0) == 0


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


@pytest.mark.parametrize("seed", range(5))
def test_a_lost_sum_takes_back_the_merges_below_it_and_no_others(seed):
    books, span = thirteen(), spans(SEGMENTS)
    for message in anything(seed):
        before = set(books.merged_nodes)
        books.apply(message, 1.0)
        if message["kind"] == "released":
            first, stop = span[message["node"]]
            kept = {node for node in before if not first <= span[node][0] <= span[node][1] <= stop}
            assert books.merged_nodes == kept


# ---------------------------------------------------------------- jobs


def board_of(told):
    board = Board()
    for message, now in told:
        board.apply(message, now)
    return board


def test_a_simulated_job_is_told_whole():
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


def test_messages_of_unknown_jobs_sweeps_segments_and_kinds_change_nothing():
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
        snapshot["jobs"][0]["sweeps"][0].pop("rate_history")  # a matter of time, not of messages
    assert after == before


def test_running_jobs_stand_first_and_few_ended_ones_are_remembered():
    board = Board()
    for i in range(ENDED_JOBS + 5):
        for message, now in messages(4, 2, job=f"old{i}", finished=True):
            board.apply(message, now + 1000 * i)
    for message, now in messages(4, 2, job="new"):
        board.apply(message, now + 10**6)
    names = [job["id"] for job in board.snapshot(START + 2e6)["jobs"]]
    assert names == ["new", *(f"old{i}" for i in range(ENDED_JOBS + 4, 4, -1))]
    assert board.totals["jobs"]["finished"] == ENDED_JOBS + 5


def test_what_the_driver_does_between_sweeps_is_a_step_until_it_is_done():
    board = board_of(messages(4, 2))
    for done in (1, 2):
        board.apply({"kind": "step", "job": "simulated", "what": "solve", "done": done, "total": 2}, START)
        step = board.snapshot(START)["jobs"][0]["step"]
        assert step == ({"what": "solve", "done": 1, "total": 2} if done == 1 else None)
