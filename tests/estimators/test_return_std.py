"""Standard deviations in memory and on disk, against dense Gaussian processes and those of scikit-learn."""

import dask
import dask.array as da
import numpy as np
import pytest
import reference
from kernel_cases import POSITIVE, ignore_rank_warnings
from kinds import LAZY, of_kind
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.compose import TransformedTargetRegressor
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Exponentiation
from sklearn.gaussian_process.kernels import Matern as MaternProcess
from sklearn.pipeline import make_pipeline

import bigkernel as bk
from bigkernel.errors import ConfigError

rng = np.random.default_rng(20060102)
N, D, M, ALPHA = 90, 4, 12, 0.3
X = rng.normal(size=(N, D))
Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2]]) + 0.1 * rng.normal(size=(N, 2))
y = Y[:, 0]
NEW = rng.normal(size=(33, D))
Z = rng.normal(size=(M, D))
WEIGHT = rng.uniform(0.1, 3, N)
LABELS = rng.integers(0, 3, N)
LENGTHS = np.array([0.8, 1.0, 1.5, 2.0])
every_kernel = pytest.mark.parametrize("kernel", POSITIVE.values(), ids=POSITIVE)
FORMS = {"exact": {}, "landmarks": {"landmarks": Z}}
every_form = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
SAME = {"kernel": bk.Gaussian(1.4), "alpha": ALPHA}
GIVEN = {"alpha": ALPHA, "noise_variance": ALPHA}  # the process of covariance k

pytestmark = pytest.mark.usefixtures("small_steps")


def variance(k, form, rows=X, new=NEW, alpha=ALPHA, weight=None, fit_intercept=False):
    """Return the dense variance of the exact form or of that with landmarks."""
    noise = alpha, weight, fit_intercept
    if form:
        return reference.gp_variance_nystrom(k(rows, Z), k(Z, Z), k(new, Z), np.diagonal(k(new, new)), *noise)
    return reference.gp_variance_exact(k(rows, rows), k(new, rows), np.diagonal(k(new, new)), *noise)


def gaussian(A, B):
    return reference.gaussian(A, B, 1.4)


@ignore_rank_warnings
@every_form
@every_kernel
def test_deviations_match_the_dense_process(kernel, form):
    model = bk.KernelRidge(kernel, **GIVEN, fit_intercept=False, **form).fit(X, y)
    mean, std = model.predict(NEW, return_std=True)
    assert mean.shape == std.shape == (33,)
    assert mean.dtype == std.dtype == np.float64
    # the distance of a row to itself is 1e-16 by rounding, and Matérn 1/2 takes its square root
    assert_allclose(std**2, variance(reference.of_kernel(kernel), form), rtol=1e-7)
    assert_allclose(mean, model.predict(NEW), rtol=1e-12)


@pytest.mark.parametrize("weight", [None, np.where(np.arange(N) % 7, WEIGHT, 0)], ids=["", "weights"])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("alpha", [1e-3, 1e3])
@every_form
def test_deviations_of_any_penalty_and_weights_are_those_of_the_dense_process(form, alpha, fit_intercept, weight):
    given = {"alpha": alpha, "fit_intercept": fit_intercept}
    model = bk.KernelRidge(bk.Gaussian(1.4), noise_variance=alpha, **given, **form).fit(X, y, weight)
    expected = variance(gaussian, form, weight=weight, **given)
    assert_allclose(model.predict(NEW, return_std=True)[1] ** 2, expected, rtol=1e-6)


PROCESSES = {
    "gaussian": (bk.Gaussian(1.4), RBF(1.4)),
    "gaussian of four lengths": (bk.Gaussian(LENGTHS), RBF(LENGTHS)),
    "matern 1/2": (bk.Matern(2.0, nu=0.5), MaternProcess(2.0, nu=0.5)),
    "matern 3/2": (bk.Matern(2.0, nu=1.5), MaternProcess(2.0, nu=1.5)),
    "matern 5/2": (bk.Matern(2.0, nu=2.5), MaternProcess(2.0, nu=2.5)),
    "linear": (bk.Linear(), DotProduct(0.0, "fixed")),
    "polynomial": (
        bk.Polynomial(2, 0.4, 1.5),
        Exponentiation(ConstantKernel(0.4) * DotProduct(0.0, "fixed") + ConstantKernel(1.5), 2),
    ),
}


