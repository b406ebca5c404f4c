"""`bench serve`: predictions by a model, its predictor and plain NumPy with the same landmarks, and loading times.

Plain NumPy is what one would write for speed: landmarks transposed and their norms known beforehand, one product, every
other step in place, no row looked at. The three take turns, so that each ratio is of the same moments of the machine.
Loading is timed in processes of their own, beside one that imports NumPy alone.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bigkernel import Gaussian, KernelRidgeClassifier, Predictor, save_model
from bigkernel.arrays import Array
from bigkernel.data.corpus import Corpus
from bigkernel.streaming.row_maps import UnitNorm
from pipelines.shared.timed_sweeps import SIGMA, table

Update = Callable[[int, int], None]
MANY = 1_000  # rows at a time
_ONE_CALLS = 50  # calls with one row, a round
LOADS = 5
_IMPORT = "import numpy"
_PREDICTOR = "from bigkernel import Predictor; Predictor.load({!r})"
_MODEL = "from bigkernel import load_model; load_model({!r})"


def measure(corpus: Corpus, landmarks: int, *, rounds: int, update: Update) -> dict[str, Any]:
    """Return medians over the rounds and medians of the ratios of each round."""
    x, y = np.asarray(corpus.array("x")[:]), np.asarray(corpus.column("y"))
    kinds = [(dtype, count) for dtype in ("float32", "float64") for count in (1, MANY)]
    cases, total = [], len(kinds) * rounds + LOADS
    with tempfile.TemporaryDirectory() as scratch:
        for dtype in ("float32", "float64"):
            rows = UnitNorm().apply(x.astype(dtype))
            model = KernelRidgeClassifier(Gaussian(SIGMA), n_landmarks=landmarks, random_state=0, dtype=dtype)
            model.fit(rows, y)
            predictor = Predictor.of(model)
            contenders = {"numpy": plain(model, dtype), "model": model.predict, "predictor": predictor.predict}
            for count in (1, MANY):
                timed = _alternate(contenders, rows[:count], rounds)
                cases.append({"dtype": dtype, "rows": count, **_compared(timed)})
                update(len(cases) * rounds, total)
            if dtype == "float32":
                save_model(model, Path(scratch, "predictor"), moments=False)
                save_model(model, Path(scratch, "model"))
        loading = _loading(scratch)
    update(total, total)
    return {"landmarks": landmarks, "rounds": rounds, "cases": cases, "loading": loading}


def plain(model: Any, dtype: str) -> Callable[[Array], Array]:
    """Return f of rows and the class of the largest value, using NumPy alone."""
    kind = np.dtype(dtype).type
    Z, W, b = model.landmarks_.astype(dtype), model.dual_coef_.astype(dtype), model.intercept_
    columns, squares = np.ascontiguousarray(Z.T), np.einsum("ij,ij->i", Z, Z)
    two, gamma, classes = kind(2), kind(1 / (2 * SIGMA**2)), model.classes_

    def predict(x: Array) -> Array:
        # −γ‖x − z‖² = γ(2⟨x, z⟩ − ‖z‖² − ‖x‖²)
        block = x @ columns
        block *= two
        block -= squares
        block -= np.einsum("ij,ij->i", x, x)[:, None]
        block *= gamma
        np.exp(block, out=block)
        chosen: Array = classes[(block @ W + b).argmax(axis=1)]
        return chosen

    return predict


def show(result: dict[str, Any]) -> None:
    """Print the tables."""
    table(
        f"m = {result['landmarks']:,}, d = 784, medians of {result['rounds']} rounds",
        ["dtype", "rows", "NumPy ms", "model ms", "to NumPy", "predictor ms", "to NumPy"],
        [
            [
                *(case["dtype"], f"{case['rows']:,}", f"{case['seconds']['numpy'] * 1e3:.3f}"),
                *(f"{case['seconds']['model'] * 1e3:.3f}", f"{case['ratios']['model']:.2f}×"),
                *(f"{case['seconds']['predictor'] * 1e3:.3f}", f"{case['ratios']['predictor']:.2f}×"),
            ]
            for case in result["cases"]
        ],
    )
    loading = result["loading"]
    table(
        "a process that loads, medians",
        ["what", "seconds", "to NumPy", "beyond NumPy ms"],
        [
            [name, f"{one['seconds']:.3f}", f"{one['ratio']:.2f}×", f"{one['beyond_seconds'] * 1e3:.0f}"]
            for name, one in loading.items()
        ],
    )


def _alternate(contenders: dict[str, Callable[[Array], Array]], x: Array, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of a call of each function in every round."""
    calls = _ONE_CALLS if len(x) == 1 else 1
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for predict in contenders.values():
        predict(x)
    for _ in range(rounds):
        for name, predict in contenders.items():
            start = time.perf_counter()
            for _ in range(calls):
                predict(x)
            seconds[name].append((time.perf_counter() - start) / calls)
    return seconds


def _compared(timed: dict[str, list[float]]) -> dict[str, Any]:
    """Return the medians, and those of each round's ratio to NumPy."""
    first = timed["numpy"]
    ratios = {name: statistics.median(b / a for a, b in zip(first, one, strict=True)) for name, one in timed.items()}
    return {"seconds": {name: statistics.median(one) for name, one in timed.items()}, "ratios": ratios}


def _loading(scratch: str) -> dict[str, dict[str, float]]:
    """Return seconds of processes that import NumPy, read a predictor and read a model."""
    codes = {
        "NumPy": _IMPORT,
        "predictor": _PREDICTOR.format(str(Path(scratch, "predictor"))),
        "model": _MODEL.format(str(Path(scratch, "model"))),
    }
    timed: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(LOADS):
        for name, code in codes.items():
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            timed[name].append(time.perf_counter() - start)
    return {
        name: {
            "seconds": statistics.median(one),
            "ratio": statistics.median(b / a for a, b in zip(timed["NumPy"], one, strict=True)),
            "beyond_seconds": statistics.median(b - a for a, b in zip(timed["NumPy"], one, strict=True)),
        }
        for name, one in timed.items()
    }
