"""Families of kernels: every block as the kernel's own map gives it, whatever shares the computation with it."""

import pickle

import numpy as np
import pytest
import reference
from numpy.testing import assert_allclose, assert_array_equal
from peers import accumulate

from bigkernel.errors import DataError
from bigkernel.kernels.feature_maps import LandmarkFamily, LandmarkMap, argument, centre_of, gather
from bigkernel.kernels.functions import Gaussian, Laplacian, Linear, Matern, Polynomial, Sigmoid
from bigkernel.statistics.moments import Moments, MomentStatistic, Targets, uncentred
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
    "laplacians": [Laplacian(0.1), Laplacian(5.0), Laplacian(0.01)],
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
        for wanted in (alone, reference.of_kernel(kernel)(rows, Z)):
            assert_allclose(values, wanted, rtol=0, atol=slack * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize("nu", [None, 0.5, 2.5])
def test_bandwidths_a_million_times_apart_keep_their_digits(nu):
    widths = [1e3, 1e-3, 1.0, 30.0, 0.05]
    kernels = [Gaussian(width) if nu is None else Matern(width, nu=nu) for width in widths]
    near = Z + 1e-3 * rng.normal(size=Z.shape)  # so that the narrowest kernel is not zero everywhere
    rows = np.vstack([X, near])
    found = blocks_of(LandmarkFamily(tuple(kernels), Z, np.dtype(np.float64)), rows)
    for values, kernel, slack in zip(found, kernels, rounding(kernels, rows, np.float64), strict=True):
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


def test_wide_kernels_of_float32_do_not_pay_for_a_narrow_one():
    widths = [1000.0, 10.0, 1.0, 0.02]
    found = blocks_of(LandmarkFamily(tuple(map(Gaussian, widths)), Z, np.dtype(np.float32)), X.astype("f4"))
    for values, width in zip(found, widths, strict=True):
        wanted = reference.gaussian(X.astype("f4"), Z, width)
        assert_allclose(values, wanted, rtol=0, atol=2e-6 if width > 0.1 else 1e-3)


def test_the_narrowest_kernel_must_be_resolved_by_the_dtype():
    with pytest.raises(DataError, match="float32"):
        blocks_of(LandmarkFamily((Gaussian(10.0), Gaussian(1e-4)), Z, np.dtype(np.float32)), X.astype("f4"))


@DTYPES
def test_rows_too_far_for_their_squares_are_at_no_landmark(dtype):
    rows = X.astype(dtype)
    rows[3], rows[5], rows[7] = np.finfo(dtype).max / 4, -np.sqrt(np.finfo(dtype).max), 1e15
    kernels = (Gaussian(0.1), Gaussian(50.0), Matern(20.0, nu=0.5), Matern(2.0, nu=2.5))
    for values in blocks_of(LandmarkFamily(kernels, Z, np.dtype(dtype)), rows):
        assert_array_equal(values[[3, 5, 7]], 0)
        assert np.isfinite(values).all()
    near = np.delete(rows, [3, 5, 7], axis=0)
    for values, kernel, slack in zip(
        blocks_of(LandmarkFamily(kernels, Z, np.dtype(dtype)), rows), kernels, rounding(kernels, X, dtype), strict=True
    ):
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
    for values, wanted in zip(blocks_of(pickle.loads(sent), X), before, strict=True):
        assert_array_equal(values, wanted)


def test_families_are_gathered_by_their_argument():
    kernels = [Gaussian(1.0), Linear(), Laplacian(1.0), Gaussian(LENGTHS), Matern(1.0), Sigmoid(1.0)]
    kernels += [Gaussian(LENGTHS), Laplacian(2.0), Polynomial(2, 1.0)]
    assert sorted(map(sorted, gather(kernels))) == [[0, 4], [1, 5, 8], [2, 7], [3], [6]]
    assert [argument(kernels[i]) for i in (0, 1, 2, 3)] == ["euclidean", "inner", "manhattan", None]
    assert gather([]) == []


# ---------------------------------------------------------------- in the moments


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("unlabelled", ["drop", "keep"])
@pytest.mark.parametrize("name", ["gaussians and matérns", "inner products", "laplacians"])
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
            found = Moments.of(total, place * len(groups) + group)
            for field, wanted in dense.items():
                assert_allclose(
                    getattr(found, field), wanted, rtol=1e-11, atol=1e-11 * np.abs(wanted).max(), err_msg=field
                )
            assert found.rows == there.sum()


@DTYPES
def test_moments_about_a_shift_come_back_without_it(dtype):
    kernels = (Gaussian(30.0), Gaussian(1.0), Matern(5.0, nu=1.5))
    shifts = np.stack([centre_of(kernel, Z, dtype) for kernel in kernels])
    assert shifts.dtype == dtype
    plain = LandmarkFamily(kernels, Z, np.dtype(dtype))
    shifted = LandmarkFamily(kernels, Z, np.dtype(dtype), shifts)
    for values, wanted, shift in zip(blocks_of(shifted, X), blocks_of(plain, X), shifts, strict=True):
        assert_allclose(values, wanted - shift, atol=2 * np.finfo(dtype).eps)
    y, weight = rng.normal(size=(N, 2)) + 5, rng.uniform(0, 2, N)
    total = accumulate(MomentStatistic(shifted, Targets(2)), X, y=y, weight=weight, cuts=(20,))
    for place, kernel in enumerate(kernels):
        group = {name: values[place : place + 1] for name, values in total.items()}
        found = Moments.of(uncentred(group, shifts[place]))
        for field, wanted in reference.moments(reference.of_kernel(kernel)(X, Z), y, weight).items():
            slack = (1e-12 if dtype == np.float64 else 2e-6) * np.abs(wanted).max()
            assert_allclose(getattr(found, field), wanted, rtol=0, atol=slack, err_msg=field)


@every_family
@DTYPES
def test_the_buffers_are_no_larger_than_announced(kernels, dtype):
    statistic = MomentStatistic(LandmarkFamily(tuple(kernels), Z, np.dtype(dtype)), Targets(2))
    work, total = Workspace(), statistic.zero()
    statistic.update(total, Chunk(X.astype(dtype), y=np.ones((N, 2)), block_rows=16, work=work))
    held = sum(buffer.nbytes for buffer in work.buffers.values())
    assert held <= statistic.footprint(16).work_bytes
    assert sum(values.nbytes for values in total.values()) <= statistic.footprint(16).partial_bytes
