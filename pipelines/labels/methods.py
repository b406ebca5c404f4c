"""Methods that learn from few labels, with settings chosen by these labels alone.

A method gets all features, of rows and test digits, and the labels of some rows, but no others. Shapes: n rows, t test
digits, l labelled rows, m landmarks, s eigenfunctions, c classes.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import StratifiedKFold
from sklearn.neighbors import NearestNeighbors
from sklearn.semi_supervised import LabelSpreading

from bigkernel import Gaussian, KernelRidgeClassifier, SSSLClassifier
from bigkernel.arrays import Array
from bigkernel.solvers.anchor_graph import laplacian
from bigkernel.solvers.eigenfunctions import graph_penalty, leading
from bigkernel.solvers.ridge import ridge
from bigkernel.solvers.whitening import whiten
from pipelines.labels.data import Digits

Setting = Mapping[str, float]
FOLDS = 5
ROUNDS = (20, 200)  # rows of each predicted class added by self-training, round by round
NEIGHBOURS, STEPS = 7, 100  # parameters of LabelSpreading: scikit-learn's default, with more than its 30 steps
LEAST_ALPHA = 1e-3  # penalty of the fit whose sums are shared, which makes it accumulate them accurately


class Method(ABC):
    """A method. `settings` are candidates, larger penalties first; `default` is used with one label per class."""

    name: str
    settings: Sequence[Setting]
    default: Setting

    @abstractmethod
    def predict(self, ids: Array, labels: Array, rows: Array, setting: Setting) -> Array:
        """Return the classes of the digits `rows`, from the labels of `ids`."""

    def trial(self, ids: Array, labels: Array, rows: Array, setting: Setting) -> Array:
        """Predict as `predict` does, to evaluate a setting."""
        return self.predict(ids, labels, rows, setting)


def choose(method: Method, ids: Array, labels: Array, seed: int) -> Setting:
    """Return the setting with the fewest errors in cross-validation on labelled rows; of equals, the larger penalty.

    Folds are of labelled rows: one held out is then a row without a label like all others. One label a class cannot be
    held out, and `default` is taken.
    """
    fewest = int(np.unique(labels, return_counts=True)[1].min())
    if fewest < 2 or len(method.settings) == 1:
        return method.default
    wrong = np.zeros(len(method.settings), np.int64)
    for kept, held in StratifiedKFold(min(FOLDS, fewest), shuffle=True, random_state=seed).split(ids, labels):
        for number, setting in enumerate(method.settings):
            guess = method.trial(ids[kept], labels[kept], ids[held], setting)
            wrong[number] += np.count_nonzero(guess != labels[held])
    return method.settings[int(wrong.argmin())]


@dataclass(frozen=True, eq=False)
class LabelsAlone(Method):
    """Exact kernel ridge regression on the labelled rows; the others are ignored."""

    X: Array
    sigma: float
    name: str = "kernel ridge"
    settings: Sequence[Setting] = tuple({"alpha": alpha} for alpha in (1.0, 0.1, 0.01))
    default: Setting = field(default_factory=lambda: {"alpha": 0.1})

    def fitted(self, ids: Array, labels: Array, setting: Setting) -> KernelRidgeClassifier:
        """Return the model fitted to these rows."""
        return KernelRidgeClassifier(Gaussian(self.sigma), setting["alpha"]).fit(self.X[ids], labels)

    def predict(self, ids: Array, labels: Array, rows: Array, setting: Setting) -> Array:
        return np.asarray(self.fitted(ids, labels, setting).predict(self.X[rows]))


@dataclass(frozen=True, eq=False)
class SelfTraining(LabelsAlone):
    """Kernel ridge that adds its most certain predictions as labels, equally many of each class, in two rounds."""

    pool: Array = field(default_factory=lambda: np.empty(0, np.int64))  # ids of the rows that may get a label
    name: str = "self-training"

    def predict(self, ids: Array, labels: Array, rows: Array, setting: Setting) -> Array:
        model, others = self.fitted(ids, labels, setting), np.setdiff1d(self.pool, ids)
        for count in ROUNDS:
            values = np.asarray(model.decision_function(self.X[others]))
            guess = model.classes_[values.argmax(axis=1)]
            two = np.partition(values, -2, axis=1)[:, -2:]
            surest = np.argsort(two[:, 0] - two[:, 1], kind="stable")
            taken = np.concatenate([surest[guess[surest] == label][:count] for label in model.classes_])
            extended_ids, extended_labels = np.concatenate([ids, others[taken]]), np.concatenate([labels, guess[taken]])
            model = self.fitted(extended_ids, extended_labels, setting)
        return np.asarray(model.predict(self.X[rows]))

    def trial(self, ids: Array, labels: Array, rows: Array, setting: Setting) -> Array:
        """Predict by the first round alone: kernel ridge on the labels. The other rounds use its penalty."""
        return LabelsAlone.predict(self, ids, labels, rows, setting)


@dataclass(frozen=True, eq=False)
class Eigenfunctions(Method):
    """SSSL: ridge on eigenfunctions of all rows. Labels do not affect them, so all draws share them."""

    name: str
    # manifold -> the eigenfunctions (n + t, s) at all digits, leading first, scaled as `SSSL` scales them
    values: Mapping[float, Array]
    settings: Sequence[Setting]
    default: Setting

    def predict(self, ids: Array, labels: Array, rows: Array, setting: Setting) -> Array:
        """Predict what `SSSLClassifier` fitted to all rows with these labels predicts."""
        Z, classes = self.values[setting["manifold"]][:, : int(setting["n_components"])], np.unique(labels)
        few = Z[ids]
        beta = ridge(few.T @ few, few.T @ (labels[:, None] == classes), setting["alpha"], n_rows=len(ids))
        return np.asarray(classes[(Z[rows] @ beta).argmax(axis=1)])


@dataclass(frozen=True, eq=False)
class Spreading(Method):
    """scikit-learn's `LabelSpreading` over nearest neighbours; test digits take the labels of theirs."""

    # (r + t, r) CSR, 1 at the nearest of the first r rows, which labels spread over; last the test digits
    graph: sparse.csr_array
    rows: int  # n, the number of the first test digit
    name: str = "LabelSpreading"
    settings: Sequence[Setting] = tuple({"alpha": alpha} for alpha in (0.2, 0.8, 0.95))
    default: Setting = field(default_factory=lambda: {"alpha": 0.95})

    def predict(self, ids: Array, labels: Array, rows: Array, setting: Setting) -> Array:
        spread_over = self.graph.shape[1]
        y = np.full(spread_over, -1)
        y[ids] = labels
        # the kernel of rows is their precomputed graph: rows are given by their numbers
        model = LabelSpreading(kernel=lambda a, b: self.graph[b.ravel()], **setting, max_iter=STEPS)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            warnings.simplefilter("ignore", RuntimeWarning)  # rows that no label reaches
            model.fit(np.arange(spread_over)[:, None], y)
        shares = np.nan_to_num(model.label_distributions_)
        mine = rows < spread_over
        votes = np.empty((len(rows), shares.shape[1]))
        votes[mine] = shares[rows[mine]]
        votes[~mine] = self.graph[rows[~mine] - self.rows + spread_over] @ shares
        return np.asarray(model.classes_[votes.argmax(axis=1)])