@pytest.mark.parametrize("kernel, process", PROCESSES.values(), ids=PROCESSES)
def test_exact_fits_match_scikit_learn_with_weights_as_inverse_noise(kernel, process):
    model = bk.KernelRidge(kernel, **GIVEN, fit_intercept=False).fit(X, Y, sample_weight=WEIGHT)
    noise = ALPHA / WEIGHT
    theirs = GaussianProcessRegressor(process, alpha=noise, optimizer=None).fit(X, Y)
    mean, std = model.predict(NEW, return_std=True)
    expected_mean, expected_std = theirs.predict(NEW, return_std=True)
    assert_allclose(mean, expected_mean, atol=1e-7)
    assert_allclose(std**2, expected_std**2 + ALPHA, rtol=1e-7)  # theirs is of the function, ours of an observation


@pytest.mark.parametrize("fit_intercept", [False, True])
@every_kernel
@ignore_rank_warnings
def test_single_precision_blocks_give_three_digits(kernel, fit_intercept):
    rows, new, landmarks = (values.astype(np.float32) for values in (X, NEW, Z))
    settings = {"kernel": kernel, **GIVEN, "landmarks": landmarks, "fit_intercept": fit_intercept}
    model = bk.KernelRidge(**settings).fit(rows, y)
    assert model.dtype_ == "float32"
    double = bk.KernelRidge(**settings, dtype="float64").fit(rows, y).predict(new, return_std=True)[1]
    assert_allclose(model.predict(new, return_std=True)[1] ** 2, double**2, rtol=1e-3)


@pytest.mark.parametrize("kernel", ["linear", bk.Polynomial(2, gamma=0.2)])
@ignore_rank_warnings
def test_landmarks_that_explain_all_of_the_kernel_leave_no_rounding_in_deviations(kernel):
    settings = {"kernel": kernel, "alpha": 1e-6, "noise_variance": 1e-6, "n_landmarks": 100, "random_state": 0}
    X = np.random.default_rng(0).normal(size=(600, 6))
    single, double = (
        bk.KernelRidge(**settings, dtype=dtype).fit(X, X[:, 0]).predict(X, return_std=True)[1]
        for dtype in ("float32", "float64")
    )
    assert_allclose(single, double, rtol=1e-5)


@pytest.fixture
def build(tmp_path, make_corpus):
    """Return a function that gives rows as one of the lazy kinds of input."""

    def make(kind, rows=NEW):
        return of_kind(kind, da.from_array(rows) if kind == "rows" else rows, make_corpus, tmp_path)

    return make


@pytest.mark.parametrize("kind", LAZY)
@every_form
def test_lazy_rows_give_a_lazy_pair_equal_to_that_of_numpy(build, kind, form):
    model = bk.KernelRidge(**SAME, fit_intercept=True, **form).fit(X, Y)
    expected = model.predict(NEW, return_std=True)
    pair = model.predict(build(kind), return_std=True)
    assert isinstance(pair, tuple)
    for lazy, values in zip(pair, expected, strict=True):
        assert isinstance(lazy, da.Array)
        assert lazy.shape == values.shape
        assert lazy.dtype == np.float64
        assert_allclose(lazy.compute(), values, rtol=1e-12, atol=1e-13)
        assert_allclose(lazy[3:17].compute(), values[3:17], rtol=1e-12, atol=1e-13)
    together = dask.compute(*pair)
    assert_allclose(together[1], expected[1], rtol=1e-12)


