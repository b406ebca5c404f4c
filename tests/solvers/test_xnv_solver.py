"""Limits of canonical correlations of two views and of ridge in their coordinates; test_xnv.py has the dense form."""

from dataclasses import replace

import numpy as np
import reference
import reference_views
from numpy.testing import assert_allclose, assert_array_equal
from peers import moments_of

from bigkernel.solvers.xnv import canonical_ridge, canonical_views

rng = np.random.default_rng(20131205)
N, M, SIGMA = 160, 7, 1.5
X, Z = rng.normal(size=(N, 3)), rng.normal(size=(2 * M, 3))
Y = np.column_stack([np.sin(X[:, 0]) + 3, X[:, 1] ** 2])
LABELLED = rng.permutation(N) < 40
WEIGHT = rng.uniform(0.2, 2, N)
B1, B2 = (reference.gaussian(X, points, SIGMA) for points in (Z[:M], Z[M:]))
BOTH = np.hstack([B1, B2])
PHI1, PHI2 = (
    reference_views.features(block, reference.gaussian(points, points, SIGMA))
    for block, points in ((B1, Z[:M]), (B2, Z[M:]))
)
ALPHA = 1e-3


def everything(features=BOTH, weight=None):
    return moments_of(features, np.empty((len(features), 0)), weight)


def labelled(features=B1, weight=None):
    return moments_of(features[LABELLED], Y[LABELLED], None if weight is None else weight[LABELLED])


def test_equal_views_agree_on_everything_and_cost_nothing_but_alpha():
    views = canonical_views(everything(np.hstack([B1, B1])), M)
    assert_allclose(views.correlations, 1, atol=1e-10)
    assert_allclose(views.penalty, 0, atol=1e-9)
    z = B1 @ views.basis - views.offset
    rows, n = np.column_stack([z, np.ones(N)])[LABELLED], LABELLED.sum()
    dense = np.linalg.solve(rows.T @ rows + n * np.diag([ALPHA] * M + [0]), rows.T @ Y[LABELLED])
    coef, b = canonical_ridge(labelled(), views, ALPHA)
    assert_allclose(B1 @ coef + b, np.column_stack([z, np.ones(N)]) @ dense, atol=1e-8)


def test_views_without_correlation_leave_the_mean_of_the_labelled_rows():
    total = everything()
    mean = total.s / N
    G = total.G - N * np.outer(mean, mean)
    G[:M, M:] = G[M:, :M] = 0
    views = canonical_views(replace(total, G=G + N * np.outer(mean, mean)), M)
    coef, b = canonical_ridge(labelled(), views, ALPHA)
    assert_allclose(views.correlations, 0, atol=1e-8)
    assert_allclose(B1 @ coef + b, np.tile(Y[LABELLED].mean(axis=0), (N, 1)), atol=1e-6)


def test_a_direction_that_is_repeated_counts_once():
    again = np.hstack([B1, B1[:, :3], B2])
    views = canonical_views(everything(again), M + 3)
    assert views.ranks == (M, M)
    coef, b = canonical_ridge(labelled(again[:, : M + 3]), views, ALPHA)
    plain, c = canonical_ridge(labelled(), canonical_views(everything(), M), ALPHA)
    assert_allclose(again[:, : M + 3] @ coef + b, B1 @ plain + c, atol=1e-8)


def test_directions_that_rounding_made_are_left_out():
    thin = np.hstack([B1, B1 @ rng.normal(size=(M, 4)), B2])
    total = everything(thin)
    noise = 1e-7 * rng.normal(size=total.G.shape)
    noisy = replace(total, G=total.G + N * (noise + noise.T))
    views = canonical_views(noisy, M + 4)
    assert views.ranks[0] <= M
    coef, b = canonical_ridge(labelled(thin[:, : M + 4]), views, ALPHA)
    plain, c = canonical_ridge(labelled(), canonical_views(everything(), M), ALPHA)
    assert_allclose(thin[:, : M + 4] @ coef + b, B1 @ plain + c, atol=0.2)


def test_rows_that_do_not_vary_have_no_direction():
    flat = np.ones((N, 2 * M))
    views = canonical_views(everything(flat), M)
    coef, b = canonical_ridge(labelled(flat[:, :M]), views, ALPHA)
    assert_array_equal(coef, np.zeros((M, 2)))
    assert_allclose(b, Y[LABELLED].mean(axis=0))
