"""The choice among equal scores, and the ends of a grid."""

import re
import warnings

import numpy as np
import pytest
from sklearn.model_selection import StratifiedKFold

from bigkernel import Gaussian, KernelRidge, KernelRidgeClassifier, Laplacian, Ridge, SweepSearchCV
from bigkernel.errors import BestAtEdge
from bigkernel.search.axes import edges

rng = np.random.default_rng(2026)
N = 120
X = rng.normal(size=(N, 3))
Z = X[:14] + 0.03
Y = np.column_stack([np.sin(2 * X[:, 0]), X[:, 1] * X[:, 2]]) + 0.2 * rng.normal(size=(N, 2))
LABELS = np.array(["ape", "bee", "cat"])[np.digitize(X[:, 0] + 0.5 * rng.normal(size=N), [-0.4, 0.5])]
FOLDS = StratifiedKFold(3, shuffle=True, random_state=0)
SPLITS = list(FOLDS.split(X, LABELS))


def test_of_equal_scores_the_largest_penalty_is_chosen():
    flat = SweepSearchCV(Ridge(), {"alpha": [1e-9, 1e-3]}, cv=3).fit(X, np.full(N, 2.0))
    assert flat.best_params_ == {"alpha": 1e-3}
    assert flat.cv_results_["rank_test_score"].tolist() == [1, 1]
    grid = {"alpha": np.geomspace(1e-9, 1e-4, 6), "kernel__sigma": [0.9, 1.1]}
    search = SweepSearchCV(KernelRidgeClassifier(Gaussian(1.0), landmarks=Z), grid, cv=SPLITS, refit=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BestAtEdge)
        results = search.fit(X, LABELS).cv_results_
    tied = results["rank_test_score"] == 1
    assert tied.sum() > 2  # else this tests nothing
    assert search.best_params_["alpha"] == results["param_alpha"][tied].max()


@pytest.mark.parametrize(
    "grid, best, told",
    [
        ({"alpha": [1e-3, 1e-2, 1e-1]}, 0, "alpha: the best value, 0.001, is the smallest of 3; add smaller .* 0.0001"),
        ({"alpha": [1e-3, 1e-2, 1e-1]}, 2, "alpha: the best value, 0.1, is the largest of 3; add larger ones.* 1$"),
        ({"model__kernel": [Gaussian(s) for s in (1.0, 2.0, 4.0)]}, 2, "kernel__sigma: .* largest of 3; .* 8$"),
        ({"n_components": [10, 20, 40]}, 2, "n_components: the best value, 40, .* such as 80$"),
        ({"alpha": [1e-3, 1e-2, 1e-1]}, 1, ""),
        ({"alpha": [0.0, 1e-2, 1e-1]}, 0, ""),  # less than none there is not
        ({"n_components": [1, 2, 3]}, 0, ""),
        ({"alpha": [1e-3, 1e-2]}, 0, ""),
        ({"n_landmarks": [10, 20, 30]}, 2, ""),
        ({"kernel": [Gaussian(1.0), Laplacian(1.0), Gaussian(2.0)]}, 2, ""),
    ],
)
def test_ends_of_the_grid_are_told_with_what_to_add(grid, best, told):
    ((name, values),) = grid.items()
    found = "; ".join(map(str, edges([{name: value} for value in values], best)))
    assert re.search(told, found) if told else found == ""


def test_a_search_warns_once_of_the_ends_where_its_best_candidate_lies():
    grid = {"alpha": [1e3, 1e4, 1e5], "kernel": [Gaussian(s) for s in (0.3, 0.9, 30.0)]}
    with pytest.warns(BestAtEdge, match="alpha: the best value, 1000, is the smallest of 3") as caught:
        found = SweepSearchCV(KernelRidge(landmarks=Z), grid, cv=3).fit(X, Y)
    assert [one.filename for one in caught] == [__file__]
    assert [(edge.parameter, edge.side, edge.further) for edge in found.edges_] == [("alpha", "smallest", 100.0)]
