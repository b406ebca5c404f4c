"""Diagnostics: right solves pass, wrong ones do not; cheap estimates are those of the matrices that they stand for."""

import warnings

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import linalg

from bigkernel.errors import RankDeficiencyWarning
from bigkernel.solvers import residuals
from bigkernel.solvers.residuals import LIMIT, SolveDiagnostics
from bigkernel.solvers.ridge import factorize, ridge
from bigkernel.solvers.whitening import whiten

SIZES = [1, 2, 7, 300]


def positive(m, seed=0, smallest=1e-6):
    """A positive matrix (m, m) with eigenvalues from `smallest` to 1."""
    Q = np.linalg.qr(np.random.default_rng(seed).normal(size=(m, m)))[0]
    A = (Q * np.geomspace(smallest, 1, m)) @ Q.T
    return (A + A.T) / 2


def spoilt(array, share=1e-9):
    """A copy with one value moved by a share of the largest."""
    out = array.copy()
    out[len(out) // 2, 0] += share * np.abs(out).max()
    return out


@pytest.mark.parametrize("m", SIZES)
def test_probes_are_signs_that_are_always_the_same_and_nearly_orthogonal(m):
    V = residuals.probes(m, 8)
    assert_array_equal(np.abs(V), 1)
    assert_array_equal(V, residuals.probes(m, 8))
    assert np.abs(V.T @ V / m - np.eye(8)).max() < 4 / m**0.5  # signs overlap by about 1/√m


@pytest.mark.parametrize("m", SIZES)
def test_a_right_factor_passes_and_one_wrong_value_in_the_ninth_place_does_not(m):
    A = positive(m)
    lower = linalg.cholesky(A, lower=True)
    assert residuals.factorization(A, lower) < 1
    assert residuals.factorization(A, spoilt(lower)) > LIMIT
    order = np.arange(m)[::-1]
    pivoted = linalg.cholesky(A[np.ix_(order, order)], lower=True)
    assert residuals.factorization(A, pivoted, kept=order) < 1


@pytest.mark.parametrize("shift", [0.0, 1e-3, 1e6])
@pytest.mark.parametrize("targets", [1, 50])
@pytest.mark.parametrize("m", SIZES)
def test_a_right_solution_passes_and_a_wrong_one_does_not(m, targets, shift):
    A, C = positive(m), np.random.default_rng(1).normal(size=(m, targets))
    w = linalg.cho_solve(linalg.cho_factor(A + shift * np.eye(m), lower=True), C)
    assert residuals.solution(A, shift, w, C) < 5
    assert residuals.solution(A, shift, w + 1e-6 * np.abs(w).max(), C) > LIMIT
    assert residuals.solution(A, shift, 1e200 * w, 1e200 * C) < 5


@pytest.mark.parametrize("m", SIZES)
def test_right_eigenpairs_pass_and_wrong_ones_do_not(m):
    A = positive(m)
    values, vectors = linalg.eigh(A)
    assert max(residuals.eigen(A, values, vectors)) < 5
    assert residuals.eigen(A, values + 1e-9, vectors)[0] > LIMIT
    assert residuals.eigen(A, values, 1.000001 * vectors)[1] > LIMIT


@pytest.mark.parametrize("m", SIZES)
@pytest.mark.parametrize("smallest", [1e-12, 1e-3, 0.5])
def test_the_smallest_eigenvalue_is_never_below_the_true_one_and_near_it(m, smallest):
    A = positive(m, smallest=smallest)
    lower, true = linalg.cholesky(A, lower=True), np.linalg.eigvalsh(A)[0]
    result = residuals.smallest_eigenvalue(lambda v: linalg.cho_solve((lower, True), v), m)
    assert true * (1 - 1e-3) <= result <= 4 * true + 1e-15


@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 1.0])
def test_effective_degrees_of_freedom_are_exact_for_few_parameters_and_near_for_many(alpha):
    for m, tolerance in ((40, 1e-9), (600, 0.25)):
        G = 100 * positive(m)
        values = np.linalg.eigvalsh(G)
        expected = (values / (values + alpha)).sum()
        assert factorize(G, alpha).effective_dof(G, alpha) == pytest.approx(expected, rel=tolerance)


def test_repeated_rows_and_constant_columns_are_counted():
    Z = np.array([[0.0, 1.0], [-0.0, 1.0], [2.0, 1.0], [2.0, 1.0], [3.0, 1.0]])
    assert residuals.duplicates(Z) == 2
    assert residuals.constant_features(Z) == 1
    assert residuals.duplicates(Z[:1]) == 0
    assert residuals.constant_features(Z[:1]) == 2


def test_solvers_record_their_figures_and_notes():
    core = np.eye(6)[:, [0, 1, 2, 2, 4, 5]]
    core = core.T @ core  # two landmarks are one
    diagnostics = SolveDiagnostics()
    whitening = whiten(core, kernel="linear", diagnostics=diagnostics)  # no warning: notes
    assert whitening.rank == 5
    assert "numerical rank 5" in diagnostics.notes[0]
    ridge(positive(30), np.ones((30, 2)), 0.1, diagnostics=diagnostics)
    assert set(diagnostics.ratios) == {"whitening", "solution"}
    assert set(diagnostics.figures) == {"core_condition", "solved_condition", "effective_dof"}
    assert diagnostics.rounding == 0
    assert not diagnostics.penalty_lost
    with pytest.warns(RankDeficiencyWarning, match="numerical rank 5") as caught:
        diagnostics.warn()
    assert len(caught) == 1


def test_a_ratio_above_the_limit_or_not_finite_is_warned_of_by_name():
    for ratio in (30.1, float("nan"), float("inf")):
        with pytest.warns(RankDeficiencyWarning, match=rf"residuals.*solution {ratio:.3g}; expected at most 30"):
            SolveDiagnostics({"whitening": 1.0, "solution": ratio}).warn()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SolveDiagnostics({"whitening": 30.0}).warn()


def test_rounding_is_that_of_negative_eigenvalues_and_a_penalty_below_a_hundredth_of_it_is_lost():
    values = np.r_[-1e-3, np.geomspace(1e-3, 100, 29)]
    Q = np.linalg.qr(np.random.default_rng(2).normal(size=(30, 30)))[0]
    G, C = (Q * values) @ Q.T, np.ones((30, 1))
    for alpha, is_lost in ((1e-2, False), (1.1e-5, False), (0.9e-5, True), (0.0, True)):
        diagnostics = SolveDiagnostics()
        w = ridge((G + G.T) / 2, C, alpha, diagnostics=diagnostics)
        assert diagnostics.penalty_lost is is_lost, alpha
        if alpha < 1e-3:
            assert diagnostics.rounding == pytest.approx(1e-3, rel=1e-6)
        # nothing is divided by less than a quarter of the rounding
        assert np.linalg.norm(w) <= np.linalg.norm(C) / max(alpha, 1e-3 / 4)
        assert_allclose(diagnostics.ratios["solution"], 0, atol=LIMIT)
