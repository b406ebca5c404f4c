"""Probabilities are calibrated on held-out rows and agree with predictions."""

import json
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import pytest
from forging import forge, put
from numpy.testing import assert_allclose, assert_array_equal
from scipy.special import softmax
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.metrics import brier_score_loss, log_loss

import bigkernel as bk
from bigkernel.config import settings
from bigkernel.engine.rows import as_rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import ConfigError, DataError, ModelRejectedError
from bigkernel.estimators.evaluation import evaluate
from bigkernel.estimators.fit import folds, method
from bigkernel.kernels.feature_maps import IdentityMap
from bigkernel.solvers.logistic import fit_softmax
from bigkernel.statistics.held_out import FOLDS, HeldOutFolds, HeldOutValues
from bigkernel.statistics.moments import Targets
from bigkernel.streaming.chunk import Chunk

rng = np.random.default_rng(12)
N = 240
X = rng.normal(size=(N, 3))
Y = (X[:, 0] + 0.6 * rng.normal(size=N) > 0) + 1 * (X[:, 1] + 0.3 * rng.normal(size=N) > 0.8)
PARTLY = np.where(np.arange(N) % 3 == 0, -1, Y)
WEIGHT = rng.uniform(0.2, 3, N)
BY_CLASS = {0: 0.3, 1: 4.0, 2: 1.0}
GIVEN = {"kernel": bk.Gaussian(1.5), "landmarks": X[:20]}
FOLD = HeldOutFolds(FOLDS - 1).of(Chunk(X)) % FOLDS
MODELS = {
    "krr": (bk.KernelRidgeClassifier(**GIVEN), Y),
    "krr with an intercept": (bk.KernelRidgeClassifier(fit_intercept=True, **GIVEN), Y),
    "krr of two": (bk.KernelRidgeClassifier(**GIVEN), Y > 0),
    "krr of sampled rows": (bk.KernelRidgeClassifier(bk.Gaussian(0.4), 1e-3, n_landmarks=90, random_state=0), Y),
    "krr exact": (bk.KernelRidgeClassifier(bk.Gaussian(1.5)), Y),
    "krr by class": (bk.KernelRidgeClassifier(class_weight=BY_CLASS, **GIVEN), Y),
    "krr exact by class": (bk.KernelRidgeClassifier(bk.Gaussian(1.5), class_weight=BY_CLASS), Y),
    "sssl": (bk.SSSLClassifier(n_components=10, manifold=0, **GIVEN), PARTLY),
    "sssl with a graph": (bk.SSSLClassifier(n_components=10, manifold=0.3, **GIVEN), PARTLY),
    "sssl exact": (bk.SSSLClassifier(bk.Gaussian(1.5), n_components=10, manifold=0), PARTLY),
    "xnv": (bk.XNVClassifier(**GIVEN), PARTLY),
    "artl": (bk.ARTLClassifier(n_rounds=0, manifold=0, **GIVEN), PARTLY),
}


def without(name, y, held):
    """Return the arguments of a fit without some rows; semi-supervised methods keep them as unlabelled rows."""
    if name in ("sssl", "sssl with a graph", "sssl exact", "xnv"):
        return {"X": X, "y": np.where(held, -1, y), "sample_weight": WEIGHT}
    return {"X": X[~held], "y": y[~held], "sample_weight": WEIGHT[~held]}


@pytest.mark.parametrize("name", MODELS)
def test_calibration_matches_fits_without_each_fold(name):
    model, y = MODELS[name]
    actual = clone(model).set_params(probability=True).fit(X, y, sample_weight=WEIGHT)
    labelled = np.flatnonzero(y != -1)
    values = np.zeros((N, len(actual.classes_)))
    for number in range(FOLDS):
        held, fold = (number == FOLD) & (y != -1), model
        if model.n_landmarks:  # without those among the held-out rows
            kept = ~(actual.landmarks_[:, None] == X[held]).all(axis=2).any(axis=1)
            fold = clone(model).set_params(n_landmarks=None, landmarks=actual.landmarks_[kept])
        values[held] = fold.fit(**without(name, y, held))._values(X[held])
    truth = np.searchsorted(actual.classes_, y[labelled])
    expected = fit_softmax(values[labelled], truth, WEIGHT[labelled])
    assert_allclose(actual.calibration_scale_, expected.scale, rtol=1e-5)
    plain = model.fit(X, y, sample_weight=WEIGHT)
    assert_allclose(actual.dual_coef_, plain.dual_coef_, rtol=1e-6, atol=1e-6)
    assert_allclose(actual.predict_proba(X), softmax(expected.logits(plain._values(X)), axis=1), atol=1e-6)