@pytest.mark.parametrize("form", [{}, {"landmarks": Z, "fit_intercept": True}])
def test_unlabelled_rows_of_a_corpus_do_not_change_deviations(make_corpus, form):
    holes = np.where(np.arange(N) % 4 == 0, np.nan, y)
    kept = np.isfinite(holes)
    model = bk.KernelRidge(**SAME, **form).fit(make_corpus(X, y=holes, weight=WEIGHT))
    expected = bk.KernelRidge(**SAME, **form).fit(X[kept], y[kept], WEIGHT[kept]).predict(NEW, return_std=True)
    actual = model.predict(NEW, return_std=True)
    assert_allclose(actual[0], expected[0], atol=1e-9)
    assert_allclose(actual[1], expected[1], rtol=1e-9)


def test_row_maps_apply_to_deviations(make_corpus, tmp_path):
    corpus = make_corpus(NEW, chunk_rows=11)
    steps = [bk.Rescaler(0.5), bk.Standardizer()]
    model = make_pipeline(*steps, bk.KernelRidge(bk.Linear(), **GIVEN, fit_intercept=False)).fit(X, y)
    mapped = [(0.5 * rows - (0.5 * X).mean(0)) / (0.5 * X).std(0) for rows in (X, NEW)]
    expected = np.sqrt(variance(reference.linear, {}, rows=mapped[0], new=mapped[1]))
    assert_allclose(model.predict(corpus, return_std=True)[1].compute(), expected, rtol=1e-9)
    rows = model[:-1].transform(corpus)
    assert_allclose(model[-1].predict_to(rows, tmp_path / "out", return_std=True)["std"][...], expected, rtol=1e-9)


@pytest.mark.parametrize("kind", ["corpus", "dask"])
@every_form
def test_written_deviations_equal_those_of_predict(build, kind, form, tmp_path):
    rows = build(kind)
    for name, target, decision in (("flat", y, False), ("two", Y, True)):
        model = bk.KernelRidge(**SAME, fit_intercept=True, **form).fit(X, target)
        mean, std = model.predict(NEW, return_std=True)
        written = model.predict_to(rows, tmp_path / name, return_std=True, decision=decision)
        assert sorted(written.array_keys()) == sorted(["prediction", "std", *(["decision"] if decision else [])])
        assert_allclose(written["prediction"][...], mean, rtol=1e-12, atol=1e-13)
        assert written["std"].shape == mean.shape
        assert written["std"].dtype == np.float64
        assert written["std"].chunks == written["prediction"].chunks
        assert_allclose(written["std"][...], std, rtol=1e-12)
        if decision:
            assert_allclose(written["decision"][...], mean, rtol=1e-12, atol=1e-13)
    plain = model.predict_to(rows, tmp_path / "plain")
    assert sorted(plain.array_keys()) == ["prediction"]


@pytest.mark.slow
@pytest.mark.cluster
def test_a_cluster_gives_the_bits_of_this_process(make_corpus, tmp_path, client):
    form = FORMS["landmarks"]
    corpus = make_corpus(NEW, chunk_rows=5)
    model = bk.KernelRidge(**SAME, fit_intercept=True, **form).fit(X, y)
    with bk.executing("serial"):
        here = model.predict_to(corpus, tmp_path / "here", return_std=True)["std"][...]
    with bk.executing(client):
        there = model.predict_to(corpus, tmp_path / "there", return_std=True)["std"][...]
        fitted = bk.KernelRidge(**SAME, fit_intercept=True, **form).fit(make_corpus(X, name="rows", y=y))
    assert_array_equal(there, here)
    assert_allclose(fitted.predict(NEW, return_std=True)[1], here, rtol=1e-9)
    mean, std = client.gather(client.compute(list(model.predict(corpus, return_std=True))))
    assert_allclose(mean, model.predict(NEW), rtol=1e-12, atol=1e-13)
    assert_allclose(std, here, rtol=1e-12)


@ignore_rank_warnings
@every_form
def test_deviations_of_an_indefinite_kernel_are_refused(form, make_corpus, tmp_path):
    model = bk.KernelRidge(bk.Sigmoid(1.0, -0.5), alpha=ALPHA, **form).fit(X, y)
    before, corpus = model.predict(NEW), make_corpus(NEW)
    for call in (
        lambda: model.predict(NEW, return_std=True),
        lambda: model.predict(corpus, return_std=True),
        lambda: model.predict_to(corpus, tmp_path / "out", return_std=True),
    ):
        with pytest.raises(ConfigError, match="expected a positive definite kernel, found the sigmoid"):
            call()
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
    assert_array_equal(model.predict(NEW), before)


