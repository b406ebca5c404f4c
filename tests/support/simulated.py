"""Simulated jobs: the messages of a sweep over many segments by many workers."""

import numpy as np

from bigkernel.streaming.plan import leaf, spans

START = 1_763_750_000.0


def messages(segments=2000, workers=100, *, job="simulated", finished=False, seed=0):
    """Yield (message, time) of a job that is half finished or finished; each segment takes about ten seconds.

    Every 50th segment loses its worker once; the first tenth was resumed.
    """
    rng = np.random.RandomState(seed)
    rows, token, now = 65_536, f"{job}-sweep", START
    plan = {"rows": rows * segments, "features": 784, "segments": segments, "segment_rows": rows, "chunk_rows": 10_000}
    plan |= {"flops": rows * segments * 7.1e6, "bytes_read": rows * segments * 784}
    plan |= {"partial_bytes": 32_000_000, "task_bytes": 300_000_000}
    common = {"job": job, "sweep": token}
    yield {"kind": "job_started", "job": job, "title": f"fit {job}", "run": "", "host": "node1", "pid": 4242}, now
    started = {"host": "node1", "what": "moments", "executor": "dask", "run": "", "plan": plan}
    started |= {"stops": [rows * (i + 1) for i in range(segments)], "planned_bytes": 630_000_000}
    yield {"kind": "sweep_started", **common, **started}, now
    free = dict.fromkeys((f"tcp://10.0.{i // 250}.{i % 250}:40{i:03d}" for i in range(workers)), now)
    nodes, pending, merged = spans(segments), set(range(segments)), set[str]()
    last = segments if finished else segments // 2
    for index in range(last):
        worker = min(free, key=free.__getitem__)
        begin = free[worker]
        seconds = float(rng.normal(10, 0.7))
        if index < segments // 10:
            yield _segment(common, index, rows, worker, seconds, now, resumed=True), now
        else:
            yield {"kind": "running", **common, "node": leaf(index), "worker": worker}, begin
            if index % 50 == 0:
                text = f"worker {worker} lost: the process ended; recomputing 1 running tasks and 0 results"
                yield {"kind": "incident", **common, "incident": "worker", "text": text, "worker": worker}, begin
                yield {"kind": "released", **common, "node": leaf(index)}, begin
                yield {"kind": "running", **common, "node": leaf(index), "worker": worker}, begin
            pulse = {"node": leaf(index), "rows": rows // 2, "worker": worker, "peak_bytes": 4 * 10**8}
            yield {"kind": "pulse", **common, **pulse}, begin + seconds / 2
            free[worker] = begin + seconds
            yield _segment(common, index, rows, worker, seconds, begin + seconds), begin + seconds
        now = max(now, free[worker])
        pending.discard(index)
        for node, (first, stop) in nodes.items():
            if stop == index + 1 and not node.startswith("0-") and node not in merged and first <= index:
                merged.add(node)
                yield {"kind": "merged", **common, "node": node}, now
    if finished:
        yield {"kind": "sweep_ended", **common, "seconds": now - START, "error": "", "stages": {"merge": 12.0}}, now
        yield {"kind": "spent", "job": job, "sweep": token, "stage": "solve", "seconds": 1.5}, now
        yield {"kind": "job_ended", "job": job, "sweep": token, "state": "finished", "error": ""}, now + 1
        return
    for index in range(last, min(segments, last + workers)):
        worker = list(free)[index - last]
        yield {"kind": "running", **common, "node": leaf(index), "worker": worker}, now
        pulse = {"node": leaf(index), "rows": int(rows * rng.rand()), "worker": worker, "peak_bytes": 5 * 10**8}
        yield {"kind": "pulse", **common, **pulse}, now + 1


def _segment(common, index, rows, worker, seconds, ended, *, resumed=False):
    shares = {"read": 0.02, "convert": 0.02, "block": 0.42, "exp": 0.03, "gram": 0.51}
    receipt = {"node": leaf(index), "start": rows * index, "stop": rows * (index + 1), "digest": "", "elapsed": seconds}
    receipt |= {"seconds": {stage: share * seconds for stage, share in shares.items()}, "bytes_read": rows * 784}
    receipt |= {"worker": worker, "peak_bytes": 550_000_000, "skipped": 0, "retries": [], "resumed": resumed}
    receipt |= {"starts": 2 if index % 50 == 0 and not resumed else 1, "ended": ended}
    return {"kind": "segment", **common, "receipt": receipt}
