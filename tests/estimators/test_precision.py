"""Precision decided by the first rows of a sweep: it ends there, and the fit goes on in the next precision."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import bigkernel as bk
from bigkernel.errors import AccuracyWarning, PlanTooLargeError, RankDeficiencyWarning
from bigkernel.estimators.fit import fit
from bigkernel.events.job import SegmentDone, observe

g = np.random.default_rng(0)
N, M = 4000, 20
X = (0.3 * g.normal(size=(N, 3))).astype(np.float32)
Y = np.sin(8 * X[:, 0])


def ridge(dtype="auto", alpha=1e-4, **options):
    return bk.KernelRidge(bk.Gaussian(1.0), alpha=alpha, n_landmarks=M, dtype=dtype, random_state=0, **options)


def fitted(model, rows=(X, Y), **execution):
    """Return a fitted model, and how many rows its sweeps have computed."""
    events = []
    with bk.executing(execution.pop("executor", "serial"), **execution), observe(events.append):
        model.fit(*rows)
    done = [event.receipt for event in events if isinstance(event, SegmentDone)]
    return model, sum(receipt.rows for receipt in done if not receipt.resumed)


def why(model):
    return model.fit_report()["sweep"]["swept_again"]


@pytest.mark.parametrize("probability", [False, True])
def test_a_sweep_that_float32_cannot_serve_ends_after_its_first_segment(probability):
    kind = bk.KernelRidgeClassifier if probability else bk.KernelRidge
    options = {"probability": True} if probability else {}
    y = (Y > 0).astype(int) if probability else Y

    def model(dtype):
        return kind(bk.Gaussian(1.0), alpha=1e-4, n_landmarks=M, dtype=dtype, random_state=0, **options)

    (early, rows), (wide, once) = (fitted(model(dtype), (X, y)) for dtype in ("auto", "float64"))
    assert rows - once == N // 4
    assert "after 25% of the rows" in why(early)[0]
    assert early.dtype_ == "float64"
    assert_array_equal(early.predict(X[:50]), wide.predict(X[:50]))


def test_first_rows_end_no_sweep_that_float32_serves(monkeypatch):
    judged, shares = fit.precision_of_first_rows, []
    monkeypatch.setattr(fit, "precision_of_first_rows", lambda *a, **k: shares.append(a[2]) or judged(*a, **k))
    model, rows = fitted(ridge(alpha=100.0))
    assert (model.dtype_, rows, why(model), shares) == ("float32", N, [], [0.25])
    # too few rows for a solve that costs nothing beside them
    fitted(ridge(alpha=100.0), (X[: 90 * M], Y[: 90 * M]))
    assert len(shares) == 1


def test_first_rows_without_weight_decide_nothing():
    model, rows = fitted(ridge(), (X, Y, (np.arange(N) >= N // 2).astype(float)))
    assert "after" not in why(model)[0]
    assert rows > N


def test_a_finer_precision_that_does_not_fit_leaves_the_sweep_its_last_row(monkeypatch):
    sum_up = fit.sum_up

    def refuse(method, data, basis, *arguments, **options):
        if basis.dtype == "float64":
            raise PlanTooLargeError("a worker needs more")
        return sum_up(method, data, basis, *arguments, **options)

    monkeypatch.setattr(fit, "sum_up", refuse)
    refused = pytest.warns(RankDeficiencyWarning, match="computing in float64 does not fit in memory")
    with refused, pytest.warns(AccuracyWarning, match="or dtype='float64'"):
        model, rows = fitted(ridge())
    assert model.dtype_ == "float32"
    assert rows >= N // 4 + N


def test_a_resumed_fit_decides_the_same_from_what_its_run_kept(tmp_path):
    expected, all_rows = fitted(ridge())
    _, rows = fitted(ridge(), run=tmp_path)
    assert rows == all_rows
    again, rows = fitted(ridge(), run=tmp_path, resume=True)
    assert rows == 0
    assert_array_equal(again.predict(X[:50]), expected.predict(X[:50]))


@pytest.mark.cluster
def test_executors_end_at_the_same_segment_with_the_same_bits(make_corpus, client):
    corpus = make_corpus(X, chunk_rows=250, y=Y)
    models, rows = zip(
        *(fitted(ridge(), (corpus,), executor=one) for one in ("serial", "threads", client)), strict=True
    )
    assert rows[0] == N + N // 4
    for model in models:
        assert why(model) == why(models[0])
        assert_array_equal(model.predict(X[:50]), models[0].predict(X[:50]))
