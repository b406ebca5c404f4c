"""`bench tune`: a grid searched by `SweepSearchCV` and by scikit-learn's GridSearchCV over Nystroem and Ridge.

The peer fits every candidate on every fold; it is timed on a few cells of the grid and scaled to all of them. Both have
the same rows (unit norm), ten one-hot targets, as many landmarks, and score the mean squared error of held-out rows.
"""

import time
from typing import Any

import numpy as np
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import normalize

from bigkernel import Gaussian, KernelRidgeClassifier, SweepSearchCV, UnitNormalizer, executing
from bigkernel.arrays import Array
from bigkernel.data.corpus import Corpus


def ours(corpus: Corpus, landmarks: int, sigmas: Array, alphas: Array, folds: int, scoring: str) -> dict[str, Any]:
    """Search the grid from the corpus on disk, with threads; return seconds, the best candidate and its score."""
    model = make_pipeline(UnitNormalizer(), KernelRidgeClassifier(n_landmarks=landmarks, random_state=0))
    grid = {
        "kernelridgeclassifier__kernel": [Gaussian(float(sigma)) for sigma in sigmas],
        "kernelridgeclassifier__alpha": [float(alpha) for alpha in alphas],
    }
    start = time.perf_counter()
    with executing("threads"):
        search = SweepSearchCV(model, grid, cv=folds, scoring=scoring).fit(corpus)
    return {
        "seconds": time.perf_counter() - start,
        "sweeps": len(search.plan_.sweeps),
        "score": search.best_score_,
        "sigma": search.best_params_["kernelridgeclassifier__kernel"].sigma,
        "alpha": search.best_params_["kernelridgeclassifier__alpha"],
    }


def peer(corpus: Corpus, landmarks: int, sigma: float, alphas: Array, folds: int) -> dict[str, Any]:
    """Run GridSearchCV for one bandwidth; return the seconds of a fit and score, and the scores."""
    x = normalize(corpus.array("x")[:].astype(np.float32), copy=False)  # float32 is the faster of its two precisions
    y = np.eye(10, dtype=np.float32)[corpus.column("y")]
    pipeline = Pipeline(
        [
            ("nystroem", Nystroem(gamma=1 / (2 * sigma**2), n_components=landmarks, random_state=0)),
            ("ridge", Ridge(fit_intercept=False)),
        ]
    )
    grid = {"ridge__alpha": [float(alpha) for alpha in alphas]}
    cv = KFold(folds, shuffle=True, random_state=0)
    start = time.perf_counter()
    search = GridSearchCV(pipeline, grid, cv=cv, scoring="neg_mean_squared_error", refit=False).fit(x, y)
    fits = len(alphas) * folds
    return {
        "seconds_a_fit": (time.perf_counter() - start) / fits,
        "fits": fits,
        "score": float(search.cv_results_["mean_test_score"].max()),
    }
