"""Gram matrices: which kernels are positive definite on any rows, and the negative share of those that are not."""

import re

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from kernel_cases import POSITIVE
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel import Gaussian, Laplacian, Linear, Matern, Polynomial, Sigmoid, check_positive_definite
from bigkernel.errors import ConfigError, DataError, PlanTooLargeError
from bigkernel.kernels import positive_definite
from bigkernel.kernels.positive_definite import negative_mass, negative_note

EPS = float(np.finfo(np.float64).eps)
KERNELS = {
    **{name: kernel for name, kernel in POSITIVE.items() if "lengths" not in name},
    "polynomial of odd degree": Polynomial(3, 0.4, 1.5),
    "polynomial of even degree without a constant": Polynomial(2, 0.4, 0.0),
    **{f"sigmoid {coef0}": Sigmoid(1.0, coef0) for coef0 in (-2.0, -1.0, -0.5, 0.2)},
}
every_kernel = pytest.mark.parametrize("kernel", KERNELS.values(), ids=KERNELS)
every_positive = pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS.values() if kernel.positive])


def rows(n, d, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def of_matrix(K):
    """The spectrum of a matrix that is given, and as many rows."""
    K = np.asarray(K, float)
    return lambda **options: check_positive_definite(lambda A, B: K, np.zeros((len(K), 1)), **options)


def with_eigenvalues(values, seed=0):
    """A symmetric matrix of these eigenvalues."""
    Q = np.linalg.qr(np.random.default_rng(seed).normal(size=(len(values), len(values))))[0]
    K = (Q * values) @ Q.T
    return (K + K.T) / 2


@every_kernel
def test_the_eigenvalues_and_the_negative_mass_are_those_of_the_gram_matrix(kernel):
    X = rows(40, 3)
    result = check_positive_definite(kernel, X)
    expected = np.linalg.eigvalsh(reference.of_kernel(kernel)(X, X))[::-1]
    # the distance of a row to itself is 0 to rounding, of which Matérn 1/2 takes the root
    assert_allclose(result.eigenvalues, expected, atol=1e-7 if kernel == Matern(2.0, nu=0.5) else 1e-12 * expected[0])
    assert (np.diff(result.eigenvalues) <= 0).all()
    assert 40 * EPS <= result.tolerance < 1e-6
    assert result.positive_definite == kernel.positive
    mass = 0 if kernel.positive else -expected[expected < 0].sum() / np.abs(expected).sum()
    assert_allclose(result.negative_mass, mass, rtol=1e-9)
    assert kernel.positive or result.rank == 40


NAMES = {"rbf": Gaussian(), "laplacian": Laplacian(), "linear": Linear(), "sigmoid": Sigmoid()}


@pytest.mark.parametrize("name, kernel", NAMES.items())
def test_a_name_means_the_kernel_with_its_bandwidth_from_the_rows(name, kernel):
    X = rows(30, 3)
    result, expected = check_positive_definite(name, X), check_positive_definite(kernel, X)
    assert_array_equal(result.eigenvalues, expected.eigenvalues)
    assert result.positive_definite == expected.positive_definite == kernel.positive
    assert getattr(kernel, "gamma", "scale") == "scale"  # what was given is as it was
    assert name != "linear" or result.rank == 3


def twice(n, gap, width=1.0):
    """N rows, and n more at a small distance from them."""
    return width * np.concatenate([rows(n, 3), rows(n, 3) + gap * rows(n, 3, seed=1)])


ANY_ROWS = {
    **{f"{n} repeated": twice(n, 0.0) for n in (1, 25)},
    **{f"nearly repeated, {gap}": twice(15, gap) for gap in (1e-15, 1e-9)},
    **{f"spread by {width}": twice(15, 1e-3, width) for width in (0.01, 100.0)},
    "1,000 features": rows(20, 1000) / 30,
    **{dtype: (4 * rows(50, 3)).astype(dtype) for dtype in ("float16", "int16")},
}


@every_positive
@pytest.mark.parametrize("X", ANY_ROWS.values(), ids=ANY_ROWS)
def test_a_kernel_is_positive_on_any_rows(kernel, X):
    result = check_positive_definite(kernel, X)
    assert result.positive_definite
    assert result.negative_mass == 0
    assert result.rank <= len(np.unique(X, axis=0))


@pytest.mark.parametrize("n", [5, 50])
def test_a_small_negative_eigenvalue_is_reported_in_spite_of_rounding(n):
    X = rows(n, 3)
    gram = reference.gaussian(X, X, 2.0)
    values, vectors = np.linalg.eigh(gram)
    indefinite = gram - (values[0] + 1e-6) * np.outer(vectors[:, 0], vectors[:, 0])
    result = of_matrix((indefinite + indefinite.T) / 2)()
    assert not result.positive_definite
    assert_allclose(result.eigenvalues[-1], -1e-6, rtol=1e-6)
    assert_allclose(result.negative_mass, 1e-6 / np.abs(np.linalg.eigvalsh(indefinite)).sum(), rtol=1e-6)


@pytest.mark.parametrize("K, asymmetry", [([[2, 1], [0, 2]], 0.5), ([[2, -4], [4, 2]], 2.0)])
def test_an_asymmetric_matrix_is_not_positive_though_no_eigenvalue_is_negative(K, asymmetry):
    result = of_matrix(K)()
    assert (result.eigenvalues > 0).all()
    assert result.asymmetry == asymmetry
    assert not result.positive_definite
    assert not of_matrix(K)(tolerance=0.9 * asymmetry).positive_definite
    assert of_matrix(K)(tolerance=asymmetry).positive_definite
    assert_allclose(result.eigenvalues, np.linalg.eigvalsh((np.array(K) + np.transpose(K)) / 2)[::-1])


def test_the_tolerance_is_a_share_of_the_largest_eigenvalue():
    values = np.array([5.0, 5e-3, 0.0, -5e-6])
    spectrum = of_matrix(with_eigenvalues(values))
    loose, tight = spectrum(tolerance=2e-6), spectrum(tolerance=0.5e-6)
    assert loose.positive_definite
    assert not tight.positive_definite
    assert (loose.rank, tight.rank) == (2, 3)
    assert loose.negative_mass == 0
    assert_allclose(tight.negative_mass, 5e-6 / np.abs(values).sum(), rtol=1e-6)


@pytest.mark.parametrize("scale", [1e-300, 1e150])
def test_the_scale_of_the_matrix_does_not_matter(scale):
    for values in ([2.0, 1.0, 0.5], [2.0, 1.0, -0.5]):
        result = of_matrix(scale * with_eigenvalues(np.array(values)))()
        assert result.positive_definite == (values[2] > 0)
        assert result.rank == 3
        assert_allclose(result.negative_mass, 0 if values[2] > 0 else 1 / 7, rtol=1e-9)


@given(st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=8), st.sampled_from([0.0, 1e-12, 1e-3, 0.5]))
def test_the_negative_mass_is_a_share_and_that_of_the_eigenvalues_below_the_tolerance(numbers, tolerance):
    values = np.array(numbers) / 1e6
    size = np.abs(values)
    counted = [abs(v) for v in values if v < 0 and abs(v) > tolerance * size.max()]
    result = negative_mass(values, tolerance)
    assert 0 <= result <= 1 + len(values) * EPS
    assert result * size.sum() == pytest.approx(sum(counted), rel=1e-9)
    assert (result == 0) == (not counted)


