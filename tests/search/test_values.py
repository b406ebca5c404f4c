"""Scores that need every held-out prediction: scikit-learn's scorers and functions, against GridSearchCV's."""

import dask
import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose
from peers import STEPS, digest, peer
from sklearn.metrics import f1_score, make_scorer
from sklearn.model_selection import StratifiedKFold

from bigkernel import Gaussian, KernelRidge, KernelRidgeClassifier, Laplacian, Ridge, SweepSearchCV, executing
from bigkernel.config import settings
from bigkernel.events.job import SweepStarted, observe
from bigkernel.kernels.feature_maps import UFUNC_BYTES
from bigkernel.search import sweeps

rng = np.random.default_rng(1950)
N = 150
X = rng.normal(size=(N, 3))
Z = X[:12] + 0.03
Y = np.column_stack([np.sin(2 * X[:, 0]), X[:, 1] * X[:, 2]]) + 0.2 * rng.normal(size=(N, 2))
LABELS = np.array(["ape", "bee", "cat"])[np.digitize(X[:, 0] + 0.5 * rng.normal(size=N), [-0.4, 0.5])]
TWO = np.where(X[:, 0] + 0.7 * rng.normal(size=N) > 0, "yes", "no")
SPLITS = list(StratifiedKFold(3, shuffle=True, random_state=0).split(X, LABELS))
GRID = {"alpha": [1e-2, 1.0], "kernel": [Gaussian(0.8), Laplacian(0.4)]}
LINEAR = {"alpha": [1e-2, 10.0], "fit_intercept": [True, False]}
CLASSIFIER = KernelRidgeClassifier(landmarks=Z)
OF_NUMBERS = {
    "worst": "neg_max_error",
    "median": "neg_median_absolute_error",
    "r2": "r2",
    "near": lambda model, X, y: float(np.mean(np.abs(model.predict(X) - y) < 0.1 * np.abs(X).max())),
}
OF_TWO = {"auc": "roc_auc", "f1": make_scorer(f1_score, pos_label="yes"), "accuracy": "accuracy"}
OF_CLASSES = ["f1_macro", "matthews_corrcoef", "accuracy", "jaccard_weighted"]


@pytest.mark.parametrize(
    "model, grid, y, scoring, atol",
    [
        (KernelRidge(landmarks=Z, fit_intercept=True), GRID, Y[:, 0] + 9, OF_NUMBERS, 1e-9),
        (Ridge(), LINEAR, Y[:, 0] + 9, OF_NUMBERS, 1e-9),
        (KernelRidge(landmarks=Z, solver="cg", tol=1e-10, max_iter=90), GRID, Y[:, 1], ["neg_max_error"], 1e-4),
        (CLASSIFIER, GRID, TWO, OF_TWO, 1e-12),
        (CLASSIFIER, GRID, LABELS, OF_CLASSES, 1e-12),
    ],
    ids=["landmarks", "linear", "cg", "two", "classes"],
)
def test_scores_are_those_of_the_peer(model, grid, y, scoring, atol):
    options = {"cv": SPLITS, "scoring": scoring, "refit": False}
    with dask.config.set(STEPS):
        ours = SweepSearchCV(model, grid, **options).fit(X, y).cv_results_
    theirs = peer(model, grid, X, y, **options).cv_results_
    names = [name for name in theirs if name.startswith("split")]
    assert len(names) == 3 * len(scoring)
    for name in names:
        assert_allclose(ours[name], theirs[name], rtol=0, atol=atol, err_msg=name)


@pytest.mark.cluster
def test_one_sweep_serves_all_and_the_bits_are_those_of_any_executor_and_memory(client, monkeypatch, make_corpus):
    started, digests = [], []
    lazy = da.from_array(X.astype("f4"), chunks=(40, 3)), da.from_array(TWO == "yes", chunks=40)

    def search(rows=lazy):
        grid = {"alpha": [1e-2, 1.0], "kernel": [Gaussian(0.8), Gaussian(1.6), Laplacian(0.4)]}
        made = SweepSearchCV(CLASSIFIER, grid, cv=np.arange(N) % 3, scoring=["roc_auc", "f1"], refit=False)
        return digest(made.fit(*rows))

    with observe(lambda event: started.append(event.what) if isinstance(event, SweepStarted) else None):
        digests.append(search())
    assert started == ["tune", "values"] * 2  # one for each kind of kernel
    stored = [make_corpus(X.astype("f4"), chunk_rows=40, y=(TWO == "yes").astype(int), classes=(0, 1))]
    for executor, steps, rows in (("serial", {}, lazy), ("threads", STEPS, stored), (client, STEPS, stored)):
        with dask.config.set(steps), executing(executor):
            digests.append(search(rows))
    assert digests[0] == digests[1]
    assert digests[2] == digests[3]
    started.clear()
    monkeypatch.setattr(sweeps, "limit_bytes", lambda rows: settings().worker_base_bytes + UFUNC_BYTES + 70_000)
    with observe(lambda event: started.append(event.what) if isinstance(event, SweepStarted) else None):
        assert search() == digests[0]
    assert started.count("values") > 2
