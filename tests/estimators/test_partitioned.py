"""Leaves and stages: routes and borders, classes that leaves lack, rows from disk, files of models, refusals."""

import warnings
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
from forging import forge
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LinearRegression as SklearnRegression
from sklearn.pipeline import make_pipeline

from bigkernel import (
    KernelRidge,
    KernelRidgeClassifier,
    LearnedMetric,
    LinearRegression,
    Matern,
    PartitionedClassifier,
    PartitionedRegressor,
    Predictor,
    Projector,
    Rescaler,
    ResidualRegressor,
    Ridge,
    RowUnion,
    SSSLClassifier,
    Standardizer,
    executing,
    load_model,
    predict_to,
    save_model,
    write_corpus,
)
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ConfigError, DataError, ModelRejectedError, RankDeficiencyWarning, ResumeMismatchError
from bigkernel.estimators.tables.leaf_fits import LeafFits
from bigkernel.estimators.tables.partitioned import grow
from bigkernel.statistics.moments import MomentStatistic

RIDGE = KernelRidge(n_landmarks=30, alpha=0.01, random_state=0)
METRIC = make_pipeline(LearnedMetric(), RIDGE)
WEIGHTED = KernelRidgeClassifier(n_landmarks=20, probability=True, class_weight="balanced")
CLASSIFIER = KernelRidgeClassifier(n_landmarks=20, alpha=0.1, random_state=0)


@pytest.fixture
def rows(rng):
    X = rng.normal(size=(1200, 3)) * [3.0, 1.0, 1.0]
    return X, np.sin(3 * X[:, 0]) + X[:, 1]


@pytest.fixture
def few(rows):
    """Return rows for what their number does not change."""
    return tuple(values[:240] for values in rows)


@pytest.mark.parametrize("n_leaves", [1, 2, 7, 16])
@pytest.mark.parametrize("overlap", [0.0, 0.2])
def test_every_row_has_leaves_whose_weights_sum_to_one(n_leaves, overlap, rows):
    X, _ = rows
    tree, total, counts = grow(X, n_leaves, overlap), np.zeros(len(X)), []
    for places, weight in tree.leaves(X):
        total[places] += weight
        counts.append(weight.sum())
        assert (weight > 0).all()
        assert (np.diff(places) > 0).all()
    assert len(counts) == tree.n_leaves == n_leaves
    np.testing.assert_allclose(total, 1, rtol=1e-12)
    np.testing.assert_allclose(counts, len(X) / n_leaves, rtol=0.1)
    assert n_leaves == 1 or tree.directions[0] @ [1.0, 0.0, 0.0] > 0.99


def test_equal_rows_are_on_one_side_and_predictions_are_continuous(rng):
    X = np.repeat(np.arange(8.0), 50)[:, None]
    for places, weight in grow(X, 4, 0.1).leaves(X):
        assert set(weight[np.isin(X[places, 0], [0, 7])]) <= {1.0}
    X = rng.uniform(size=(800, 1))
    model = PartitionedRegressor(LinearRegression(), 8, overlap=0.2, random_state=0).fit(X, np.abs(X[:, 0] - 0.4))
    line = np.linspace(0, 1, 20_001)[:, None]
    assert np.abs(np.diff(model.predict(line))).max() < 1e-3
    hard = clone(model).set_params(overlap=0.0).fit(X, np.abs(X[:, 0] - 0.4))
    assert hard.leaf_rows_.sum() == 800 < model.leaf_rows_.sum()


@pytest.mark.parametrize(
    "X",
    [
        np.repeat([0.0, 1.0], [40, 8])[:, None],
        np.random.default_rng(0).integers(0, 4, (500, 1)) * 1e100,
        np.where(np.random.default_rng(0).random((1000, 3)) < 0.8, 0, np.random.default_rng(1).normal(size=(1000, 3))),
    ],
    ids=["two values", "four values", "mostly zeros"],
)
def test_many_equal_rows_are_split_beside_them(X):
    n_leaves = 2 if X.shape[1] == 1 else 4
    model = PartitionedRegressor(LinearRegression(), n_leaves, overlap=0.1, random_state=0).fit(X, X[:, 0] / X.max())
    assert model.leaf_rows_.min() > 0
    assert np.isfinite(model.predict(X)).all()