@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_probabilities_of_weighted_classes_are_those_of_scikit_learn(weight):
    model, y = bk.KernelRidgeClassifier(class_weight={0: 1, 1: 9}, **GIVEN), (Y > 0) * 1
    peer = CalibratedClassifierCV(model, cv=FOLDS, ensemble=False).fit(X, y, sample_weight=weight)
    actual = clone(model).set_params(probability=True).fit(X, y, sample_weight=weight).predict_proba(X)
    assert_allclose(actual, peer.predict_proba(X), atol=0.03)
    assert np.average(actual[:, 1], weights=weight) == pytest.approx(np.average(y, weights=weight), abs=0.02)


@pytest.mark.parametrize("name", MODELS)
def test_probabilities_predictions_and_decision_values_agree(name):
    model, y = clone(MODELS[name][0]).set_params(probability=True), MODELS[name][1]
    model.fit(X, y)
    p, lazy = model.predict_proba(X), model.predict_proba(da.from_array(X, chunks=(70, 3)))
    assert_allclose(p.sum(axis=1), 1, rtol=1e-12)
    weights = [(model.class_weight or {}).get(name, 1) for name in model.classes_]
    assert_array_equal(model.classes_[(p * weights).argmax(axis=1)], model.predict(X))
    assert_array_equal(model.predict(X), model.classes_[model._values(X).argmax(axis=1)])
    assert_allclose(bk.Predictor.of(model).predict_proba(X), p, rtol=1e-12)
    assert isinstance(lazy, da.Array)
    assert_allclose(lazy.compute(), p, rtol=1e-6)
    assert_allclose(np.exp(model.predict_log_proba(X)), p, rtol=1e-9)
    if p.shape[1] == 2:
        assert_allclose(model.decision_function(X), np.log(p[:, 1] / p[:, 0]), rtol=1e-8)


def test_scaling_weights_and_penalty_changes_nothing():
    expected = bk.KernelRidgeClassifier(probability=True, **GIVEN).fit(X, Y).predict_proba(X)
    for scale in (1e100, 1e-200):
        model = bk.KernelRidgeClassifier(probability=True, alpha=scale, **GIVEN).fit(X, Y, np.full(N, scale))
        assert_allclose(model.predict_proba(X), expected, rtol=1e-6)


def test_held_out_rows_of_least_hash_are_kept_in_any_chunking(small_steps):
    coef, intercept = rng.normal(size=(FOLDS, 3, 3)), rng.normal(size=(FOLDS, 3))
    statistic = HeldOutValues(
        IdentityMap(np.zeros(3)),
        coef[None],
        intercept[None],
        HeldOutFolds(FOLDS - 1),
        Targets(3, np.arange(3)),
        50,
        float(N),
    )
    weight = np.where(np.arange(N) % 7 == 0, 0.0, WEIGHT)
    whole = statistic.zero()
    statistic.update(whole, Chunk(X, y=Y, weight=weight))
    cut = sweep(as_rows(X, Y, weight=weight), statistic).total
    assert len(cut["row"]) == 50
    for name, values in whole.items():
        assert_allclose(cut[name], values, rtol=1e-12)
    rows = cut["row"].astype(int)
    assert (weight[rows] > 0).all()
    assert_array_equal(cut["truth"], Y[rows])
    assert_allclose(cut["values"], np.einsum("nd,ndc->nc", X[rows], coef[FOLD[rows]]) + intercept[FOLD[rows]])


