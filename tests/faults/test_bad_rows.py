"""Rows with NaN or infinity (F18) are refused by name, or skipped with the result of the cleaned data; masked rows."""

import json

import numpy as np
import pytest
from kinds import of_kind
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.pipeline import make_pipeline

import bigkernel as bk
from bigkernel.engine.rows import as_rows
from bigkernel.errors import DataError

rng = np.random.default_rng(18)
N, D, M = 160, 4, 12
X = rng.normal(size=(N, D))
Y = np.sin(X[:, 0]) + X[:, 1] * X[:, 2]
WEIGHT = rng.uniform(0.2, 2, N)
BAD = np.array([3, 17, 57, 58, 59, 140])
DIRTY = X.copy()
DIRTY[BAD, [0, 1, 2, 3, 0, 1]] = np.nan, np.inf, -np.inf, np.nan, np.inf, np.nan
GOOD = np.setdiff1d(np.arange(N), BAD)
Z = X[GOOD[:M]]
NEW = rng.normal(size=(40, D))

pytestmark = pytest.mark.usefixtures("small_steps")

KINDS = ["numpy", "dask", "zarr", "corpus"]
every_kind = pytest.mark.parametrize("kind", KINDS)
NUMBERS = {
    "krr": lambda: bk.KernelRidge(bk.Gaussian(1.5), alpha=0.1, fit_intercept=False, landmarks=Z),
    "krr with an intercept": lambda: bk.KernelRidge(bk.Gaussian(1.5), alpha=0.1, fit_intercept=True, landmarks=Z),
    "krr exact": lambda: bk.KernelRidge(bk.Gaussian(1.5), alpha=0.1, fit_intercept=False),
    "krr exact, width from the data": lambda: bk.KernelRidge(alpha=0.1, fit_intercept=True),
    "sssl": lambda: bk.SSSL(bk.Gaussian(1.5), n_components=6, manifold=0, landmarks=Z),
    "sssl of a graph": lambda: bk.SSSL(bk.Gaussian(1.5), n_components=6, n_landmarks=9, random_state=0),
    "sssl exact": lambda: bk.SSSL(bk.Gaussian(1.5), n_components=6, manifold=0),
    "ridge": lambda: bk.Ridge(2.0),
    "least squares": bk.LinearRegression,
    "standardized": lambda: make_pipeline(
        bk.Standardizer(), bk.KernelRidge(bk.Gaussian(1.5), alpha=0.1, n_landmarks=N - 6)
    ),
    "unit norm": lambda: make_pipeline(bk.UnitNormalizer(), bk.KernelRidge(bk.Gaussian(0.8), alpha=0.1, landmarks=Z)),
}


@pytest.fixture
def build(tmp_path, make_corpus):
    """Return rows with columns, from one of the kinds of input."""

    def make(kind, x, **columns):
        rows = of_kind(kind, x, make_corpus, tmp_path, **columns)
        return as_rows(rows, **({} if kind == "corpus" else columns))

    return make


def replaced(values, at, wrong):
    """Return a copy with other values at some indices."""
    out = values.astype(np.float64)
    out[at] = wrong
    return out


# ---------------------------------------------------------------- refused


@every_kind
@pytest.mark.parametrize(
    "array, columns, x",
    [
        ("contain NaN or infinity", {"y": Y}, DIRTY),
        ("y: .*infinite", {"y": replaced(Y, BAD, np.inf)}, X),
        ("weight: .*NaN or infinite", {"y": Y, "weight": replaced(WEIGHT, BAD, np.nan)}, X),
        ("weight: .*NaN or infinite", {"y": Y, "weight": replaced(WEIGHT, BAD, np.inf)}, X),
    ],
    ids=["x", "y", "weight NaN", "weight infinite"],
)
def test_bad_rows_are_refused_with_their_array_indices_and_count(build, kind, array, columns, x):
    rows = build(kind, x, **columns)
    chunk = rows.read(50, 80)
    with pytest.raises(DataError, match=rf"{array}.* \[57, 58, 59\]; .*skip") as caught:
        rows.validate_or_mask(chunk)
    assert "3 of rows 50 to 79" in str(caught.value)
    with bk.executing("serial"), pytest.raises(DataError, match=rf"{array}.*\[(3|3, 17)\]"):
        bk.KernelRidge(bk.Gaussian(1.5), landmarks=Z).fit(rows)


