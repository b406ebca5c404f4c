"""alpha="cv": the penalty that five held-out folds choose, against dense fits of every fold."""

import warnings

import dask.array as da
import numpy as np
import pytest
from sklearn.base import clone

import bigkernel as bk
from bigkernel.engine.rows import as_rows
from bigkernel.errors import AccuracyWarning, ConfigError, DataError, PenaltyWarning, RankDeficiencyWarning
from bigkernel.estimators.fit import folds
from bigkernel.solvers.gcv import left_out
from bigkernel.statistics.held_out import FOLDS, HeldOutFolds
from bigkernel.streaming.chunk import Chunk

RNG = np.random.default_rng(3)
N, D, M = 240, 3, 30
X = RNG.normal(size=(N, D))
Y = np.sin(2 * X[:, 0]) + 0.4 * X[:, 1] ** 2 + 0.3 * RNG.normal(size=N) + 5
WEIGHT = RNG.uniform(0.2, 2, size=N)
FOLD = HeldOutFolds(FOLDS - 1).of(Chunk(X)) % FOLDS
KERNEL = bk.Gaussian(sigma=1.5)


def error_of(phi, rest, held, alpha, y=Y, weight=None, intercept=True):
    """Return the mean squared error on the rows `held` of a dense ridge fit to `rest`, by least squares."""
    weight = np.ones(N) if weight is None else weight
    root = np.sqrt(weight[rest])[:, None]
    mean = weight[rest] @ phi[rest] / weight[rest].sum() * intercept
    level = weight[rest] @ y[rest] / weight[rest].sum() * intercept
    rows, right = root * (phi[rest] - mean), root[:, 0] * (y[rest] - level)
    stacked = np.vstack([rows, np.sqrt(alpha) * np.eye(phi.shape[1])])
    w = np.linalg.lstsq(stacked, np.concatenate([right, np.zeros(phi.shape[1])]), rcond=None)[0]
    return np.average((phi[held] @ w - mean @ w + level - y[held]) ** 2, weights=weight[held])


def errors_of(phi_of, penalties, **given):
    """Return the mean squared errors (g, k) of dense ridge fits without each fold.

    `phi_of(rest)` maps all rows to the coordinates of a fit to the rows `rest`.
    """
    out = np.empty((FOLDS, len(penalties)))
    for fold in range(FOLDS):
        rest, held = np.flatnonzero(fold != FOLD), np.flatnonzero(fold == FOLD)
        phi = phi_of(rest)
        out[fold] = [error_of(phi, rest, held, alpha, **given) for alpha in penalties]
    return out


def root_of(K):
    """Return K^−½ of a kernel matrix."""
    values, vectors = np.linalg.eigh(K)
    return vectors / np.sqrt(np.maximum(values, 1e-12 * values[-1]))


def on_landmarks(model):
    Z, fold = model.landmarks_, FOLD[model._fitted.basis.ids]

    def phi_of(rest):
        kept = Z[fold != FOLD[np.setdiff1d(np.arange(N), rest)[0]]]
        return KERNEL(X, kept) @ root_of(KERNEL(kept))

    return phi_of


def exactly(model):
    return lambda rest: KERNEL(X, X[rest]) @ root_of(KERNEL(X[rest]))


MODELS = {
    "landmarks": (bk.KernelRidge(KERNEL, alpha="cv", n_landmarks=M, random_state=0), on_landmarks),
    "exact": (bk.KernelRidge(KERNEL, alpha="cv"), exactly),
    "rows": (bk.Ridge(alpha="cv"), lambda model: lambda rest: X),
}


@pytest.fixture
def tried(monkeypatch):
    """What was chosen from: the errors, and the penalties; `each` of all choices."""
    seen, choose, make = {"each": []}, folds.first_as_good, folds._grid

    def first_as_good(errors, weights, usable):
        chosen = choose(errors, weights, usable)
        (place,), of_all = chosen, errors[..., 0]
        if of_all.shape[1] > 2:  # else whether a smaller penalty would be better
            seen["each"].append((of_all, place))
        seen.setdefault("errors", of_all)
        seen.setdefault("chosen", place)
        return chosen

    def grid(*given):
        seen["grid"] = make(*given)
        return seen["grid"]

    monkeypatch.setattr(folds, "first_as_good", first_as_good)
    monkeypatch.setattr(folds, "_grid", grid)
    return seen


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("intercept", [True, False], ids=["intercept", "none"])
@pytest.mark.parametrize("name", MODELS)
def test_errors_of_folds_are_those_of_dense_fits(name, intercept, weight, tried):
    model, coordinates = MODELS[name]
    y = Y if intercept else Y - 5
    model = clone(model).set_params(fit_intercept=intercept)
    model.fit(X, y, sample_weight=weight)
    some = np.arange(4, 24, 3)
    penalties = [tried["grid"][place].alpha for place in some]
    expected = errors_of(coordinates(model), penalties, y=y, weight=weight, intercept=intercept)
    found = tried["errors"][:, some]
    scale = found[:, :1] / expected[:, :1]  # by the variance of the target
    np.testing.assert_allclose(found, scale * expected, rtol=1e-4)
    assert model.alpha_ == tried["grid"][tried["chosen"]].alpha