def test_a_note_of_negative_eigenvalues_has_their_share_and_the_rank_kept():
    note = negative_note(np.array([2.0, 1.0, 0.0, -1.0]), "sigmoid")
    assert re.match(r"sigmoid kernel: .*negative eigenvalues \(25\.0% of .* keeping 2 of 4 directions", note)
    assert re.search(r"0\.0% of .*1 of 2", negative_note(np.array([1.0, -1e-4]), "sigmoid", tolerance=1e-5))
    assert negative_note(np.array([1.0, -1e-4]), "sigmoid", tolerance=1e-3) == ""
    # the tolerance is a share of the largest absolute value, by default n ε; a value at it is not kept
    assert "keeping 1 of 4" in negative_note(np.array([4.0, 1.0, 0.9, -4.0]), "sigmoid", tolerance=0.25)
    assert "keeping 1 of 4" in negative_note(np.array([2.0, 0.3, 0.0, -4.0]), "sigmoid", tolerance=0.1)
    assert "keeping 1 of 3" in negative_note(np.array([1.0, 2 * EPS, -0.5]), "sigmoid")
    for rounding in ([1.0, 0.0], [1.0, -EPS], [0.0, 0.0], [0.5]):
        assert negative_note(np.array(rounding), "sigmoid") == ""


def fill(value):
    def kernel(A, B):
        K = np.eye(len(A))
        K[3, 5] = value
        return K

    return kernel


REFUSED = {
    "NaN in the matrix": (DataError, "row 3 of its Gram matrix", fill(np.nan), rows(10, 2)),
    "infinity in the matrix": (DataError, "row 3 of its Gram matrix", fill(-np.inf), rows(10, 2)),
    "rectangular": (DataError, r"\(10, 10\), found \(10, 9\)", lambda A, B: A @ B[:9].T, rows(10, 2)),
    "a vector": (DataError, r"\(10, 10\), found \(10,\)", lambda A, B: A[:, 0], rows(10, 2)),
    "a number": (DataError, r"\(1, 1\), found \(\)", lambda A, B: 1.0, rows(1, 2)),
    "one dimension": (DataError, r"X: .*\(4,\)", "rbf", np.ones(4)),
    "no rows": (DataError, r"X: .*\(0, 3\)", "rbf", np.ones((0, 3))),
    "a row of NaN": (DataError, "row 4", "rbf", np.where(np.arange(6) == 4, np.nan, 1.0)[:, None]),
    "an infinite row": (DataError, "row 4", "laplacian", np.where(np.arange(6) == 4, np.inf, 1.0)[:, None]),
    "an unknown name": (ConfigError, "quadratic", "quadratic", rows(5, 2)),
    "sigma 0": (ConfigError, "sigma above 0", Gaussian(0.0), rows(5, 2)),
}


@pytest.mark.parametrize("kind, message, kernel, X", REFUSED.values(), ids=REFUSED)
def test_matrices_without_a_spectrum_are_refused_by_name(kind, message, kernel, X):
    with pytest.raises(kind, match=message):
        check_positive_definite(kernel, X)


@pytest.mark.parametrize("tolerance", [-1e-9, float("nan"), float("inf")])
def test_an_invalid_tolerance_is_refused(tolerance):
    with pytest.raises(ConfigError, match="tolerance"):
        check_positive_definite("rbf", rows(5, 2), tolerance=tolerance)


def test_a_matrix_beyond_the_limit_is_refused_before_the_kernel_is_called(monkeypatch):
    def never(A, B):
        raise AssertionError("called")

    with pytest.raises(PlanTooLargeError, match="32,769 rows would take 9 GB"):
        check_positive_definite(never, np.zeros((32_769, 1)))
    monkeypatch.setattr(positive_definite, "LIMIT_BYTES", 8 * 10**2)
    assert check_positive_definite("linear", rows(10, 2)).rank == 2
    with pytest.raises(PlanTooLargeError, match="11 rows"):
        check_positive_definite(never, rows(11, 2))