def neighbours(X: Array, among: int) -> sparse.csr_array:
    """Return the graph (n, among) of each row's `NEIGHBOURS` nearest of the first `among` rows, itself excluded."""
    nearest = NearestNeighbors(n_neighbors=NEIGHBOURS, algorithm="brute").fit(X[:among])
    graphs = [nearest.kneighbors_graph()] + [nearest.kneighbors_graph(X[among:])] * (len(X) > among)
    return sparse.csr_array(sparse.vstack(graphs, format="csr"))


def eigenfunctions(
    digits: Digits, ids: Array, counts: Mapping[float, int], *, landmarks: int, seed: int, after: Callable[[], None]
) -> dict[float, Array]:
    """Return the eigenfunctions of all rows at all digits by manifold, (n + t, s), from the sums of one fit."""
    y = np.full(digits.rows, -1)
    y[ids] = digits.y[ids]
    largest, rows = max(counts), digits.X[: digits.rows]
    model = SSSLClassifier(
        Gaussian(digits.sigma),
        counts[largest],
        LEAST_ALPHA,
        n_landmarks=landmarks,
        landmarks="uniform",
        manifold=largest,
        random_state=seed,
    ).fit(rows, y)
    after()
    sums, kernel, Z = model.statistics_, model.kernel_, model.landmarks_
    whitening, G = whiten(np.asarray(kernel(Z), np.float64)), sums["G"].sum(axis=0)
    L = whitening.rotate(laplacian(G, sums["anchors"], sums["degrees"]))
    G, functions = whitening.rotate(G), {}
    for manifold, count in counts.items():
        values, W = leading(G, count, penalty=graph_penalty(L, manifold) if manifold else None)
        functions[manifold] = _at(digits.X, kernel, Z, whitening.expand(W * np.sqrt(values)))
        after()
    return functions


def _at(X: Array, kernel: Any, Z: Array, coef: Array) -> Array:
    blocks = np.array_split(X, len(X) // 4096 + 1)
    return np.concatenate([np.asarray(kernel(block, Z), np.float64) @ coef for block in blocks])
