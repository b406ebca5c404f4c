"""`bench gram`: the rate of a sweep beside the rate of its two products on all workers at the same time.

A sweep multiplies rows by landmarks and updates a Gram matrix. The limit is what a machine gives to these two products
alone, in the buffers and by the calls of a sweep, while all workers are at them. Padding of the buffers counts as work
of the limit and not of the sweep. Both are measured by turns, by the clock and in the processors' time: where other
work runs beside, the second alone means something.
"""

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from distributed import Client, wait
from threadpoolctl import threadpool_limits

from bigkernel.config import settings
from bigkernel.data.corpus import Corpus
from bigkernel.engine.process import processors
from bigkernel.engine.sweep import Swept, sweep
from pipelines.shared.product_rates import gemm_flops_per_second, product_flops_per_second
from pipelines.shared.timed_sweeps import FEATURES, moments_job, table

Update = Callable[[int, int], None]
Flops = dict[str, float]  # of a row, by product
GEMM_SIZE = 4096
_PATIENCE_SECONDS = 300.0
BESIDE = ("beside stages", "no task")


def measure(
    corpus: Corpus, landmarks: int, *, repeats: int, client: Client | str, seconds: float, update: Update
) -> dict[str, Any]:
    """Measure GEMM, limit and sweep in turn, on a client or threads; return the rounds and the last sweep's stages."""
    rows, statistic = moments_job(corpus, landmarks)
    flops = {"block": 2.0 * landmarks * FEATURES, "gram": float(landmarks) ** 2}
    workers = processors() if isinstance(client, str) else len(client.ncores())
    swept = sweep(rows, statistic, client=client)  # everything is imported and the files are in the page cache
    blocks = -(-swept.plan.chunk_rows // settings().block_rows)
    shape = (max(1, swept.plan.chunk_rows // blocks), FEATURES + 2, landmarks, statistic.wide)
    measured = []
    for i in range(repeats):
        gemm = gemm_flops_per_second(GEMM_SIZE, seconds) * workers
        products = _products(client, workers, shape, seconds)
        before = _processor_seconds(client)
        swept = sweep(rows, statistic, client=client)
        spent = _processor_seconds(client) - before
        measured.append(_turn(gemm, products, swept, spent, flops))
        update(i + 1, repeats)
    stages = swept.report()["stage_seconds"]
    return {
        "rows": len(rows),
        "landmarks": landmarks,
        "cores": workers,
        "executor": swept.executor,
        **{name: [one[name] for one in measured] for name in measured[0]},
        **{
            f"{name}_median": statistics.median(one[name] for one in measured)
            for name in measured[0]
            if "ratio" in name
        },
        "stage_seconds": stages,
        "stage_gflops": {name: len(rows) * flops[name] / stages[name] / 1e9 for name in flops},
        "shares": shares(swept, workers),
        "peak_bytes": swept.report()["peak_bytes"],
    }


def _turn(gemm: float, products: list[dict[str, float]], swept: Swept, spent: float, flops: Flops) -> dict[str, float]:
    limit, of_processor = (limit_flops_per_second(products, flops, suffix) for suffix in ("", "_processor"))
    work = swept.plan.n_rows * sum(flops.values())
    return {
        "gemm_gflops": gemm / 1e9,
        "limit_gflops": limit / 1e9,
        "sweep_gflops": work / swept.seconds / 1e9,
        "gemm_ratio": work / swept.seconds / gemm,
        "limit_ratio": work / swept.seconds / limit,
        "processor_ratio": work / spent / (of_processor / len(products)),
    }


def limit_flops_per_second(products: list[dict[str, float]], flops: Flops, suffix: str = "") -> float:
    """Return the rate of all workers together, each doing one product after the other.

    Examples
    --------
    >>> limit_flops_per_second([{"block": 100.0, "gram": 50.0}] * 2, {"block": 200.0, "gram": 200.0})
    133.33333333333331
    """
    seconds = [sum(value / rates[name + suffix] for name, value in flops.items()) for rates in products]
    return sum(flops.values()) * sum(1 / one for one in seconds)


def shares(swept: Swept, workers: int) -> dict[str, float]:
    """Return each stage's share of the workers' time from the first task to the merged total.

    "beside stages": in tasks, between their stages; "no task": start, scheduler, and workers that wait for the last.
    """
    whole, stages = swept.seconds * workers, swept.report()["stage_seconds"]
    tasks, merges = sum(receipt.elapsed for receipt in swept.receipts), stages.get("merge", 0.0)
    beside = tasks - (sum(stages.values()) - merges), whole - tasks - merges
    return {name: value / whole for name, value in {**stages, **dict(zip(BESIDE, beside, strict=True))}.items()}


def show(result: dict[str, Any]) -> None:
    """Print the rounds and the stages of the last sweep."""
    names = ("limit_gflops", "gemm_gflops", "sweep_gflops", "limit_ratio", "gemm_ratio", "processor_ratio")
    lines = [
        [
            str(i + 1),
            *(f"{result[name][i]:.1f}" for name in names[:3]),
            *(f"{result[name][i]:.3f}" for name in names[3:]),
        ]
        for i in range(len(result["limit_gflops"]))
    ]
    medians = ["median", "", "", "", *(f"{result[f'{name}_median']:.3f}" for name in names[3:])]
    table(
        f"{result['rows']:,} × {FEATURES}, m = {result['landmarks']:,}, {result['cores']} cores, {result['executor']}",
        ["round", "limit GFLOP/s", "GEMM × cores", "sweep", "to limit", "to GEMM", "processor"],
        [*lines, medians],
    )
    table(
        "last sweep: the workers' time",
        ["stage", "seconds", "share %", "GFLOP/s a core"],
        [
            [
                name,
                f"{result['stage_seconds'][name]:.2f}" if name in result["stage_seconds"] else "",
                f"{100 * share:.1f}",
                f"{result['stage_gflops'][name]:.1f}" if name in result["stage_gflops"] else "",
            ]
            for name, share in result["shares"].items()
        ],
    )


def _products(
    client: Client | str, workers: int, shape: tuple[int, int, int, int], seconds: float
) -> list[dict[str, float]]:
    """Return the rates of the two products on every worker, measured at the same time."""
    if isinstance(client, str):
        with threadpool_limits(limits=1, user_api="blas"), ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda _: product_flops_per_second(*shape, seconds), range(workers)))
    futures = [
        client.submit(product_flops_per_second, *shape, seconds, workers=[address], pure=False)
        for address in client.ncores()
    ]
    with client.as_current():
        wait(futures, timeout=_PATIENCE_SECONDS)
    rates: list[dict[str, float]] = client.gather(futures)
    return rates


def _processor_seconds(client: Client | str) -> float:
    """Return the processor time of all workers so far."""
    return time.process_time() if isinstance(client, str) else sum(client.run(time.process_time).values())
