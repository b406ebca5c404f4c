"""Choices of landmarks by the estimators: the same for every kind of input, and the properties of each choice."""

import tracemalloc
from contextlib import nullcontext
from typing import NamedTuple
from warnings import catch_warnings, simplefilter

import dask
import dask.array as da
import numpy as np
import pytest
import reference
import reference_sampling
import zarr
from kinds import of_kind
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.cluster import KMeans
from sklearn.metrics import pairwise_distances_argmin_min
from threadpoolctl import threadpool_limits

import bigkernel as bk
from bigkernel.engine.rows import as_rows
from bigkernel.errors import ConfigError, DataError, PlanTooLargeError, RankDeficiencyWarning
from bigkernel.estimators.fit import basis as kernel_basis
from bigkernel.estimators.fit.basis import CHOICES, choose, sample_size
from bigkernel.kernels import landmarks
from bigkernel.kernels.landmarks import rp_cholesky

rng = np.random.default_rng(20170524)
N, D, M = 150, 4, 12
X, y = rng.normal(size=(N, D)), rng.normal(size=N)
DOMAIN = np.repeat([3, 0, 9], [100, 46, 4])
KERNEL = bk.Gaussian(1.5)
every_choice = pytest.mark.parametrize("choice", CHOICES)
ROWS = ("uniform", "balanced", "rpcholesky")

pytestmark = pytest.mark.usefixtures("small_steps")


class Chosen(NamedTuple):
    landmarks: np.ndarray
    rows: np.ndarray | None
    note: str | None


def chosen(choice, rows=None, count=M, seed=5, kernel=KERNEL):
    rows = as_rows(X, domain=DOMAIN) if rows is None else rows
    return Chosen(*choose(rows, choice, count, kernel=kernel, rng=np.random.RandomState(seed)))


def fitted(choice, rows=None, kernel=KERNEL, **settings):
    rows = as_rows(X, y, domain=DOMAIN) if rows is None else rows
    return bk.KernelRidge(kernel, n_landmarks=M, landmarks=choice, random_state=5, **settings).fit(rows)


@every_choice
def test_every_kind_of_input_gives_the_same_landmarks(choice, tmp_path, make_corpus):
    expected = fitted(choice).landmarks_
    assert expected.shape == (M, D)
    for kind in ("dask", "corpus"):
        rows = of_kind(kind, X, make_corpus, tmp_path, y=y, domain=DOMAIN)
        rows = rows if kind == "corpus" else as_rows(rows, y, domain=DOMAIN)
        assert_array_equal(fitted(choice, rows).landmarks_, expected)


@pytest.mark.parametrize("choice", ROWS)
def test_landmarks_are_distinct_rows_in_order(choice):
    actual = chosen(choice)
    assert_array_equal(X[actual.rows], actual.landmarks)
    assert (np.diff(actual.rows) > 0).all()
    assert actual.note is None


@pytest.mark.parametrize(
    ("choice", "groups"),
    [("k-means", [(DOMAIN >= 0, M)]), ("balanced-k-means", [(domain == DOMAIN, 4) for domain in (0, 3, 9)])],
)
def test_centres_are_as_good_as_those_of_scikit_learn_for_all_rows_and_by_domain(choice, groups):
    centres = chosen(choice).landmarks
    for rows, k in groups:
        own, centres = centres[:k], centres[k:]
        model = KMeans(k, n_init=1, random_state=5).fit(X[rows])
        assert (pairwise_distances_argmin_min(X[rows], own)[1] ** 2).sum() < 1.2 * model.inertia_ + 1e-12
    assert not len(centres)


@pytest.mark.parametrize(
    ("count", "shares"), [(3, [1, 1, 1]), (11, [3, 4, 4]), (20, [8, 8, 4]), (120, [46, 70, 4]), (150, [46, 100, 4])]
)
def test_balanced_landmarks_are_shared_equally_by_domains(count, shares):
    rows = chosen("balanced", count=count).rows
    assert [np.count_nonzero(DOMAIN[rows] == domain) for domain in (0, 3, 9)] == shares


