"""Predictive variances against dense Gaussian processes: weights, constants, noise that vanishes, ranks that fail."""

import itertools
import pickle
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import POSITIVE, quietly
from numpy.testing import assert_allclose, assert_array_equal
from peers import moments_of
from traced import traced

from bigkernel import Gaussian, KernelRidge, Laplacian
from bigkernel.engine.prediction_store import PredictionWriter, create
from bigkernel.errors import ConfigError, RankDeficiencyWarning
from bigkernel.estimators.fit import deviations
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.solvers.posterior import exact_posterior, nystrom_posterior
from bigkernel.solvers.ridge import factorize
from bigkernel.solvers.whitening import reduce_and_centre, whiten
from bigkernel.statistics.blend import Deviations
from bigkernel.statistics.predictor import Predictor
from bigkernel.streaming.chunk import Chunk, Workspace

rng = np.random.default_rng(20060101)
N, M, D, Q = 50, 14, 3, 20
X, NEW = rng.normal(size=(N, D)), rng.normal(size=(Q, D))
Z = rng.normal(size=(M, D))
WEIGHT = rng.uniform(0.2, 3, N)
SOME_ZERO = np.where(np.arange(N) % 7 == 0, 0, WEIGHT)
FORMS = ["exact", "nystrom"]
every_form = pytest.mark.parametrize("form", FORMS)
KERNELS = {name: (kernel, reference.of_kernel(kernel)) for name, kernel in POSITIVE.items() if "lengths" not in name}


def diagonal(k, rows=NEW):
    return np.diagonal(k(rows, rows))


def posterior_of(form, k, alpha, *, rows=X, landmarks=Z, weight=None, fit_intercept=False, dtype=np.float64):
    """The posterior of the exact form or of that with landmarks, and the rows or landmarks of its kernel values."""
    if form == "exact":
        return exact_posterior(k(rows, rows), alpha, fit_intercept=fit_intercept, weight=weight), rows
    whitening = quietly(whiten, k(landmarks, landmarks), eps=float(np.finfo(dtype).eps))
    moments = moments_of(k(rows, landmarks), np.zeros(len(rows)), weight)
    small = reduce_and_centre(moments, whitening, fit_intercept=fit_intercept)[2]
    return nystrom_posterior(small, len(rows), whitening, alpha, fit_intercept=fit_intercept), landmarks


def variance(form, k, alpha, *, new=NEW, **options):
    posterior, points = posterior_of(form, k, alpha, **options)
    return posterior.spread.variance(k(new, points), diagonal(k, new))


def gaussian(A, B):
    return reference.gaussian(A, B, 1.4)


@every_form
@pytest.mark.parametrize("alpha", [0.0, 1e-300, 1e-30, 1e-20])
def test_without_noise_features_of_the_rows_are_certain_and_others_keep_their_prior(form, alpha):
    rows = np.column_stack([X[:8, :2], np.zeros(8)])  # the third feature is 0 in all rows
    new = np.column_stack([NEW[:, :2], np.linspace(-2, 2, Q)])
    result = variance(form, reference.linear, alpha, rows=rows, new=new, landmarks=np.vstack([rows, np.eye(3)]))
    assert_allclose(result, new[:, 2] ** 2, atol=1e-12)


@pytest.mark.parametrize("fit_intercept", [False, True])
@pytest.mark.parametrize("alpha", [0.0, 1e-25])
def test_without_noise_repeated_rows_change_no_variance(alpha, fit_intercept):
    once = variance("exact", gaussian, 0.0, rows=X[:10], fit_intercept=fit_intercept)
    twice = variance("exact", gaussian, alpha, rows=np.repeat(X[:10], 2, axis=0), fit_intercept=fit_intercept)
    assert_allclose(twice, once, atol=1e-9)


def test_a_core_of_zeros_leaves_the_prior():
    with pytest.warns(RankDeficiencyWarning, match="kernel matrix of 4 landmarks is zero"):
        whitening = whiten(np.zeros((4, 4)), kernel="linear")
    for fit_intercept, constant in ((False, 0.0), (True, 0.3 / N)):
        small = reduce_and_centre(moments_of(np.zeros((N, 4)), np.zeros(N)), whitening, fit_intercept=fit_intercept)[2]
        posterior = nystrom_posterior(small, N, whitening, 0.3, fit_intercept=fit_intercept)
        result = posterior.spread.variance(np.zeros((Q, 4)), diagonal(reference.linear))
        assert_allclose(result, diagonal(reference.linear) + 0.3 + constant, rtol=1e-12)


@given(
    st.integers(0, 10**6),
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from([0.0, 1e-200, 1e-15, 1e-6, 1.0, 1e9]),
    st.booleans(),
    st.sampled_from(list(KERNELS)),
)
def test_a_variance_is_never_below_the_noise_and_always_a_number(seed, n, m, alpha, fit_intercept, name):
    rng, (_, k) = np.random.default_rng(seed), KERNELS[name]
    rows, new = rng.normal(size=(n, 2)), 10.0 ** rng.integers(-3, 3) * rng.normal(size=(6, 2))
    rows = rows[rng.integers(0, n, n)]
    new = np.vstack([new, rows])
    landmarks = rng.normal(size=(m, 2))
    weight = np.where(rng.random(n) < 0.3, 0.0, rng.uniform(0, 3, n)) + (np.arange(n) == 0)
    given = {"rows": rows, "new": new, "landmarks": landmarks, "fit_intercept": fit_intercept}
    for form, some_weights in itertools.product(FORMS, (None, weight)):
        result = variance(form, k, alpha, weight=some_weights, **given)
        assert np.isfinite(result).all()
        assert (result >= alpha).all()


