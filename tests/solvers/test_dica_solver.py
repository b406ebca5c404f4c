"""Domain-invariant components against the paper's n×n form, in landmark form and exactly; their limits and planes."""

import numpy as np
import pytest
import reference
import reference_domains as dense
import scipy.linalg
from numpy.testing import assert_allclose

from bigkernel.errors import DataError
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.kernels.functions import Gaussian, Linear
from bigkernel.solvers import dica
from bigkernel.solvers.whitening import whiten
from bigkernel.statistics.domain_cells import CellMomentStatistic, Cells
from bigkernel.streaming.chunk import Chunk

rng = np.random.default_rng(20130616)
N, SIGMA, ALPHA, EPSILON, COUNT = 64, 2.0, 0.1, 1e-3, 3
DOMAINS = np.array([1, 4, 9])
DOMAIN, LABEL = rng.choice(DOMAINS, N), rng.integers(0, 4, N)
X = rng.normal(size=(N, 4)) + 0.2 * DOMAIN[:, None] + 1.0 * (LABEL[:, None] == np.arange(4))
NEW = rng.normal(size=(11, 4))
WEIGHT = rng.integers(0, 4, N)
K, OF_NEW = reference.gaussian(X, X, SIGMA), reference.gaussian(NEW, X, SIGMA)
LABELS = {
    "unsupervised": None,
    "all": LABEL,
    "none in one domain": np.where(DOMAIN == 4, -1, LABEL),
    "in one domain alone": np.where(DOMAIN == 4, LABEL, -1),
    "a class in one domain alone": np.where((LABEL == 2) & (DOMAIN != 9), -1, LABEL),
}
every_case = pytest.mark.parametrize("labels", LABELS.values(), ids=LABELS)
every_invariance = pytest.mark.parametrize("invariance", [1.0, 200.0])


def cells_of(labels, domains=DOMAINS):
    return Cells(domains, np.arange(0 if labels is None else 4))


def exactly(labels, *, domain=DOMAIN, weight=None, count=COUNT, alpha=ALPHA, kernel=K, invariance=1.0):
    cells = cells_of(labels, np.unique(domain))
    cell = cells.of(Chunk(X, y=labels, domain=domain))
    epsilon = None if labels is None else EPSILON
    given = {"alpha": alpha, "epsilon": epsilon, "count": count, "invariance": invariance}
    return dica.exact_components(kernel, cell, cells, weight=weight, **given)


def by_landmarks(labels, points=X, *, domain=DOMAIN, weight=None, count=COUNT, kernel=None, invariance=1.0):
    kernel, cells = kernel or Gaussian(SIGMA), cells_of(labels, np.unique(domain))
    statistic = CellMomentStatistic(LandmarkMap(kernel, points, np.dtype(np.float64)), cells)
    total, core = statistic.zero(), kernel(points)
    statistic.update(total, Chunk(X, y=labels, domain=domain, weight=weight))
    total = statistic.finish(total)
    epsilon = None if labels is None else EPSILON
    given = {"alpha": ALPHA, "epsilon": epsilon, "count": count, "invariance": invariance}
    return dica.landmark_components(total, cells, whiten(core, warn=False), core, **given)


every_form = pytest.mark.parametrize("form", [exactly, by_landmarks])


@every_case
@every_invariance
@every_form
def test_components_are_those_of_the_paper_with_the_kernel_or_that_of_nystrom(form, labels, invariance):
    kernel, of_new, of_points, points = K, OF_NEW, OF_NEW, {}
    if form is by_landmarks:
        points = {"points": X[:12]}
        block, core = reference.gaussian(X, X[:12], SIGMA), reference.gaussian(X[:12], X[:12], SIGMA)
        of_points = reference.gaussian(NEW, X[:12], SIGMA)
        kernel, of_new = (values @ np.linalg.solve(core, block.T) for values in (block, of_points))
    result = form(labels, invariance=invariance, **points)
    _, values, B = dense.components(kernel, DOMAIN, ALPHA, COUNT, labels=labels, epsilon=EPSILON, invariance=invariance)
    expected = dense.project(kernel, of_new, B)
    assert_allclose(result.eigenvalues, values, rtol=1e-8)
    assert_allclose(dense.up_to_sign(of_points @ result.coef + result.intercept, expected), expected, atol=1e-8)


@pytest.mark.parametrize("labels", [None, LABELS["none in one domain"]], ids=["UDICA", "DICA"])
@every_form
def test_a_row_of_weight_w_is_w_rows(form, labels):
    # repeated rows have repeated eigenvectors of K: the paper's form in n×n is singular nowhere, for λ > 0
    again = np.repeat(np.arange(N), WEIGHT)
    kernel = reference.gaussian(X[again], X[again], SIGMA)
    repeated = None if labels is None else labels[again]
    _, values, B = dense.components(kernel, DOMAIN[again], ALPHA, COUNT, labels=repeated, epsilon=EPSILON)
    expected = dense.project(kernel, reference.gaussian(NEW, X[again], SIGMA), B)
    result = form(labels, weight=WEIGHT)
    assert_allclose(result.eigenvalues, values, rtol=1e-8)
    assert_allclose(dense.up_to_sign(OF_NEW @ result.coef + result.intercept, expected), expected, atol=1e-8)


@pytest.mark.parametrize("labels", [None, LABELS["none in one domain"]], ids=["UDICA", "DICA"])
@every_form
def test_the_distributional_variance_is_that_of_the_rows(form, labels):
    result = form(labels)
    Z = K @ result.coef + result.intercept
    Kc = dense.centring(N) @ K @ dense.centring(N)
    expected = {
        "features": np.trace(K @ dense.coefficients(DOMAIN)),
        "components": dense.distributional_variance(Z, DOMAIN),
    }
    expected["features_share"] = expected["features"] / (np.trace(Kc) / N)
    expected["components_share"] = expected["components"] / Z.var(axis=0).sum()
    assert result.variance == pytest.approx(expected, rel=1e-8)


def test_dica_has_one_component_less_than_classes_and_udica_as_many_as_the_kernel_has_dimensions():
    assert len(exactly(LABEL, count=50).eigenvalues) == len(by_landmarks(LABEL, count=50).eigenvalues) == 3
    assert len(by_landmarks(None, count=50, kernel=Linear()).eigenvalues) == 4
    assert len(exactly(None, count=50, kernel=reference.linear(X, X)).eigenvalues) == 4


def test_a_component_is_positive_at_the_landmark_where_it_is_largest():
    for result in (exactly(LABEL), by_landmarks(LABEL)):
        values = K @ result.coef
        assert (values[np.abs(values).argmax(axis=0), range(COUNT)] > 0).all()


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