@pytest.mark.parametrize(
    "kind",
    [bk.KernelRidge, bk.KernelRidgeClassifier, bk.KernelLogisticClassifier, bk.SSSL, bk.XNV, bk.DICA, bk.Nystroem],
)
def test_sample_domain_balances_the_landmarks_of_arrays(kind):
    labels = np.where(DOMAIN == 9, -1, np.arange(N) % 2)
    target = labels if kind in (bk.KernelRidgeClassifier, bk.KernelLogisticClassifier, bk.DICA) else y
    given = {"n_components" if kind is bk.Nystroem else "n_landmarks": M, "landmarks": "balanced", "random_state": 5}
    actual = kind(KERNEL, **given).fit(X, target, sample_domain=DOMAIN)
    columns = {"domain": DOMAIN} if kind is bk.Nystroem else {"y": target, "domain": DOMAIN}
    assert_array_equal(actual.landmarks_, kind(KERNEL, **given).fit(as_rows(X, **columns)).landmarks_)
    with pytest.raises(DataError, match=r"sample_domain: row 3 has the domain 0\.5"):
        kind(KERNEL, **given).fit(X, target, sample_domain=np.where(np.arange(N) == 3, 0.5, 1))
    with pytest.raises(DataError, match=f"domain: expected {N} values"):
        kind(KERNEL, **given).fit(X, target, sample_domain=DOMAIN[:-1])


def test_balanced_choices_need_domains_and_one_landmark_for_each():
    for choice in ("balanced", "balanced-k-means"):
        with pytest.raises(DataError, match="column 'domain'"):
            bk.KernelRidge(KERNEL, n_landmarks=M, landmarks=choice).fit(X, y)
        with pytest.raises(DataError, match=r"n_landmarks=2: expected at least one for each domain.*3"):
            chosen(choice, count=2)


FEW = {
    "krr": (bk.KernelRidge, {}),
    **{f"krr, {choice}": (bk.KernelRidge, {"landmarks": choice}) for choice in CHOICES[1:]},
    "krr, cg": (bk.KernelRidge, {"solver": "cg"}),
    "classifier": (bk.KernelRidgeClassifier, {"probability": True}),
    "logistic": (bk.KernelLogisticClassifier, {}),
    "sssl": (bk.SSSL, {}),
    "xnv": (bk.XNV, {}),
    "dica": (bk.DICA, {}),
    "jda": (bk.JDA, {"landmarks": "k-means"}),
    "artl": (bk.ARTLClassifier, {}),
    "nystroem": (bk.Nystroem, {}),
    "search": (bk.SweepSearchCV, {}),
}


