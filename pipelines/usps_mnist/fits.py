"""The methods of `python -m pipelines usps-mnist`, fitted to the pair and evaluated on it.

Shapes: n_l labelled rows of the source, n_u rows of the target, N = n_l + n_u, d pixels, m landmarks, s eigenfunctions.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from bigkernel import Gaussian, KernelRidgeClassifier, LinearRegression, Ridge, SSSLClassifier
from bigkernel.arrays import Array
from bigkernel.engine.rows import as_rows
from bigkernel.estimators.fit.basis import choose
from pipelines.shared.experiments import digit_pair, timed, with_ones

Predict = Callable[[Array], Array]
N_CLASSES = 10
UNIFORM, KMEANS, HALVES = KINDS = ("uniform", "k-means", "k-means ½")
HALVES_OF = "balanced-k-means"  # name of HALVES among the choices of the estimators
SIGMA, ALPHA, COMPONENTS = 0.31, 0.4, 120  # SSSL as the reference prints it; it prints no s for SSSL_m
HALVES_COMPONENTS = 100  # s of HALVES; found on the accuracies themselves
RR_ALPHA, KRR_ALPHA, KRR_SIGMA = 1.0, 1.0, 0.06


@dataclass(frozen=True)
class Fit:
    """Accuracy on source and target, %, and the seconds of the fit with its landmarks."""

    source: float
    target: float
    seconds: float


@dataclass(frozen=True)
class Setting:
    """Parameters of SSSL_m: "all" or "landmarks", a choice of landmarks, their number, and hyper-parameters."""

    eigenfunctions: str
    landmarks: str
    m: int
    s: int = COMPONENTS
    sigma: float = SIGMA
    alpha: float = ALPHA


Fits = dict[str | Setting, list[Fit]]  # by name of a method, or setting of SSSL_m


def table_settings(m: int) -> list[Setting]:
    """Return the settings of SSSL_m in the first table."""
    return [
        Setting("landmarks", UNIFORM, m),
        Setting("all", UNIFORM, m),
        Setting("landmarks", UNIFORM, m, s=m),
        Setting("landmarks", KMEANS, m),
        Setting("all", KMEANS, m),
        Setting("all", HALVES, m, s=HALVES_COMPONENTS),
    ]


def curve_settings(m: int) -> list[Setting]:
    """Return the settings of SSSL_m in the curves."""
    return [
        Setting("landmarks", UNIFORM, m),
        Setting("all", UNIFORM, m),
        Setting("all", KMEANS, m),
        Setting("all", HALVES, m, s=HALVES_COMPONENTS),
    ]


def median_seconds(fits: Sequence[Fit]) -> float:
    """Return the median seconds of a fit."""
    return statistics.median(fit.seconds for fit in fits)


@dataclass(frozen=True)
class Pair:
    """The two sets of digits."""

    source: Array  # (n_l, d) and (n_l,), labelled
    source_labels: Array
    target: Array  # (n_u, d) and (n_u,); the labels only measure accuracies
    target_labels: Array
    rows: Array  # (N, d) and (N,), source above target; −1 where unlabelled, as given to SSSL
    labels: Array

    @classmethod
    def read(cls, data: Path) -> Self:
        """Read the digit pair in a directory."""
        source, source_labels, target, target_labels = digit_pair(data)
        labels = np.concatenate([source_labels, np.full(len(target), -1)])
        return cls(source, source_labels, target, target_labels, np.concatenate([source, target]), labels)


def evaluate(pair: Pair, fit: Callable[[], Predict]) -> Fit:
    """Return the accuracies of the predictor that `fit` returns, and the seconds of `fit`."""
    predict, seconds = timed(fit)
    source, target = (
        100 * float(np.mean(predict(X) == y))
        for X, y in ((pair.source, pair.source_labels), (pair.target, pair.target_labels))
    )
    return Fit(source, target, seconds)


def one_hot(labels: Array) -> Array:
    """Return targets (n, 10) of labels 0 to 9."""
    targets: Array = np.eye(N_CLASSES)[labels]
    return targets


def lr(X: Array, labels: Array) -> Predict:
    """Fit linear regression on one-hot targets; predict the class of the largest value."""
    return _argmax(LinearRegression(fit_intercept=False).fit(with_ones(X), one_hot(labels)))


def rr(X: Array, labels: Array, alpha: float) -> Predict:
    """Fit ridge regression on one-hot targets; predict the class of the largest value."""
    return _argmax(Ridge(alpha, fit_intercept=False).fit(with_ones(X), one_hot(labels)))


def _argmax(model: Any) -> Predict:
    return lambda rows: model.predict(with_ones(rows)).argmax(axis=1)


def krr(X: Array, labels: Array, sigma: float, alpha: float) -> Predict:
    """Fit exact KRR."""
    return KernelRidgeClassifier(Gaussian(sigma), alpha=alpha).fit(X, labels).predict


def sssl_exact(pair: Pair, sigma: float = SIGMA, s: int = COMPONENTS, alpha: float = ALPHA) -> Predict:
    """Fit SSSL_N."""
    return SSSLClassifier(Gaussian(sigma), s, alpha, manifold=0).fit(pair.rows, pair.labels).predict


def sssl(setting: Setting, landmarks: Array | str, draw: int) -> SSSLClassifier:
    """Return SSSL_m, not yet fitted."""
    return SSSLClassifier(
        Gaussian(setting.sigma),
        setting.s,
        setting.alpha,
        n_landmarks=setting.m,
        manifold=0,
        eigenfunctions=setting.eigenfunctions,
        landmarks=landmarks,
        random_state=draw,
    )


def choose_landmarks(source: Array, target: Array, kind: str, m: int, draw: int) -> Array | str:
    """Return the landmarks (m, d) of a draw; with "uniform" the estimator samples them from all rows."""
    if kind == UNIFORM:
        return "uniform"
    domain = np.repeat([0, 1], [len(source), len(target)])
    rows, method = as_rows(np.concatenate([source, target]), domain=domain), "k-means" if kind == KMEANS else HALVES_OF
    return choose(rows, method, m, kernel=Gaussian(SIGMA), rng=np.random.RandomState(draw))[0]


class Draws:
    """Fits of SSSL_m over draws of landmarks: centres are computed once a draw, a setting is fitted once."""

    def __init__(self, pair: Pair, draws: Sequence[int]) -> None:
        self.pair, self.draws = pair, draws
        self._landmarks: dict[tuple[str, int, int], tuple[Array | str, float]] = {}
        self._fits: dict[tuple[Setting, int], Fit] = {}

    def landmarks(self, kind: str, m: int, draw: int) -> tuple[Array | str, float]:
        """Return the landmarks of a draw, and the seconds to find them."""
        key = kind, m, draw
        if key not in self._landmarks:
            self._landmarks[key] = timed(choose_landmarks, self.pair.source, self.pair.target, *key)
        return self._landmarks[key]

    def fit(self, setting: Setting, draw: int) -> Fit:
        """Fit one draw; the seconds include those of its landmarks."""
        if (setting, draw) not in self._fits:
            landmarks, seconds = self.landmarks(setting.landmarks, setting.m, draw)
            model = sssl(setting, landmarks, draw)
            fit = evaluate(self.pair, lambda: model.fit(self.pair.rows, self.pair.labels).predict)
            self._fits[setting, draw] = replace(fit, seconds=fit.seconds + seconds)
        return self._fits[setting, draw]

    def fits(self, settings: Sequence[Setting], after: Callable[[], None]) -> dict[Setting, list[Fit]]:
        """Fit every draw of every setting, calling `after` after each; settings take turns so that times compare."""
        for draw in self.draws:
            for setting in settings:
                self.fit(setting, draw)
                after()
        return {setting: [self.fit(setting, draw) for draw in self.draws] for setting in settings}