@pytest.mark.parametrize("alpha", [1e-3, 0.3, "gcv"])
@pytest.mark.parametrize("weight", [None, WEIGHT, 1000 * WEIGHT], ids=["", "weights", "large weights"])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_with_landmarks_the_noise_is_that_of_the_residuals(fit_intercept, weight, alpha):
    w = np.ones(N) if weight is None else weight
    settings = {"kernel": bk.Gaussian(1.4), "fit_intercept": fit_intercept, "landmarks": Z}
    model = bk.KernelRidge(alpha=alpha if alpha == "gcv" else alpha * w.mean(), **settings).fit(X, Y, weight)
    given = bk.KernelRidge(alpha=model.alpha_, **settings)
    H = given.fit(X, np.eye(N), weight).predict(X)
    noise = (w[:, None] * (model.predict(X) - Y) ** 2).sum(axis=0) / (N - np.trace(H))
    B, new, inverse = gaussian(X, Z), gaussian(NEW, Z), np.linalg.inv(gaussian(Z, Z))
    missing = np.average(1 - (B @ inverse * B).sum(axis=1), weights=w)
    beyond = np.maximum(1 - (new @ inverse * new).sum(axis=1) - missing, 0) / (model.alpha_ + missing)
    whitened = np.linalg.cholesky(inverse)
    phi, at = B @ whitened, new @ whitened
    centre = np.average(phi, axis=0, weights=w) if fit_intercept else np.zeros(M)
    G = (phi - centre).T @ (w[:, None] * (phi - centre)) + model.alpha_ * np.eye(M)
    known = ((at - centre) @ np.linalg.inv(G) * (at - centre)).sum(axis=1) + fit_intercept / w.sum()
    expected = np.sqrt((beyond + known + 1 / w.mean())[:, None] * noise)
    assert_allclose(model.predict(NEW, return_std=True)[1], expected, rtol=1e-6)


@pytest.mark.parametrize("weight", [None, WEIGHT, np.where(np.arange(N) % 3, 1000 * WEIGHT, 0)])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("alpha", [1e-9, 0.3])
def test_exact_fits_take_the_errors_of_rows_that_are_left_out(fit_intercept, weight, alpha):
    w = np.ones(20) if weight is None else weight[:20]
    kept = np.flatnonzero(w)
    model = bk.KernelRidge(
        bk.Gaussian(1.4), alpha * w.mean(), noise_variance=alpha * w.mean(), fit_intercept=fit_intercept
    )
    squares = np.zeros(2)
    for row in kept:
        others = kept[kept != row]
        mean, std = model.fit(X[others], Y[others], w[others]).predict(X[[row]], return_std=True)
        squares += ((Y[row] - mean[0]) ** 2 / (std[0] ** 2 + model.alpha_ * (1 / w[row] - 1))) / len(kept)
    unit = model.fit(X[:20], Y[:20], w).predict(NEW, return_std=True)[1] ** 2
    unit += model.alpha_ * (1 / w[kept].mean() - 1)
    estimated = model.set_params(noise_variance=None).predict(NEW, return_std=True)[1]
    assert_allclose(estimated, np.sqrt(unit * squares), rtol=1e-5)


def bump(rows):
    return np.sin(9 * rows[:, 0]) * np.cos(7 * rows[:, 1])


def noisy(rows, f, noise):
    return rows, f + noise * rng.normal(size=f.shape)


def two_targets(n):
    rows = rng.uniform(size=(n, 2))
    return noisy(rows, np.column_stack([100 * bump(rows), bump(rows) ** 2]), np.array([10, 0.3]))


def clusters(n):
    rows = rng.normal(size=(20, 3))[rng.integers(0, 20, n)] + 0.01 * rng.normal(size=(n, 3))
    return noisy(rows, np.sin(rows[:, 0]), 0.3)


