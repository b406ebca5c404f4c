"""The methods of `python -m pipelines domains`, each fitted to a task, timed, and evaluated on the target.

A method sees labelled rows of the source; whether it sees the rows of the target too, never with a label, is the
`knows` of its entry in `METHODS`, and tables keep the two kinds apart. Landmarks are m k-means centres, of the
rows that it sees. Gaussian kernels have σ = width·√(median ‖z − z′‖²) over the landmarks, the
one rule for every table, direction and set; SSSL keeps the σ that its printed reference has.

Settings marked as the papers' practice were found by us, as those of the papers were, on accuracies of this pair, one
for both directions and all tables; `pipelines.domains.pair.choose` finds others without any label of the target.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from scipy.spatial.distance import pdist
from sklearn.cluster import KMeans
from sklearn.neighbors import KNeighborsClassifier

from bigkernel import DICA, JDA, ARTLClassifier, Gaussian, KernelRidgeClassifier, Ridge, SSSLClassifier, XNVClassifier
from bigkernel.arrays import Array
from bigkernel.errors import CollapsedLabelsWarning
from pipelines.domains.data import Task
from pipelines.shared.experiments import timed

Predict = Callable[[Array], Array]
Setting = Mapping[str, float]
SOURCE, TARGET = "source", "target"  # what a method knows of the images
N_CLASSES = 10


@dataclass(frozen=True)
class Method:
    """A method: how it is fitted, and with what."""

    name: str  # name in tables
    knows: str  # "source": no image of the target; "target": its images too
    # (task, landmarks, setting) -> predictor of labels (n,) for rows (n, d)
    fit: Callable[[Task, Array, Setting], Predict]
    setting: Setting = field(default_factory=dict)  # hyper-parameters by name, as in the papers' practice
    # values of each to choose from, the smoothest first
    grid: Mapping[str, Sequence[float]] = field(default_factory=dict)
    landmarks: bool = True  # whether it uses landmarks
    published: tuple[float, float] | None = None  # accuracy USPS→MNIST and MNIST→USPS on the bare pair
    most_rows: int | None = None  # most rows of an exact method
    needs_styles: bool = False  # whether it learns from several domains, as restyled copies are

    def takes(self, task: Task) -> bool:
        """Return whether it can be fitted to the task: at most `most_rows` rows, and styles if it needs some."""
        few = self.most_rows is None or len(task.rows) <= self.most_rows
        return few and (not self.needs_styles or len(np.unique(task.style)) > 1)


@dataclass(frozen=True)
class Fit:
    """One fit of a method."""

    accuracy: float  # accuracy on the target, %
    seconds: float  # of the fit and its landmarks
    collapsed: bool  # whether its pseudo-labels collapsed and an earlier round was kept
    predicted: Array = field(repr=False, compare=False)  # predicted labels of the target rows


class Draws:
    """Landmarks of several draws of a task, chosen once, with the seconds that this took."""

    def __init__(self, task: Task, m: int) -> None:
        self.task, self.m = task, m
        self._chosen: dict[tuple[str, int], tuple[Array, float]] = {}

    def landmarks(self, knows: str, draw: int) -> tuple[Array, float]:
        """Return k-means centres (m, d) of the rows that the method uses."""
        if (knows, draw) not in self._chosen:
            task = self.task
            rows, weight = (task.source, task.weight) if knows == SOURCE else (task.rows, task.weights)
            self._chosen[knows, draw] = timed(_centres, rows, weight, self.m, draw)
        return self._chosen[knows, draw]

    def fit(self, method: Method, draw: int, setting: Setting | None = None) -> Fit:
        """Fit with the landmarks of a draw and evaluate on the target."""
        Z, seconds = self.landmarks(method.knows, draw) if method.landmarks else (np.empty((0, 0)), 0.0)
        chosen = method.setting if setting is None else setting
        with guarded() as collapses:
            predict, more = timed(method.fit, self.task, Z, chosen)
        predicted = predict(self.task.target)
        accuracy = 100 * float(np.mean(predicted == self.task.target_labels))
        return Fit(accuracy, seconds + more, bool(collapses), predicted)


@contextmanager
def guarded() -> Iterator[list[str]]:
    """Yield a list that receives the warnings of collapsed pseudo-labels; other warnings are passed on."""
    collapses: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield collapses
    for one in caught:
        if issubclass(one.category, CollapsedLabelsWarning):
            collapses.append(str(one.message))
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def _centres(X: Array, weight: Array, count: int, draw: int) -> Array:
    centres: Array = KMeans(count, n_init=1, random_state=draw).fit(X, sample_weight=weight).cluster_centers_
    return centres


def kernel_of(Z: Array, width: float) -> Gaussian:
    """Return a Gaussian kernel with σ = width·√(median ‖z − z′‖²)."""
    return Gaussian(float(width * np.sqrt(np.median(pdist(Z, "sqeuclidean")))))


def nearest(task: Task, Z: Array, setting: Setting) -> Predict:
    """Predict the label of the nearest row."""
    model = KNeighborsClassifier(1).fit(task.source, task.labels)
    return lambda rows: np.asarray(model.predict(rows))


def krr(task: Task, Z: Array, setting: Setting) -> Predict:
    """Fit ridge regression on landmarks of the source."""
    model = KernelRidgeClassifier(kernel_of(Z, setting["width"]), setting["alpha"], landmarks=Z)
    return model.fit(task.source, task.labels, task.weight).predict


def sssl(task: Task, Z: Array, setting: Setting) -> Predict:
    """Fit SSSL_m."""
    kernel, s = Gaussian(setting["sigma"]), int(setting["n_components"])
    model = SSSLClassifier(kernel, s, setting["alpha"], manifold=0, landmarks=Z)
    return model.fit(task.rows, task.partial_labels, task.weights).predict


def sssl_exact(task: Task, Z: Array, setting: Setting) -> Predict:
    """Fit SSSL_N."""
    model = SSSLClassifier(Gaussian(setting["sigma"]), int(setting["n_components"]), setting["alpha"], manifold=0)
    return model.fit(task.rows, task.partial_labels).predict


def xnv(task: Task, Z: Array, setting: Setting) -> Predict:
    """Fit XNV with two views of m/2 landmarks."""
    views = np.concatenate([Z[0::2], Z[1::2]])
    model = XNVClassifier(kernel_of(Z, setting["width"]), setting["alpha"], landmarks=views, view_alpha=0)
    return model.fit(task.rows, task.partial_labels, sample_weight=task.weights).predict


def invariant(task: Task, Z: Array, setting: Setting, supervised: bool = True) -> Predict:
    """Fit ridge regression in components of DICA, with the styles of the source as domains."""
    given = {"alpha": setting["penalty"], "landmarks": Z, "supervised": supervised}
    model = DICA(kernel_of(Z, setting["width"]), int(setting["n_components"]), **given)
    model.fit(task.source, task.labels, sample_domain=task.style, sample_weight=task.weight)
    return ridge_after(model, task, setting["alpha"])


def transfer(task: Task, Z: Array, setting: Setting, n_rounds: int = 0) -> Predict:
    """Fit ridge regression in transfer components."""
    given = {"alpha": setting["penalty"], "landmarks": Z, "n_rounds": n_rounds}
    model = JDA(kernel_of(Z, setting["width"]), int(setting["n_components"]), **given)
    model.fit(task.rows, task.partial_labels, sample_weight=task.weights)
    return ridge_after(model, task, setting["alpha"])


def artl(task: Task, Z: Array, setting: Setting) -> Predict:
    """Fit adaptation regularization."""
    given = {name: setting[name] for name in ("mmd", "manifold", "alpha")}
    model = ARTLClassifier(kernel_of(Z, setting["width"]), landmarks=Z, **given)
    return model.fit(task.rows, task.partial_labels, sample_weight=task.weights).predict


def ridge_after(model: Any, task: Task, alpha: float) -> Predict:
    """Fit ridge regression on one-hot targets in a transformer's components; predict the class of the largest value."""
    ridge = Ridge(alpha).fit(model.transform(task.source), np.eye(N_CLASSES)[task.labels], task.weight)
    return lambda rows: ridge.predict(model.transform(rows)).argmax(axis=1)


