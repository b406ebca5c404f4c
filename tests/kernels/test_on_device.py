"""Large matrices of a solve on a device: the same results, one copy a solve, and LAPACK where it has to pivot."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from bigkernel.kernels import blas, on_device
from bigkernel.solvers import residuals
from bigkernel.solvers.residuals import Upper
from bigkernel.solvers.whitening import whiten
from bigkernel.streaming.devices import Device

M = 40
rng = np.random.default_rng(3)
A = np.cov(rng.normal(size=(M, 3 * M))) + np.eye(M)
C = rng.normal(size=(M, 3))
TRIANGLES = [(False, False), (False, True), (True, False), (True, True)]
OPERATIONS = {
    "KC": lambda K, L: Upper(K, K.diagonal().copy()) @ C,
    "solve": lambda K, L: residuals.solve_factored(L, C, lower=True),
    "solve of an upper factor": lambda K, L: residuals.solve_factored(L.T, C, lower=False),
    "one column": lambda K, L: residuals.solve_factored(L, C[:, :1], lower=True),
    "L⁻¹C": lambda K, L: residuals.solve_lower(L, C),
    "L⁻ᵀc": lambda K, L: residuals.solve_lower(L, C[:, 0], transposed=True),
    **{
        f"triangle {one}": lambda K, L, one=one: residuals.times_triangle(K, C, lower=one[0], transposed=one[1])
        for one in TRIANGLES
    },
}


@pytest.fixture
def solving(device, monkeypatch):
    """Solve on the device whatever the order, by panels of a few columns; return the shapes that are copied to it."""
    monkeypatch.setattr(on_device, "DEVICE_ORDER", 1)
    monkeypatch.setattr(on_device, "_PANEL", 16)
    shapes, array = [], Device.array
    monkeypatch.setattr(Device, "array", lambda self, x: shapes.append(x.shape) or array(self, x))
    with on_device.solving_on(lambda: device):
        yield shapes


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_products_and_solves_agree_with_lapack(name, order, solving, monkeypatch):
    matrices = [np.array(one, order=order) for one in (A, np.linalg.cholesky(A) + np.triu(A, 1))]
    found = OPERATIONS[name](*matrices)
    monkeypatch.setattr(on_device, "DEVICE_ORDER", M + 1)
    expected = OPERATIONS[name](*(np.asfortranarray(one) for one in matrices))
    assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_a_matrix_goes_up_once_in_a_solve_and_is_forgotten_after_it(solving, device):
    L = np.linalg.cholesky(A)
    for _ in range(3):
        residuals.solve_lower(L, C)
    assert solving.count((M, M)) == 1
    with on_device.solving_on(lambda: device):
        residuals.solve_lower(L, C)
    residuals.solve_lower(L, C)
    assert solving.count((M, M)) == 2


def test_three_matrices_are_held_at_a_time(solving):
    one, *others = (A + i * np.eye(M) for i in range(4))
    for matrix in (one, *others[:2], one, others[2], one):
        residuals.times_triangle(matrix, C, lower=True)
    assert solving.count((M, M)) == 4
    residuals.times_triangle(others[0], C, lower=True)  # was used longest ago
    assert solving.count((M, M)) == 5


@pytest.mark.parametrize("lower", [True, False])
def test_a_factor_is_written_into_its_triangle_and_a_failure_is_told(lower, solving):
    factor = A.copy()
    assert blas.cholesky(factor, lower=lower) == 0
    L = np.tril(factor) if lower else np.triu(factor).T
    assert_allclose(L @ L.T, A, rtol=1e-12)
    other = np.triu if lower else np.tril
    assert_allclose(other(factor, 1 if lower else -1), other(A, 1 if lower else -1), rtol=0)
    assert blas.cholesky(A - 100 * np.eye(M), lower=lower) > 0


@pytest.mark.parametrize("rank", [M, M - 2])
def test_a_core_of_lower_rank_is_factored_by_lapack_with_pivots(rank, solving):
    points = rng.normal(size=(M, 30))
    points[rank:] = points[: M - rank]
    whitening = whiten(np.exp(-0.1 * ((points[:, None] - points) ** 2).sum(axis=2)), warn=False)
    assert whitening.rank == rank
    assert (whitening.core is not None) == (rank == M)