TABLES = {
    "two targets": two_targets,
    "varying noise": lambda n: noisy(rows := rng.uniform(size=(n, 2)), bump(rows), 0.1 + rows[:, 0]),
    "heavy tails": lambda n: noisy(rows := rng.standard_t(3, size=(n, 4)), np.sin(rows[:, 0]), rng.gamma(2, size=n)),
    "clusters": clusters,
    "noise alone": lambda n: noisy(rng.uniform(size=(n, 2)), np.full(n, 7.0), 1e3),
    "hardly any noise": lambda n: noisy(rows := rng.uniform(size=(n, 2)), bump(rows), 1e-2),
    "a sine": lambda n: noisy(rows := rng.uniform(0, 6, size=(n, 1)), 50 * np.sin(rows[:, 0]), 20),
}
MATERN = {"kernel": bk.Matern(0.5, nu=1.5), "random_state": 0}
SEARCHED = {"kernel__sigma": [0.2, 0.5, 1.0], "alpha": np.geomspace(1e-3, 10, 5)}
MODELS = {
    "a number": lambda: bk.KernelRidge(**MATERN, alpha=1.0, n_landmarks=120),
    "a small number": lambda: bk.KernelRidge(**MATERN, alpha=1e-3, n_landmarks=120),
    "gcv": lambda: bk.KernelRidge(**MATERN, alpha="gcv", n_landmarks=120),
    "exact": lambda: bk.KernelRidge(**MATERN, alpha=0.1),
    "searched": lambda: bk.SweepSearchCV(bk.KernelRidge(**MATERN, n_landmarks=120), SEARCHED, cv=3),
    "leaves": lambda: bk.PartitionedRegressor(MODELS["gcv"](), 4, posterior=True, random_state=0),
    "leaves of a small number": lambda: bk.PartitionedRegressor(
        MODELS["a small number"](), 4, posterior=True, random_state=0
    ),
}


@pytest.mark.filterwarnings("ignore::bigkernel.errors.BestAtEdgeWarning", "ignore::bigkernel.errors.AccuracyWarning")
@pytest.mark.parametrize(
    "name, table",  # every model on three tables and every table for three models, the other pairs are slow
    [
        pytest.param(name, table, id=f"{name}-{table}", marks=[pytest.mark.slow] * ((i - j) % 7 > 2))
        for i, name in enumerate(MODELS)
        for j, table in enumerate(TABLES)
    ],
)
def test_nine_in_ten_observations_are_within_the_bands_of_their_width(name, table, monkeypatch):
    monkeypatch.setitem(globals(), "rng", np.random.default_rng(0))  # the same table for all models, in any order
    X, y = TABLES[table](3200)
    rows = slice(0, 600 if name == "exact" else 1200)
    model = MODELS[name]().fit(X[rows], y[rows])
    mean, std = getattr(model, "best_estimator_", model).predict(X[1200:], return_std=True)
    within = (np.abs(mean - y[1200:]) < 1.645 * std).mean(axis=0)
    assert_allclose(within, 0.9, rtol=0, atol=0.05 + 0.013)  # and two standard errors of 2,000 rows


@pytest.mark.parametrize("leaves", [0, 6])
def test_bands_of_targets_with_other_units_are_as_wide_as_their_errors(leaves, monkeypatch):
    monkeypatch.setitem(globals(), "rng", np.random.default_rng(0))
    X, y = two_targets(5400)
    model = bk.KernelRidge(bk.Matern(0.3, nu=1.5), n_landmarks=120, alpha="gcv", random_state=0)
    if leaves:
        model = bk.PartitionedRegressor(model, leaves, posterior=True, random_state=0)
    mean, std = model.fit(X[:2400], y[:2400]).predict(X[2400:], return_std=True)
    within = (np.abs(mean - y[2400:]) < 1.645 * std).mean(axis=0)
    assert_allclose(within, 0.9, atol=0.03)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_exact_leaves_keep_no_factors_and_have_the_deviations_of_the_fit(weighted, fit_intercept, tmp_path):
    y, weight = X[:, 0] + 0.1 * X[:, 1] ** 2, np.linspace(0.5, 2, len(X)) if weighted else None
    model = bk.KernelRidge(bk.Matern(1.0, nu=0.5), alpha=0.1, fit_intercept=fit_intercept)
    leaves = bk.PartitionedRegressor(model, 1, posterior=True).fit(X, y, weight)
    assert not leaves.leaves_[0].predictor.keeps_factors
    new = X[:50] + 0.3
    expected = model.fit(X, y, weight).predict(new, return_std=True)
    bk.save_model(leaves, tmp_path / "m")
    for found in (leaves, bk.load_model(tmp_path / "m")):
        assert_allclose(found.predict(new, return_std=True), expected, rtol=1e-9)