def test_sparse_rows_and_labels_on_rows_from_disk(rows):
    X, y = rows
    model = PartitionedRegressor(LinearRegression(), 4, random_state=0)
    expected, lazy = clone(model).fit(X, y).predict(X), da.from_array(X, chunks=(100, 3))
    np.testing.assert_allclose(clone(model).fit(lazy, y).predict(X), expected)
    matrix = sparse.csr_array(X)
    np.testing.assert_allclose(clone(model).fit(matrix, y).predict(matrix), expected)
    labels = np.where(X[:, 0] > 0, 1, -1)
    of_disk = PartitionedClassifier(CLASSIFIER, 4, random_state=0).fit(lazy, labels)
    in_memory = PartitionedClassifier(CLASSIFIER, 4, random_state=0).fit(X, labels)
    np.testing.assert_array_equal(of_disk.predict(lazy), in_memory.predict(X))
    assert set(of_disk.classes_) == {-1, 1}


def test_scores_leave_out_rows_without_a_target_or_weight(rows):
    X, y = rows
    good = np.arange(len(y)) % 4 > 0
    model = PartitionedRegressor(RIDGE, 4, random_state=0).fit(X, y)
    stages = ResidualRegressor([("trend", LinearRegression()), ("rest", RIDGE)]).fit(X, y)
    bad = np.where(good[:, None], X, np.nan)
    for one in (model, stages):
        expected = pytest.approx(one.score(X[good], y[good]))
        assert one.score(as_rows(X, np.where(good, y, np.nan))) == expected
        assert one.score(as_rows(X, np.where(good, y, 1e3), weight=good * 1.0)) == expected
        assert one.score(as_rows(bad, y).skip_bad_rows()) == expected
    both = ResidualRegressor([("a", LinearRegression()), ("b", RIDGE)]).fit(X, y[:, None])
    assert both.predict(X).shape == (len(X), 1)


def test_one_leaf_is_its_estimator_and_more_resolve_more(rows):
    X, y = rows
    whole = Ridge(alpha=0.1)
    one = PartitionedRegressor(whole, 1, random_state=0).fit(X, y)
    np.testing.assert_allclose(one.predict(X), clone(whole).fit(X, y).predict(X), rtol=1e-9)
    few, many = (PartitionedRegressor(RIDGE, n, random_state=0).fit(X, y).score(X, y) for n in (1, 8))
    assert many > 0.9 > few + 0.2
    both = PartitionedRegressor(RIDGE, 8, random_state=0).fit(X, np.column_stack([y, -y])).predict(X)
    np.testing.assert_allclose(both[:, 0], -both[:, 1], atol=1e-9)


@pytest.mark.parametrize("kind", ["corpus", "dask", "rows"])
def test_rows_from_disk_give_the_predictions_of_rows_in_memory(kind, few, tmp_path):
    X, y = few
    expected = PartitionedRegressor(RIDGE, 3, random_state=0).fit(X, y)
    if kind == "corpus":
        lazy, own = write_corpus(tmp_path / "corpus", X, y, chunk_rows=67), None
    else:
        lazy, own = da.from_array(X, chunks=(53, 3)), da.from_array(y, chunks=53)
    if kind == "rows":
        lazy, own = Standardizer().fit(X).transform(lazy) * Standardizer().fit(X).scale_, own
        lazy = lazy + Standardizer().fit(X).mean_
    found = clone(expected).fit(lazy, own)
    np.testing.assert_allclose(found.predict(X), expected.predict(X), atol=1e-6)
    np.testing.assert_allclose(found.predict(lazy), found.predict(X), atol=1e-12)
    assert found.score(lazy, own) == pytest.approx(expected.score(X, y))


