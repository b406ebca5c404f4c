"""Maps of landmarks: families as each kernel alone, slices as the equation, and one slice as the whole map."""

import pickle

import numpy as np
import pytest
import reference
from numpy.testing import assert_allclose, assert_array_equal
from peers import accumulate
from traced import traced

from bigkernel import OnColumns, Pairwise
from bigkernel.errors import DataError
from bigkernel.kernels import feature_maps
from bigkernel.kernels.feature_maps import (
    IdentityMap,
    LandmarkFamily,
    LandmarkMap,
    LandmarkSlices,
    argument,
    centre_of,
    group_by_argument,
    slice_map,
)
from bigkernel.kernels.functions import Gaussian, Laplacian, Linear, Matern, Polynomial, Sigmoid
from bigkernel.statistics.moments import Moments, MomentStatistic, Targets, uncentre
from bigkernel.statistics.predictor import Predictor
from bigkernel.streaming.chunk import Chunk, Workspace

rng = np.random.default_rng(4096)
N, D, M = 70, 5, 9
X, Z = rng.normal(size=(N, D)), rng.normal(size=(M, D))
LENGTHS = np.array([0.5, 1.0, 2.0, 4.0, 8.0])
DTYPES = pytest.mark.parametrize("dtype", [np.float32, np.float64])
FAMILIES = {
    "gaussians": [Gaussian(1.0), Gaussian(0.3), Gaussian(20.0), Gaussian(1.0)],
    "gaussians and matérns": [
        *(Matern(2.0, nu=0.5), Gaussian(0.7), Matern(0.5, nu=1.5)),
        *(Matern(3.0, nu=2.5), Gaussian(4.0)),
    ],
    "laplacians": [Laplacian(10.0), Laplacian(0.2), Laplacian(100.0)],
    "inner products": [Polynomial(3, 0.2, 1.0), Linear(), Sigmoid(0.1, -0.3), Polynomial(1, 2.0, 0.0)],
    "lengths": [Gaussian(LENGTHS)],
    "matérn of lengths": [Matern(LENGTHS, nu=1.5)],
}
every_family = pytest.mark.parametrize("kernels", FAMILIES.values(), ids=FAMILIES)


def blocks_of(features, rows, block=None, spare=0):
    """All blocks of a map for the rows, copied."""
    block = slice(0, len(rows)) if block is None else block
    return [values.copy() for values in features.blocks(Chunk(rows, block_rows=len(rows)), block, spare)]


def rounding(kernels, rows, dtype):
    """What the argument of each kernel may be off by: some units in the last place of γ(‖x‖² + ‖z‖²)."""
    reach = max(np.square(rows - Z.mean(0)).sum(1).max(), np.square(Z - Z.mean(0)).sum(1).max())
    gammas = [kernel.widths()[0] if argument(kernel) == "euclidean" else 1.0 for kernel in kernels]
    eps = np.finfo(dtype).eps
    return [16 * eps * max(1.0, gamma * reach) for gamma in gammas]


