"""KernelRidge and its classifier: dense oracles, scikit-learn, invalid arguments, partial fits and plans."""

from contextlib import nullcontext

import dask.array as da
import numpy as np
import pytest
import reference
from kernel_cases import KERNELS, ignore_rank_warnings
from numpy.testing import assert_allclose, assert_array_equal
from probes import Touch
from sklearn.base import clone
from sklearn.metrics import mean_squared_error

from bigkernel import Gaussian, KernelRidge, KernelRidgeClassifier, Linear, LinearRegression, Ridge, Sigmoid
from bigkernel.engine.rows import ZarrSource
from bigkernel.errors import BigKernelError, ConfigError, DataError, PlanTooLargeError, RankDeficiencyWarning
from bigkernel.estimators.inputs import checks
from bigkernel.estimators.persistence import load_model, save_model

rng = np.random.default_rng(20120626)
N, D, C, M = 120, 4, 3, 15
X = rng.normal(size=(N, D))
NEW = rng.normal(size=(30, D))
Y = np.column_stack([np.sin(X[:, 0]), X[:, 1] * X[:, 2], X[:, 3]]) + 0.1 * rng.normal(size=(N, C))
y = Y[:, 0]
LABELS = rng.integers(0, 3, N)
WEIGHT = rng.uniform(0.1, 3, N) * (np.arange(N) % 10 > 0)  # some rows have none
Z = X[rng.permutation(N)[:M]]
every_kernel = pytest.mark.parametrize(
    "kernel", [*KERNELS.values(), Sigmoid(1.0, -0.5)], ids=[*KERNELS, "sigmoid with many negative eigenvalues"]
)
every_weight = pytest.mark.parametrize("weight", [None, WEIGHT], ids=["", "weighted"])
FAST = {"kernel": Gaussian(1.4), "alpha": 0.5, "random_state": 0}


def negative_part(kernel, K):
    """Expect the warning of a kernel that is not positive definite, with the share that is dropped."""
    if kernel.positive:
        return nullcontext()
    values = np.linalg.eigvalsh(K)
    share = 100 * -values[values < 0].sum() / np.abs(values).sum()
    return pytest.warns(RankDeficiencyWarning, match=rf"^sigmoid kernel: .*negative eigenvalues \({share:.1f}% of")


@every_kernel
@every_weight
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_exact_fits_solve_the_dense_system(kernel, weight, fit_intercept):
    oracle = reference.of_kernel(kernel)
    K = oracle(X, X)
    with negative_part(kernel, K):
        model = KernelRidge(kernel, alpha=0.5, fit_intercept=fit_intercept).fit(X, Y + 7, weight)
    if not kernel.positive or weight is not None:  # the positive part, with every row a landmark
        dual, intercept = reference.nystrom_krr(K, K, Y + 7, 0.5, fit_intercept, weight)
    elif fit_intercept:
        dual, intercept = reference.krr_exact_intercept(K, Y + 7, 0.5)
    else:
        dual, intercept = reference.krr_exact(K, Y + 7, 0.5), 0
        # the distance of a row to itself is 1e-16 by rounding, and Matérn 1/2 takes its square root
        assert_allclose(model.dual_coef_, dual, atol=1e-7)
    assert_allclose(model.predict(NEW), oracle(NEW, X) @ dual + intercept, atol=1e-7)
    assert_allclose(model.intercept_, intercept, atol=1e-7)


def test_an_exact_fit_and_its_deviations_refuse_a_matrix_larger_than_memory(monkeypatch):
    model = KernelRidge().fit(X, y)
    monkeypatch.setattr(checks, "EXACT_BYTES", 8 * N * N - 1)
    with pytest.raises(PlanTooLargeError, match=r"120×120.*n_landmarks"):
        KernelRidge().fit(X, y)
    with pytest.raises(PlanTooLargeError, match="120×120"):
        model.predict(NEW, return_std=True)
    assert model.predict(NEW).shape == (30,)


@ignore_rank_warnings
@every_kernel
@every_weight
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_fits_with_landmarks_solve_the_dense_normal_equations(kernel, weight, fit_intercept, small_steps):
    oracle = reference.of_kernel(kernel)
    model = KernelRidge(kernel, alpha=0.5, landmarks=Z, fit_intercept=fit_intercept).fit(X, Y + 3, weight)
    coef, intercept = reference.nystrom_krr(oracle(X, Z), oracle(Z, Z), Y + 3, 0.5, fit_intercept, weight)
    assert_allclose(model.predict(NEW), oracle(NEW, Z) @ coef + intercept, atol=1e-8)
    assert_allclose(model.intercept_, intercept, atol=1e-8)
    assert model.dual_coef_.shape == (M, C)


