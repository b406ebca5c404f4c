"""`bench defaults`: held-out scores of default settings beside scikit-learn's, on raw and standardised columns.

Tables are those that scikit-learn ships or generates, and wine where its file is at hand. Every model has its defaults;
scores are means over five folds, R² of numbers and accuracy of classes.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.kernel_ridge import KernelRidge as PlainKernelRidge
from sklearn.model_selection import KFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR

from bigkernel import KernelLogisticClassifier, KernelRidge, KernelRidgeClassifier
from bigkernel.arrays import Array
from bigkernel.errors import ColumnScaleWarning

REGRESSORS = {
    "KernelRidge": KernelRidge(),
    "sklearn KernelRidge": PlainKernelRidge(kernel="rbf"),
    "SVR": SVR(),
    "HistGB": HistGradientBoostingRegressor(random_state=0),
}
CLASSIFIERS = {
    "KernelRidge": KernelRidgeClassifier(),
    "KernelLogistic": KernelLogisticClassifier(random_state=0),
    "SVC": SVC(),
    "HistGB": HistGradientBoostingClassifier(random_state=0),
}
COLUMNS = ["table", "columns", "KernelRidge", "KernelLogistic", "sklearn KernelRidge", "SVR, SVC", "HistGB", "warned"]


@dataclass(frozen=True)
class Line:
    """Mean scores of every model on a table, and whether ours warned of the scale of its columns."""

    table: str
    columns: str
    scores: dict[str, float]
    warned: bool


def tables(data: Path) -> dict[str, tuple[Array, Array]]:
    """Return rows (n, d) and targets (n,) by name; targets are integers where they are classes."""
    unequal = datasets.make_classification(1500, 20, n_informative=8, n_classes=3, weights=[0.8, 0.15], random_state=0)
    found = {
        "diabetes": datasets.load_diabetes(return_X_y=True, scaled=False),
        "friedman1": datasets.make_friedman1(1500, noise=1.0, random_state=0),
        "friedman2": datasets.make_friedman2(1500, noise=50.0, random_state=0),
        "friedman3": datasets.make_friedman3(1500, noise=0.1, random_state=0),
        "breast cancer": datasets.load_breast_cancer(return_X_y=True),
        "wine cultivars": datasets.load_wine(return_X_y=True),
        "digits": datasets.load_digits(return_X_y=True),
        "moons": datasets.make_moons(1500, noise=0.25, random_state=0),
        "unequal classes": unequal,
    }
    wine = data / "winequality-white.csv"
    if wine.exists():
        values = np.loadtxt(wine, delimiter=";", skiprows=1)[:2000]
        found["wine quality"] = values[:, :-1], values[:, -1]
    return found


def lines(data: Path) -> Iterator[Line]:
    """Score all models on every table, raw and standardised."""
    for name, (X, y) in tables(data).items():
        classes = y.dtype.kind == "i"
        folds = (StratifiedKFold if classes else KFold)(5, shuffle=True, random_state=0)
        for columns in ("raw", "standardised"):
            scores, warned = {}, False
            for kind, model in (CLASSIFIERS if classes else REGRESSORS).items():
                whole: Any = make_pipeline(StandardScaler(), model) if columns == "standardised" else model
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    scores[kind] = float(np.mean(cross_val_score(whole, X, y, cv=folds)))
                warned |= any(issubclass(one.category, ColumnScaleWarning) for one in caught)
            yield Line(name, columns, scores, warned)


def row(line: Line) -> list[str]:
    """Return one line of the table."""
    scores = {"SVR, SVC": line.scores.get("SVR", line.scores.get("SVC", np.nan)), **line.scores}
    figures = [f"{scores[name]:.3f}" if name in scores else "" for name in COLUMNS[2:-1]]
    return [line.table, line.columns, *figures, "yes" if line.warned else ""]