def test_every_executor_gives_the_same_bits_and_predicts_in_its_tasks(client, few, tmp_path):
    X, y = few
    corpus = write_corpus(tmp_path / "corpus", X, y, chunk_rows=50)
    ridge = KernelRidge(Matern(sigma=1.0, nu=0.5), n_landmarks=12, alpha="cv", random_state=0)
    leaf = make_pipeline(LearnedMetric(Matern(nu=0.5), method="gradient", n_landmarks=10, max_iter=1), ridge)
    model = make_pipeline(Standardizer(), PartitionedRegressor(leaf, 2, random_state=0))
    with executing("serial"):
        expected = clone(model).fit(corpus)
    for chosen in ("threads", client):
        with executing(chosen):
            found = clone(model).fit(corpus)
            np.testing.assert_array_equal(found.predict(X), expected.predict(X))
            assert found.score(corpus) == pytest.approx(expected.score(X, y))
            written = predict_to(found, corpus, tmp_path / str(chosen)[:7])
    np.testing.assert_allclose(written["prediction"][:], expected.predict(X), atol=1e-9)
    lazy = found.predict(corpus)
    assert isinstance(lazy, da.Array)
    np.testing.assert_allclose(lazy.compute(), expected.predict(X), atol=1e-9)


def test_leaves_have_leaves_and_stages_and_models_of_files_are_fitted_again(rows, tmp_path):
    X, y = rows
    given = KernelRidge(landmarks=np.column_stack([X, 2 * X])[:20], alpha=0.1)
    stages = ResidualRegressor(
        [("trend", LinearRegression()), ("rest", PartitionedRegressor(given, 2, random_state=0))]
    )
    union = RowUnion([("a", Standardizer()), ("b", Rescaler(2.0))])
    model = PartitionedRegressor(make_pipeline(union, "passthrough", stages), 2, random_state=0).fit(X, y)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    np.testing.assert_array_equal(clone(loaded).fit(X, y).predict(X), model.predict(X))


def test_labels_have_the_weights_of_their_class_and_minus_one_is_none(rows):
    X, y = rows
    names = np.where(X[:, 1] > 0, "a", "b")
    weighted = clone(CLASSIFIER).set_params(class_weight={"a": 9.0, "b": 1.0})
    many = [
        np.mean(PartitionedClassifier(one, 2, random_state=0).fit(X, names).predict(X) == "a")
        for one in (CLASSIFIER, weighted)
    ]
    assert many[0] < many[1]
    partly = np.where(np.arange(len(X)) % 3, 1 + (y > 0), -1)
    semi = PartitionedClassifier(SSSLClassifier(n_landmarks=20, random_state=0), 2, random_state=0).fit(X, partly)
    assert semi.classes_.tolist() == [1, 2]
    apart = PartitionedClassifier(clone(CLASSIFIER).set_params(probability=True), 2, overlap=0, random_state=0)
    moved = np.concatenate([X - [50, 0, 0], X + [50, 0, 0]])
    sure = apart.fit(moved, np.repeat([3, 4], len(X))).predict_proba(moved)
    np.testing.assert_allclose(sure, np.repeat(np.eye(2), len(X), axis=0), atol=1e-300)


@pytest.mark.parametrize("kind", ["memory", "dask", "sparse"])
def test_stages_skip_bad_rows(kind, rows):
    X, y = rows
    bad = np.where(np.arange(len(X)) < 100, np.nan, X.T).T
    made = {"memory": bad, "dask": da.from_array(bad, chunks=(100, 3)), "sparse": sparse.csr_array(bad)}[kind]
    model = ResidualRegressor([("trend", LinearRegression()), ("rest", Ridge(alpha=0.1))])
    found = clone(model).fit(as_rows(made, y).skip_bad_rows())
    np.testing.assert_allclose(found.predict(X), clone(model).fit(X[100:], y[100:]).predict(X), atol=1e-9)


@pytest.mark.parametrize("executor", ["serial", "threads"])
def test_an_interrupted_fit_leaves_no_files(executor, few, tmp_path, monkeypatch):
    fit = LeafFits.update

    def stop(self, total, chunk):
        if chunk.start == 5:
            raise KeyboardInterrupt
        fit(self, total, chunk)

    monkeypatch.setattr(LeafFits, "update", stop)
    with dask.config.set({"temporary-directory": str(tmp_path)}), executing(executor), pytest.raises(KeyboardInterrupt):
        PartitionedRegressor(RIDGE, 9, random_state=0).fit(*few)
    assert not list(tmp_path.iterdir())
    with (
        dask.config.set({"temporary-directory": str(tmp_path / "none")}),
        pytest.raises(ConfigError, match="expected a dir"),
    ):
        PartitionedRegressor(RIDGE, 2).fit(*few)