@pytest.mark.parametrize("kind, settings", FEW.values(), ids=FEW)
def test_fewer_rows_than_landmarks_are_all_used_with_one_warning(kind, settings):
    few, labels = X[:30], np.where(np.arange(30) < 20, np.arange(30) % 2, -1)
    target = y[:30] if kind in (bk.KernelRidge, bk.SSSL, bk.XNV, bk.SweepSearchCV) else labels
    rows = as_rows(da.from_array(few, chunks=11), target, domain=np.arange(30) // 20)
    share = 15 if kind is bk.XNV else 30

    def fitted_with(count):
        given = {"n_components" if kind is bk.Nystroem else "n_landmarks": count, **settings}
        if kind is bk.SweepSearchCV:
            return bk.SweepSearchCV(bk.KernelRidge(KERNEL, random_state=1, **given), {"alpha": [0.1, 1.0]}, cv=3).fit(
                rows
            )
        return kind(KERNEL, random_state=1, **given).fit(rows)

    with pytest.warns(RankDeficiencyWarning, match="using 30 of [0-9]+ requested landmarks") as caught:
        actual = fitted_with(80)
    assert sum("requested" in str(one.message) for one in caught) == 1
    with catch_warnings():
        simplefilter("ignore", RankDeficiencyWarning)
        expected = fitted_with(share)
    if kind is bk.SweepSearchCV:
        actual, expected = actual.best_estimator_, expected.best_estimator_
    assert actual.n_landmarks_ == expected.n_landmarks_ == share
    assert_array_equal(actual.landmarks_, expected.landmarks_)
    assert_array_equal(actual.dual_coef_, expected.dual_coef_)


def test_partial_fit_refuses_fewer_rows_than_landmarks():
    with pytest.raises(DataError, match=r"n_landmarks=31.*n_samples = 30"):
        bk.KernelRidge(KERNEL, n_landmarks=31).partial_fit(X[:30], y[:30])


def test_domains_are_read_in_pieces(tmp_path):
    n = 400_000
    column = zarr.create_array(tmp_path / "domain", shape=(n,), chunks=(10_000,), dtype="i8")
    column[...] = np.arange(n) % 3
    stored = zarr.create_array(tmp_path / "x", shape=(n, 1), chunks=(10_000, 1), dtype="u1")
    rows = as_rows(stored, domain=column)
    with dask.config.set({"bigkernel.chunk-bytes": 10_000}):
        tracemalloc.start()
        actual = chosen("balanced", rows, 30).rows
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert np.bincount(actual % 3).tolist() == [10, 10, 10]
    assert peak < 8 * n  # less than the column itself


@pytest.fixture
def many(monkeypatch):
    """Return clusters of more rows than k-means reads."""
    monkeypatch.setattr(kernel_basis, "LEAST_ROWS", 200)
    centres = 4 * rng.normal(size=(15, 3))
    return np.concatenate([centre + rng.normal(size=(120, 3)) for centre in centres])


@pytest.mark.parametrize("unit", [2.0**700, 2.0**-700])
def test_centres_scale_with_the_rows(unit):
    actual, expected = (chosen("k-means", as_rows(X * scale)).landmarks for scale in (unit, 1.0))
    assert_allclose(actual / unit, expected, rtol=1e-10)


def test_centres_of_many_rows_are_nearly_as_good_as_those_of_scikit_learn(many):
    actual = chosen("k-means", as_rows(many), 15).landmarks
    expected = KMeans(15, n_init=3, random_state=0).fit(many).cluster_centers_

    def loss(centres):
        return (pairwise_distances_argmin_min(many, centres)[1] ** 2).mean()

    assert loss(actual) < 1.35 * loss(expected)
    assert loss(many[:: len(many) // 15]) > 1.5 * loss(expected)


def test_k_means_reads_a_sample_of_many_rows(many, monkeypatch):
    sampled, plain = [], kernel_basis.sample_ids
    monkeypatch.setattr(kernel_basis, "sample_ids", lambda *a, **k: sampled.append(plain(*a, **k)) or sampled[0])
    chosen("k-means", as_rows(many), 15)
    assert len(sampled[0]) == sample_size(len(many), 3, 15, least=200) == 300
    assert (np.diff(sampled[0]) > 0).all()


def test_centres_of_many_features_are_found_in_few_directions_by_any_number_of_threads():
    where = rng.normal(size=(12, 200)) / 10
    rows, found = np.repeat(where, 50, axis=0), []
    wide = as_rows(rows + 1e-3 * rng.normal(size=rows.shape))
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            found.append(chosen("k-means", wide).landmarks)
    assert_array_equal(found[1], found[0])
    # equal rows count once, though their images in the directions differ by rounding
    some = np.sort(chosen("k-means", as_rows(rows), 30).landmarks, axis=0)
    assert_allclose(some, np.sort(where, axis=0), atol=1e-12)
    # each of the clusters has a centre at its mean
    apart = np.sqrt(((found[0][:, None] - where) ** 2).sum(axis=2)).min(axis=0)
    assert np.count_nonzero(apart < 0.01) >= 11


@pytest.mark.parametrize(
    ("n_rows", "n_features", "count", "expected"),
    [(500, 4, 10, 500), (10**6, 4, 10, 20_000), (10**6, 4, 5000, 100_000), (10**9, 784, 10**4, 2**30 // (8 * 784))],
)
def test_samples_have_twenty_rows_per_landmark_within_bounds(n_rows, n_features, count, expected):
    assert sample_size(n_rows, n_features, count, least=20_000) == expected


@pytest.mark.parametrize("choice", ["k-means", "rpcholesky"])
def test_repeated_rows_give_fewer_landmarks_and_a_warning(choice):
    rows = np.repeat(X[:5], 8, axis=0)
    with pytest.warns(RankDeficiencyWarning, match=rf"{choice}.*5 .*12"):
        model = bk.KernelRidge(KERNEL, n_landmarks=M, landmarks=choice, random_state=0).fit(rows, np.tile(y[:8], 5))
    assert len(model.landmarks_) == 5
    distances = np.sqrt(((model.landmarks_[:, None] - X[:5]) ** 2).sum(axis=2))
    assert_allclose(np.sort(distances.min(axis=0)), 0, atol=1e-12 if choice == "rpcholesky" else 2e-6)


@every_choice
def test_skipped_bad_rows_are_no_landmarks(choice):
    spoilt = X.copy()
    spoilt[::3, 1] = np.nan
    rows = as_rows(spoilt, y, domain=np.repeat([0, 1], N // 2))
    with pytest.raises(DataError, match="NaN"):
        fitted(choice, rows)
    model = fitted(choice, rows.skip_bad_rows())
    assert np.isfinite(model.landmarks_).all()
    if choice in ROWS:
        assert {tuple(row) for row in model.landmarks_} <= {tuple(row) for row in spoilt}


def test_rpcholesky_refuses_an_indefinite_kernel():
    with pytest.raises(ConfigError, match=r"expected a positive definite kernel, found the sigmoid"):
        fitted("rpcholesky", kernel=bk.Sigmoid())


def test_rpcholesky_refuses_to_exceed_the_free_memory(monkeypatch):
    needed = 8 * 100 * 50 + 16 * 100 * D
    monkeypatch.setattr(kernel_basis, "STRIPS_BYTES", 0)
    monkeypatch.setattr(kernel_basis, "FACTOR_BYTES", 0)  # two rows a landmark
    monkeypatch.setattr(kernel_basis, "free_memory", lambda: needed)
    assert len(chosen("rpcholesky", count=50).landmarks) == 50
    monkeypatch.setattr(kernel_basis, "free_memory", lambda: needed - 1)
    with pytest.raises(
        PlanTooLargeError, match=r"landmarks='rpcholesky': choosing 50 landmarks among 100 rows.*'uniform'"
    ):
        chosen("rpcholesky", count=50)


@pytest.mark.parametrize(
    ("dtype", "factor_bytes", "sample", "factor"),
    [
        ("float32", 16 * M * M - 1, 2 * M, "float32"),
        ("float64", 16 * M * M - 1, 2 * M, "float64"),
        ("float64", 8 * M * 40, 40, "float64"),
    ],
)
def test_the_sample_of_rpcholesky_is_limited_by_memory(monkeypatch, dtype, factor_bytes, sample, factor):
    monkeypatch.setattr(kernel_basis, "FACTOR_BYTES", factor_bytes)
    calls, plain = [], rp_cholesky

    def note(kernel, X, count, draws, *, dtype):
        calls.append((len(X), dtype))
        return plain(kernel, X, count, draws, dtype=dtype)

    monkeypatch.setattr(landmarks, "rp_cholesky", note)
    assert len(chosen("rpcholesky", as_rows(X.astype(dtype))).landmarks) == M
    assert calls == [(sample, factor)]


@every_choice
@pytest.mark.parametrize("kernel", [KERNEL, bk.Linear(), bk.Polynomial(2, gamma=0.5)], ids=lambda k: k.name)
def test_the_report_contains_the_trace_error_of_the_choice(choice, kernel):
    with pytest.warns(RankDeficiencyWarning) if kernel.name == "linear" else nullcontext():
        model = fitted(choice, kernel=kernel)
        report = model.fit_report()
    assert report["landmark_choice"] == choice
    stacked = np.concatenate([X, model.landmarks_])
    rows = np.arange(N, N + len(model.landmarks_))
    K = kernel(stacked)
    core, cross = K[np.ix_(rows, rows)], K[:N, rows]
    values, vectors = np.linalg.eigh(core)
    kept = values > 1e-10 * values.max()
    expected = 1 - ((cross @ vectors[:, kept] / np.sqrt(values[kept])) ** 2).sum() / np.trace(K[:N, :N])
    assert_allclose(report["trace_error"], max(0, expected), atol=1e-7)


def test_the_trace_error_in_float32_matches_the_dense_matrix():
    model = bk.KernelRidge(KERNEL, n_landmarks=M, landmarks="rpcholesky", random_state=0).fit(X.astype(np.float32), y)
    rows = [int(np.argmin(((X.astype(np.float32) - z) ** 2).sum(axis=1))) for z in model.landmarks_]
    assert model.dtype_ == "float32"
    expected = reference_sampling.trace_error(reference.gaussian(X, X, 1.5), np.array(rows))
    assert_allclose(model.fit_report()["trace_error"], expected, atol=1e-5)


@pytest.mark.parametrize("choice", [*CHOICES[1:], "fourier"])
def test_a_choice_needs_a_number(choice):
    with pytest.raises(ConfigError, match=rf"n_landmarks: expected a number with landmarks='{choice}'"):
        bk.KernelRidge(KERNEL, landmarks=choice).fit(X, y)
