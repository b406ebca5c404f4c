"""Hyper-parameters of RR, KRR and SSSL_m chosen on the labelled source alone, without labels of the target."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits

from bigkernel import Gaussian, Ridge, SweepSearchCV
from bigkernel.arrays import Array
from bigkernel.solvers.exact import exact_krr
from pipelines.shared.experiments import steps, with_ones
from pipelines.usps_mnist.fits import Setting, one_hot, sssl

Folds = Sequence[tuple[Array, Array]]
N_FOLDS = 5
# of equal accuracies the first wins, hence the smoothest first
RR_ALPHAS = (100.0, 30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.001, 0.0001)
KRR_SIGMAS, KRR_ALPHAS = (1.0, 0.7, 0.5, 0.35, 0.2, 0.1, 0.06), (1.0, 0.1, 0.01, 0.001)
SSSL_COMPONENTS, SSSL_ALPHAS = (50, 100, 150, 200, 300, 400), (10.0, 1.0, 0.1, 0.01, 0.001)
SSSL_SIGMAS = (1.0, 0.7, 0.5, 0.4, 0.31, 0.2)


@dataclass(frozen=True)
class Chosen:
    """A grid point and its accuracy, %, on held-out source rows."""

    method: str
    accuracy: float | None
    alpha: float
    sigma: float | None = None
    landmarks: str = ""
    s: int | None = None

    @property
    def text(self) -> str:
        """The values."""
        values = {"σ": self.sigma, "s": self.s, "λ": self.alpha}
        texts = [f"{name} {value:g}" for name, value in values.items() if value is not None]
        return " ".join([self.landmarks, *texts]).strip()


def folds(labels: Array, seed: int) -> Folds:
    """Return training and held-out row ids of five stratified folds."""
    splitter = StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed)
    return list(splitter.split(np.zeros(len(labels)), labels))


def cross_validate_rr(X: Array, labels: Array, splits: Folds) -> list[Chosen]:
    """Cross-validate RR for every λ: one sweep per fold, then a solve for each λ."""
    right = np.zeros(len(RR_ALPHAS))
    for train, held_out in splits:
        model = Ridge(fit_intercept=False).fit(with_ones(X[train]), one_hot(labels[train]))
        for place, alpha in enumerate(RR_ALPHAS):
            values = model.set_params(alpha=alpha).refit().predict(with_ones(X[held_out]))
            right[place] += np.sum(values.argmax(axis=1) == labels[held_out])
    counts = zip(RR_ALPHAS, right, strict=True)
    return [Chosen("RR", 100 * float(count) / len(labels), alpha) for alpha, count in counts]


def cross_validate_krr(X: Array, labels: Array, splits: Folds, after: Callable[[], None]) -> list[Chosen]:
    """Cross-validate exact KRR for every σ and λ, with all folds from one inverse of K + λI."""
    Y, results = one_hot(labels), []
    for sigma in KRR_SIGMAS:
        K = Gaussian(sigma)(X)
        for alpha in KRR_ALPHAS:
            # H = (K + λI)⁻¹; fitted to the rows t alone, KRR gives the rows h the values −H_hh⁻¹H_htY_t
            H = exact_krr(K, np.eye(len(K)), alpha)[0]
            right = 0
            for train, h in splits:
                values = -np.linalg.solve(H[np.ix_(h, h)], H[np.ix_(h, train)] @ Y[train])
                right += int(np.sum(values.argmax(axis=1) == labels[h]))
            results.append(Chosen("KRR", 100 * right / len(labels), alpha, sigma))
            after()
    return results


def cross_validate_sssl(
    source: Array, labels: Array, target: Array, splits: Folds, setting: Setting, landmarks: Array | str, draw: int
) -> list[Chosen]:
    """Cross-validate SSSL_m for every s, σ and λ, in a sweep for all folds' statistics and one for predictions.

    Target rows and held-out source rows are unlabelled rows: they shape the basis; held-out labels only measure.
    """
    fold = np.full(len(source) + len(target), -1)
    for number, (_, held_out) in enumerate(splits):
        fold[held_out] = number
    grid = {
        "n_components": sorted({min(s, setting.m) for s in SSSL_COMPONENTS}),
        "kernel": [Gaussian(sigma) for sigma in SSSL_SIGMAS],
        "alpha": list(SSSL_ALPHAS),
    }
    search = SweepSearchCV(sssl(setting, landmarks, draw), grid, cv=fold, scoring="accuracy", refit=False)
    with threadpool_limits(limits=1, user_api="blas"):  # m×m matrices: on a busy machine threads wait for one another
        search.fit(np.concatenate([source, target]), np.concatenate([labels, np.full(len(target), -1)]))
    sizes = np.bincount(fold[: len(labels)])
    shares = np.stack([search.cv_results_[f"split{number}_test_score"] for number in range(len(splits))])
    results = [
        Chosen("SSSL_m", 100 * float(share), one["alpha"], one["kernel"].sigma, setting.landmarks, one["n_components"])
        for one, share in zip(search.cv_results_["params"], sizes @ shares / len(labels), strict=True)
    ]
    return sorted(results, key=lambda one: (one.s or 0, -(one.sigma or 0), -one.alpha))


def whole_grid(
    source: Array, labels: Array, target: Array, landmarks: Mapping[str, Array | str], m: int, seed: int, *, quiet: bool
) -> list[Chosen]:
    """Evaluate every point of the grids of RR, KRR and SSSL_m with eigenfunctions of all rows."""
    splits = folds(labels, seed)
    count = len(KRR_SIGMAS) * len(KRR_ALPHAS) + len(landmarks)
    with steps("cross-validation", count, rows=len(source) + len(target), quiet=quiet) as after:
        results = cross_validate_rr(source, labels, splits) + cross_validate_krr(source, labels, splits, after)
        for kind, chosen in landmarks.items():
            results += cross_validate_sssl(source, labels, target, splits, Setting("all", kind, m), chosen, seed)
            after()
    return results


def best(results: Sequence[Chosen], method: str) -> Chosen:
    """Return the grid point of a method that is most accurate on held-out rows; the first of equals."""
    return max((one for one in results if one.method == method), key=lambda one: one.accuracy or 0.0)
