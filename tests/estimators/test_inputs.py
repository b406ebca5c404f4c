"""Predictions, scores and written predictions of lazy rows; labels by name."""

from dataclasses import dataclass
from typing import ClassVar

import dask.array as da
import numpy as np
import pytest
import zarr
from kinds import fit_arguments
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.metrics import accuracy_score, r2_score

import bigkernel as bk
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ChunkCorruptError, DataError
from bigkernel.streaming.row_maps import SameWidth

rng = np.random.default_rng(31)
N, D, M = 150, 4, 12
X = rng.normal(size=(N, D))
y = np.sin(X[:, 0]) + X[:, 1]
LABELS = rng.integers(0, 3, N)
WEIGHT = rng.uniform(0.1, 2, N)
Z = X[:M]

pytestmark = pytest.mark.usefixtures("small_steps")


@pytest.fixture
def build(tmp_path, make_corpus):
    """Return what goes to `fit`: rows of a kind, and the columns that they do not carry."""

    def make(kind, X=X, y=y, weight=None, classes=()):
        return fit_arguments(kind, X, make_corpus, tmp_path, classes=classes, y=y, weight=weight)

    return make


@pytest.mark.parametrize("settings", [{}, {"landmarks": Z}], ids=["exact", "landmarks"])
@pytest.mark.parametrize(
    "kind, values, classes",
    [(bk.KernelRidgeClassifier, LABELS, (0, 1, 2)), (bk.KernelRidge, LABELS, (0, 1, 2)), (bk.KernelRidge, y, ())],
    ids=["classes", "numbers of classes", "numbers"],
)
def test_unlabelled_rows_of_a_corpus_are_ignored_by_a_supervised_fit(build, settings, kind, values, classes):
    partly = np.where(np.arange(N) < 50, -1 if classes else np.nan, values)
    model = kind(bk.Gaussian(1.5), **settings).fit(*build("corpus", y=partly, classes=classes))
    expected = kind(bk.Gaussian(1.5), **settings).fit(X[50:], values[50:])
    assert_allclose(model.dual_coef_, expected.dual_coef_, atol=1e-9)
    if kind is bk.KernelRidgeClassifier:
        assert_array_equal(model.classes_, [0, 1, 2])


@pytest.mark.parametrize("kind", ["dask blocks", "sharded zarr", "rows"])
def test_predictions_of_lazy_rows_are_lazy_and_equal_those_of_numpy(build, kind):
    classifier = bk.KernelRidgeClassifier(bk.Gaussian(1.5), landmarks=Z).fit(X, LABELS)
    rows, _, _ = build(kind)
    if kind == "rows":
        rows = as_rows(da.from_array(X, chunks=40))
    values, expected = classifier.decision_function(rows), classifier.decision_function(X)
    assert isinstance(values, da.Array)
    assert (values.shape, values.dtype) == (expected.shape, expected.dtype)
    assert_allclose(values.compute(), expected, atol=1e-12)
    labels = classifier.predict(rows)
    assert isinstance(labels, da.Array)
    assert labels.dtype == classifier.classes_.dtype
    assert_array_equal(labels.compute(), classifier.predict(X))
    assert_array_equal(labels[10:20].compute(), classifier.predict(X)[10:20])


@pytest.mark.parametrize("model", [bk.Ridge(2.0), bk.KernelRidge(bk.Gaussian(1.5), landmarks=Z, fit_intercept=True)])
def test_predictions_are_computed_on_demand(model):
    def refuse(block):
        raise AssertionError("computed")

    lazy = da.from_array(X, chunks=(30, D)).map_blocks(refuse, dtype=float, meta=np.empty((0, 0)))
    values = model.fit(X, y).predict(lazy)
    assert values.shape == (N,)
    with pytest.raises(AssertionError, match="computed"):
        values.compute()


@pytest.mark.parametrize("kind", ["dask rows", "corpus"])
def test_another_number_of_features_is_refused_before_any_work(build, kind, tmp_path):
    model = bk.KernelRidge(bk.Gaussian(1.5), n_landmarks=M).fit(X[:, :3], y)
    rows, _, _ = build(kind)
    for use in (model.predict, model.score, lambda rows: model.predict_to(rows, tmp_path / "out")):
        with pytest.raises(DataError, match=r"4 features.*expecting 3 features"):
            use(rows)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["dask rows", "corpus"])
