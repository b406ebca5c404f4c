"""`bench gpu`: what a device gives, whether fits on it are those of processors, and how near sweeps come to its limits.

All checks are one list of steps, limits first, for a card that is lent for minutes. Rows are made from a seed. Figures
are written after every step, and steps that would begin too late are named as left out. On PyTorch's CPU or
array-api-strict the same steps run at tiny sizes, which tests them and measures nothing.
"""

import hashlib
import itertools
import json
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bigkernel import KernelRidge, KernelRidgeClassifier, executing
from bigkernel.arrays import Array
from bigkernel.data.atomic_write import write_json
from bigkernel.engine.cards import BLOCK_BYTES, CONTEXT_BYTES, FEWEST_ROWS, MOST_ROWS, find_card
from bigkernel.engine.process import processors
from bigkernel.events.job import plain
from bigkernel.kernels.blas import syrk
from bigkernel.kernels.functions import Gaussian, Kernel, Laplacian, Linear, Matern
from bigkernel.streaming.devices import Device, converted, device_of, write
from pipelines.shared.timed_sweeps import table

FEATURES, CLASSES = 784, 10
Figures = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """Numbers of rows and columns of the steps."""

    products: int = 8192  # side of square products
    landmarks: tuple[int, ...] = (2_000, 10_000)  # of the sweep
    values: int = 2**28  # that are copied, and of which exp is taken
    cholesky: tuple[int, ...] = (4_000, 10_000, 20_000, 40_000)
    parity: int = 20_000
    sweep: int = 1_000_000
    digits: int = 60_000
    digits_landmarks: tuple[int, ...] = (2_000, 20_000)
    predictions: int = 20_000_000
    predicting: int = 4_000  # landmarks of predictions
    seconds: float = 0.3  # for which a product is repeated


TINY = Sizes(64, (40,), 2**12, (30,), 400, 5_000, 800, (30, 60), 9_000, 40, 0.0)