@pytest.mark.parametrize("intercept", [True, False])
def test_each_fold_of_a_search_has_the_penalty_that_the_others_choose(intercept, tried):
    y, fold = Y - 5 * (not intercept), np.arange(N) % 3
    model = bk.KernelRidge(KERNEL, n_landmarks=M, fit_intercept=intercept, random_state=0)
    search = bk.SweepSearchCV(model, {"alpha": ["cv", 0.1], "fit_intercept": [intercept, True]}, cv=fold).fit(X, y)
    grid, own = [one.alpha for one in tried["grid"]], search.best_estimator_._fitted.basis
    some = np.arange(6, 24, 4)
    for number, (errors, chosen) in enumerate(tried["each"][-3:]):
        # fits without two folds, on the landmarks of neither, tested on the other one of them
        expected = []
        for other in {0, 1, 2} - {number}:
            kept = own.landmarks[~np.isin(fold[own.ids], (number, other))]
            phi = KERNEL(X, kept) @ root_of(KERNEL(kept))
            rest, held = np.flatnonzero(~np.isin(fold, (number, other))), np.flatnonzero(fold == other)
            expected.append([error_of(phi, rest, held, grid[place], y, intercept=intercept) for place in some])
        expected = np.array(expected)
        found = errors[:, some]
        np.testing.assert_allclose(found, found[:, :1] / expected[:, :1] * expected, rtol=1e-4)
        # and the score is that of a fit to both with the chosen one
        kept = own.landmarks[fold[own.ids] != number]
        phi, rest, held = KERNEL(X, kept) @ root_of(KERNEL(kept)), fold != number, np.flatnonzero(fold == number)
        error = error_of(phi, np.flatnonzero(rest), held, grid[chosen], y, intercept=intercept)
        score = search.cv_results_[f"split{number}_test_score"][0]
        np.testing.assert_allclose(score, 1 - error / y[held].var(), rtol=1e-4)


@pytest.mark.parametrize("semi", [True, False], ids=["sssl", "ridge"])
def test_one_candidate_of_a_search_that_chooses_by_folds_is_the_fit(semi):
    y = np.where(np.arange(N) % 3 == 0, np.nan, Y) if semi else Y
    model = (bk.SSSL if semi else bk.KernelRidge)(KERNEL, alpha="cv", n_landmarks=M, random_state=0)
    search = bk.SweepSearchCV(model, {"alpha": ["cv"]}, cv=4)
    assert search.plan(X, y).count == 2  # the best has folds of its own
    search.fit(X, y)
    alone = clone(model).fit(X, y)
    assert search.best_estimator_.alpha_ == alone.alpha_
    np.testing.assert_array_equal(search.predict(X), alone.predict(X))
    assert search.best_score_ > 0.5


def test_the_first_candidate_that_folds_do_not_tell_from_the_best_is_chosen():
    base = np.array([1.0, 2.0, 3.0, 4.0, 5.0])[:, None]
    steady = base + [0.5, 0.1, 0.0, 0.2]  # each fold says the same: the least
    unsure = steady + 0.3 * np.outer([1, -1, 1, -1, 0], [0, 1, 0, 0])
    usable = np.ones((4, 3), bool)
    usable[2, 2] = False
    both = np.stack([steady, unsure, steady], axis=2)  # each target by itself
    np.testing.assert_array_equal(folds.first_as_good(both, np.ones(5), usable), [2, 1, 1])
    one = folds.first_as_good(steady[:1, :, None], np.ones(1), usable[:, :1])
    assert one == 2  # a single fold has no standard error


def heavy_tails(n, rng):
    """Return rows of which some are far from all others, and targets that depend on three columns."""
    rows = rng.standard_t(1.5, size=(n, 8))
    rows /= rows.std(axis=0)
    y = np.sin(2 * np.arctan(5 * rows[:, 0])) + np.tanh(15 * rows[:, 1] * rows[:, 2]) + 0.3 * rng.normal(size=n)
    return rows, y