@pytest.mark.parametrize("form", [{}, {"n_landmarks": 5}])
def test_masked_values_are_refused_or_skipped(form):
    masked = np.ma.MaskedArray(X, np.zeros(X.shape, bool))
    masked[7, 2] = np.ma.masked
    # the row itself may be drawn as a landmark
    with pytest.raises(DataError, match=r"row 7 contains NaN or infinity|NaN or infinity, the first are \[7\]"):
        bk.KernelRidge(**form).fit(as_rows(masked), Y)
    assert bk.KernelRidge(**form).fit(as_rows(masked).skip_bad_rows(), Y).skipped_rows_ == 1


@every_kind
def test_bad_rows_are_refused_in_prediction_even_where_a_fit_skips_them(build, kind, tmp_path):
    model = bk.KernelRidge(bk.Gaussian(1.5), landmarks=Z).fit(X, Y)
    plain = build(kind, DIRTY)
    rows = plain.skip_bad_rows()
    for given in (plain, rows):
        with pytest.raises(DataError, match="NaN or infinity"):
            np.asarray(model.predict(given))
    if kind != "dask":
        with pytest.raises(DataError, match="NaN or infinity"):
            model.predict_to(rows, tmp_path / "out")


# ---------------------------------------------------------------- skipped


def fitted(make, rows):
    with bk.executing("serial"):
        return make().fit(rows)


def last_of(model):
    return model[-1] if hasattr(model, "steps") else model


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weighted"])
@pytest.mark.parametrize("make", NUMBERS.values(), ids=NUMBERS)
def test_skipping_equals_fitting_the_cleaned_data(make, weight):
    columns = {} if weight is None else {"weight": weight}
    rows = as_rows(DIRTY, Y, **columns).skip_bad_rows()
    clean = as_rows(X[GOOD], Y[GOOD], **{name: values[GOOD] for name, values in columns.items()})
    model, expected = fitted(make, rows), fitted(make, clean)
    assert_allclose(model.predict(NEW), expected.predict(NEW), atol=1e-10)
    assert last_of(model).skipped_rows_ == len(BAD)
    assert last_of(model).fit_report()["skipped_rows"] == len(BAD)
    assert last_of(expected).skipped_rows_ == 0


@pytest.mark.parametrize(
    "make", [NUMBERS[name] for name in ("krr", "krr with an intercept", "krr exact", "sssl", "sssl exact", "ridge")]
)
def test_rows_with_bad_targets_or_weights_are_skipped(make):
    y, weight = replaced(Y, [5, 6], [np.inf, -np.inf]), replaced(WEIGHT, [6, 90], np.nan)
    keep = np.setdiff1d(np.arange(N), [5, 6, 90])
    model = fitted(make, as_rows(X, y, weight=weight).skip_bad_rows())
    expected = fitted(make, as_rows(X[keep], Y[keep], weight=WEIGHT[keep]))
    assert model.skipped_rows_ == 3
    assert_allclose(model.predict(NEW), expected.predict(NEW), atol=1e-10)


@pytest.mark.parametrize("make", [NUMBERS["krr"], NUMBERS["ridge"]])
def test_partial_fit_and_score_skip_bad_rows(make):
    model = make()
    for half in (slice(0, 80), slice(80, N)):
        model.partial_fit(as_rows(DIRTY[half], Y[half]).skip_bad_rows())
    expected = make().fit(X[GOOD], Y[GOOD])
    assert_allclose(model.predict(NEW), expected.predict(NEW), atol=1e-10)
    assert model.skipped_rows_ == len(BAD)
    score = model.score(as_rows(DIRTY, Y).skip_bad_rows())
    assert score == pytest.approx(expected.score(X[GOOD], Y[GOOD]), abs=1e-10)