def test_accuracy_of_lazy_rows_matches_scikit_learn(build, kind):
    model = bk.KernelRidgeClassifier(bk.Gaussian(1.5), landmarks=Z).fit(X, LABELS)
    expected = accuracy_score(LABELS, model.predict(X))
    rows, labels, _ = build(kind, y=LABELS, classes=(0, 1, 2))
    assert model.score(rows, labels) == pytest.approx(expected, abs=1e-12)
    assert model.score(rows, LABELS) == pytest.approx(expected, abs=1e-12)
    weighted = accuracy_score(LABELS, model.predict(X), sample_weight=WEIGHT)
    assert model.score(rows, LABELS, WEIGHT) == pytest.approx(weighted, abs=1e-12)


TARGETS = {
    "numbers": (y, 1e-6),
    "numbers on a high level": (y + 1e6, 1e-6),
    "a small spread on a high level": (1e6 + 0.1 * y, 1e-3),
    "several": (np.column_stack([y, X[:, 2] ** 2]), 1e-6),
}


@pytest.mark.parametrize("kind, name", [*zip(["dask rows", "zarr", "corpus", "rows"], TARGETS, strict=True)])
def test_r2_of_lazy_rows_matches_scikit_learn(build, kind, name):
    target, tolerance = TARGETS[name]
    model = bk.Ridge(2.0).fit(X, target)
    rows, labels, _ = build(kind, y=target if target.ndim == 1 else None)
    given = labels if target.ndim == 1 else target
    assert model.score(rows, given) == pytest.approx(r2_score(target, model.predict(X)), abs=tolerance)
    weighted = r2_score(target, model.predict(X), sample_weight=WEIGHT)
    assert model.score(rows, target, WEIGHT) == pytest.approx(weighted, abs=tolerance)


def test_unlabelled_rows_are_ignored_by_the_score(build):
    codes = np.where(np.arange(N) < 50, -1, LABELS)
    corpus, _, _ = build("corpus", y=codes, classes=(0, 1, 2))
    model = bk.KernelRidgeClassifier(bk.Gaussian(1.5), landmarks=Z).fit(X, LABELS)
    assert model.score(corpus) == pytest.approx(accuracy_score(LABELS[50:], model.predict(X[50:])))


@pytest.mark.parametrize("classes", [("b", "c"), ("c", "b", "a"), ("a", "b", "c")], ids=["fewer", "reversed", "same"])
def test_scores_match_the_labels_of_a_corpus_by_name(make_corpus, classes):
    names = np.array(["a", "b", "c"])[LABELS]
    model = bk.KernelRidgeClassifier(bk.Gaussian(1.5), landmarks=Z).fit(X, names)
    keep = np.isin(names, classes)
    codes = np.array([classes.index(name) for name in names[keep]])
    corpus = make_corpus(X[keep], y=codes, classes=classes)
    total = model.score_totals(corpus)["confusion"]
    expected = np.zeros((3, 3))
    np.add.at(expected, (LABELS[keep], np.searchsorted(model.classes_, model.predict(X[keep]))), 1)
    assert_array_equal(total, expected)


def test_a_score_without_labels_or_with_one_unknown_to_the_model_is_refused(make_corpus):
    model = bk.KernelRidgeClassifier(bk.Gaussian(1.5), landmarks=Z).fit(X, np.array(["a", "b", "c"])[LABELS])
    with pytest.raises(DataError, match="zebra"):
        model.score_totals(make_corpus(X, y=LABELS, classes=("a", "b", "zebra")))
    with pytest.raises(DataError, match="label"):
        model.score_totals(as_rows(X))


@pytest.mark.parametrize("kind", ["corpus", "sharded zarr"])
def test_written_predictions_equal_those_of_predict(build, kind, tmp_path):
    rows, _, _ = build(kind)
    for name, model, target in (
        ("flat", bk.KernelRidge(bk.Gaussian(1.5), landmarks=Z), y),
        ("two", bk.KernelRidge(bk.Gaussian(1.5), landmarks=Z), np.column_stack([y, -y])),
        ("classes", bk.KernelRidgeClassifier(bk.Gaussian(1.5), landmarks=Z), LABELS * 3),
    ):
        model.fit(X, target)
        written = model.predict_to(rows, tmp_path / name, decision=name == "classes")
        assert_allclose(written["prediction"][...], model.predict(X), atol=1e-12)
        assert written["prediction"].dtype == (np.int64 if name == "classes" else np.float64)
        assert ("decision" in written) == (name == "classes")
    assert_allclose(written["decision"][...], model.decision_function(X), atol=1e-12)