def test_a_run_compares_seeds_and_parameters_by_name(few, tmp_path):
    model = PartitionedRegressor(clone(RIDGE).set_params(random_state=None), 2, random_state=0)

    def fit(**changed):
        with executing("serial", run=tmp_path / "run", resume=True):
            return clone(model).set_params(**changed).fit(*few)

    fit()
    fit(verbose=0, estimator__verbose=0)
    for changed in ({"random_state": 1}, {"estimator__alpha": 0.5}):
        with pytest.raises(ResumeMismatchError, match=next(iter(changed)).rpartition("__")[2]):
            fit(**changed)


def test_warnings_of_leaves_on_workers_reach_the_driver(client, few, tmp_path):
    corpus = write_corpus(tmp_path / "corpus", *few, chunk_rows=50)
    flat = KernelRidge(n_landmarks=50, gamma=1e-9, random_state=0)
    with executing(client), pytest.warns(RankDeficiencyWarning, match="such warnings from 4 leaves"):
        PartitionedRegressor(flat, 4, random_state=0).fit(corpus)


@pytest.mark.parametrize("removed", ["rows", "damage", "swap"])
def test_files_of_a_run_are_written_again_or_refused(removed, few, tmp_path, monkeypatch):
    corpus, model = (
        write_corpus(tmp_path / "corpus", *few, chunk_rows=80),
        PartitionedRegressor(RIDGE, 3, random_state=0),
    )
    fit = LeafFits.update

    def stop(self, total, chunk):
        if chunk.start:
            raise KeyboardInterrupt
        fit(self, total, chunk)

    monkeypatch.setattr(LeafFits, "update", stop)
    with executing("serial", run=tmp_path / "run", resume=True), pytest.raises(KeyboardInterrupt):
        clone(model).fit(corpus)
    monkeypatch.undo()
    files = list((tmp_path / "run").rglob("*.rows"))
    assert len(files) == 3
    if removed == "swap":
        first, second = files[0].read_bytes(), files[1].read_bytes()
        files[0].write_bytes(second)
        files[1].write_bytes(first)
    for file in files * (removed != "swap"):
        if removed == "rows":
            file.unlink()
        else:
            content = bytearray(file.read_bytes())
            content[-1] ^= 1
            file.write_bytes(content)
    with executing("serial", run=tmp_path / "run", resume=True):
        if removed != "rows":
            with pytest.raises(DataError, match=r"rows of leaf \d were changed; remove this file and resume"):
                clone(model).fit(corpus)
        else:
            found = clone(model).fit(corpus)
            np.testing.assert_array_equal(found.predict(few[0]), clone(model).fit(corpus).predict(few[0]))


@pytest.mark.parametrize("fault, lost", [("swapped", 2), ("damaged", 1), ("removed", 1), ("of another fit", 1)])
def test_leaves_that_a_run_has_lost_are_fitted_again_and_no_others(fault, lost, few, tmp_path, monkeypatch):
    corpus, model = write_corpus(tmp_path / "corpus", *few), PartitionedRegressor(RIDGE, 3, random_state=0)
    with executing("serial", run=tmp_path / "run"):
        expected = clone(model).fit(corpus).predict(few[0])
    first, second, _ = sorted((tmp_path / "run").rglob("*.leaf"))
    content = first.read_bytes()
    if fault == "swapped":
        first.write_bytes(second.read_bytes())
        second.write_bytes(content)
    elif fault == "damaged":
        first.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif fault == "removed":
        first.unlink()
    else:
        with executing("serial", run=tmp_path / "other"):
            clone(model).set_params(random_state=1).fit(corpus)
        first.write_bytes(next((tmp_path / "other").rglob(first.name)).read_bytes())
    fits, fit = [], KernelRidge.fit
    monkeypatch.setattr(KernelRidge, "fit", lambda *args: (fits.append(1), fit(*args))[1])
    with executing("serial", run=tmp_path / "run", resume=True):
        found = clone(model).fit(corpus).predict(few[0])
    np.testing.assert_array_equal(found, expected)
    assert len(fits) == lost