@ignore_rank_warnings
@pytest.mark.parametrize("form", [{}, {"landmarks": Z}], ids=["exact", "landmarks"])
@every_weight
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("kernel", [Gaussian(1.4), Sigmoid(0.05, 0.2)], ids=["gaussian", "sigmoid"])
def test_training_error_matches_the_mean_squared_error_of_scikit_learn(kernel, weight, fit_intercept, form):
    model = KernelRidge(kernel, alpha=0.5, fit_intercept=fit_intercept, **form).fit(X, Y + 3, weight)
    expected = mean_squared_error(Y + 3, model.predict(X), sample_weight=weight, multioutput="raw_values")
    assert_allclose(model.training_mse_, expected, rtol=1e-8)


def test_a_sigmoid_that_is_positive_on_the_rows_is_solved_without_a_warning():
    rows, target = np.eye(4), np.arange(4.0)
    model = KernelRidge(Sigmoid(1.0, 0.1), alpha=0.5, fit_intercept=False).fit(rows, target)
    K = reference.sigmoid(rows, rows, 1.0, 0.1)
    assert np.linalg.eigvalsh(K)[0] > 0.1
    assert_allclose(model.dual_coef_, reference.krr_exact(K, target, 0.5)[:, 0], atol=1e-12)


@pytest.mark.parametrize(
    "dtype, rows, expected",
    [
        ("auto", np.float64, "float64"),
        ("auto", np.float32, "float32"),
        ("float32", np.float64, "float32"),
        ("float64", np.float32, "float64"),
    ],
)
def test_the_dtype_is_that_of_the_rows_unless_given(dtype, rows, expected):
    model = KernelRidge(Gaussian(1.4), alpha=0.5, landmarks=Z, dtype=dtype, fit_intercept=False).fit(X.astype(rows), Y)
    coef, _ = reference.nystrom_krr(reference.gaussian(X, Z, 1.4), reference.gaussian(Z, Z, 1.4), Y, 0.5)
    predictions = reference.gaussian(NEW, Z, 1.4) @ coef
    assert model.dtype_ == expected
    assert_allclose(
        model.predict(NEW.astype(rows)),
        predictions,
        atol=1e-9 if expected == "float64" and rows == np.float64 else 2e-3,
    )


FORMS_WITHOUT_A_PENALTY = {
    "exact": KernelRidge(Linear(), alpha=0),
    "landmarks": KernelRidge(Linear(), alpha=0, landmarks=np.eye(D)),
    "more landmarks": KernelRidge(Linear(), alpha=0, landmarks=np.vstack([np.eye(D), np.ones((3, D)), X[:5]])),
    "ridge": Ridge(0),
    "least squares": LinearRegression(),
}


@ignore_rank_warnings
@pytest.mark.parametrize("fit_intercept, weight", [(False, None), (True, None), (True, WEIGHT)])
@pytest.mark.parametrize("form", FORMS_WITHOUT_A_PENALTY.values(), ids=FORMS_WITHOUT_A_PENALTY)
def test_without_a_penalty_every_linear_form_is_the_least_norm_solution(form, weight, fit_intercept):
    dependent = np.column_stack([X[:, :2], X[:, 0] - X[:, 1], np.zeros(N)])  # rank 2 of 4
    for rows in (dependent, dependent[:2], X[:3]):  # the last two have fewer rows than columns
        n = len(rows)
        some_weights = None if weight is None else weight[:n]
        coef, intercept = reference.ridge(rows, Y[:n], 0.0, fit_intercept, some_weights)
        model = clone(form).set_params(fit_intercept=fit_intercept).fit(rows, Y[:n], some_weights)
        assert_allclose(model.predict(NEW), NEW @ coef + intercept, atol=1e-7)


