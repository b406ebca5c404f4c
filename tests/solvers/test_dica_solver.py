"""Algebra of domain-invariant components and its limits; test_dica.py has the paper's n×n form."""

import numpy as np
import pytest
import scipy.linalg
from numpy.testing import assert_allclose

from bigkernel.errors import DataError
from bigkernel.solvers import dica

rng = np.random.default_rng(20130616)


def test_domains_and_labels_without_weight_do_not_count():
    sums, weights = np.array([[2.0, 0.0, 4.0]]), np.array([1.0, 0.0, 1.0])
    assert_allclose(dica.between_domains(sums, weights), [[-1 / np.sqrt(2), 1 / np.sqrt(2)]])
    with pytest.raises(DataError, match="expected a labelled row with a positive weight"):
        dica.one_hot_labels(np.zeros((3, 2)), np.zeros(2))


def test_without_epsilon_the_labels_are_those_of_their_range():
    labels = dica.one_hot_labels(np.arange(6.0).reshape(2, 3), np.array([1.0, 2.0, 3.0]))
    E = labels.root(0.0)
    assert E.shape == (2, 2)
    assert_allclose(E @ E.T, labels.C @ np.linalg.pinv(labels.YY) @ labels.C.T, atol=1e-12)


def test_principal_axes_diagonalise_and_keep_rounding_from_being_negative():
    S, between = np.diag([4.0, 1.0, -0.04]), rng.normal(size=(3, 2))
    spread, V = dica.principal_scatter(10.0, S, between)
    assert_allclose(spread.values, [0.01, 1, 4])
    assert spread.rounding == pytest.approx(0.04)
    assert_allclose(V @ spread.between, between, atol=1e-14)


def complex_problem():
    """S, R and labels whose operator has a conjugate pair of eigenvalues, found by trial."""
    for seed in range(1000):
        draw = np.random.default_rng(seed)
        values, between = np.exp(3 * draw.normal(size=3)), 30 * draw.normal(size=(3, 2))
        C = draw.normal(size=(3, 3))
        D = np.diag(values) @ (between @ between.T + np.eye(3)) + 0.01 * np.eye(3)
        eigenvalues, vectors = scipy.linalg.eig(C @ C.T @ np.diag(values), D)
        if (eigenvalues.real > 0).all() and np.abs(eigenvalues.imag).max() > 0.05 * np.abs(eigenvalues).max():
            return dica.PrincipalScatter(1.0, values, between), dica.ClassSums(1.0, C, np.eye(3)), eigenvalues, vectors
    raise AssertionError("no complex eigenvalues in a thousand draws")


def test_a_conjugate_pair_gives_its_plane_in_uncorrelated_directions():
    spread, labels, expected, vectors = complex_problem()
    w, eigenvalues = dica.solve_dica(spread, labels, 0.01, 0.0, 3)
    assert_allclose(eigenvalues, np.sort(expected.real)[::-1], rtol=1e-8)
    pair = np.flatnonzero(np.diff(eigenvalues) == 0)[0]
    plane, z = w[:, [pair, pair + 1]], vectors[:, np.argmax(expected.imag)]
    for axis in (z.real, z.imag):
        left = axis - plane @ np.linalg.lstsq(plane, axis)[0]
        assert np.abs(left).max() < 1e-8 * np.abs(axis).max()
    gram = plane.T @ (spread.values[:, None] * plane)
    assert abs(gram[0, 1]) < 1e-8 * np.sqrt(gram[0, 0] * gram[1, 1])
    assert gram[0, 0] >= gram[1, 1]
