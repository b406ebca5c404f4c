"""Plots of searches show their scores, on the given axes."""

import sys

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from sklearn.model_selection import GridSearchCV

from bigkernel import KernelRidge, Ridge, SweepSearchCV, plot_search
from bigkernel.errors import ConfigError
from bigkernel.kernels.functions import Gaussian

pytestmark = pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdgeWarning")  # grids are small
rng = np.random.default_rng(11)
N = 240
X = rng.normal(size=(N, 2))
y = X[:, 0] ** 2 + 0.1 * rng.normal(size=N)
GRID = {"gamma": [0.03, 0.3, 3.0], "alpha": [1e-3, 0.1, 10.0, 1e3]}


@pytest.fixture
def ax():
    return Figure().subplots()


@pytest.fixture(scope="module")
def search():
    return SweepSearchCV(KernelRidge("rbf", n_landmarks=20, random_state=0), GRID, cv=3).fit(X, y)


def test_a_map_has_the_scores_and_a_star_at_the_best(search, ax):
    assert plot_search(search, ax=ax) is ax
    shown = ax.images[0].get_array()
    mean = {(p["gamma"], p["alpha"]): s for p, s in zip(
        search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True
    )}  # fmt: skip
    np.testing.assert_allclose(shown, [[mean[gamma, alpha] for alpha in GRID["alpha"]] for gamma in GRID["gamma"]])
    best = search.best_score_  # R²: the colours end at three times the best error
    np.testing.assert_allclose(ax.images[0].get_clim(), [max(min(mean.values()), 1 - 3 * (1 - best)), best])
    star = next(line for line in ax.lines if line.get_marker() == "*")
    best = search.best_params_
    place = GRID["alpha"].index(best["alpha"]), GRID["gamma"].index(best["gamma"])
    assert (star.get_xdata()[0], star.get_ydata()[0]) == place
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("alpha", "gamma")


def test_a_line_is_the_best_over_other_parameters(ax):
    grid = [{"kernel": [Gaussian(0.5), Gaussian(2.0)], "alpha": [0.1], "fit_intercept": [False, True]}]
    found = SweepSearchCV(KernelRidge(n_landmarks=20, random_state=0), grid, cv=3).fit(X, y)
    plot_search(found, ax=ax)
    mean, params = found.cv_results_["mean_test_score"], found.cv_results_["params"]
    expected = [max(s for s, p in zip(mean, params, strict=True) if p["kernel"].sigma == width) for width in (0.5, 2.0)]
    np.testing.assert_allclose(ax.lines[0].get_xydata(), np.column_stack([[0.5, 2.0], expected]))
    assert ax.get_xlabel() == "sigma"
    with pytest.raises(ConfigError, match="a grid with a varying number"):
        plot_search(SweepSearchCV(Ridge(), {"alpha": [1.0]}, cv=3).fit(X, y), ax=ax)


def test_one_of_several_scores_is_plotted_by_name(ax):
    found = SweepSearchCV(Ridge(), {"alpha": [1.0, 1e4]}, cv=3, scoring=["r2", "neg_mean_squared_error"], refit="r2")
    plot_search(found.fit(X, y), score="neg_mean_squared_error", ax=ax)
    np.testing.assert_allclose(ax.lines[0].get_ydata(), found.cv_results_["mean_test_neg_mean_squared_error"])
    with pytest.raises(ConfigError, match="'mse' is not one of the scores of this search: r2, neg_mean"):
        plot_search(found, score="mse", ax=ax)


def test_without_axes_pyplot_makes_new_ones(search):
    with mpl.rc_context({"backend": "agg"}):
        from matplotlib import pyplot

        made = plot_search(search)
        assert made.figure in map(pyplot.figure, pyplot.get_fignums())
        pyplot.close(made.figure)


def test_without_matplotlib_the_extra_is_named(search, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r'pip install "bigkernel\[plots\]"'):
        plot_search(search)


def test_another_search_is_refused():
    with pytest.raises(ConfigError, match=r"search: .* SweepSearchCV, found GridSearchCV"):
        plot_search(GridSearchCV(Ridge(), GRID))