def test_errors_of_lazy_rows_name_rows_of_the_input(rows):
    X, y = rows
    lazy, weight, targets = da.from_array(X, chunks=(300, 3)), np.ones(1200), np.column_stack([y, y])
    weight[777], targets[777, 0] = -1, np.nan
    model = PartitionedRegressor(RIDGE, 4, random_state=0)
    with pytest.raises(DataError, match=r"^weight: .* found -1.0 in row 777"):
        model.fit(lazy, da.from_array(y, chunks=300), sample_weight=da.from_array(weight, chunks=300))
    with pytest.raises(DataError, match=r"^y: row 777 has 1 of 2 targets"):
        model.fit(lazy, da.from_array(targets, chunks=(300, 2)))


def test_the_plan_tells_the_rows_and_the_memory(rows, tmp_path):
    corpus = write_corpus(tmp_path / "corpus", *rows)
    small, large = (
        PartitionedRegressor(clone(RIDGE).set_params(n_landmarks=m), 4, random_state=0).plan(corpus) for m in (10, 200)
    )
    assert small.n_rows == len(rows[0])
    assert len(small.segments) == 4
    assert small.task_bytes + 8 * 5 * 200**2 < large.task_bytes < small.task_bytes + 8 * 30 * 200**2


def test_bad_rows_are_skipped_or_refused(rows):
    X, y = rows
    bad = X.copy()
    bad[7] = np.nan
    lazy = as_rows(da.from_array(bad, chunks=(100, 3)), y)
    with pytest.raises(DataError, match="row 7 contains NaN"):
        PartitionedRegressor(RIDGE, 4, random_state=0).fit(lazy)
    model = PartitionedRegressor(RIDGE, 4, overlap=0.0, random_state=0).fit(lazy.skip_bad_rows())
    assert model.leaf_rows_.sum() == len(X) - 1


@pytest.mark.parametrize("named", [True, False])
def test_leaves_may_lack_classes(named, rows, tmp_path):
    X, _ = rows
    codes = np.digitize(X[:, 0], [-4.0, 3.0])
    y = np.array(["low", "middle", "top"])[codes] if named else codes + 3
    model = PartitionedClassifier(CLASSIFIER, 16, random_state=0).fit(X, y)
    assert any(leaf.alpha is None for leaf in model.leaves_)
    assert model.score(X, y) > 0.95
    assert model.decision_function(X).shape == (len(X), 3)
    corpus = write_corpus(tmp_path / "corpus", X, y)
    stored = clone(model).fit(corpus)
    np.testing.assert_array_equal(stored.predict(X), model.predict(X))
    assert stored.score(corpus) == model.score(X, y)
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert loaded.fit_report() == model.fit_report()
    np.testing.assert_array_equal(Predictor.load(tmp_path / "model").predict(X), model.predict(X))
    np.testing.assert_array_equal(clone(loaded).fit(X, y).predict(X), model.predict(X))


