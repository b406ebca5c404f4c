"""Linear fits that are inaccurate from moments are solved by QR of the rows: against 45 digits."""

import dask
import numpy as np
import pytest
from numpy.testing import assert_array_equal
from rounding import catch_warnings_of, precise_ridge

import bigkernel as bk
from bigkernel.errors import AccuracyWarning
from bigkernel.estimators.fit import precision

rng = np.random.default_rng(5)
N, D = 120, 4
UNITS = np.array([1.0, 30.0, 1e-3, 1.0])


def table(condition, offset, dtype="f8", seed=3):
    """Return nearly dependent columns with an offset, and two targets that vary along the smallest direction."""
    g = np.random.default_rng(seed)
    U = np.linalg.qr(g.normal(size=(N, D)))[0] * N**0.5
    V = np.linalg.qr(g.normal(size=(D, D)))[0]
    X = ((U * np.geomspace(1, 1 / condition, D)) @ V.T * UNITS + offset * np.array([1, -1, 2, 0])).astype(dtype)
    return X, np.column_stack([U.sum(axis=1), np.sin(U[:, 0]) + U[:, 3]]) + 0.3 * g.normal(size=(N, 2)) + 4


def distance(actual, expected):
    return np.linalg.norm(actual - expected) / np.linalg.norm(expected - expected.mean(axis=0))


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("offset", [0.0, 1e8])
@pytest.mark.parametrize("condition", [1e6, 1e10, 1e13])
def test_every_fit_is_accurate_to_a_thousandth_or_warns(condition, offset, dtype):
    X, Y = table(condition, offset, dtype)
    g = np.random.default_rng(int(condition + offset) % 2**31)
    for alpha, intercept, weighted in (
        (0.0, True, True),
        (0.0, False, False),
        (1e-9, False, True),
        (1e-6, True, False),
    ):
        weight = g.uniform(0.1, 2, N) if weighted else None
        cut = {"bigkernel.chunk-bytes": int(g.integers(1024, 4000)), "bigkernel.block-rows": int(g.integers(3, 40))}
        model = bk.Ridge(alpha, fit_intercept=intercept)
        with dask.config.set({**cut, "bigkernel.min-segments": 3}):
            _, caught = catch_warnings_of(model.fit, X, Y, weight)
        error = distance(model.predict(X), precise_ridge(X, Y, alpha, intercept=intercept, weight=weight))
        estimate = model.diagnostics_["prediction_error"]
        assert error < 1e-3 or caught == [AccuracyWarning]
        assert estimate < 1e-3 or condition > 1e12
        assert error < 30 * estimate or error < 1e-6
        if condition == 1e10 and dtype == "f8" and alpha == 0 and not offset:
            assert model.fit_report()["sums"] == "qr"
            assert error < 1e-5
            assert "QR factorisation" in model.sweep_["swept_again"][-1]


@pytest.mark.parametrize("intercept", [True, False])
def test_nearly_dependent_columns_are_solved_by_qr(intercept):
    U = np.linalg.qr(np.column_stack([np.ones(N), rng.normal(size=(N, 3))]))[0][:, 1:]
    X, target = np.column_stack([U[:, 0], U[:, 0] + 1e-13 * U[:, 1]]), U @ [1, 0.03, 0.03]
    model, caught = catch_warnings_of(bk.LinearRegression(fit_intercept=intercept).fit, X, target)
    error = distance(model.predict(X), precise_ridge(X, target, intercept=intercept))
    assert error < 1e-3 or caught == [AccuracyWarning]
    assert model.fit_report()["sums"] == "qr"
    assert error < 0.01


def test_equal_columns_share_their_coefficients():
    X, Y = table(1e8, 0.0, seed=5)
    twice = np.column_stack([X, X[:, 0]])
    model = bk.LinearRegression().fit(twice, Y)
    assert model.fit_report()["sums"] == "qr"
    assert distance(model.predict(twice), precise_ridge(X, Y)) < 1e-6
    # rounding ε of columns of length 1 rotates the null direction by ε σ₁/σ_d, d = 4; in their own units its share
    # along column j is larger by l₀/l_j, and the correction along it has that error in coefficient j
    lengths = np.linalg.norm(X - X.mean(axis=0), axis=0)
    turned = np.finfo(float).eps * np.linalg.cond((X - X.mean(axis=0)) / lengths)
    wrong = turned * np.linalg.norm(model.coef_[:, :4] * lengths[0] / lengths, axis=1)
    assert (wrong < 0.01 * np.abs(model.coef_[:, 0])).all()
    assert (np.abs(model.coef_[:, 0] - model.coef_[:, 4]) <= wrong).all()


