"""The contenders of `bench peers`, each run in a process of its own.

    python -m pipelines.bench.peers NAME CORPUS LANDMARKS ALPHA OUT.npz

Each fits Nyström ridge regression with m Gaussian landmarks on unit-norm rows and ten one-hot targets, and predicts the
first 2,000 rows. The landmarks are those that scikit-learn's Nystroem draws with random_state=0.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from numpy.typing import NDArray

from bigkernel.engine.rows import as_rows
from bigkernel.streaming.row_maps import UnitNorm

SIGMA = 0.7071
GAMMA = 1 / (2 * SIGMA**2)
PROBES = 2_000


def run(name: str, corpus: str, landmarks: int, alpha: float) -> dict[str, Any]:
    """Run one contender in a new process; return its seconds, peak memory and predictions."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "out.npz"
        done = subprocess.run(
            [sys.executable, "-m", "pipelines.bench.peers", name, corpus, str(landmarks), str(alpha), str(out)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{name} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        figures["predictions"] = np.load(out)["predictions"]
        return figures


def compare(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return medians, and the ratios of the pairs of each round."""
    ours = runs["bigkernel"]
    contenders: dict[str, dict[str, Any]] = {}
    for name, rounds in runs.items():
        contenders[name] = {
            "seconds": statistics.median(r["seconds"] for r in rounds),
            "all_seconds": [r["seconds"] for r in rounds],
            "ratio": statistics.median(r["seconds"] / o["seconds"] for r, o in zip(rounds, ours, strict=True)),
            "peak_bytes": max(r["peak_bytes"] for r in rounds),
            "difference": float(np.abs(rounds[0]["predictions"] - ours[0]["predictions"]).max()),
        }
        if "worker_bytes" in rounds[0]:
            contenders[name]["worker_bytes"] = max(r["worker_bytes"] for r in rounds)
    return {"contenders": contenders}


def _landmark_ids(n_rows: int, landmarks: int) -> NDArray[np.int64]:
    # as Nystroem draws them
    return np.random.RandomState(0).permutation(n_rows)[:landmarks]


def _unit(x: NDArray[Any]) -> NDArray[np.float32]:
    rows = x.astype(np.float32)
    norms = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    rows /= np.where(norms == 0, 1, norms)[:, None]
    return rows


def _bigkernel(corpus: Any, landmarks: int, alpha: float, cluster: bool = False) -> dict[str, Any]:
    from bigkernel import Gaussian, KernelRidgeClassifier, UnitNormalizer, connect, executing

    with connect("local") if cluster else nullcontext("threads") as client, executing(client):
        rows = UnitNormalizer().fit(corpus).transform(corpus)
        ids = np.sort(_landmark_ids(len(corpus), landmarks))
        # a fit of few rows first: imports modules and connects the workers
        few = as_rows(da.from_zarr(f"{corpus.path}/x")[:2048]).map(UnitNorm())
        KernelRidgeClassifier(Gaussian(SIGMA), n_landmarks=64).fit(few, np.arange(2048) % 10)
        start = time.perf_counter()
        model = KernelRidgeClassifier(Gaussian(SIGMA), alpha=alpha, landmarks=rows.take(ids)).fit(rows)
        seconds = time.perf_counter() - start
        probes = UnitNormalizer().fit_transform(corpus.array("x")[:PROBES])
        figures = {"seconds": seconds, "predictions": model.decision_function(probes)}
        figures["sweep_seconds"] = model.sweep_["seconds"]
        if cluster:
            figures["worker_bytes"] = model.sweep_["peak_bytes"]
        return figures


def _scikit_learn(corpus: Any, landmarks: int, alpha: float, dtype: Any = np.float64) -> dict[str, Any]:
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import normalize

    # float64 is what scikit-learn's own Normalizer makes of 8-bit pixels
    x = normalize(corpus.array("x")[:].astype(dtype), copy=False)
    y = np.eye(10, dtype=dtype)[corpus.column("y")]
    start = time.perf_counter()
    model = make_pipeline(
        Nystroem(kernel="rbf", gamma=GAMMA, n_components=landmarks, random_state=0),
        Ridge(alpha=alpha, fit_intercept=False),
    ).fit(x, y)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "predictions": model.predict(x[:PROBES])}


def _dask_array(corpus: Any, landmarks: int, alpha: float) -> dict[str, Any]:
    from scipy import linalg

    from bigkernel import connect

    with connect("local") as client:
        client.run(__import__, "dask.array")
        z = _unit(corpus.array("x")[:][np.sort(_landmark_ids(len(corpus), landmarks))])
        y = np.eye(10, dtype=np.float32)[corpus.column("y")]
        start = time.perf_counter()
        x = da.from_zarr(f"{corpus.path}/x").astype(np.float32)
        x = x / da.maximum(da.sqrt((x * x).sum(axis=1)), 1e-30)[:, None]

        def kernel(rows: Any) -> Any:
            squares = (rows * rows).sum(axis=1)[:, None] + (z * z).sum(axis=1)[None] - 2 * rows @ z.T
            return da.exp(-np.float32(GAMMA) * da.maximum(squares, 0))

        b = kernel(x)
        gram, cross = da.compute(b.T @ b, b.T @ da.from_array(y, chunks=(x.chunks[0], 10)))
        core = np.exp(-GAMMA * np.maximum((z * z).sum(1)[:, None] + (z * z).sum(1) - 2.0 * z @ z.T, 0))
        coef = linalg.solve(gram.astype(np.float64) + alpha * core, cross, assume_a="sym")
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "predictions": np.asarray(kernel(x[:PROBES]).compute() @ coef)}


CONTENDERS = {
    "bigkernel": _bigkernel,
    "bigkernel, cluster": partial(_bigkernel, cluster=True),
    "scikit-learn": _scikit_learn,
    "scikit-learn float32": partial(_scikit_learn, dtype=np.float32),
    "dask-array": _dask_array,
}


def main() -> None:
    """Run the contender named on the command line."""
    from bigkernel import open_corpus
    from bigkernel.engine.process import peak_bytes

    name, path, landmarks, alpha, out = sys.argv[1:]
    figures = CONTENDERS[name](open_corpus(path), int(landmarks), float(alpha))
    np.savez(out, predictions=figures.pop("predictions"))
    print(json.dumps({**figures, "peak_bytes": peak_bytes()}))


if __name__ == "__main__":
    main()