def test_copies_of_a_group_are_held_out_together():
    group = np.arange(N) // 6
    fold = HeldOutFolds(FOLDS - 1).of(Chunk(X, group=group))
    assert all(len(np.unique(fold[group == number])) == 1 for number in range(N // 6))
    assert len(np.unique(fold)) == FOLDS


@pytest.mark.parametrize("form", [GIVEN, {"kernel": bk.Gaussian(1.5)}], ids=["landmarks", "exact"])
def test_folds_without_usable_rows_are_refused(form):
    model, two = bk.KernelRidgeClassifier(probability=True, **form), (Y > 0).astype(int)
    one = np.where(two == 1, 0, np.arange(N))
    messages = {"1 groups: 0 of 2": np.zeros(N, int), "2 groups: 0 of 2": two, "of a single class": one}
    for message, group in messages.items():
        with pytest.raises(DataError, match=rf"{message}[^;]*; add groups or set probability=False"):
            model.fit(as_rows(X, two, group=group))
    assert model.fit(as_rows(X, two, group=np.arange(N) // 4)).score(X, two) > 0.75


def test_one_fold_without_rows_is_refused(monkeypatch):
    model = bk.KernelRidgeClassifier(probability=True, **GIVEN)
    few = np.flatnonzero(HeldOutFolds(1).of(Chunk(X, group=np.arange(N))) != 0)[:3]
    fold = lambda statistic: replace(statistic, folds=HeldOutFolds(1))  # noqa: E731
    monkeypatch.setattr(method, "with_folds", fold)
    with pytest.raises(DataError, match="no held-out row to calibrate on"):
        model.fit(as_rows(X, Y, group=few[np.arange(N) % 3]))


def test_one_fold_is_held_out_if_memory_is_short():
    model = bk.KernelRidgeClassifier(probability=True, **GIVEN)
    five = model.fit(X, Y).fit_report()["calibration_rows"]
    plan, limit = model.plan(X, Y), 10**8
    statistic = model._method().statistic(model._fitted.basis, Targets(3, np.arange(3)))
    size = folds.with_folds(statistic).footprint(settings().block_rows)
    base = {"bigkernel.worker-base-bytes": limit - size.work_bytes - 6 * size.partial_bytes}
    with dask.config.set({"bigkernel.memory-limit-bytes": limit, **base}):
        one = model.fit(X, Y)
        assert one.fit_report()["calibration_rows"] == (FOLD == 0).sum()
        assert one.plan(X, Y).task_bytes < plan.task_bytes
    assert five == N
    assert one.plan(X, Y).flops > bk.KernelRidgeClassifier(**GIVEN).plan(X, Y).flops


def test_a_resumed_fit_calibrates_again_for_another_penalty(tmp_path, make_corpus):
    corpus = make_corpus(X, y=Y, classes=(0, 1, 2))
    model = bk.KernelRidgeClassifier(probability=True, **GIVEN)
    with bk.executing("serial", run=tmp_path / "run"):
        first = model.fit(corpus).predict_proba(X)
    with bk.executing("serial", run=tmp_path / "run", resume=True):
        other = model.set_params(alpha=30.0).fit(corpus).predict_proba(X)
        assert model.fit_report()["sweep"]["resumed_segments"] > 0
    assert_array_equal(other, model.fit(corpus).predict_proba(X))
    assert np.abs(other - first).max() > 1e-3


def test_unsupported_calls_are_refused():
    assert not hasattr(bk.KernelRidgeClassifier(), "predict_proba")
    with pytest.raises(AttributeError, match="has no predict_proba: set probability=True and fit again"):
        bk.KernelRidgeClassifier(**GIVEN).fit(X, Y).predict_proba(X)
    model = bk.KernelRidgeClassifier(probability=True, **GIVEN).fit(X, Y)
    assert not hasattr(model, "partial_fit")
    late = bk.KernelRidgeClassifier(**GIVEN).fit(X, Y).set_params(probability=True)
    refused = {
        "refit": model.refit,
        "with_landmarks": lambda: model.with_landmarks(5),
        "fitted with probability=False": lambda: late.predict_proba(X),
        "solver='direct'": lambda: bk.KernelRidgeClassifier(probability=True, solver="cg", **GIVEN).fit(X, Y),
    }
    for message, call in refused.items():
        with pytest.raises(ConfigError, match=message):
            call()
    assert model.set_params(probability=False).refit().predict(X).shape == (N,)


def test_a_search_gives_a_model_with_probabilities():
    search = bk.SweepSearchCV(bk.KernelRidgeClassifier(probability=True, **GIVEN), {"alpha": [1.0, 10.0]}).fit(X, Y)
    expected = bk.KernelRidgeClassifier(probability=True, **GIVEN).set_params(**search.best_params_).fit(X, Y)
    assert_allclose(search.predict_proba(X), expected.predict_proba(X), rtol=1e-7)
    assert_allclose(search.predict_log_proba(X), expected.predict_log_proba(X), rtol=1e-6)
    plain = bk.KernelRidgeClassifier(**GIVEN)
    assert not hasattr(bk.SweepSearchCV(plain, {"alpha": [1.0]}), "predict_proba")
    assert hasattr(bk.SweepSearchCV(plain, {"probability": [True]}).fit(X, Y), "predict_proba")


@pytest.mark.parametrize("y", [Y, (Y > 0).astype(int)], ids=["three", "two"])
def test_scores_of_probabilities_match_scikit_learn(make_corpus, y):
    corpus = make_corpus(X, y=y, weight=WEIGHT, classes=tuple(range(y.max() + 1)))
    model = bk.KernelRidgeClassifier(probability=True, class_weight=BY_CLASS, **GIVEN).fit(corpus)
    actual, p = evaluate(model, corpus, as_rows(corpus), of="scored", pictures=False), model.predict_proba(X)
    assert actual["log_loss"] == pytest.approx(log_loss(y, p, sample_weight=WEIGHT), rel=1e-6)
    brier = brier_score_loss(y, p, sample_weight=WEIGHT, scale_by_half=False)
    assert actual["brier"] == pytest.approx(brier, rel=1e-6)
    best, right = p.max(axis=1), p.argmax(axis=1) == y
    place = np.minimum((15 * best).astype(int), 14)
    off = [abs((WEIGHT * (right - best))[place == number].sum()) for number in range(15)]
    assert actual["calibration_error"] == pytest.approx(sum(off) / WEIGHT.sum(), rel=1e-6)


def test_commands_calibrate_and_report_scores(run, make_corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_corpus(X, name="c", y=Y, classes=(0, 1, 2))
    make_corpus(X, name="numbers", y=X[:, 0])
    fitted = run(
        *("fit", "c", "m", "--landmarks", 20, "--probability", "--class-weight", "balanced"),
        *("--run", "r", "--score", "c", "--json"),
    )
    assert json.loads(fitted.stdout)["calibration_rows"] == N
    scored = json.loads(run("score", "m", "c", "--json").stdout)
    assert 0 < scored["log_loss"] < np.log(3)
    assert 0 < scored["brier"] < 1
    assert '"log_loss":' in (tmp_path / "r" / "report.html").read_text()
    for option in (["--probability"], ["--class-weight", "balanced"]):
        assert option[0] in run("fit", "numbers", "n", "--landmarks", 20, *option, code=8).stderr


def test_a_model_file_needs_both_numbers_of_a_calibration(tmp_path):
    model = bk.KernelRidgeClassifier(probability=True, class_weight=BY_CLASS, **GIVEN).fit(X, Y)
    bk.save_model(model, tmp_path / "m")
    assert_array_equal(bk.load_model(tmp_path / "m").predict_proba(X), model.predict_proba(X))
    forge(tmp_path / "m", put("model", "fitted", "fields", "calibration", "fields", "offset", None))
    with pytest.raises(ModelRejectedError, match="expected Array"):
        bk.load_model(tmp_path / "m")