def test_refits_use_the_r_factor_and_partial_fits_the_moments(tmp_path):
    X, Y = table(1e10, 1e3)
    model = bk.Ridge(1e-14).fit(X, Y)
    assert model.fit_report()["sums"] == "qr"
    for alpha, intercept in ((1e-12, True), (1e-13, False)):
        model.set_params(alpha=alpha, fit_intercept=intercept).refit()  # warnings are errors here
        assert distance(model.predict(X), precise_ridge(X, Y, alpha, intercept=intercept)) < 1e-4
    bk.save_model(model, tmp_path / "a.model")
    read = bk.load_model(tmp_path / "a.model")
    assert_array_equal(read.predict(X), model.predict(X))
    assert_array_equal(bk.Predictor.of(model).predict(X), model.predict(X))
    assert_array_equal(read.refit().coef_, model.coef_)
    with pytest.warns(AccuracyWarning):
        model.partial_fit(X, Y)
    assert model.fit_report()["sums"] == "float64"


def test_penalties_by_target_and_by_gcv_use_the_r_factor():
    X, Y = table(1e10, 0.0)
    each = bk.Ridge([1e-14, 1e-10]).fit(X, Y)
    expected = [precise_ridge(X, Y[:, c], alpha) for c, alpha in enumerate((1e-14, 1e-10))]
    assert each.fit_report()["sums"] == "qr"
    assert distance(each.predict(X), np.column_stack(expected)) < 1e-5
    model = bk.Ridge(1e-14).fit(X, Y[:, 0])
    chosen = model.set_params(alpha="gcv").refit().alpha_
    U, values, _ = np.linalg.svd(X - X.mean(axis=0), full_matrices=False)
    explained = U.T @ (Y[:, 0] - Y[:, 0].mean())

    def gcv(alpha):
        left = ((alpha / (values**2 + alpha)) ** 2 * explained**2).sum() + Y[:, 0].var() * N - (explained**2).sum()
        return left / (N - 1 - (values**2 / (values**2 + alpha)).sum()) ** 2

    assert gcv(chosen) <= 1.05 * min(map(gcv, 10.0 ** np.arange(-22, 4)))
    assert distance(model.predict(X), precise_ridge(X, Y[:, 0], chosen)) < 1e-5


def test_the_best_model_of_a_search_is_solved_by_qr():
    X, Y = table(1e10, 0.0)
    with pytest.warns(AccuracyWarning):  # of the folds
        search = bk.SweepSearchCV(bk.Ridge(), {"alpha": [1e-14]}, cv=3).fit(X, Y)
    assert search.best_estimator_.fit_report()["sums"] == "qr"
    assert distance(search.predict(X), precise_ridge(X, Y, 1e-14)) < 1e-4


def test_too_many_columns_for_qr_warn(monkeypatch):
    monkeypatch.setattr(precision, "MOST_COLUMNS", D)
    with pytest.warns(AccuracyWarning):
        model = bk.LinearRegression().fit(*table(1e10, 0.0))
    assert model.fit_report()["sums"] == "float64"


def test_executors_and_resuming_give_the_same_bits(tmp_path, client):
    X, Y = table(1e10, 1e3)
    corpus, bits = bk.write_corpus(tmp_path / "rows.corpus", X, Y[:, 0], chunk_rows=7), []
    for executor, resume in (("serial", False), ("threads", True), (client, None)):
        run = {} if resume is None else {"run": tmp_path / "run", "resume": resume}
        with bk.executing(executor, **run):
            model = bk.LinearRegression().fit(bk.open_corpus(corpus.path))
        bits.append(model.coef_.tobytes() + np.asarray(model.intercept_).tobytes())
        assert model.fit_report()["sums"] == "qr"
        if resume:
            assert model.sweep_["resumed_segments"] == model.sweep_["segments"] > 3
    assert len(set(bits)) == 1
    assert {child.name for child in (tmp_path / "run").iterdir()} >= {"moments", "qr"}