FITS = {
    "all rows met": {"alpha": 1e-6},
    "all rows met, all landmarks": {"alpha": 1e-6, "landmarks": X[::2]},
    "no penalty": {"kernel": "linear", "alpha": 0, "landmarks": X[:8]},
    "as many landmarks as rows": {"kernel": "linear", "alpha": 0, "landmarks": X[:D]},
}


@ignore_rank_warnings
@pytest.mark.parametrize("options", FITS.values(), ids=FITS)
def test_fits_that_meet_their_rows_or_have_no_penalty_have_deviations_of_the_size_of_errors(options):
    new = np.random.default_rng(1).normal(size=(500, D))
    noise = 0.3 * np.random.default_rng(2).normal(size=(N // 2 + 500))
    truth = np.concatenate([X[::2], new])[:, 0] + noise
    mean, std = (
        bk.KernelRidge(**{"kernel": bk.Gaussian(3.0), **options})
        .fit(X[::2], truth[: N // 2])
        .predict(new, return_std=True)
    )
    ratio = np.sqrt(np.mean((mean - truth[N // 2 :]) ** 2) / np.mean(std**2))
    assert 0.5 < ratio < 2


@every_form
def test_a_noise_variance_scales_the_kernel_and_fits_the_penalty(form):
    model = bk.KernelRidge(**SAME, noise_variance=ALPHA, **form).fit(X, Y)
    unit = model.predict(NEW, return_std=True)[1]
    model.set_params(noise_variance=[4 * ALPHA, 9 * ALPHA])
    assert_allclose(model.predict(NEW, return_std=True)[1], unit * [2, 3], rtol=1e-12)
    for wrong in (0, -1.0, [1.0, 2.0, 3.0], [1.0, float("nan")]):
        with pytest.raises(ConfigError, match="noise_variance: expected a number above 0 or one for each of 2 targets"):
            model.set_params(noise_variance=wrong).predict(NEW, return_std=True)


OTHERS = {
    "KernelRidgeClassifier": lambda: bk.KernelRidgeClassifier(**SAME, landmarks=Z).fit(X, LABELS),
    "SSSLClassifier": lambda: bk.SSSLClassifier(**SAME, n_components=4, landmarks=Z).fit(X, LABELS),
    "SSSL": lambda: bk.SSSL(**SAME, n_components=4, landmarks=Z).fit(X, y),
    "Ridge": lambda: bk.Ridge().fit(X, y),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_estimators_have_no_deviations(name, make_corpus, tmp_path):
    model, corpus = OTHERS[name](), make_corpus(NEW)
    with pytest.raises(TypeError, match="return_std"):
        model.predict(NEW, return_std=True)
    with pytest.raises(ConfigError, match=f"std: {name} has no predictive standard deviation"):
        model.predict_to(corpus, tmp_path / "out", return_std=True)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]


def test_deviations_of_transformed_targets_are_refused_by_name():
    model = TransformedTargetRegressor(bk.KernelRidge(**SAME, landmarks=Z), func=np.exp, inverse_func=np.log).fit(X, y)
    with pytest.raises(ConfigError, match="return_std: gives two arrays; deviations of transformed targets"):
        model.predict(NEW, return_std=True)
    mean, std = model.regressor_.predict(NEW, return_std=True)
    assert mean.shape == std.shape == (len(NEW),)