def test_deviations_of_leaves_are_those_of_a_mixture(few, tmp_path):
    X, y = few
    targets, inner = np.column_stack([y, 3 * y**2]), make_pipeline(Rescaler(0.5), KernelRidge(Matern(2.0), alpha=0.1))
    model = PartitionedRegressor(inner, 4, overlap=0.3, posterior=True, random_state=0).fit(X, targets)
    mean, std = model.predict(X, return_std=True)
    shares, values, own = np.zeros((4, len(X), 1)), np.zeros((4, len(X), 2)), np.ones((4, len(X), 2))
    for leaf, (places, weight) in enumerate(model.tree_.leaves(X)):
        alone = clone(inner).fit(X[places], targets[places])
        shares[leaf, places, 0] = weight
        values[leaf, places], own[leaf, places] = alone.predict(X[places], return_std=True)
    expected = (shares * values).sum(axis=0)
    np.testing.assert_allclose(mean, expected, rtol=1e-9)
    np.testing.assert_allclose(mean, model.predict(X), rtol=1e-12)
    variance = (shares * (own**2 + (values - expected) ** 2)).sum(axis=0)
    np.testing.assert_allclose(std, np.sqrt(variance), rtol=1e-7)
    lazy = model.predict(da.from_array(X, chunks=(100, 3)), return_std=True)
    np.testing.assert_allclose(lazy[1].compute(), std, rtol=1e-12)
    written = model.predict_to(write_corpus(tmp_path / "corpus", X), tmp_path / "out", return_std=True)
    np.testing.assert_allclose(written["std"][...], std, rtol=1e-12)
    save_model(model, tmp_path / "model")
    np.testing.assert_array_equal(load_model(tmp_path / "model").predict(X, return_std=True)[1], std)
    np.testing.assert_array_equal(Predictor.load(tmp_path / "model").predict(X), model.predict(X))
    outer = PartitionedRegressor(PartitionedRegressor(inner, 2, posterior=True), 2, posterior=True, random_state=0)
    assert (outer.fit(X, y).predict(X, return_std=True)[1] > 0).all()

    def widen(header, *_):
        entry = next(entry for name, entry in header.items() if name.endswith("spread.noise"))
        entry["shape"] = [*entry["shape"], 1]

    forge(tmp_path / "model", widen)
    with pytest.raises(ModelRejectedError, match="expected the noise of 78 rows"):
        load_model(tmp_path / "model")


@pytest.mark.parametrize(("array", "shape"), [("directions", (2, 4)), ("lower", (3, 1)), ("upper", (1, 3))])
def test_forged_trees_are_refused(array, shape, few, tmp_path):
    X, y = few
    model = PartitionedRegressor(RIDGE, 4, random_state=0).fit(X[:, :2], y)
    tree = replace(model.tree_, **{array: np.resize(getattr(model.tree_, array), shape)})
    model._fitted = replace(model._fitted, blend=replace(model._fitted.blend, shares=tree))
    save_model(model, tmp_path / "model")
    with pytest.raises(ModelRejectedError, match="expected 3 splits of 2 features"):
        load_model(tmp_path / "model")


def test_a_run_resumes_at_the_leaf_where_it_stopped_with_the_same_bits(few, tmp_path, monkeypatch):
    X, y = few
    corpus = write_corpus(tmp_path / "corpus", X, y)
    model = PartitionedRegressor(
        make_pipeline(LearnedMetric(method="gradient", n_landmarks=10, max_iter=1), RIDGE), 6, random_state=0
    )
    blocks, fitted, fit, update = [], [], KernelRidge.fit, MomentStatistic.update
    monkeypatch.setattr(MomentStatistic, "update", lambda *args: (blocks.append(1), update(*args))[1])
    with executing(run=tmp_path / "whole"):
        expected = clone(model).fit(corpus).predict(X)
    whole = len(blocks)

    def stop_at_the_fourth(self, *args):
        fitted.append(1)
        if len(fitted) == 4:
            raise KeyboardInterrupt
        return fit(self, *args)

    monkeypatch.setattr(KernelRidge, "fit", stop_at_the_fourth)
    with executing(run=tmp_path / "run", resume=True), pytest.raises(KeyboardInterrupt):
        clone(model).fit(corpus)
    blocks.clear()
    with executing(run=tmp_path / "run", resume=True):
        found = clone(model).fit(corpus)
    np.testing.assert_array_equal(found.predict(X), expected)
    assert len(fitted) == 4 + 3
    assert not list((tmp_path / "run").rglob("*.rows"))
    assert len(blocks) < 0.7 * whole


def test_probabilities_are_those_of_the_leaves(rows):
    X, y = rows
    sure = clone(CLASSIFIER).set_params(probability=True, alpha=0.1)
    model = PartitionedClassifier(sure, 4, random_state=0).fit(X, y > 0)
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    np.testing.assert_array_equal(model.decision_function(X) > 0, model.predict(X))
    assert not hasattr(PartitionedClassifier(CLASSIFIER), "predict_proba")