@every_form
@pytest.mark.parametrize("alpha", [-1.0, float("nan"), float("inf")])
def test_an_invalid_alpha_is_refused(form, alpha):
    with pytest.raises(ConfigError, match="alpha"):
        variance(form, gaussian, alpha)


def problem(rank, size=9, seed=3):
    F = np.random.default_rng(seed).normal(size=(size, rank))
    return F @ F.T


@pytest.mark.parametrize("rank", [1, 4, 9])
@pytest.mark.parametrize("alpha", [0.0, 1e-30, 0.5])
def test_a_factor_halves_and_solves_the_same_matrix(rank, alpha):
    G, C = problem(rank), np.random.default_rng(0).normal(size=(9, 5))
    factor = factorize(G, alpha, n_rows=9)
    inverse = np.linalg.pinv(G + (alpha if alpha > 1e-20 else 0) * np.eye(9), hermitian=True)
    half = factor.half(C)
    assert_allclose(half.T @ half, C.T @ inverse @ C, rtol=1e-7, atol=1e-9)
    assert_allclose(factor.solve(C), inverse @ C, rtol=1e-7, atol=1e-9)
    # null coordinates are those outside the range of G
    lost = C - G @ np.linalg.pinv(G, hermitian=True) @ C if alpha < 1e-20 else np.zeros_like(C)
    assert_allclose((factor.null_coordinates(C) ** 2).sum(axis=0), (lost**2).sum(axis=0), atol=1e-9)
    assert half.shape[0] + factor.null_coordinates(C).shape[0] == 9


def test_a_factor_of_zeros_has_all_directions_in_its_null_space_unless_it_is_penalised():
    C = np.random.default_rng(0).normal(size=(4, 2))
    factor = factorize(np.zeros((4, 4)), 0.0)
    assert_allclose(factor.null_coordinates(C).T @ factor.null_coordinates(C), C.T @ C, rtol=1e-12)
    assert_array_equal(factor.solve(C), 0)
    assert_allclose(factorize(np.zeros((4, 4)), 0.5).solve(C), 2 * C, rtol=1e-15)


def test_rounding_of_the_rotation_is_divided_by_what_scales_the_sums_of_probed_rows(monkeypatch):
    fit = KernelRidge(Gaussian(1.4), alpha=0.3, landmarks=Z).fit(X, X[:, 0])._fitted
    whitening, rotations = whiten(Gaussian(1.4)(Z)), []

    def perturb(total, *_):
        rotations.append(total["E"] - fit.statistics["E"])
        return iter([(np.zeros((whitening.rank,) * 2), np.zeros((whitening.rank, 2)))])

    monkeypatch.setattr(deviations, "perturbations", perturb)
    for share in (1, 4):
        statistics = {**fit.statistics, "probed_rows": fit.statistics["rows"] / share}
        assert deviations.posterior_of_sums(replace(fit, statistics=statistics), whitening)[1] == 0
    assert np.abs(rotations[0]).max() > 0
    assert_allclose(rotations[-1], rotations[0] / 2, rtol=1e-3, atol=1e-3 * np.abs(rotations[0]).max())


def predictor(kernel, form, *, alpha=0.3, dtype=np.float64, **options):
    """A predictor with its posterior and random coefficients."""
    posterior, points = posterior_of(form, kernel, alpha, dtype=dtype, fit_intercept=True, **options)
    coef, b = np.random.default_rng(0).normal(size=(len(points), 2)), np.array([1.0, -1.0])
    features, spread = LandmarkMap(kernel, points, np.dtype(dtype)), replace(posterior.spread, scale=np.ones(2))
    return Deviations(Predictor(features, coef, b, spread=spread))


CASES = {
    "exact": (Gaussian(1.4), {"form": "exact"}, 2048),
    "landmarks, small blocks": (Gaussian(0.7), {"form": "nystrom"}, 16),
    "landmarks without rank": (Gaussian(0.7), {"form": "nystrom", "alpha": 0.0, "rows": X}, 2048),
    "landmarks in single precision": (Gaussian(0.7), {"form": "nystrom", "dtype": np.float32}, 2048),
    "laplacian": (Laplacian(0.3), {"form": "nystrom"}, 512),
    "one landmark, small blocks": (Gaussian(1.4), {"form": "nystrom", "landmarks": X[:1]}, 16),
}


@pytest.mark.parametrize("kernel, options, block_rows", CASES.values(), ids=CASES)
def test_a_task_that_writes_deviations_takes_no_more_memory_than_announced(kernel, options, block_rows, tmp_path):
    many = np.random.default_rng(2).normal(size=(300, D))
    model = predictor(kernel, **{"rows": many, "landmarks": many, **options})
    chunk_rows = 1500
    create(tmp_path / "out", model, chunk_rows, chunk_rows, decision=True, flat=False, std=True)
    writer = PredictionWriter(model, tmp_path / "out", chunk_rows, True, False, True)
    announced = writer.footprint(block_rows).work_bytes
    travelled = pickle.dumps(writer)
    chunk = Chunk(np.random.default_rng(1).normal(size=(chunk_rows, D)), block_rows=block_rows)

    def task():
        arrived = pickle.loads(travelled)
        tracemalloc.reset_peak()
        arrived.update(arrived.zero(), replace(chunk, work=Workspace()))

    # other threads of this process, a scheduler's, can only add to the peak
    assert min(traced(task)[1] for _ in range(3)) <= announced