@pytest.mark.parametrize("seed", [0, 1])
def test_rows_far_from_all_others_do_not_spoil_the_penalty(seed):
    heavy, y = heavy_tails(2300, np.random.default_rng(seed))
    wrong = {}
    for rule in ("cv", "gcv"):
        with warnings.catch_warnings():
            for category in (AccuracyWarning, PenaltyWarning, RankDeficiencyWarning):
                warnings.simplefilter("ignore", category)
            model = bk.KernelRidge(alpha=rule, n_landmarks=300, random_state=0).fit(heavy[:800], y[:800])
        wrong[rule] = model.predict(heavy[800:]) - y[800:]
    assert np.std(wrong["gcv"]) > 1.4 * np.std(wrong["cv"])
    assert np.abs(wrong["gcv"]).max() > 3 * np.abs(wrong["cv"]).max()


def test_a_row_of_huge_weight_leaves_the_sums_of_the_other_folds_exact(monkeypatch):
    seen, hold_out, Z = [], folds.hold_out, X[:M]
    monkeypatch.setattr(folds, "hold_out", lambda *given: seen.append(hold_out(*given)) or seen[-1])
    weight = np.where(np.arange(N) == 7, 1e13, WEIGHT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bk.KernelRidge(KERNEL, alpha="cv", landmarks=Z).fit(X, Y, weight)
    rest = seen[FOLD[7]][0]
    others, phi = FOLD[7] != FOLD, KERNEL(X, Z) - rest.centre
    expected = (weight * others * phi.T) @ phi
    np.testing.assert_allclose(rest.statistics["G"][-1], expected, atol=1e-12 * np.abs(expected).max())


def test_each_target_counts_by_its_own_variance():
    both = np.column_stack([Y, 1e4 * RNG.normal(size=N)])
    model = bk.KernelRidge(KERNEL, alpha="cv", n_landmarks=M, random_state=0)
    alone, together = model.fit(X, Y).alpha_, model.fit(X, both).alpha_
    units = model.fit(X, both * [1e6, 1.0]).alpha_
    assert together == units
    assert alone < together


@pytest.mark.parametrize("form", [{}, {"manifold": 0.0}, {"n_landmarks": 40}], ids=["graph", "exact", "landmarks"])
def test_sssl_chooses_on_labelled_rows(form):
    sparse = np.where(np.arange(N) % 3, np.nan, Y)
    chosen = bk.SSSL(KERNEL, alpha="cv", random_state=0, **form).fit(X, sparse)
    again = bk.SSSL(
        KERNEL, alpha=chosen.alpha_, random_state=0, **{**form, "manifold": chosen._fitted.solution.manifold}
    )
    np.testing.assert_allclose(chosen.predict(X), again.fit(X, sparse).predict(X), rtol=1e-7)
    scores = [
        bk.SSSL(KERNEL, alpha=alpha, random_state=0, **form).fit(X, sparse).score(X[1::3], Y[1::3])
        for alpha in (1e-8, 1e4)
    ]
    assert chosen.score(X[1::3], Y[1::3]) > min(scores) + 0.05


def test_bits_do_not_depend_on_chunks_or_threads():
    model = bk.KernelRidge(KERNEL, alpha="cv", n_landmarks=M, random_state=0)
    whole = model.fit(X, Y)
    coef, alpha = whole.dual_coef_, whole.alpha_
    for chunk in (60, 100):
        rows = da.from_array(X, chunks=(chunk, D)), da.from_array(Y, chunks=chunk)
        with bk.executing("threads"):
            other = clone(model).fit(*rows)
        assert other.alpha_ == pytest.approx(alpha)
        np.testing.assert_allclose(other.dual_coef_, coef, rtol=1e-6)


def test_sums_of_folds_are_not_kept():
    model = bk.KernelRidgeClassifier(KERNEL, alpha="cv", n_landmarks=M, random_state=0)
    assert not hasattr(model, "partial_fit")
    model.fit(X, Y > 5)
    assert model._fitted.folds is None
    for again in (model.refit, lambda: model.with_landmarks(5)):
        with pytest.raises(ConfigError, match="alpha='cv' chooses by sums of folds"):
            again()
    assert model.set_params(alpha=model.alpha_).refit().alpha_ > 0


def test_probabilities_use_the_folds_too():
    model = bk.KernelRidgeClassifier(KERNEL, alpha="cv", n_landmarks=M, probability=True, random_state=0)
    assert model.fit(X, Y > 5).predict_proba(X).shape == (N, 2)


def test_where_folds_cannot_choose_it_is_said():
    with pytest.raises(ConfigError, match="alpha='cv' needs m×m sums"):
        bk.KernelRidge(KERNEL, alpha="cv", n_landmarks=M, solver="cg").fit(X, Y)
    with pytest.raises(ConfigError, match=r"alpha='cv'.*3 folds.*found 2"):
        bk.SweepSearchCV(bk.KernelRidge(KERNEL, alpha="cv", n_landmarks=M), {"kernel": [KERNEL]}, cv=2).fit(X, Y)
    with pytest.raises(DataError, match="two folds"):
        bk.KernelRidge(KERNEL, alpha="cv", n_landmarks=2).fit(as_rows(X, Y, group=np.zeros(N, int)))


def test_smooth_targets_of_float32_rows_take_penalties_below_its_rounding():
    x = RNG.uniform(-1, 1, size=(2000, 1)).astype(np.float32)
    y = np.sin(4 * x[:, 0].astype(float))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RankDeficiencyWarning)
        model = bk.KernelRidge(bk.Gaussian(sigma=0.5), alpha="cv", n_landmarks=20, random_state=0).fit(x, y)
    assert model._fitted.basis.dtype == "float64"
    assert np.abs(model.predict(x) - y).max() < 2e-2