@pytest.mark.parametrize("form", [{}, {"landmarks": X[:20]}, {"landmarks": X[:26]}], ids=["exact", "same", "more"])
@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 1e-300])
def test_without_a_penalty_targets_are_interpolated_with_least_norm(form, fit_intercept, alpha):
    rows, target = X[:20], Y[:20]
    model = KernelRidge(Gaussian(0.8), alpha=alpha, fit_intercept=fit_intercept, **form).fit(rows, target)
    points = form.get("landmarks", rows)
    K, B = reference.gaussian(points, points, 0.8), reference.gaussian(rows, points, 0.8)
    coef, intercept = reference.nystrom_krr(B, K, target, 0.0, fit_intercept)
    assert_allclose(model.predict(rows), target, atol=1e-7)
    assert_allclose(model.training_mse_, 0, atol=1e-9)
    assert_allclose(model.predict(NEW), reference.gaussian(NEW, points, 0.8) @ coef + intercept, atol=1e-6)


@pytest.mark.parametrize("form", [{}, {"landmarks": Z}], ids=["exact", "landmarks"])
@pytest.mark.parametrize("labels", [LABELS, np.array(["lo", "mid", "hi"])[LABELS], LABELS * 10.0, LABELS == 1])
def test_classifier_is_ridge_on_one_hot_targets(labels, form):
    model = KernelRidgeClassifier(Gaussian(1.4), alpha=0.5, **form).fit(X, labels)
    classes, points = np.unique(labels), form.get("landmarks", X)
    hot = (labels[:, None] == classes) * 1.0
    core = reference.gaussian(points, points, 1.4)
    values = (
        reference.gaussian(NEW, points, 1.4)
        @ reference.nystrom_krr(reference.gaussian(X, points, 1.4), core, hot, 0.5)[0]
    )
    assert_array_equal(model.classes_, classes)
    assert_array_equal(model.predict(NEW), classes[values.argmax(axis=1)])
    decision = values if len(classes) > 2 else values[:, 1] - values[:, 0]
    assert_allclose(model.decision_function(NEW), decision, atol=1e-8)


@pytest.mark.parametrize("n_landmarks", [None, 5])
def test_a_class_without_rows_has_the_value_0(make_corpus, n_landmarks):
    corpus = make_corpus(X, y=LABELS % 2, classes=(0, 1, 2))
    model = KernelRidgeClassifier(Gaussian(1.4), n_landmarks=n_landmarks, random_state=0).fit(corpus)
    assert_array_equal(model.classes_, [0, 1, 2])
    two = KernelRidgeClassifier(Gaussian(1.4), n_landmarks=n_landmarks, random_state=0).fit(X, LABELS % 2)
    values = model.decision_function(NEW)
    assert_array_equal(values[:, 2], 0)
    assert_allclose(values[:, 1] - values[:, 0], two.decision_function(NEW), atol=1e-10)


def _fit(n_landmarks, *, X=X, y=y, weight=None, classifier=False, **params):
    kind = KernelRidgeClassifier if classifier else KernelRidge
    return kind(n_landmarks=n_landmarks, **params).fit(X, y, sample_weight=weight)


def _with(value, at, values=X):
    changed = values.astype(float)
    changed[at] = value
    return changed


REFUSED = {
    "alpha below 0": (ConfigError, "alpha.*-1", {"alpha": -1}),
    "alpha NaN": (ConfigError, "alpha.*nan", {"alpha": float("nan")}),
    "alpha infinite": (ConfigError, "alpha.*inf", {"alpha": float("inf")}),
    "sigma 0": (ConfigError, "sigma above 0", {"kernel": Gaussian(0.0)}),
    "one sigma too few": (ConfigError, r"shape \(4,\)", {"kernel": Gaussian(np.ones(3))}),
    "unknown landmarks": (ConfigError, "rpcholesky.*orthogonal-fourier.*'corners'", {"landmarks": "corners"}),
    "landmarks of other width": (DataError, r"\(m, 4\)", {"landmarks": np.ones((5, 3))}),
    "landmarks with NaN": (DataError, "landmarks: row 0", {"landmarks": np.full((5, 4), np.nan)}),
    "landmarks not as many": (DataError, "landmarks passed, 5", {"landmarks": Z[:5], "n_landmarks": 6}),
    "NaN rows, NumPy": (DataError, "7", {"X": _with(np.nan, (7, 1))}),
    "NaN rows, Dask": (DataError, "7", {"X": da.from_array(_with(np.nan, (7, 1)), chunks=50)}),
    "infinite rows, Dask": (DataError, "7", {"X": da.from_array(_with(-np.inf, (7, 1)), chunks=50)}),
    "infinite target, Dask": (DataError, "y.*7", {"X": da.from_array(X), "y": _with(np.inf, 7, y)}),
    "negative weight, Dask": (DataError, "weight.*7", {"X": da.from_array(X), "weight": _with(-1, 7, WEIGHT)}),
    "NaN weight, Dask": (DataError, "weight.*7", {"X": da.from_array(X), "weight": _with(np.nan, 7, WEIGHT)}),
    "no weight above 0": (DataError, "(?i)weight", {"weight": np.zeros(N)}),
    "no weight above 0, Dask": (DataError, "positive weight", {"X": da.from_array(X), "weight": np.zeros(N)}),
    "no weight above 0, Dask, intercept": (
        DataError,
        "positive weight",
        {"X": da.from_array(X), "weight": np.zeros(N), "fit_intercept": True},
    ),
    "negative weight": (DataError, "(?i)negative", {"weight": _with(-1, 7, WEIGHT)}),
    "no target": (DataError, "NaN", {"y": np.full(N, np.nan)}),
    "no target, Dask": (DataError, "labelled", {"X": da.from_array(X), "y": np.full(N, np.nan)}),
    "three dimensions, Dask": (DataError, "matrix", {"X": da.zeros((N, 2, 2))}),
    "complex, Dask": (DataError, "complex", {"X": da.from_array(X + 1j)}),
    "y too short, Dask": (DataError, "y: expected 120", {"X": da.from_array(X), "y": y[:5]}),
    "no y, Dask": (DataError, "y", {"X": da.from_array(X), "y": None}),
    "one class, Dask": (DataError, "only one class", {"X": da.from_array(X), "y": np.ones(N, int), "classifier": True}),
}


