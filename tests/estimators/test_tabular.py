"""Tables without settings: which candidate is chosen, what remains of an interrupted fit, reports and files."""

import time

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from bigkernel import Predictor, TabularClassifier, TabularRegressor, executing, load_model, save_model, write_corpus
from bigkernel.errors import ConfigError, DataError
from bigkernel.estimators.tables import tabular
from bigkernel.estimators.tables.tabular import Candidate, Judged, Sample, Search
from bigkernel.kernels.functions import Gaussian, Laplacian, Matern

N = 160
FIRST = TabularRegressor(time_limit=0, random_state=0)  # the first candidate alone


@pytest.fixture
def quick(monkeypatch):
    """Judge five candidates, on few rows with little work."""
    monkeypatch.setattr(tabular, "_FOLDS", 2)
    monkeypatch.setattr(tabular, "_STEPS", 8)
    monkeypatch.setattr(Search, "_too_long", lambda self, candidate, rows: len(self.judged) == 5)


def linear(X, rng):
    return X @ [3.0, -2.0, 1.0, 0.0] + 0.3 * rng.normal(size=len(X))


def relevant(X, rng):
    return np.sin(3 * X[:, 0]) + 0.05 * rng.normal(size=len(X))


def with_trend(X, rng):
    return 30 * X[:, 1] + relevant(X, rng)


def chosen(model):
    return next(line["candidate"] for line in model.candidates_ if line["chosen"])


@pytest.mark.parametrize(
    "truth, parts", [(linear, {"lines"}), (relevant, {"metric"}), (with_trend, {"trend", "metric"})]
)
def test_the_choice_is_that_of_the_truth(truth, parts, quick, rng):
    X = rng.normal(size=(N, 4))
    model = TabularRegressor(random_state=0).fit(X, truth(X, rng))
    assert parts <= set(chosen(model).split(", ")), model.candidates_


def test_the_first_candidate_is_left_for_a_clear_gain_only(quick, rng):
    X = rng.normal(size=(N, 4))
    model = TabularRegressor(random_state=0).fit(X, rng.normal(size=N))
    first, *others = model.candidates_
    assert first["candidate"] == "Gaussian"
    assert any(line["chosen"] and line["gain"] > line["gain_error"] for line in others) or first["chosen"]


class Recorded(Search):
    """A search whose candidates have given losses, in the order in which they come."""

    losses = ()

    def _judge(self, candidate, rows):
        loss = self.losses[len(self.judged)]
        if isinstance(loss, BaseException):
            raise loss
        if isinstance(loss, str):
            return Judged(candidate, rows, 0.001, np.empty(0), failed=loss)
        return Judged(candidate, rows, 1.0, np.zeros(9) + 0.01 * np.arange(9) + loss, alpha=0.5)


def searched(losses, n=40_000, deadline=np.inf):
    """Return the search of n rows and its choice."""
    made = Recorded(Sample(np.zeros((n, 1)), np.arange(float(n)), np.ones(n), 0), 0, deadline, n)
    made.losses = losses
    return made, made.run()


def test_candidates_follow_the_best_so_far():
    # Gaussian, lines, Laplacian, metric, trend, then its forms; the best on more rows, in leaves, with more landmarks
    made, best = searched([1, 1, 1, 0.5, 0.4, 0.6, 0.3, 0.6, 0.28, 0.25, 0.2, 0.1, 0.1])
    assert made.ended == "complete"
    kernel = Matern(1.0, nu=2.5)
    assert best.candidate == Candidate(kernel, metric=True, trend=True, landmarks=4000, alpha=0.5)
    assert [one.candidate.landmarks for one in made.judged[8:]] == [1000, 1000, 2000, 4000, 6000]
    assert [one.candidate.leaf_rows > 0 for one in made.judged[6:10]] == [False, False, False, True]
    assert made.judged[8].candidate == made.judged[6].candidate
    assert made.judged[2].candidate.kernel == Laplacian()
    assert [one.rows for one in made.judged] == [10_000] * 8 + [40_000] * 5
    assert best.candidate.name == "trend, metric, Matérn 5/2, 4,000 landmarks"


def test_more_landmarks_end_where_they_do_not_help():
    made, best = searched([1, 1, 1, 0.5, 0.6, 0.6, 0.6, 0.6, 0.48, 0.4, 0.45, 0.42])
    assert best.candidate == Candidate(Matern(1.0, nu=1.5), metric=True, leaf_rows=tabular._LEAF_ROWS)
    assert made.judged[-1].candidate == Candidate(Matern(1.0, nu=1.5), True, leaf_rows=5000, landmarks=2000)


