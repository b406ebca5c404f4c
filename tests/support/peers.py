"""Comparison of searches with GridSearchCV of scikit-learn, score by score."""

from itertools import pairwise

import dask
import numpy as np
import reference
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.model_selection import GridSearchCV
from threadpoolctl import threadpool_limits

from bigkernel.data import zarr_arrays
from bigkernel.search.sweep_search import SweepSearchCV
from bigkernel.statistics.moments import Moments
from bigkernel.streaming.chunk import Chunk, Workspace
from bigkernel.streaming.devices import HOST

STEPS = {"bigkernel.chunk-bytes": 1024, "bigkernel.min-segments": 3, "bigkernel.block-rows": 16}


def accumulate(statistic, x, *, cuts=(), block_rows=16, device=HOST, row_maps=(), **columns):
    """Return the statistic of rows in chunks cut at `cuts`, computed on a device."""
    total, work = statistic.zero(), Workspace(device=device)
    for a, b in pairwise([0, *sorted(cuts), len(x)]):
        chunk = {name: values[a:b] for name, values in columns.items() if values is not None}
        statistic.update(total, Chunk(x[a:b], a, **chunk, row_maps=row_maps, block_rows=block_rows, work=work))
    work.collect(total)
    finish = getattr(statistic, "finish", None)
    return finish(total) if finish else total


def moments_of(Phi, Y, weight=None):
    """Return the moments of rows of features, by the dense reference."""
    return Moments(rows=float(len(Phi)), **reference.moments(Phi, Y, weight))


def split_scores(search, label="score"):
    """Return the scores, (candidates, splits)."""
    return np.array([search.cv_results_[f"split{j}_test_{label}"] for j in range(search.n_splits_)]).T


def cells(search, splits):
    """Yield (parameters, training rows, test rows, score by name) of every candidate on every split."""
    for j, (train, test) in enumerate(splits):
        for i, params in enumerate(search.cv_results_["params"]):
            yield params, train, test, lambda name="score", j=j, i=i: search.cv_results_[f"split{j}_test_{name}"][i]


def digest(search):
    """Return the digest of every score of every split."""
    scores = {name: values for name, values in search.cv_results_.items() if "_test_" in name}
    return zarr_arrays.digest({name: np.ascontiguousarray(values, np.float64) for name, values in scores.items()})


def comparable(params):
    """Return parameters as text, to compare by `==`."""
    return {key: str(value) for key, value in params.items()}


def _penalty(params):
    """Return the penalty of a candidate, 0 if it has none or chooses it."""
    given = [value for name, value in params.items() if name.endswith("alpha") and not isinstance(value, str)]
    return float(given[0]) if given else 0.0


def peer(estimator, grid, X, y, *, cv, fit=None, **options):
    """Return a fitted GridSearchCV, on one thread."""
    search = GridSearchCV(estimator, grid, cv=cv, error_score="raise", **options)
    with threadpool_limits(1):
        return search.fit(X, y, **(fit or {}))


def assert_like_peer(
    estimator,
    grid,
    X,
    y,
    *,
    cv,
    scoring=None,
    refit=True,
    new=None,
    fit=None,
    peer_fit=None,
    peer_cv=None,
    atol=1e-8,
    **options,
):
    """Assert that the results of a search equal those of GridSearchCV; return the search.

    The peer has `peer_cv` and `peer_fit` in place of what it does not know; the best model predicts `new`.
    """
    with dask.config.set(STEPS):
        ours = SweepSearchCV(estimator, grid, cv=cv, scoring=scoring, refit=refit, **options).fit(X, y, **(fit or {}))
    theirs = peer(
        estimator, grid, X, y, cv=cv if peer_cv is None else peer_cv, scoring=scoring, refit=refit,
        fit=fit if peer_fit is None else peer_fit,
    )  # fmt: skip

    assert ours.n_splits_ == theirs.n_splits_
    assert ours.multimetric_ == theirs.multimetric_
    labels = ["score"] if scoring is None or isinstance(scoring, str) else list(scoring)
    further = {"prediction_error", *(f"sem_test_{label}" for label in labels)}
    assert set(ours.cv_results_) == set(theirs.cv_results_) | further
    assert [comparable(p) for p in ours.cv_results_["params"]] == [comparable(p) for p in theirs.cv_results_["params"]]
    for label in labels:
        scores = split_scores(theirs, label)
        assert_allclose(split_scores(ours, label), scores, rtol=0, atol=atol, err_msg=label)
        assert_allclose(ours.cv_results_[f"mean_test_{label}"], scores.mean(axis=1), rtol=0, atol=atol)
        assert_allclose(ours.cv_results_[f"std_test_{label}"], scores.std(axis=1), rtol=0, atol=atol)
        error = scores.std(axis=1, ddof=1) / np.sqrt(scores.shape[1])
        assert_allclose(ours.cv_results_[f"sem_test_{label}"], error, rtol=0, atol=atol)
        assert_array_equal(ours.cv_results_[f"rank_test_{label}"], theirs.cv_results_[f"rank_test_{label}"])
        assert ours.cv_results_[f"rank_test_{label}"].dtype == theirs.cv_results_[f"rank_test_{label}"].dtype
    for name in (name for name in theirs.cv_results_ if name.startswith("param_")):
        assert_array_equal(ours.cv_results_[name].mask, theirs.cv_results_[name].mask)
        actual, expected = ours.cv_results_[name].compressed(), theirs.cv_results_[name].compressed()
        assert list(map(str, actual.tolist())) == list(map(str, expected.tolist()))
    if refit or not ours.multimetric_:
        # of equal scores GridSearchCV takes the first candidate, ours that of the largest penalty
        chosen, params = labels[0] if len(labels) == 1 else refit, theirs.cv_results_["params"]
        means = theirs.cv_results_[f"mean_test_{chosen}"]
        tied = np.flatnonzero(means >= means.max() - 1e-14 * abs(means.max()))
        alphas = [_penalty(p) for p in params]
        assert ours.best_index_ in tied
        assert alphas[ours.best_index_] == max(alphas[i] for i in tied)
        assert ours.best_index_ == theirs.best_index_ or len(tied) > 1
        assert comparable(ours.best_params_) == comparable(params[ours.best_index_])
        assert abs(ours.best_score_ - theirs.best_score_) <= atol
    if refit and new is not None:
        if ours.best_index_ != theirs.best_index_:
            one = [{name: [value] for name, value in ours.best_params_.items()}]
            theirs = peer(
                estimator, one, X, y, cv=2, scoring=scoring, refit=refit, fit=fit if peer_fit is None else peer_fit
            )
        actual, expected = ours.predict(new), theirs.predict(new)
        if expected.dtype.kind == "f":
            assert_allclose(actual, expected, rtol=0, atol=10 * atol)
        else:
            assert_array_equal(actual, expected)
    return ours
