"""Missing labels of every kind, classifiers of the labelled rows, columns of unequal scale, methods that are absent."""

import dask.array as da
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC

import bigkernel as bk
from bigkernel.errors import ColumnScaleWarning, DataError, MissingLabelWarning

rng = np.random.default_rng(41)
TRUTH = np.arange(90) % 3
LABELLED = np.arange(90) < 60
X = rng.normal(size=(90, 4)) + 3 * np.eye(3, 4)[TRUTH] + 0.4 * ~LABELLED[:, None]
Y, UNEQUAL = np.where(LABELLED, TRUTH, -1), X * [1, 1, 1e4, 1]
KINDS = {"NaN": (np.nan, float), "text": ("-1", str), "None": (None, str), "int": (None, int), "str": (np.nan, str)}
PANDAS = {"string": str, "category": str, "Int64": int, "object": str}
INNER = [SVC(), bk.KernelRidgeClassifier("linear", fit_intercept=True)]
ROWS = {"n_landmarks": 20, "random_state": 0}
SEMI_SUPERVISED = [kind(**ROWS) for kind in (bk.SSSLClassifier, bk.XNVClassifier, bk.JDA, bk.ARTLClassifier)]


def labels(kind):
    """Return labels where missing ones are of this kind, or a series of pandas of this dtype."""
    missing, convert = KINDS[kind] if kind in KINDS else (pytest.importorskip("pandas").NA, PANDAS[kind])
    y = np.array([convert(one) if known else missing for one, known in zip(TRUTH, LABELLED, strict=True)], object)
    y = y.astype(convert) if kind in ("NaN", "text") else y
    return pytest.importorskip("pandas").Series(y, dtype=kind) if kind in PANDAS else y


def values(model):
    return model.transform(X) if hasattr(model, "transform") else model.decision_function(X)


def test_two_marks_of_missing_labels_and_numbers_that_are_mostly_minus_one_are_reported():
    y = np.where(TRUTH == 0, -1.0, np.where(TRUTH == 1, np.nan, LABELLED))
    with pytest.warns(MissingLabelWarning, match="−1 and NaN both mark"):
        bk.SSSLClassifier(**ROWS).fit(X, y)
    with pytest.warns(MissingLabelWarning, match="most numbers are −1; .* pass NaN"):
        bk.SSSL(**ROWS).fit(X, np.where(LABELLED & (TRUTH > 1), 5.0, -1))


@pytest.mark.parametrize("kind", [*KINDS, *PANDAS])
@pytest.mark.parametrize("model", SEMI_SUPERVISED, ids=lambda model: type(model).__name__)
def test_a_missing_label_of_any_kind_is_like_minus_one(model, kind):
    y = labels(kind)
    fitted, expected = clone(model).fit(X, y), clone(model).fit(X, Y)
    assert_array_equal(values(fitted), values(expected))
    assert_array_equal(fitted.classes_.astype(np.int64), [0, 1, 2])
    if hasattr(model, "score"):
        assert fitted.score(X, y) == expected.score(X[LABELLED], Y[LABELLED])


@pytest.mark.parametrize("model", [*SEMI_SUPERVISED[:2], bk.LabelledRowsClassifier(SVC())])
def test_booleans_are_classes_unless_labels_are_missing(model):
    y = (TRUTH > 0).astype(object)
    assert clone(model).fit(X, y).classes_.dtype == bool
    for missing in (None, np.nan, -1, 2):
        with pytest.raises(DataError, match=r"booleans beside .*; expected integers or text, as in"):
            clone(model).fit(X, np.where(LABELLED, y, missing))


@pytest.mark.parametrize("kind", [bk.KernelRidgeClassifier, bk.KernelLogisticClassifier])
def test_supervised_classifiers_refuse_missing_labels_and_report_minus_one_beside_three_classes(kind):
    for missing in ("None", "str"):
        with pytest.raises(DataError, match=rf"30 of 90 rows have no label .*row 60.*{kind.__name__}.*LabelledRows"):
            kind(**ROWS).fit(X, labels(missing))
    assert_array_equal(kind(**ROWS).fit(X, np.where(TRUTH > 0, 1, -1)).classes_, [-1, 1])
    with pytest.warns(MissingLabelWarning, match=f"−1 is one of the 4 classes of {kind.__name__}"):
        kind(**ROWS).fit(X, Y)


@pytest.mark.parametrize("model", [*SEMI_SUPERVISED, *map(bk.LabelledRowsClassifier, INNER)])
def test_text_that_looks_like_a_missing_label_is_a_class_and_reported(model):
    with pytest.warns(MissingLabelWarning, match="the class 'nan' looks like a missing .*(pass|leave)") as warned:
        assert "nan" in clone(model).fit(X, np.where(TRUTH == 2, "nan", labels("text"))).classes_
    assert len(warned) == 1


@pytest.mark.parametrize("inner", INNER)
@pytest.mark.parametrize("kind", ["text", "NaN", "Int64"])
def test_a_pipeline_fits_its_classifier_to_the_labelled_rows(inner, kind):
    y = labels(kind)
    model = make_pipeline(bk.JDA(n_components=3, **ROWS), bk.LabelledRowsClassifier(inner)).fit(X, y)
    Z = model[0].transform(X)
    expected = clone(inner).fit(Z[LABELLED], Y[LABELLED])
    assert_allclose(model.decision_function(X), expected.decision_function(Z))
    assert_array_equal(model.predict(X).astype(np.int64), expected.predict(Z))
    assert model.score(X, y) == expected.score(Z[LABELLED], Y[LABELLED])
    if isinstance(inner, bk.KernelRidgeClassifier):
        grid, at = {"alpha": [0.1, 10.0], "landmarks": [Z[:3]]}, "labelledrowsclassifier__estimator__"
        search = bk.SweepSearchCV(clone(model), {at + name: values for name, values in grid.items()}, cv=3).fit(X, y)
        known = bk.SweepSearchCV(clone(inner), grid, cv=3).fit(Z[LABELLED], Y[LABELLED])
        assert_allclose(search.cv_results_["mean_test_score"], known.cv_results_["mean_test_score"])
        assert_allclose(search.decision_function(X), known.decision_function(Z), atol=1e-8)