def test_a_gain_within_its_standard_error_leaves_the_first():
    unsure = np.where(np.arange(9) < 5, 0.5, 1.4)
    _, best = searched([1, unsure, 1, 1, 1, 1, 1, 1], n=400)
    assert best.candidate == Candidate(Gaussian(1.0))
    _, best = searched([1, unsure - 0.5, 1, 1, 1, 1, 1, 1], n=400)
    assert best.candidate == Candidate(None)


@pytest.mark.parametrize("n_rows, seconds", [(10_000, 3.0), (2_000_000, 400.0)])
def test_a_candidate_is_judged_if_there_is_time_for_it_and_its_fit(n_rows, seconds):
    small, large = Candidate(Gaussian(1.0)), Candidate(Gaussian(1.0), landmarks=4000)
    made = Search(None, 0, 0.0, n_rows)
    made.judged = [Judged(small, 10_000, 1.0, np.ones(9)), Judged(large, 10_000, 0.0, np.empty(0), failed="at once")]
    # a second a unit of work, of the candidate and of what its fit takes longer than that of the first
    rate = 1.0 / small.cost(10_000)
    needed = rate * (large.cost(10_000) + large.cost(n_rows) - small.cost(n_rows))
    assert needed > seconds
    for share in (0.9, 1.1):
        made.deadline = time.monotonic() + share * needed
        assert made._too_long(large, 10_000) == (share < 1)


def test_an_interrupt_keeps_the_best_so_far_but_not_before_the_first():
    made, best = searched([1, 0.5, 0.4, KeyboardInterrupt()])
    assert (best.candidate.kernel, made.ended) == (Laplacian(), "interrupted")
    with pytest.raises(KeyboardInterrupt):
        searched([KeyboardInterrupt()])
    made, best = searched([1, 0.5], deadline=0.0)
    assert (best.candidate, made.ended) == (Candidate(Gaussian(1.0)), "time_limit")


def test_an_interrupted_fit_is_a_fit(monkeypatch, rng):
    X, judge = rng.normal(size=(N, 4)), Search._judge

    def interrupted(self, candidate, rows):
        if len(self.judged) == 2:
            raise KeyboardInterrupt
        return judge(self, candidate, rows)

    monkeypatch.setattr(Search, "_judge", interrupted)
    model = TabularRegressor(random_state=0).fit(X, linear(X, rng))
    assert (chosen(model), model.ended_, len(model.candidates_)) == ("lines", "interrupted", 2)
    assert model.score(X, linear(X, rng)) > 0.9


def test_a_run_that_resumes_judges_no_candidate_twice(monkeypatch, rng, tmp_path):
    X, judged = rng.normal(size=(N, 4)), []
    y = linear(X, rng)

    def dying(self, candidate, rows):
        judged.append(candidate.name)
        if len(judged) == 3:
            raise SystemExit
        loss = np.arange(5.0) + (candidate.kernel is not None)  # lines are the best
        return Judged(candidate, rows, 0.5, loss, alpha=0.1)

    monkeypatch.setattr(Search, "_judge", dying)
    monkeypatch.setattr(Search, "_too_long", lambda self, candidate, rows: len(self.judged) == 4)
    model, run, first = TabularRegressor(random_state=0), tmp_path / "run", ["Gaussian", "lines", "Laplacian"]
    with executing(run=run), pytest.raises(SystemExit):
        model.fit(X, y)
    with executing(run=run, resume=True):
        lines = model.fit(X, y).candidates_
    assert judged == [*first, "Laplacian", "metric, Matérn 3/2"]
    assert (chosen(model), lines) == ("lines", TabularRegressor(random_state=0).fit(X, y).candidates_)
    judged.clear()
    with executing(run=run, resume=True), pytest.raises(SystemExit):  # other rows
        model.fit(2 * X, y)
    assert judged == first


def test_a_candidate_that_fails_is_not_chosen(monkeypatch, rng, tmp_path):
    X, held_out = rng.normal(size=(N, 4)), tabular._held_out

    def failing(candidate, *given):
        if candidate.kernel == Gaussian(1.0) and not candidate.metric:
            raise DataError("too strange")
        return held_out(candidate, *given)

    monkeypatch.setattr(tabular, "_held_out", failing)
    monkeypatch.setattr(Search, "_too_long", lambda self, candidate, rows: len(self.judged) > 1)
    model = TabularRegressor(random_state=0).fit(X, linear(X, rng))
    assert model.candidates_[0]["failed"] == "too strange"
    assert [model.candidates_[0][name] for name in ("error", "gain", "gain_error")] == [None] * 3
    assert chosen(model) == "lines"
    save_model(model, tmp_path / "m")
    assert load_model(tmp_path / "m").candidates_ == model.candidates_


