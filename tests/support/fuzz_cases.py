"""Cases of the fuzz test: an estimator, an input and targets as plain values that hypothesis shrinks.

The numbers of a case come from a seed, so that a case always gives the same arrays. n rows, d features, m landmarks.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import zarr
from hypothesis import strategies as st
from scipy import sparse

import bigkernel
from bigkernel.data.corpus import CorpusInfo, CorpusWriter, open_corpus
from bigkernel.engine.rows import as_rows

KINDS = ("ndarray", "list", "frame", "fortran", "strided", "backwards", "readonly", "memmap", "dask", "zarr", "rows",
         "sparse")  # fmt: skip
DTYPES = ("f8", "f4", "f2", ">f8", ">f4", "i1", "u1", "i2", ">i2", "u2", "i4", "u4", "i8", "u8", "?")
STRANGE_DTYPES = ("object", "text", "words", "complex", "dates")
POWERS = (0, -1000, -700, -500, -140, -120, -40, 40, 120, 140, 500, 700, 1000)  # of two: rows of 1e-301 to 1e301
LOOKS = ("ordinary", "zero", "constant", "constant column", "duplicates", "nan", "inf", "offset", "far", "one odd row")
SHAPES = ((12, 3), (30, 2), (7, 1), (3, 4), (2, 2), (1, 3), (0, 3), (5, 0), (2, 1), (1, 1))
TARGETS = ("plain", "two", "constant", "huge", "tiny", "bool", "nan", "inf", "short", "deep", "complex", "none", "text",
           "object", "sparse", "column")  # fmt: skip
ALPHAS = (1.0, 0.1, 1e-8, 0.0, 1e-300, 1e12, 1e300, "gcv", "cv")
NO_ALPHAS = (float("nan"), float("inf"), -1.0, None, "much")
WIDTHS = (None, 1.0, 0.05, 30.0, 1e-300, 1e300)
LANDMARKS = (5, None, 1, 2, "n")
NO_LANDMARKS = ("more", 0, 2.5)
KERNELS = ("rbf", "laplacian", "matern", "linear", "poly", "sigmoid", "sum", "product", "columns", "function", "chi2")
CG_TOL = 1e-7  # relative excess of conjugate gradients
NEW = ("same", "ndarray", "wide", "nan", "flat", "none", "empty")


@dataclass(frozen=True)
class Case:
    """One call of an estimator."""

    kind: str = "ndarray"  # X: container, dtype, scale 2^power, peculiarity, (n, d)
    dtype: str = "f8"
    power: int = 0
    look: str = "ordinary"
    shape: tuple[int, int] = (12, 3)
    target: str = "plain"  # of y
    alpha: Any = 1.0  # of the estimator, where it has them
    width: float | None = None
    landmarks: Any = 5
    kernel: str = "rbf"
    intercept: bool = False
    new: str = "same"  # what is predicted
    entry: str = "fit"  # "fit", "partial_fit" (twice) or "weighted"
    seed: int = 0  # of all numbers


def often(ordinary, values):
    """Return a strategy of values; the first is `ordinary` times as frequent as each of the others."""
    return st.sampled_from((values[0],) * ordinary + values[1:])


CASES = st.builds(
    Case,
    kind=st.sampled_from(KINDS * 6 + ("corpus",)),
    dtype=often(10, DTYPES * 2 + STRANGE_DTYPES),
    power=often(20, POWERS),
    look=often(12, LOOKS),
    shape=st.sampled_from(SHAPES[:3] * 10 + SHAPES[3:]),
    target=often(40, TARGETS),
    alpha=often(12, ALPHAS * 2 + NO_ALPHAS),
    width=often(5, WIDTHS),
    landmarks=often(8, LANDMARKS * 3 + NO_LANDMARKS),
    kernel=often(6, KERNELS),
    intercept=st.booleans(),
    new=often(20, NEW),
    entry=often(6, ("fit", "partial_fit", "weighted")),
    seed=st.integers(0, 7),
)


def base(case):
    """Return the rows (n, d) before scaling and conversion."""
    n, d = case.shape
    X = np.random.default_rng(case.seed).normal(size=(n, d))
    if case.look == "zero":
        X[:] = 0
    elif case.look == "constant":
        X[:] = 1.5
    elif case.look == "constant column" and d:
        X[:, 0] = -2
    elif case.look == "duplicates":
        X[n // 2 :] = X[: n - n // 2]
    elif case.look == "offset":
        X += 1e4
    elif case.look == "far":
        X += 1e9
    elif case.look == "one odd row" and n:
        X[n // 2] *= 1e100
    return X


def stored(case):
    """Return the rows as an array of the dtype of the case."""
    X = base(case)
    if case.dtype in STRANGE_DTYPES:
        return {
            "object": lambda: X.astype(object),
            "text": lambda: X.astype("U32"),
            "words": lambda: np.full(X.shape, "row"),
            "complex": lambda: X + 1j,
            "dates": lambda: np.zeros(X.shape, "M8[s]"),
        }[case.dtype]()
    dtype = np.dtype(case.dtype)
    with np.errstate(over="ignore"):
        if dtype.kind == "f":
            X = np.ldexp(X, case.power).astype(dtype)
            if X.size and case.look in ("nan", "inf"):
                X[len(X) // 2, 0] = np.nan if case.look == "nan" else np.inf
            return X
        limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min // 2, np.iinfo(dtype).max // 2)
        return np.clip(np.round(8 * X), *limits).astype(dtype)


def targets(case, *, classes):
    """Return y of the case."""
    n = case.shape[0]
    rng = np.random.default_rng(100 + case.seed)
    noise = rng.normal(size=n)
    labels = np.arange(n) % 3 if classes else noise
    odd = labels.astype(np.float64)
    if n and case.target in ("nan", "inf"):
        odd[n // 3] = np.nan if case.target == "nan" else np.inf
    return {
        "plain": lambda: labels,
        "two": lambda: np.column_stack([noise, 2 - noise]),
        "constant": lambda: np.ones(n, labels.dtype),
        "huge": lambda: labels * 1e300,
        "tiny": lambda: labels * 1e-300,
        "bool": lambda: labels > 0,
        "nan": lambda: odd,
        "inf": lambda: odd,
        "short": lambda: labels[:-1],
        "deep": lambda: np.zeros((n, 2, 2)),
        "complex": lambda: noise + 1j,
        "none": lambda: None,
        "text": lambda: np.array(["one", "two", "thrée"])[np.arange(n) % 3],
        "object": lambda: labels.astype(object),
        "sparse": lambda: np.where(np.arange(n) % 4 == 3, -1, labels) if classes else odd,
        "column": lambda: labels[:, None],
    }[case.target]()


def contained(values, kind, y=None):
    """Return the rows in a container, with y if it carries columns."""
    if kind == "list":
        return values.tolist()
    if kind == "frame":
        return pd.DataFrame(values, columns=[f"c{i}" for i in range(values.shape[1])])
    if kind == "fortran":
        return np.asfortranarray(values)
    if kind == "strided":
        wide = np.empty((2 * len(values), 3 * values.shape[1]), values.dtype)
        wide[::2, 1::3] = values
        return wide[::2, 1::3]
    if kind == "backwards":
        return values[::-1, ::-1].copy()[::-1, ::-1]
    if kind == "readonly":
        values = values.copy()
        values.flags.writeable = False
        return values
    if kind == "memmap" and values.size and values.dtype.kind not in "OM":
        with tempfile.TemporaryFile() as file:
            mapped = np.memmap(file, values.dtype, "w+", shape=values.shape)
        mapped[:] = values
        return mapped
    if kind == "dask":
        return da.from_array(values, chunks=(max(1, len(values) // 2), -1))
    if kind == "zarr" and values.dtype.kind in "biufc" and values.shape[1]:
        array = zarr.create_array({}, shape=values.shape, dtype=values.dtype, chunks=(5, values.shape[1]))
        array[...] = values
        return array
    if kind == "sparse" and values.dtype.kind in "biuf" and values.dtype.isnative and values.dtype != np.float16:
        return sparse.csr_array(values)
    if kind == "rows":
        return as_rows(values, y) if isinstance(y, np.ndarray) else as_rows(values)
    return values


def corpus(place, values, y):
    """Return the rows as a corpus, with y if there is one."""
    columns = {"y": np.asarray(y)} if y is not None else {}
    kinds = {name: column.dtype for name, column in columns.items()}
    path = Path(tempfile.mkdtemp(dir=place)) / "c"
    info = CorpusInfo("fuzz")
    with CorpusWriter(path, n_features=values.shape[1], dtype=values.dtype, columns=kinds, info=info) as writer:
        writer.append(x=values, **columns)
    return open_corpus(path)


def kernel(case):
    """Return the kernel: its name, or a kernel whose width is a multiple of the scale of the rows."""
    if case.kernel == "function":
        return shared
    if case.width is None or case.kernel in ("linear", "poly", "sigmoid", "chi2"):
        return {
            "sum": bigkernel.Gaussian() + bigkernel.Linear(),
            "product": bigkernel.Gaussian() * bigkernel.Matern(),
            "columns": bigkernel.OnColumns(bigkernel.Gaussian(), [0, 1]),
        }.get(case.kernel, case.kernel)
    with np.errstate(over="ignore", divide="ignore", under="ignore"):
        width = float(np.float64(case.width) * _size(case))
        made = {
            "rbf": lambda: bigkernel.Gaussian(width),
            "laplacian": lambda: bigkernel.Laplacian(width),
            "matern": lambda: bigkernel.Matern(width, 1.5),
            "sum": lambda: bigkernel.Gaussian(width) + 0.5 * bigkernel.Matern(width, 0.5),
            "product": lambda: bigkernel.Gaussian(width) * bigkernel.Gaussian(2 * width),
            "columns": lambda: bigkernel.OnColumns(bigkernel.Gaussian(width), [0]),
        }
        return made[case.kernel]()


def shared(X, Z):
    """Return the histogram intersection kernel, as a user-defined function of blocks."""
    return np.minimum(np.abs(X)[:, None], np.abs(Z)).sum(axis=2)


def _size(case):
    """Return the scale of the differences of rows."""
    if case.dtype in STRANGE_DTYPES:
        return 1.0
    return float(np.ldexp(1.0, case.power)) if np.dtype(case.dtype).kind == "f" else 8.0


def _landmarks(case):
    return {"n": case.shape[0], "more": case.shape[0] + 3}.get(case.landmarks, case.landmarks)


def _common(case):
    return {"kernel": kernel(case), "n_landmarks": _landmarks(case), "random_state": 0}


ESTIMATORS = {
    "KernelRidge": lambda case: bigkernel.KernelRidge(alpha=case.alpha, fit_intercept=case.intercept, **_common(case)),
    "KernelRidgeClassifier": lambda case: bigkernel.KernelRidgeClassifier(
        alpha=case.alpha, fit_intercept=case.intercept, **_common(case)
    ),
    "KernelRidge by conjugate gradients": lambda case: bigkernel.KernelRidge(
        alpha=case.alpha, fit_intercept=case.intercept, solver="cg", tol=CG_TOL, max_iter=60, **_common(case)
    ),
    "KernelRidgeClassifier of probabilities": lambda case: bigkernel.KernelRidgeClassifier(
        alpha=case.alpha, probability=True, class_weight="balanced" if case.intercept else None, **_common(case)
    ),
    "KernelLogisticClassifier": lambda case: bigkernel.KernelLogisticClassifier(
        alpha=case.alpha, max_iter=30, **_common(case)
    ),
    "Ridge": lambda case: bigkernel.Ridge(case.alpha, fit_intercept=case.intercept),
    "LinearRegression": lambda case: bigkernel.LinearRegression(fit_intercept=case.intercept),
    "SSSL": lambda case: bigkernel.SSSL(
        alpha=case.alpha, n_components=3, fit_intercept=case.intercept, manifold=case.seed % 2, **_common(case)
    ),
    "SSSLClassifier": lambda case: bigkernel.SSSLClassifier(
        alpha=case.alpha, n_components=3, manifold=0 if case.intercept else 3, **_common(case)
    ),
    "XNV": lambda case: bigkernel.XNV(alpha=case.alpha, fit_intercept=case.intercept, **_common(case)),
    "XNVClassifier": lambda case: bigkernel.XNVClassifier(alpha=case.alpha, **_common(case)),
    "ARTLClassifier": lambda case: bigkernel.ARTLClassifier(alpha=case.alpha, n_rounds=2, **_common(case)),
    "JDA": lambda case: bigkernel.JDA(alpha=case.alpha, n_components=2, n_rounds=1, **_common(case)),
    "DICA": lambda case: bigkernel.DICA(alpha=case.alpha, n_components=2, **_common(case)),
    "Nystroem": lambda case: bigkernel.Nystroem(kernel(case), _landmarks(case), random_state=0),
    "RandomFourier": lambda case: bigkernel.RandomFourier(
        kernel(case), _landmarks(case), orthogonal=case.intercept, random_state=0
    ),
    "Rescaler": lambda case: bigkernel.Rescaler(case.alpha),
    "UnitNormalizer": lambda case: bigkernel.UnitNormalizer(),
    "Standardizer": lambda case: bigkernel.Standardizer(),
    "MomentNormalizer": lambda case: bigkernel.MomentNormalizer(),
    "OrientationFeatures": lambda case: bigkernel.OrientationFeatures(),
    "Projector": lambda case: bigkernel.Projector(None if case.intercept else 1, whiten=case.intercept),
    "RowUnion": lambda case: bigkernel.RowUnion(
        [("unit", bigkernel.UnitNormalizer()), ("z", bigkernel.Standardizer())], transformer_weights={"z": case.alpha}
    ),
}
PROBABLE = ("KernelRidgeClassifier of probabilities", "KernelLogisticClassifier")
DOMAINED = ("ARTLClassifier", "JDA", "DICA")
CLASSIFYING = ("KernelRidgeClassifier", *PROBABLE, "SSSLClassifier", "XNVClassifier", *DOMAINED)