WIDTHS = (1.0, 0.7, 0.5)
JOINT = partial(transfer, n_rounds=10)
FEW = {"width": 0.7, "n_components": 100, "penalty": 0.1, "alpha": 0.1}
COMPONENTS = (50, 100, 200)
INVARIANT = {"n_components": COMPONENTS, "penalty": (10.0, 0.1)}
TRANSFER = {"n_components": COMPONENTS, "penalty": (10.0, 1.0)}
SSSL = {"sigma": (0.7, 0.31), "n_components": (*COMPONENTS, 400), "alpha": (1.0, 0.1)}
EXACT = {"sigma": 0.31, "n_components": 120, "alpha": 0.4}
ADAPTED = {"width": 0.7, "mmd": 10.0, "manifold": 0.7, "alpha": 0.3}
ADAPTATIONS = {"mmd": (100.0, 10.0, 1.0), "manifold": (3.0, 0.7, 0.2)}
METHODS: dict[str, Method] = {
    "1-nn": Method("1-NN", SOURCE, nearest, landmarks=False, published=(44.7, 65.9)),
    "krr": Method("KRR", SOURCE, krr, {"width": 0.7, "alpha": 0.1}, {"width": WIDTHS, "alpha": (10.0, 1.0, 0.1, 0.01)}),
    "udica": Method("UDICA + ridge", SOURCE, partial(invariant, supervised=False), FEW, INVARIANT, needs_styles=True),
    "dica": Method("DICA + ridge", SOURCE, invariant, FEW, INVARIANT, needs_styles=True),
    "sssl-exact": Method("SSSL_N", TARGET, sssl_exact, EXACT, landmarks=False, most_rows=4_000),
    "sssl": Method("SSSL_m", TARGET, sssl, {**EXACT, "n_components": 100}, SSSL),
    "xnv": Method("XNV", TARGET, xnv, {"width": 0.7, "alpha": 1e-4}, {"width": WIDTHS, "alpha": (1e-2, 1e-4)}),
    "tca": Method("TCA + ridge", TARGET, transfer, {**FEW, "penalty": 1.0}, TRANSFER, published=(51.2, 56.3)),
    "jda": Method("JDA + ridge", TARGET, JOINT, {**FEW, "penalty": 1.0}, TRANSFER, published=(59.7, 67.3)),
    "artl": Method("ARTL", TARGET, artl, ADAPTED, ADAPTATIONS, published=(67.7, 88.8)),
}
