"""The books of one sweep: what they keep as running sums is what a count from the beginning gives."""

import numpy as np
import pytest

from bigkernel.events.progress import Progress
from bigkernel.streaming.merge_tree import merge_tree, spans

SEGMENTS = 13
STOPS = [10 * (i + 1) for i in range(SEGMENTS)]


def progress():
    return Progress("s", "moments", "dask", 0.0, {"rows": STOPS[-1], "flops": 1.0}, STOPS)


def messages(seed):
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
    books = progress()
    for message in messages(seed):
        books.apply(message, 1.0)
        shown = books.snapshot(1.0)
        counted = sum(round(10 * fraction) for fraction in shown["fractions"].values())
        assert shown["rows_under_way"] == books.rows_under_way == counted
        assert shown["stage_seconds"].get("gram", 0.0) == counted / 8
        assert shown["rows_merged"] == 10 * shown["states"].count("m")
        for worker, share in shown["workers"].items():
            assert share["running"] == [int(i) for i, where in shown["running_on"].items() if where == worker]
    books.apply({"kind": "sweep_ended", "sweep": "s", "seconds": 1.0}, 2.0)
    assert books.rows_under_way == 0
    assert books.snapshot(2.0)["stage_seconds"].get("gram", 0.0) == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_lost_sum_takes_back_the_merges_below_it_and_no_others(seed):
    books, span = progress(), spans(SEGMENTS)
    for message in messages(seed):
        before = set(books.merged_nodes)
        books.apply(message, 1.0)
        if message["kind"] == "released":
            first, stop = span[message["node"]]
            kept = {node for node in before if not first <= span[node][0] <= span[node][1] <= stop}
            assert books.merged_nodes == kept