def test_predictions_of_any_number_of_rows_are_written(make_corpus, tmp_path):
    model = bk.Ridge().fit(X[:, :1], y)
    for n in (1, 30, 61, 127, 129, 241):
        rows = rng.normal(size=(n, 1))  # 1,024 bytes a step: 128 rows
        written = model.predict_to(make_corpus(rows, name=f"{n}", chunk_rows=30), tmp_path / f"out {n}")
        assert_allclose(written["prediction"][...], model.predict(rows), atol=1e-12, err_msg=f"{n} rows")


@pytest.mark.parametrize("std", [False, True])
def test_a_failed_write_leaves_the_existing_store(build, tmp_path, std):
    corpus, _, _ = build("corpus")
    model = bk.KernelRidge(bk.Gaussian(1.5), landmarks=Z).fit(X, y)
    model.predict_to(corpus, tmp_path / "out", return_std=std)
    chunk = tmp_path / "corpus" / "x" / "c" / "2" / "0"
    content = bytearray(chunk.read_bytes())
    content[30] ^= 1
    chunk.write_bytes(content)
    before = sorted(path.name for path in tmp_path.iterdir())
    for target, overwrite in (("new", False), ("out", True)):
        with pytest.raises(ChunkCorruptError, match="rows"):
            model.predict_to(corpus, tmp_path / target, return_std=std, overwrite=overwrite)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert_allclose(zarr.open_group(tmp_path / "out")["prediction"][...], model.predict(X), atol=1e-12)
    if std:
        deviations = model.predict(X, return_std=True)[1]
        assert_allclose(zarr.open_group(tmp_path / "out")["std"][...], deviations, rtol=1e-12)


def test_an_existing_store_is_replaced_with_overwrite_and_no_other_directory_is(build, tmp_path):
    corpus, _, _ = build("corpus")
    first, second = bk.Ridge(1.0).fit(X, y), bk.Ridge(100.0).fit(X, y)
    first.predict_to(corpus, tmp_path / "out")
    with pytest.raises(DataError, match="already exists"):
        second.predict_to(corpus, tmp_path / "out")
    assert_allclose(zarr.open_group(tmp_path / "out")["prediction"][...], first.predict(X), atol=1e-12)
    second.predict_to(corpus, tmp_path / "out", overwrite=True)
    assert_allclose(zarr.open_group(tmp_path / "out")["prediction"][...], second.predict(X), atol=1e-12)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("years of work")
    with pytest.raises(DataError, match="thesis"):
        first.predict_to(corpus, tmp_path / "thesis", overwrite=True)
    assert (tmp_path / "thesis" / "chapter").read_text() == "years of work"


def test_chunks_of_unequal_size_are_refused_before_any_work(tmp_path):
    lazy = da.from_array(X, chunks=((10, 90, 50), D))
    with pytest.raises(DataError, match="expected 10 rows in chunk 1"):
        bk.Ridge().fit(X, y).predict_to(lazy, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@dataclass(frozen=True)
class Failing(SameWidth):
    """Unchanged rows, until reading them fails."""

    calls: list[int]
    limit: float = np.inf
    name: ClassVar[str] = "failing"

    def apply(self, x):
        self.calls.append(len(x))
        if len(self.calls) > self.limit:
            raise ValueError("sensor 7 is offline")
        return x


@pytest.mark.parametrize("share", [0.5, 0.95])
@pytest.mark.parametrize(
    "model",
    [
        bk.KernelRidge(bk.Gaussian(1.0), solver="cg", n_landmarks=40, alpha=0.1, random_state=0),
        bk.KernelRidge(bk.Gaussian(1.0), solver="cg", n_landmarks=120, alpha=0.1, random_state=0),
        bk.KernelLogisticClassifier(bk.Gaussian(1.0), alpha=0.1, n_landmarks=20, random_state=0),
        bk.SweepSearchCV(
            bk.KernelRidge(bk.Gaussian(1.0), solver="cg", n_landmarks=40, random_state=0), {"alpha": [0.1, 1.0]}, cv=2
        ),
    ],
    ids=["sub-sample", "factors of the core", "logistic", "search"],
)
def test_an_error_while_rows_are_read_is_raised_unchanged(model, share):
    targets, whole = LABELS if isinstance(model, bk.KernelLogisticClassifier) else y, []
    with bk.executing("serial"):
        clone(model).fit(as_rows(X, targets).map(Failing(whole)))
        with pytest.raises(ValueError, match=r"^sensor 7 is offline$"):
            clone(model).fit(as_rows(X, targets).map(Failing([], share * len(whole))))