def test_stages_fit_what_is_left_and_are_stored(rows, tmp_path):
    X, y = rows
    y = y + 100 * X[:, 2]
    # a penalty chosen on rows that follow a curve exactly is as small as rounding, and so are its digits
    ridge = clone(RIDGE).set_params(alpha=0.1)
    leaves = make_pipeline(Projector(2), PartitionedRegressor(ridge, 4, random_state=0))
    model = make_pipeline(Standardizer(), ResidualRegressor([("trend", LinearRegression()), ("leaves", leaves)]))
    model.fit(X, y)
    alone = clone(model).set_params(residualregressor__estimators=[("leaves", leaves)]).fit(X, y)
    assert 2 * np.std(model.predict(X) - y) < np.std(alone.predict(X) - y)
    corpus = write_corpus(tmp_path / "corpus", X, y)
    np.testing.assert_allclose(clone(model).fit(corpus).predict(corpus), model.predict(X), atol=1e-6)
    assert model.score(corpus) == pytest.approx(model.score(X, y))
    save_model(model, tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    assert [name for name, _ in loaded[-1].estimators] == ["trend", "leaves"]
    assert [stage["stage"] for stage in loaded[-1].fit_report()["stages"]] == ["trend", "leaves"]
    np.testing.assert_array_equal(Predictor.load(tmp_path / "model").predict(X), model.predict(X))
    np.testing.assert_array_equal(clone(loaded).fit(X, y).predict(X), model.predict(X))
    written = predict_to(model, corpus, tmp_path / "predictions")
    np.testing.assert_allclose(written["prediction"][:], model.predict(X), atol=1e-6)


def test_warnings_of_leaves_come_once(rows):
    X, y = rows
    flat = KernelRidge(n_landmarks=50, gamma=1e-9, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        PartitionedRegressor(flat, 4, random_state=0).fit(X, y)
    assert len({one.category for one in caught}) == len(caught)
    assert any("such warnings from 4 leaves)" in str(one.message) for one in caught)


@pytest.mark.parametrize(
    ("fit", "error", "message"),
    [
        (
            lambda X, y: PartitionedRegressor(METRIC, 200).fit(X, y),
            DataError,
            r"leaf \d of 200 with \d rows: .*at least 10",
        ),
        (lambda X, y: PartitionedRegressor(SklearnRegression()).fit(X, y), ConfigError, "found LinearRegression"),
        (
            lambda X, y: PartitionedClassifier(WEIGHTED).fit(X, y > 0),
            ConfigError,
            "blended probabilities know no class_weight",
        ),
        (lambda X, y: PartitionedRegressor(RIDGE, 1000).fit(X, y), DataError, "n_samples=1200; expected at least two"),
        (lambda X, y: PartitionedRegressor(RIDGE).fit(da.from_array(X)), DataError, "requires y"),
        (lambda X, y: PartitionedClassifier(CLASSIFIER).fit(da.from_array(X)), DataError, "requires y"),
        (
            lambda X, y: PartitionedClassifier(RIDGE).fit(X, y > 0),
            ConfigError,
            "expected a classifier, found KernelRidge",
        ),
        (
            lambda X, y: PartitionedRegressor(clone(RIDGE).set_params(landmarks="fourier")).fit(X, y),
            ConfigError,
            "random Fourier features cannot be blended",
        ),
        (
            lambda X, y: PartitionedRegressor(LinearRegression(), posterior=True).fit(X, y),
            ConfigError,
            "posterior: expected leaves of KernelRidge, found LinearRegression",
        ),
        (
            lambda X, y: PartitionedRegressor(RIDGE, 2).fit(X, y).predict(X, return_std=True),
            ConfigError,
            "fit with posterior=True",
        ),
        (lambda X, y: ResidualRegressor([]).fit(X, y), ConfigError, "expected a list of"),
        (lambda X, y: ResidualRegressor([("a", RIDGE), ("a", RIDGE)]).fit(X, y), ConfigError, "not unique"),
        (
            lambda X, y: ResidualRegressor([("a", SklearnRegression())]).fit(X, y),
            ConfigError,
            "estimators: a: expected an estimator of bigkernel",
        ),
        (lambda X, y: ResidualRegressor([("a", RIDGE)]).fit(da.from_array(X)), DataError, "requires y"),
    ],
)
def test_what_cannot_be_fitted_is_refused_by_name(fit, error, message, rows):
    with pytest.raises(error, match=message):
        fit(*rows)
