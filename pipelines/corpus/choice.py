"""Choice of the width σ and the penalty α on training rows; copies of a digit are held out with their original.

Shapes: m landmarks.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone

from bigkernel import Gaussian, KernelRidgeClassifier, SweepSearchCV
from bigkernel.arrays import Array
from bigkernel.engine.rows import Rows
from bigkernel.errors import BestAtEdgeWarning
from bigkernel.events.job import Note, emit
from bigkernel.kernels.landmarks import median_width
from pipelines.corpus.settings import Settings

Record = dict[str, Any]
SHARES = (0.4, 0.53, 0.71, 0.94, 1.26)  # of the median distance of landmarks: candidates for σ
ALPHAS = tuple(float(f"{alpha:.3g}") for alpha in np.geomspace(1e-4, 1.0, 9))
HELD_OUT = 1 / 6  # of the rows, or of the digits that rows are copies of
MOST_LANDMARKS = 2000  # landmarks of the search: more change the best width little
LEAST_ROWS = 20_000


@dataclass(frozen=True)
class Choice:
    """A model with the chosen settings, and the candidates' results."""

    model: Any  # not fitted; has the landmarks of the job
    sigma: float  # of the model
    alpha: float | str
    # a record for each width, with its best penalty and error on held-out rows; empty if nothing was searched
    searched: tuple[Record, ...] = ()


def model_of(job: Settings, sigma: float, alpha: float | str, landmarks: Any = "uniform") -> Any:
    """Return the estimator of a job; landmarks are an array (m, d) or sampled by the estimator."""
    count = job.landmarks if isinstance(landmarks, str) else len(landmarks)
    return KernelRidgeClassifier(
        Gaussian(sigma=sigma), alpha, solver=job.solver, n_landmarks=count, landmarks=landmarks, random_state=job.seed
    )


def search_rows(job: Settings, n_rows: int, n_originals: int | None) -> int:
    """Return the number of leading rows to search on: all originals and a copy of each, and at least 20,000."""
    requested = job.search_rows or max(LEAST_ROWS, 2 * (n_originals or 0), n_rows // 10 if n_originals is None else 0)
    return min(n_rows, requested)


def choose(job: Settings, rows: Rows, Z: Array, looked_at: int, n_features: int) -> Choice:
    """Choose the model on landmarks Z (m, d) from the first `looked_at` rows as the kernel receives them."""
    if not job.searches:
        sigma, alpha = job.width_for(n_features), job.penalty
        return Choice(model_of(job, sigma, alpha, Z), sigma, alpha)
    sigmas = job.sigma or tuple(float(f"{median_width(Z, share=share):.3g}") for share in SHARES)
    search = _search(job, rows.window(0, looked_at), Z[:MOST_LANDMARKS], sigmas)
    best = search.best_params_
    sigma, alpha = best["kernel"].sigma, best.get("alpha", "gcv")
    emit(Note(f"chosen on training rows: σ {sigma:g}, α {alpha if isinstance(alpha, str) else format(alpha, 'g')}"))
    return Choice(model_of(job, sigma, alpha, Z), sigma, alpha, tuple(_records(search, sigmas)))


def _search(job: Settings, rows: Rows, Z: Array, sigmas: tuple[float, ...]) -> SweepSearchCV:
    """Return the accuracy of every candidate on held-out rows, by the corpus's groups if it has any."""
    alphas = job.alpha or (ALPHAS if job.transforms else ("gcv",))
    grid: dict[str, Any] = {"kernel": [Gaussian(sigma=sigma) for sigma in sigmas]}
    if alphas != ("gcv",):
        grid["alpha"] = list(alphas)
    model = clone(model_of(job, sigmas[0], alphas[0], Z))
    search = SweepSearchCV(model, grid, cv=HELD_OUT, refit=False, random_state=job.seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BestAtEdgeWarning)  # shown in the table instead
        return search.fit(rows)


def _records(search: SweepSearchCV, sigmas: tuple[float, ...]) -> list[Record]:
    """Return a record for each width: the best penalty, its error in %, and whether it is chosen or at an edge."""
    results, records = search.cv_results_, []
    errors, chosen = 100 * (1 - results["mean_test_score"]), search.best_index_
    widths = np.array([params["kernel"].sigma for params in results["params"]])
    for sigma in sigmas:
        of_width = np.flatnonzero(widths == sigma)
        best = chosen if chosen in of_width else int(of_width[np.argmin(errors[of_width])])
        params = results["params"][best]
        records.append(
            {
                "sigma": sigma,
                "alpha": params.get("alpha"),
                "error": float(errors[best]),
                "chosen": best == chosen,
                "edge": "; ".join(map(str, search.edges_)) if best == chosen else "",
            }
        )
    return records