def test_float32_rows_with_noise_are_swept_once():
    rng = np.random.default_rng(10)  # the next smaller penalty is better by itself, but none is told from the best
    x = rng.normal(size=(400, 3)).astype(np.float32)
    y = np.sin(2 * x[:, 0]) + 0.5 * rng.normal(size=400)
    model = bk.KernelRidge(bk.Gaussian(sigma=1.0), alpha="cv", n_landmarks=40, random_state=0).fit(x, y)
    assert model._fitted.basis.dtype == "float32"
    assert model.fit_report()["sweep"]["swept_again"] == []


def test_leaves_choose_their_own():
    x = np.linspace(0, 1, 800)[:, None]
    y = np.sin(60 * x[:, 0]) + 0.1 * RNG.normal(size=800)
    one = bk.KernelRidge(bk.Matern("scale"), n_landmarks=15, alpha="cv", random_state=0)
    leaves = bk.PartitionedRegressor(one, n_leaves=8, random_state=0).fit(x, y)
    assert len({leaf.alpha for leaf in leaves.leaves_}) > 1
    assert leaves.score(x, y) > 0.9


@pytest.mark.parametrize("count", [300, None], ids=["landmarks", "exact"])
@pytest.mark.parametrize("intercept", [True, False])
def test_gcv_warns_where_single_rows_decide(count, intercept):
    model = bk.KernelRidge(alpha="gcv", n_landmarks=count, fit_intercept=intercept, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        warnings.simplefilter("ignore", RankDeficiencyWarning)
        rows = heavy_tails(800, np.random.default_rng(5))
        with pytest.warns(PenaltyWarning, match=r"times worse than with a larger penalty.*use alpha='cv'"):
            model.fit(*rows)
        assert clone(model).set_params(alpha="cv").fit(*rows).alpha_ > 10 * model.alpha_


@pytest.mark.parametrize("kernel", [bk.Gaussian("scale"), bk.Matern("scale", nu=0.5)], ids=["smooth", "kinked"])
@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_gcv_does_not_warn_of_ordinary_rows(kernel, weight):
    landmarks = bk.KernelRidge(kernel, alpha="gcv", n_landmarks=80, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for y in (Y, np.column_stack([Y, -Y])):
            landmarks.fit(X, y, sample_weight=weight)
        bk.KernelRidge(kernel, alpha="gcv").fit(X, Y, sample_weight=weight)
    assert [str(one.message) for one in caught] == []


def test_rows_that_are_left_out_are_those_of_fits_without_them():
    model = bk.KernelRidge(KERNEL, alpha=0.1).fit(X, Y, sample_weight=WEIGHT)
    K, ones = KERNEL(X), np.ones(N)
    inverse = np.linalg.inv(K + 0.1 * np.diag(1 / WEIGHT))
    centred = inverse - np.outer(inverse @ ones, ones @ inverse) / (ones @ inverse @ ones)
    leverage = 1 - 0.1 / WEIGHT * np.diagonal(centred)
    found = left_out((Y - model.predict(X))[:, None], leverage, WEIGHT)
    errors = []
    for row in range(0, N, 12):
        rest = np.arange(N) != row
        errors.append(Y[row] - clone(model).fit(X[rest], Y[rest], sample_weight=WEIGHT[rest]).predict(X[[row]])[0])
    some = np.arange(0, N, 12)
    apart = (Y - model.predict(X))[some] / (1 - leverage[some])
    np.testing.assert_allclose(errors, apart, rtol=1e-6)
    assert found == pytest.approx(np.average(((Y - model.predict(X)) / (1 - leverage)) ** 2, weights=WEIGHT))