@pytest.mark.parametrize("n_landmarks", [5, None], ids=["landmarks", "exact"])
@pytest.mark.parametrize("kind, message, arguments", REFUSED.values(), ids=REFUSED)
def test_invalid_settings_and_data_are_refused(kind, message, arguments, n_landmarks):
    with pytest.raises(kind, match=message) as caught:
        _fit(**{"n_landmarks": n_landmarks, **arguments})
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, BigKernelError)


def test_a_fit_does_not_change_the_given_kernel():
    kernel = Gaussian()
    model = KernelRidge(kernel, n_landmarks=M, random_state=0).fit(X, y)
    assert kernel.sigma == "scale"
    assert isinstance(model.kernel_.sigma, float)
    assert clone(model).kernel.sigma == "scale"


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("targets", [100 + y, 100 + Y], ids=["one target", "several"])
def test_refit_without_an_intercept_or_with_one_equals_a_fresh_fit(before, targets):
    settings = {**FAST, "n_landmarks": M}
    model = KernelRidge(**settings, fit_intercept=before).fit(X, targets, WEIGHT)
    model.set_params(fit_intercept=not before).refit()
    fresh = KernelRidge(**settings, fit_intercept=not before).fit(X, targets, WEIGHT)
    assert_allclose(model.predict(NEW), fresh.predict(NEW), rtol=1e-7)
    assert_allclose(model.intercept_, fresh.intercept_, atol=1e-6)
    assert_allclose(model.training_mse_, fresh.training_mse_, rtol=1e-5)


@pytest.mark.parametrize("text", [False, True], ids=["integers", "text"])
def test_classes_may_name_labels_that_the_first_corpus_lacks(make_corpus, text):
    names = np.array(["a", "b", "c"]) if text else np.arange(3)
    early = make_corpus(X[LABELS < 2], name="early", y=LABELS[LABELS < 2], classes=tuple(names[:2].tolist()))
    late = make_corpus(X[LABELS > 0], name="late", y=LABELS[LABELS > 0] - text, classes=tuple(names[1:].tolist()))
    model = KernelRidgeClassifier(Gaussian(1.4), alpha=0.5, landmarks=Z).partial_fit(early, classes=names)
    model.partial_fit(late)
    both = np.concatenate([np.flatnonzero(LABELS < 2), np.flatnonzero(LABELS > 0)])
    whole = KernelRidgeClassifier(Gaussian(1.4), alpha=0.5, landmarks=Z).fit(X[both], names[LABELS[both]])
    assert_array_equal(model.classes_, names)
    assert_allclose(model.decision_function(NEW), whole.decision_function(NEW), atol=1e-10)


def test_partial_fit_refuses_new_labels_and_other_shapes():
    model = KernelRidgeClassifier(**FAST, n_landmarks=M).partial_fit(X, LABELS)
    with pytest.raises(DataError, match="label"):
        model.partial_fit(X, LABELS + 1)
    with pytest.raises(ValueError, match="3 features"):
        model.partial_fit(X[:, :3], LABELS)
    with pytest.raises(DataError, match="expected 3 targets"):
        KernelRidge(**FAST, n_landmarks=M).partial_fit(X, Y).partial_fit(X, Y[:, :2])