def table(rng):
    """Return a frame with a category, missing values and a constant, and targets that need them."""
    frame = pd.DataFrame({"a": rng.normal(size=N), "kind": rng.choice(["u", "v", "w", None], N), "same": 1.0})
    frame.loc[::7, "a"] = np.nan
    return frame, 2.0 * (frame["kind"] == "u") + np.sin(2 * frame["a"].fillna(1)), "kind=u"


@pytest.mark.parametrize("classes", [False, True])
def test_a_frame_and_its_model_file(classes, rng, tmp_path):
    frame, y, _ = table(rng)
    labels = np.where(y > 1, "high", "low") if classes else y.to_numpy()
    make = TabularClassifier if classes else TabularRegressor
    model = make(time_limit=0, random_state=0).fit(frame, labels)
    assert model.score(frame, labels) > 0.9
    assert model.feature_names_in_.tolist() == ["a", "kind", "same"]
    save_model(model, tmp_path / "m")
    loaded, small = load_model(tmp_path / "m"), Predictor.load(tmp_path / "m")
    for one in (loaded, small):
        np.testing.assert_array_equal(one.predict(frame), model.predict(frame))
    assert loaded.candidates_ == model.candidates_
    assert loaded.fit_report()["chosen"] == "Gaussian"
    assert clone(loaded).fit(frame, labels).ended_ == "time_limit"
    if classes:
        assert model.classes_.tolist() == ["high", "low"]
        np.testing.assert_allclose(model.predict_proba(frame).sum(axis=1), 1)
        np.testing.assert_array_equal(small.predict_proba(frame), model.predict_proba(frame))
        assert model.decision_function(frame).shape == (N,)
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={"a": "b"}))


def test_the_report_lists_every_candidate(rng):
    X = rng.normal(size=(N, 4))
    model = FIRST.fit(X, linear(X, rng))
    report = model.fit_report()
    assert (report["estimator"], report["chosen"], report["ended"]) == ("TabularRegressor", "Gaussian", "time_limit")
    (line,) = report["candidates"]
    assert set(line) == {"candidate", "error", "rows", "gain", "gain_error", "seconds", "chosen", "failed"}
    assert 0 < line["error"] < 1
    assert line["seconds"] > 0


def test_rows_of_any_kind_give_the_same_model(rng, tmp_path):
    X, w = rng.normal(size=(N, 4)), rng.uniform(0.5, 2, N)
    y = linear(X, rng)
    expected = clone(FIRST).fit(X, y, w).predict(X)
    assert np.array_equal(clone(FIRST).fit(X, y, w).predict(X), expected)  # and twice the same
    lazy = clone(FIRST).fit(da.from_array(X, chunks=(50, 4)), y, w)
    np.testing.assert_allclose(lazy.predict(X), expected, rtol=1e-8)
    assert lazy.predict(da.from_array(X, chunks=(50, 4))).compute().shape == (N,)
    corpus = write_corpus(tmp_path / "c", X, y, weight=w)
    np.testing.assert_allclose(clone(FIRST).fit(corpus).predict(X), expected, rtol=1e-8)
    both = clone(FIRST).fit(X, np.column_stack([y, -y]))
    assert both.predict(X).shape == (N, 2)


def test_deviations_are_those_of_the_chosen_model(rng):
    X = rng.normal(size=(N, 4))
    mean, std = clone(FIRST).fit(X, linear(X, rng)).predict(X, return_std=True)
    assert mean.shape == std.shape == (N,)
    model = TabularRegressor(random_state=0)
    model.model_ = Candidate(None).build(N, 0, classifies=False).fit(X, linear(X, rng))
    model.n_features_in_ = 4
    with pytest.raises(ConfigError, match="the chosen model, Ridge"):
        model.predict(X, return_std=True)


@pytest.mark.parametrize("n", [2, 3, 8, 31])
def test_few_rows(n, quick, rng):
    X = rng.normal(size=(n, 2))
    model = TabularRegressor(random_state=0).fit(X, X[:, 0])
    assert np.isfinite(model.predict(X)).all()
    labels = np.arange(n) % 2
    assert set(TabularClassifier(random_state=0).fit(X, labels).predict(X)) <= {0, 1}


def test_rows_that_cannot_be_calibrated_have_classes_without_probabilities(rng):
    X = rng.normal(size=(20, 2))
    model = TabularClassifier(time_limit=0, random_state=0).fit(X, np.arange(20) == 3)
    assert model.predict(X).shape == (20,)
    with pytest.raises(AttributeError, match="predict_proba"):
        model.predict_proba(X)