@dataclass
class Bench:
    """A run of the steps on a device."""

    device: Device
    sizes: Sizes
    rates: Figures = field(default_factory=dict)  # of the limits: operations or bytes a second

    def random(self, *shape: int, dtype: str = "float32") -> Array:
        """Return numbers from 0 to 1 on the device; of many, the same ones again and again."""
        some = np.random.default_rng(0).random(min(int(np.prod(shape)), 2**22)).astype(dtype)
        return self.device.array(np.resize(some, shape))

    def seconds(self, work: Callable[[], object]) -> float:
        """Return the mean seconds of a call, without the first one."""
        work()
        self.device.wait()
        start, count = time.perf_counter(), 0
        while not count or time.perf_counter() - start < self.sizes.seconds:
            work()
            self.device.wait()
            count += 1
        return (time.perf_counter() - start) / count

    def rate(self, name: str, amount: float, work: Callable[[], object]) -> float:
        """Measure and keep a rate."""
        self.rates[name] = amount / max(self.seconds(work), 1e-9)
        return float(self.rates[name])

    def block_rows(self, m: int) -> int:
        """Return the rows of a float32 block of m columns in a sweep."""
        return min(MOST_ROWS, max(FEWEST_ROWS, BLOCK_BYTES // (4 * m)), self.sizes.sweep)


# -- limits ------------------------------------------------------------------------------------------------------------


def products(bench: Bench) -> Figures:
    """Measure square products by dtype; and, as in a sweep, rows by landmarks and BᵀB by panels."""
    n, made = bench.sizes.products, {}
    for dtype in ("float32", "float64"):
        a = bench.random(n, n, dtype=dtype)
        made[f"square {dtype}"] = bench.rate(f"square {dtype}", 2.0 * n**3, lambda a=a: a @ a)  # type: ignore[misc]
        del a
    for m in {*bench.sizes.landmarks, *bench.sizes.digits_landmarks, bench.sizes.predicting}:
        b = bench.block_rows(m)
        x, z = bench.random(b, FEATURES), bench.random(FEATURES, m)
        made[f"block {m}"] = bench.rate(f"block {m}", 2.0 * b * FEATURES * m, lambda x=x, z=z: x @ z)  # type: ignore
        del x, z
        rows = max(1, min(b, 2**28 // m))
        wide, out = bench.random(rows, m, dtype="float64"), bench.device.zeros((m, m))
        update = lambda wide=wide, out=out: syrk(wide, out, accumulate=True)  # noqa: E731
        made[f"gram {m}"] = bench.rate(f"gram {m}", 1.0 * rows * m * m, update)
        del wide, out, update
    return {f"{name}, TFLOP/s": rate / 1e12 for name, rate in made.items()}


def passes(bench: Bench) -> Figures:
    """Measure exp in place, widening to float64, and copies up and down, in bytes of float32 a second."""
    count, host = 4.0 * bench.sizes.values, np.zeros(bench.sizes.values, np.float32)
    x, xp = bench.device.array(host), bench.device.xp
    bench.rate("exp", count, lambda: write(x, "exp", x))
    bench.rate("widen", count, lambda: converted(x, np.float64))
    bench.rate("up", count, lambda: bench.device.array(host))
    bench.rate("down", count, lambda: bench.device.to_host(x))
    names = ["exp", "widen", "up", "down"]
    if bench.device.name == "cuda":
        pinned = xp.empty(bench.sizes.values, dtype=xp.float32, pin_memory=True)
        bench.rate("up, page-locked", count, lambda: pinned.to(bench.device.place, non_blocking=True))
        names.append("up, page-locked")
    return {f"{name}, GB/s": bench.rates[name] / 1e9 for name in names}


def factors(bench: Bench) -> Figures:
    """Measure Cholesky factors in float64, n³/3 operations."""
    made, xp = {}, bench.device.xp
    where = {} if bench.device.host is None else {"device": bench.device.place}
    for n in bench.sizes.cholesky:
        a = xp.eye(n, dtype=xp.float64, **where) * n + 1.0
        rate = bench.rate(f"cholesky {n}", n**3 / 3, lambda a=a: xp.linalg.cholesky(a))  # type: ignore
        made[f"n = {n:,}, TFLOP/s"] = rate / 1e12
        del a
    return made


def same_bits(bench: Bench) -> Figures:
    """Compare the bits of a product, of sums by panels and of a fit, each made twice."""
    n = bench.sizes.products
    a, out = bench.random(n, n, dtype="float64"), bench.device.zeros((n, n))

    def gram() -> Array:
        syrk(a, out, accumulate=False)
        return out

    X, y = digits(bench.sizes.parity)
    work: dict[str, Callable[[], Array]] = {
        "product": lambda: bench.device.to_host(a @ a),
        "gram": lambda: bench.device.to_host(gram()),
        "fit": lambda: np.asarray(fitted(bench, 200 if n > 64 else 20, X, y).dual_coef_),
    }
    return {name: "same" if _digest(made()) == _digest(made()) else "DIFFERENT" for name, made in work.items()}


def _digest(values: Array) -> str:
    return hashlib.sha256(np.ascontiguousarray(values).tobytes()).hexdigest()


# -- fits --------------------------------------------------------------------------------------------------------------


def digits(rows: int) -> tuple[Array, Array]:
    """Return made rows like digits, (n, 784) uint8 about ten means, and their classes (n,)."""
    rng = np.random.default_rng(0)
    means = rng.integers(0, 160, (CLASSES, FEATURES), dtype=np.uint8)
    y = rng.integers(0, CLASSES, rows)
    X = np.frombuffer(rng.bytes(rows * FEATURES), np.uint8).reshape(rows, FEATURES) % 96
    for start in range(0, rows, 2**16):
        X[start : start + 2**16] += means[y[start : start + 2**16]]
    return X, y


def fitted(bench: Bench, m: int, X: Array, y: Array, **given: Any) -> Any:
    """Return a classifier of digits, fitted on the device."""
    model = KernelRidgeClassifier(Gaussian(1500.0), n_landmarks=m, random_state=0, **{"alpha": 0.1, **given})
    with executing("threads", device=bench.device.name), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y)


def parity(bench: Bench) -> Figures:
    """Compare predictions by kernel, dtype and solver with those of processors, and with the estimated errors."""
    rng, made = np.random.default_rng(0), {}
    X = rng.normal(size=(bench.sizes.parity, 8))
    y, m = np.sin(X).sum(axis=1), min(300, bench.sizes.parity // 8)
    kernels: list[Kernel] = [Gaussian(2.0), Laplacian(4.0), Matern(3.0, nu=0.5), Matern(3.0), Linear()]
    cases = [*itertools.product(kernels, ("float32", "float64"), ("direct",)), (Gaussian(2.0), "float32", "cg")]
    for kernel, dtype, solver in cases:
        both, errors = [], []
        for name in ("cpu", bench.device.name):
            model = KernelRidge(kernel, alpha=1.0, n_landmarks=m, dtype=dtype, solver=solver, random_state=0)
            with executing("threads", device=name), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                both.append(model.fit(X, y).predict(X))
            errors.append(float(model.fit_report()["diagnostics"].get("prediction_error") or model.tol))
        apart = float(np.linalg.norm(both[0] - both[1]) / np.linalg.norm(both[0]))
        right = "within" if apart <= 10 * sum(errors) + 1e-12 else "BEYOND"
        made[f"{kernel.formula()} {dtype} {solver}"] = f"{apart:.1e}, {right} ten times {sum(errors):.1e}"
    return made


def sweeps(bench: Bench) -> Figures:
    """Fit to a million rows: the sweep against the time of its two products, and memory against the plan."""
    X, y = digits(bench.sizes.sweep)
    return {f"m = {m:,}": _of_fit(bench, m, X, y) for m in bench.sizes.landmarks}


def mnist(bench: Bench) -> Figures:
    """Fit to as many rows as MNIST has, directly and by conjugate gradients."""
    X, y = digits(bench.sizes.digits)
    cases = [(m, solver) for m in bench.sizes.digits_landmarks for solver in ("direct", "cg")]
    return {f"m = {m:,}, {solver}": _of_fit(bench, m, X, y, solver=solver) for m, solver in cases}


def _of_fit(bench: Bench, m: int, X: Array, y: Array, **given: Any) -> Figures:
    if bench.device.name == "cuda":
        bench.device.xp.cuda.reset_peak_memory_stats(bench.device.place)
    start = time.perf_counter()
    report = fitted(bench, m, X, y, **given).fit_report()
    swept, seconds, peak = report["sweep"], time.perf_counter() - start, bench.device.peak_bytes  # of the solve, too
    # rows × landmarks, exp and a wide copy of the block, and BᵀB
    n, rates = len(X), bench.rates
    limit = 2.0 * n * FEATURES * m / rates[f"block {m}"] + 4.0 * n * m * (1 / rates["exp"] + 1 / rates["widen"])
    limit += 1.0 * n * m * m / rates[f"gram {m}"]
    direct = given.get("solver") != "cg"
    planned = swept.get("device_bytes", CONTEXT_BYTES) - CONTEXT_BYTES + swept.get("kept_bytes", 0)
    return {
        "fit, s": seconds,
        **(
            {"sweep, s": swept["seconds"], "limit, s": limit, "of the limit": limit / swept["seconds"]}
            if direct
            else {}
        ),
        "planned, GB": planned / 1e9,
        **({"peak, GB": peak / 1e9, "planned over peak": planned / peak} if peak else {}),
        "stages, s": {name: round(value, 3) for name, value in swept["stage_seconds"].items()},
        "error": report["diagnostics"].get("prediction_error"),
    }


def predictions(bench: Bench) -> Figures:
    """Predict rows of 12 features, against the time of exp over their blocks and of copying them up."""
    rng, n, m = np.random.default_rng(0), bench.sizes.predictions, bench.sizes.predicting
    X = np.resize(rng.normal(size=(min(n, 10**6), 12)).astype(np.float32), (n, 12))
    model = KernelRidge(Gaussian(3.0), alpha=1.0, n_landmarks=m, random_state=0)
    few = X[: max(4 * m, 1000)]
    with executing("threads", device=bench.device.name), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(few, few.sum(axis=1))
        start = time.perf_counter()
        model.predict(X)
        seconds = time.perf_counter() - start
    limit = 4.0 * n * m / bench.rates["exp"] + X.nbytes / bench.rates["up"]
    return {"seconds": seconds, "rows/s": n / seconds, "limit, s": limit, "of the limit": limit / seconds}


STEPS: dict[str, Callable[[Bench], Figures]] = {
    "products": products,
    "passes": passes,
    "factors": factors,
    "bits": same_bits,
    "parity": parity,
    "sweeps": sweeps,
    "predictions": predictions,
    "mnist": mnist,
}


def measure(name: str, path: Path, *, seconds: float, tiny: bool, steps: tuple[str, ...] = ()) -> Iterator[Figures]:
    """Run the steps until so many seconds have passed; write all figures to a file after each, and yield them."""
    card, start = find_card(name).require(), time.perf_counter()
    bench = Bench(device_of(card.device), TINY if tiny else Sizes())
    made: Figures = {"device": str(card), "processors": processors(), "tiny": tiny, "steps": {}, "seconds": {}}
    for step in STEPS:
        if steps and step not in steps and step not in ("products", "passes"):  # others are measured against these
            continue
        begun = time.perf_counter()
        if begun - start > seconds:
            made["steps"][step] = {"left out": f"it would have begun after {seconds:,.0f} s"}
        else:
            try:
                made["steps"][step] = STEPS[step](bench)
            except Exception as error:  # the steps after it still tell something
                made["steps"][step] = {
                    "FAILED": f"{type(error).__name__}: {error}",
                    "at": traceback.format_exc()[-1500:],
                }
        made["seconds"][step] = time.perf_counter() - begun
        if card.total:
            bench.device.xp.cuda.empty_cache()
        write_json(path, plain(made))
        yield made


def wrong(made: Figures) -> list[str]:
    """Return the steps that failed or found something wrong."""
    bad = ("FAILED", "BEYOND", "DIFFERENT", "left out")
    return [step for step, figures in made["steps"].items() if any(one in json.dumps(plain(figures)) for one in bad)]


def show(step: str, made: Figures) -> None:
    """Print the figures of a step."""
    lines = [[name, value] for name, value in _flat(made["steps"][step]) if name != "at"]
    table(f"{step} ({made['seconds'][step]:.1f} s)", ["what", "figure"], lines)


def _flat(figures: Figures, before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}: ")
        else:
            yield before + name, f"{value:,.4g}" if isinstance(value, float) else str(value)