def test_a_failed_partial_fit_does_not_change_the_model():
    model = KernelRidge(**FAST, n_landmarks=M).partial_fit(X, y)
    before = model.predict(NEW)
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(_with(np.nan, (3, 0)), y)
    assert_array_equal(model.predict(NEW), before)
    assert model.statistics_["rows"].sum() == N


def test_planning_reads_one_step_and_matches_the_sweep(make_corpus, small_steps, monkeypatch, tmp_path):
    corpus = make_corpus(X, y=Y[:, 0])
    model = KernelRidge(**FAST, n_landmarks=M)
    touch = Touch(str(tmp_path / "read"))
    original = ZarrSource.read

    def counted(self, start, stop):
        if self.name == "x":
            with open(touch.path, "a") as file:
                file.write(f"{start}\n")
        return original(self, start, stop)

    monkeypatch.setattr(ZarrSource, "read", counted)
    planned = model.plan(corpus)
    assert touch.starts() == [0]
    assert not hasattr(model, "landmarks_")
    model.fit(corpus)
    assert touch.starts() != []
    assert {name: model.sweep_[name] for name in planned.summary()} == planned.summary()


@pytest.mark.filterwarnings("ignore::bigkernel.errors.RankDeficiencyWarning")
def test_the_plan_bounds_the_memory_of_the_chosen_dtype(make_corpus):
    corpus = make_corpus(rng.integers(0, 255, (N, D), dtype=np.uint8), y=y)
    model = KernelRidge(Gaussian(0.001), n_landmarks=M, random_state=0)
    planned = model.plan(corpus)
    model.fit(corpus)
    assert model.dtype_ == "float64"  # single precision cannot resolve this bandwidth
    assert planned.task_bytes >= model.sweep_["task_bytes"]


def test_fewer_landmarks_are_nested_random_subsets():
    line = np.linspace(0, 1, 400)[:, None]  # landmarks are in the order of the rows
    whole = KernelRidge(Gaussian(0.005), 0.1, n_landmarks=100, random_state=0).fit(line, np.sin(9 * line[:, 0]))
    few, fewer = whole.with_landmarks(40).landmarks_, whole.with_landmarks(20).landmarks_
    assert set(fewer.ravel()) < set(few.ravel()) < set(whole.landmarks_.ravel())
    assert fewer.min() < 0.15
    assert fewer.max() > 0.85


def test_fewer_landmarks_share_no_state_with_the_first_model():
    whole = KernelRidge(**FAST, n_landmarks=M).fit(X, Y)
    before, statistics = whole.predict(NEW), {name: values.copy() for name, values in whole.statistics_.items()}
    fewer = whole.with_landmarks(M)
    fewer.set_params(alpha=5.0).refit()
    fewer.partial_fit(NEW, np.ones((len(NEW), C)))
    assert_array_equal(whole.predict(NEW), before)
    assert all((whole.statistics_[name] == values).all() for name, values in statistics.items())
    assert whole.alpha == FAST["alpha"]


def test_fewer_landmarks_can_be_fitted_further_and_saved(tmp_path):
    fewer = KernelRidge(**FAST, n_landmarks=M).fit(X, Y).with_landmarks(9).partial_fit(NEW, np.ones((len(NEW), C)))
    joined = KernelRidge(**FAST, landmarks=fewer.landmarks_)
    joined.fit(np.vstack([X, NEW]), np.vstack([Y, np.ones((len(NEW), C))]))
    assert_allclose(fewer.predict(NEW), joined.predict(NEW), rtol=1e-8, atol=1e-9)
    save_model(fewer, tmp_path / "model")
    assert_array_equal(load_model(tmp_path / "model").predict(NEW), fewer.predict(NEW))


@pytest.mark.parametrize("count, n_landmarks", [(0, M), (-3, M), (M + 1, M), (3, None)])
def test_invalid_numbers_of_fewer_landmarks_are_refused(count, n_landmarks):
    message = f"from 1 to the {M} landmarks of the fit, found {count}" if n_landmarks else "keeps no statistics"
    with pytest.raises(ConfigError, match=message):
        KernelRidge(**FAST, n_landmarks=n_landmarks).fit(X, Y).with_landmarks(count)