@every_family
@DTYPES
def test_a_block_of_a_family_is_that_of_the_kernel_alone_and_of_its_equation(kernels, dtype):
    rows = X.astype(dtype)
    family = LandmarkFamily(tuple(kernels), Z, np.dtype(dtype))
    assert (family.count, family.width) == (len(kernels), M)
    for values, kernel, slack in zip(blocks_of(family, rows), kernels, rounding(kernels, X, dtype), strict=True):
        assert values.dtype == dtype
        (alone,) = blocks_of(LandmarkMap(kernel, Z, np.dtype(dtype)), rows)
        for expected in (alone, reference.of_kernel(kernel)(rows, Z)):
            assert_allclose(values, expected, rtol=0, atol=slack * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("nu", [None, 0.5, 2.5])
def test_bandwidths_a_million_times_apart_keep_their_digits(nu):
    widths = [1e3, 1e-3, 1.0, 30.0, 0.05]
    kernels = [Gaussian(width) if nu is None else Matern(width, nu=nu) for width in widths]
    near = Z + 1e-3 * rng.normal(size=Z.shape)  # so that the narrowest kernel is not zero everywhere
    rows = np.vstack([X, near])
    result = blocks_of(LandmarkFamily(tuple(kernels), Z, np.dtype(np.float64)), rows)
    for values, kernel, slack in zip(result, kernels, rounding(kernels, rows, np.float64), strict=True):
        (alone,) = blocks_of(LandmarkMap(kernel, Z, np.dtype(np.float64)), rows)
        # Matérn 1/2 is e^{−r}, and δ(r) = δ(r²)/2r: here rows are 1e-3 from landmarks
        assert_allclose(values, alone, rtol=0, atol=slack * (500 if nu == 0.5 else 1))
        assert values.max() > 1e-3


@DTYPES
def test_a_kernel_with_a_kink_keeps_its_digits_near_landmarks_in_the_block_of_a_narrower_one(dtype):
    kernels, landmarks = (Gaussian(0.4), Matern(2.0, nu=0.5)), Z.astype(dtype)
    rows = np.vstack([landmarks + 10.0**-k * X[:M] for k in range(10)]).astype(dtype)
    narrow, wide = blocks_of(LandmarkFamily(kernels, landmarks, np.dtype(dtype)), rows)
    most = 1e-5 if dtype == np.float32 else 1e-11
    assert_allclose(narrow, reference.gaussian(rows, landmarks, 0.4), rtol=0, atol=most)
    assert_allclose(wide, reference.matern(rows, landmarks, 2.0, 0.5), rtol=0, atol=most)


@DTYPES
def test_rows_too_far_for_their_squares_are_at_no_landmark(dtype):
    rows = X.astype(dtype)
    rows[3], rows[5], rows[7] = np.finfo(dtype).max / 4, -np.sqrt(np.finfo(dtype).max), 1e15
    kernels = (Gaussian(0.1), Gaussian(50.0), Matern(20.0, nu=0.5), Matern(2.0, nu=2.5))
    near, blocks = np.delete(rows, [3, 5, 7], axis=0), blocks_of(LandmarkFamily(kernels, Z, np.dtype(dtype)), rows)
    for values, kernel, slack in zip(blocks, kernels, rounding(kernels, X, dtype), strict=True):
        assert_array_equal(values[[3, 5, 7]], 0)
        (alone,) = blocks_of(LandmarkMap(kernel, Z, np.dtype(dtype)), near)
        assert_allclose(np.delete(values, [3, 5, 7], axis=0), alone, atol=slack)


@every_family
def test_rows_may_come_in_any_block_and_the_spare_columns_are_the_callers(kernels):
    family = LandmarkFamily(tuple(kernels), Z, np.dtype(np.float64))
    whole = blocks_of(family, X)
    index = rng.permutation(N)[:11]
    for values, all_rows in zip(blocks_of(family, X, index, spare=4), whole, strict=True):
        assert values.shape == (11, M + 4)
        assert_allclose(values[:, :M], all_rows[index], rtol=1e-12, atol=1e-15)
        assert np.isfinite(values[:, M:]).all()
    chunk = Chunk(X, block_rows=N)
    for values, alone in zip(family.blocks(chunk, slice(0, 20), 2), whole, strict=True):
        assert values.flags.c_contiguous
        assert_allclose(values[:, :M], alone[:20], rtol=1e-12, atol=1e-15)
        values[...] = np.nan  # what the caller does to a block reaches none of the others


@every_family
def test_a_family_travels_as_plain_data(kernels):
    family = LandmarkFamily(tuple(kernels), Z, np.dtype(np.float64))
    before = blocks_of(family, X)
    fresh = len(pickle.dumps(LandmarkFamily(tuple(kernels), Z, np.dtype(np.float64))))
    sent = pickle.dumps(family)
    assert len(sent) <= fresh
    for values, expected in zip(blocks_of(pickle.loads(sent), X), before, strict=True):
        assert_array_equal(values, expected)


def test_families_are_gathered_by_their_argument():
    kernels = [Gaussian(1.0), Linear(), Laplacian(1.0), Gaussian(LENGTHS), Matern(1.0), Sigmoid(1.0)]
    kernels += [Gaussian(LENGTHS), Laplacian(gamma=2.0), Polynomial(2, 1.0)]
    assert sorted(map(sorted, group_by_argument(kernels))) == [[0, 4], [1, 5, 8], [2, 7], [3], [6]]
    assert [argument(kernels[i]) for i in (0, 1, 2, 3)] == ["euclidean", "inner", "manhattan", None]
    assert group_by_argument([]) == []


@pytest.mark.parametrize("unlabelled, weighted", [("drop", False), ("keep", True)])
@pytest.mark.parametrize("name", ["gaussians and matérns", "inner products"])
def test_moments_of_a_family_are_those_of_each_kernel(name, weighted, unlabelled):
    kernels = FAMILIES[name]
    y = np.where(rng.uniform(size=N) > 0.3, rng.normal(size=N), np.nan)
    weight = rng.uniform(0, 2, N) if weighted else None
    statistic = MomentStatistic(LandmarkFamily(tuple(kernels), Z, np.dtype(np.float64)), Targets(1), unlabelled)
    total = accumulate(statistic, X, y=y, weight=weight, cuts=(13, 14, 50))
    groups = [np.isnan(y), ~np.isnan(y)] if unlabelled == "keep" else [~np.isnan(y)]
    for place, kernel in enumerate(kernels):
        for group, there in enumerate(groups):
            known = np.where(np.isnan(y), 0, y)
            dense = reference.moments(
                reference.of_kernel(kernel)(X, Z)[there], known[there], None if weight is None else weight[there]
            )
            result = Moments.of(total, place * len(groups) + group)
            for field, expected in dense.items():
                assert_allclose(
                    getattr(result, field), expected, rtol=1e-11, atol=1e-11 * np.abs(expected).max(), err_msg=field
                )
            assert result.rows == there.sum()


@DTYPES
def test_the_shift_of_features_is_removed_from_the_moments(dtype):
    kernels = (Gaussian(30.0), Gaussian(1.0), Matern(5.0, nu=1.5))
    shifts = np.stack([centre_of(kernel, Z, dtype) for kernel in kernels])
    assert shifts.dtype == dtype
    plain = LandmarkFamily(kernels, Z, np.dtype(dtype))
    shifted = LandmarkFamily(kernels, Z, np.dtype(dtype), shifts)
    for values, expected, shift in zip(blocks_of(shifted, X), blocks_of(plain, X), shifts, strict=True):
        assert_allclose(values, expected - shift, atol=2 * np.finfo(dtype).eps)
    y, weight = rng.normal(size=(N, 2)) + 5, rng.uniform(0, 2, N)
    total = accumulate(MomentStatistic(shifted, Targets(2)), X, y=y, weight=weight, cuts=(20,))
    for place, kernel in enumerate(kernels):
        group = {name: values[place : place + 1] for name, values in total.items()}
        result = Moments.of(uncentre(group, shifts[place]))
        for field, expected in reference.moments(reference.of_kernel(kernel)(X, Z), y, weight).items():
            slack = (1e-12 if dtype == np.float64 else 2e-6) * np.abs(expected).max()
            assert_allclose(getattr(result, field), expected, rtol=0, atol=slack, err_msg=field)


@every_family
@DTYPES
def test_the_buffers_are_no_larger_than_announced(kernels, dtype):
    statistic = MomentStatistic(LandmarkFamily(tuple(kernels), Z, np.dtype(dtype)), Targets(2))
    work, total = Workspace(), statistic.zero()
    statistic.update(total, Chunk(X.astype(dtype), y=np.ones((N, 2)), block_rows=16, work=work))
    held = sum(buffer.nbytes for buffer in work.buffers.values())
    assert held <= statistic.footprint(16).work_bytes
    assert sum(values.nbytes for values in total.values()) <= statistic.footprint(16).partial_bytes


# slices of many landmarks

chance, COUNT = np.random.default_rng(7), 41
LANDMARKS = 3 + chance.normal(size=(COUNT, D))
ROWS = np.concatenate([3 + chance.normal(size=(30 - 3, D)), LANDMARKS[[0, 20, 40]]])  # some rows touch a landmark
COEF, INTERCEPT = chance.normal(size=(COUNT, 3)), chance.normal(size=3)
KERNELS = [
    Gaussian(2.0),
    Gaussian(np.linspace(1, 3, D)),
    Matern(2.0, 0.5),
    Matern(2.0, 2.5),
    Laplacian(gamma=0.2),
    Linear(),
    Polynomial(3, 0.1, 1.0),
    Sigmoid(0.05, 0.1),
    Gaussian(2.0) + 0.5 * Linear() * Matern(2.0, 0.5),
    OnColumns(Laplacian(gamma=0.2), [0, 3]) * OnColumns(Linear() + Gaussian(1.0), [1, 2, 4]),
    Pairwise("cosine"),
]
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
either = pytest.mark.parametrize(("dtype", "error"), [("float32", 2e-5), ("float64", 1e-12)])


def sliced(kernel, dtype, width):
    prepared = LandmarkMap(kernel, LANDMARKS, np.dtype(dtype)).prepared
    return LandmarkSlices(kernel, prepared, COUNT, width)


@either
@every_kernel
@pytest.mark.parametrize("width", [1, 7])
def test_the_sum_over_slices_is_the_sum_over_all_landmarks(kernel, width, dtype, error):
    whole = kernel(ROWS, LANDMARKS) @ COEF + INTERCEPT
    predictor = pickle.loads(pickle.dumps(Predictor(sliced(kernel, dtype, width), COEF, INTERCEPT)))
    result = predictor.values(Chunk(ROWS, block_rows=8))
    assert_allclose(result, whole, rtol=error, atol=error * np.abs(whole).max() * 10)


@either
@every_kernel
def test_one_slice_gives_the_bits_of_the_whole_map(kernel, dtype, error):
    plain = Predictor(LandmarkMap(kernel, LANDMARKS, np.dtype(dtype)), COEF, INTERCEPT)
    one = Predictor(sliced(kernel, dtype, COUNT), COEF, INTERCEPT)
    chunk = Chunk(ROWS.astype(dtype), block_rows=8)
    assert_array_equal(one.values(chunk), plain.values(chunk))


def test_slices_are_summed_in_float64():
    # a thousand ones after 2²⁴ change nothing in float32
    big, ones = np.full((1, 1), 2.0**24), np.ones((1000, 1))
    landmarks = np.concatenate([big, ones])
    prepared = LandmarkMap(Linear(), landmarks, np.dtype(np.float32)).prepared
    predictor = Predictor(LandmarkSlices(Linear(), prepared, 1001, 1), np.ones((1001, 1)), np.zeros(1))
    assert predictor.values(Chunk(np.ones((1, 1)))) == 2.0**24 + 1000


@pytest.mark.parametrize(("dtype", "m", "widths"), [("float32", 40, [14, 14, 12]), ("float64", 40, [8] * 5)])
def test_many_landmarks_go_in_equal_slices_and_few_stay_whole(monkeypatch, dtype, m, widths):
    monkeypatch.setattr(feature_maps, "SLICE_ROW_BYTES", 64)
    few, many = (LandmarkMap(Gaussian(2.0), LANDMARKS[:count], np.dtype(dtype)) for count in (8, m))
    assert slice_map(few) is few
    identity = IdentityMap(np.zeros(D))
    assert slice_map(identity) is identity
    chunk = Chunk(ROWS)
    result = [values.shape[1] for _, values in slice_map(many).slices(chunk, slice(0, 4))]
    assert result == widths
    assert max(buffer.size for buffer in chunk.work.buffers.values()) <= 4 * max(widths[0], D + 2)


def test_few_landmarks_of_many_features_travel_prepared(monkeypatch):
    monkeypatch.setattr(feature_maps, "PREPARED_BYTES", LANDMARKS.nbytes - 1)
    plain = LandmarkMap(Gaussian(2.0), LANDMARKS, np.dtype(np.float32))
    result = slice_map(plain)
    assert (result.slice_width, result.width) == (COUNT, COUNT)
    assert len(pickle.dumps(result)) < len(pickle.dumps(plain))  # float32 travels, not float64


def test_landmarks_that_float32_cannot_resolve_are_refused_before_anything_travels(monkeypatch):
    monkeypatch.setattr(feature_maps, "SLICE_ROW_BYTES", 64)
    with pytest.raises(DataError, match="distances between landmarks in float32"):
        slice_map(LandmarkMap(Gaussian(1e-3), LANDMARKS + 1e4, np.dtype(np.float32)))


@pytest.mark.parametrize(
    "kernel", [Gaussian(np.full(50, 9.0)), Matern(9.0, 0.5), Laplacian(100.0)], ids=lambda k: k.name
)
def test_preparing_landmarks_takes_little_more_memory_than_their_result(kernel):
    landmarks = chance.normal(size=(20_000, 50))
    prepared, peak = traced(kernel.bind, landmarks, np.float32)
    assert peak < prepared.nbytes + 8 * len(landmarks) * 4 + 2**21
    assert prepared.nbytes < 0.55 * landmarks.nbytes * (1 + kernel.kinked)