def test_weights_go_with_their_rows_and_a_corpus_is_passed_on_whole(make_corpus):
    weight, inner = rng.uniform(0.01, 2, size=90), bk.KernelRidgeClassifier(bk.Gaussian(sigma=2.0))
    model = bk.LabelledRowsClassifier(inner).fit(X, Y, sample_weight=weight)
    expected = clone(inner).fit(X[LABELLED], Y[LABELLED], sample_weight=weight[LABELLED])
    assert_array_equal(values(model), values(expected))
    assert model.score(X, Y, weight) == expected.score(X[LABELLED], Y[LABELLED], weight[LABELLED])
    model = bk.LabelledRowsClassifier(SEMI_SUPERVISED[0]).fit(make_corpus(X, y=Y))
    assert_allclose(values(model), values(clone(SEMI_SUPERVISED[0]).fit(X, Y)), atol=1e-4)


def test_a_classifier_of_labelled_rows_needs_one_and_can_do_what_its_estimator_can():
    with pytest.raises(DataError, match="expected a labelled row, found none"):
        bk.LabelledRowsClassifier(SVC()).fit(X, np.full(90, -1))
    model = bk.LabelledRowsClassifier(bk.KernelRidgeClassifier(class_weight={0: 1, 1: 1, 2: 9}))
    search = GridSearchCV(model, {"estimator__alpha": [1e3, 1e-3]}, error_score="raise").fit(X, Y)
    assert search.best_params_ == {"estimator__alpha": 1e-3}
    model = clone(model.set_params(estimator__probability=True, estimator__n_landmarks=9))
    assert model.get_params()["estimator__probability"] is True
    assert_allclose(model.fit(X, Y).predict_proba(X).sum(axis=1), 1)


@pytest.mark.parametrize("settings", [{}, {"n_landmarks": 20}, {"kernel": "laplacian"}])
def test_a_column_that_decides_all_distances_is_reported_and_no_other(settings):
    with pytest.warns(ColumnScaleWarning, match="column 2 has .* standardize the columns") as warned:
        bk.KernelRidge(**settings).fit(UNEQUAL, TRUTH)
    assert len(warned) == 1
    make_pipeline(bk.Standardizer(), bk.KernelRidge(**settings)).fit(UNEQUAL, TRUTH)
    bk.KernelRidge(bk.Gaussian(sigma=[1.0, 1.0, 1e4, 1.0])).fit(UNEQUAL, TRUTH)
    bk.KernelRidge(**settings).fit(X * [1, 1, 30, 1], TRUTH)
    bk.KernelRidge(bk.Linear(), n_landmarks=3).fit(UNEQUAL, TRUTH)
    bk.KernelRidge(**ROWS).fit(*load_digits(return_X_y=True))


ABSENT = [
    (bk.KernelRidge(), "partial_fit", "an exact fit keeps no sums; set n_landmarks"),
    (bk.KernelRidge(solver="cg", **ROWS), "partial_fit", "keep no sums; set solver='direct'"),
    (bk.KernelRidgeClassifier(probability=True, **ROWS), "partial_fit", "set probability=False"),
    (bk.KernelLogisticClassifier(**ROWS), "partial_fit", "several sweeps .*; fit all rows at once"),
    (bk.KernelRidgeClassifier(), "predict_proba", "set probability=True and fit again"),
    (bk.SweepSearchCV(bk.KernelRidgeClassifier(), {"alpha": [1]}), "predict_log_proba", "set probability=True .*"),
    (bk.SweepSearchCV(bk.KernelRidge(), {"alpha": [1]}), "decision_function", "'KernelRidge' object .*"),
    (bk.LabelledRowsClassifier(bk.KernelRidgeClassifier()), "predict_proba", "set probability=True .*"),
    (bk.LabelledRowsClassifier(bk.JDA()), "decision_function", "'JDA' object has no .*"),
    (bk.JDA(), "predict_to", "it transforms rows"),
]


@pytest.mark.parametrize(("model", "method", "reason"), ABSENT)
def test_an_absent_method_says_why(model, method, reason):
    assert not hasattr(model, method)
    with pytest.raises(AttributeError, match=f"^{type(model).__name__} has no {method}: .*{reason}$") as caught:
        getattr(model, method)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("settings", [{}, ROWS])
def test_targets_far_from_zero_are_predicted_by_default(settings):
    model = bk.KernelRidge(**settings).fit(X, TRUTH + 999)
    assert abs(model.intercept_ - 1000) < 0.5
    assert model.score(X, TRUTH + 999) > 0.6


@pytest.mark.parametrize("convert", [np.asarray, lambda y: np.where(y < 0, None, y.astype(object))])
def test_labels_of_dask_rows_are_those_of_arrays(convert):
    rows, y, weight = da.from_array(X, chunks=(30, 4)), convert(Y), np.arange(1.0, 91)
    model = bk.LabelledRowsClassifier(bk.KernelRidgeClassifier(**ROWS)).fit(rows, y)
    assert model.classes_.tolist() == [0, 1, 2]
    assert model.score(rows, y, weight) == pytest.approx(model.score(X, y, weight))
    assert_array_equal(
        bk.SSSLClassifier(**ROWS).fit(rows, y).predict(X), bk.SSSLClassifier(**ROWS).fit(X, Y).predict(X)
    )