def test_a_search_that_skips_rows_equals_one_with_zero_weights():
    grid = {"alpha": [0.01, 1.0], "kernel": [bk.Gaussian(1.0), bk.Gaussian(2.0)]}
    make = lambda: bk.SweepSearchCV(bk.KernelRidge(landmarks=Z), grid, cv=3)  # noqa: E731
    weight = np.ones(N)
    weight[BAD] = 0
    search, expected = make().fit(as_rows(DIRTY, Y).skip_bad_rows()), make().fit(as_rows(X, Y, weight=weight))
    assert_allclose(search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"], atol=1e-10)
    assert search.best_params_["alpha"] == expected.best_params_["alpha"]


# ---------------------------------------------------------------- landmarks


@pytest.mark.parametrize("kind, m", list(zip(KINDS, [1, M, 80, len(GOOD)], strict=True)))
def test_landmarks_are_good_rows_and_determined_by_the_seed(build, kind, m):
    rows = build(kind, DIRTY, y=Y).skip_bad_rows()
    models = [bk.KernelRidge(bk.Gaussian(1.5), n_landmarks=m, random_state=s) for s in (0, 0, 1)]
    first, again, other = (fitted(lambda one=model: one, rows).landmarks_ for model in models)
    assert_array_equal(first, again)
    assert len(np.unique(first, axis=0)) == m
    assert {tuple(z) for z in first} <= {tuple(x) for x in X[GOOD]}
    assert m == len(GOOD) or not np.array_equal(first, other)
    expected = bk.KernelRidge(bk.Gaussian(1.5), landmarks=first).fit(X[GOOD], Y[GOOD])
    assert_allclose(models[0].predict(NEW), expected.predict(NEW), atol=1e-8)
    assert models[0].sweep_["skipped_rows"] == len(BAD)
    assert models[0].fit_report()["rows"] == len(GOOD)


@pytest.mark.parametrize("make", NUMBERS.values(), ids=NUMBERS)
def test_rows_that_are_all_bad_are_refused(make):
    with pytest.raises(DataError, match=r"all 160 rows contain NaN|a row with a positive weight|none among 160"):
        fitted(make, as_rows(np.full((N, D), np.nan), Y).skip_bad_rows())


# ---------------------------------------------------------------- cluster and command line


@pytest.mark.cluster
def test_a_cluster_that_skips_rows_gives_the_same_bits(build, client):
    rows = build("corpus", DIRTY, y=Y).skip_bad_rows()
    models = []
    for executor in ("serial", client):
        with bk.executing(executor):
            models.append(bk.KernelRidge(bk.Gaussian(1.5), n_landmarks=M, random_state=0).fit(rows))
    assert_array_equal(models[0].dual_coef_, models[1].dual_coef_)
    assert models[1].sweep_["executor"] == "dask"
    assert models[1].sweep_["skipped_rows"] == len(BAD)


def test_the_command_line_refuses_and_skips_bad_rows(make_corpus, tmp_path, run):
    path, model, skip = make_corpus(DIRTY, y=Y).path, tmp_path / "a.model", ("--on-bad-rows", "skip", "--json")
    fit = ["fit", path, model, "--landmarks", 20, "--sigma", 1.5]
    assert "NaN or infinity" in run(*fit, code=3).output
    assert not model.exists()
    assert json.loads(run(*fit, *skip).stdout)["skipped_rows"] == len(BAD)
    run("plan", path, "--landmarks", 20, *skip)
    run("score", model, path, code=3)
    assert json.loads(run("score", model, path, *skip).stdout)["rows"] == len(GOOD)
