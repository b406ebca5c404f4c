"""Sums by domain and class against loops over rows: any chunking, weights, rows without labels, source and target."""

import numpy as np
import peers
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from bigkernel.errors import DataError
from bigkernel.kernels.feature_maps import LandmarkMap, centre_of
from bigkernel.kernels.functions import Gaussian
from bigkernel.statistics.domain_cells import CellMomentStatistic, Cells, CellSums, cell_targets
from bigkernel.statistics.moments import uncentre
from bigkernel.streaming.chunk import Chunk

rng = np.random.default_rng(11)
N, D, M = 90, 3, 6
X, Z = rng.normal(size=(N, D)), rng.normal(size=(M, D))
B = reference.gaussian(X, Z, 1.1)
DOMAINS, CLASSES = np.array([-4, 0, 7]), np.array([2, 5])
DOMAIN, LABEL = rng.choice(DOMAINS, N), rng.choice([*CLASSES, -1], N)
WEIGHT = rng.uniform(0, 3, N) * (rng.uniform(size=N) > 0.1)
FEATURES = LandmarkMap(Gaussian(1.1), Z, np.dtype(np.float64))
CELLS = Cells(DOMAINS, CLASSES)


def accumulate(statistic, cuts=(), block_rows=16, **columns):
    given = {"y": LABEL, "domain": DOMAIN, "weight": WEIGHT, **columns}
    return peers.accumulate(statistic, X, cuts=cuts, block_rows=block_rows, **given)


def of_cell(domain, label):
    """Σ w φ (m,) and Σ w of one cell, row by row."""
    rows = [i for i in range(N) if DOMAIN[i] == domain and LABEL[i] == label]
    return sum((WEIGHT[i] * B[i] for i in rows), np.zeros(M)), sum(WEIGHT[i] for i in rows)


@given(cuts=st.lists(st.integers(0, N), max_size=8), block_rows=st.integers(1, 100))
def test_any_chunking_gives_the_sums_of_every_cell(cuts, block_rows):
    total = accumulate(CellMomentStatistic(FEATURES, CELLS), cuts, block_rows)
    sums = CellSums.of(total, CELLS)
    assert_allclose(total["G"], [(B * WEIGHT[:, None]).T @ B], atol=1e-11)  # all rows are one group
    for g, domain in enumerate(DOMAINS):
        for c, label in enumerate([*CLASSES, -1]):
            dense, weight = of_cell(domain, label)
            assert_allclose(sums.sums[:, g, c], dense, atol=1e-11)
            assert_allclose(sums.weights[g, c], weight, atol=1e-12)


def test_the_shift_of_features_is_removed_from_the_sums():
    shift = centre_of(Gaussian(1.1), Z, np.float64)
    shifted = CellMomentStatistic(LandmarkMap(Gaussian(1.1), Z, np.dtype(np.float64), shift), CELLS)
    result = CellSums.of(uncentre(accumulate(shifted), shift), CELLS)
    assert_allclose(result.sums, CellSums.of(accumulate(CellMomentStatistic(FEATURES, CELLS)), CELLS).sums, atol=1e-11)


def test_without_classes_no_label_is_read_and_a_cell_is_a_domain():
    cells = Cells(DOMAINS, np.zeros(0, np.int64))
    total = accumulate(CellMomentStatistic(FEATURES, cells), (33,), y=None)
    assert total["C"].shape == (1, M, 3)
    for g, domain in enumerate(DOMAINS):
        assert_allclose(total["C"][0, :, g], WEIGHT[domain == DOMAIN] @ B[domain == DOMAIN], atol=1e-11)


def test_without_domains_labelled_rows_are_domain_0_and_the_others_1():
    cells = Cells(None, CLASSES)
    chunk = Chunk(X, y=LABEL)
    assert_array_equal(cells.domain(chunk), LABEL == -1)


@pytest.mark.parametrize("dtype", [np.int8, np.int64, np.float32, np.float64])
def test_columns_of_any_stored_dtype_give_the_same_cells(dtype):
    plain = CELLS.of(Chunk(X, y=LABEL, domain=DOMAIN))
    assert_array_equal(CELLS.of(Chunk(X, y=LABEL.astype(dtype), domain=DOMAIN.astype(dtype))), plain)
    assert_array_equal(CELLS.of(Chunk(X, y=np.where(LABEL == -1, np.nan, LABEL), domain=DOMAIN)), plain)


def test_positions_reorder_the_classes_of_a_corpus():
    there = Cells(DOMAINS, np.arange(2), position=np.array([1, 0]))
    codes = np.where(LABEL == -1, -1, (LABEL == 5) * 1)
    result = there.label(Chunk(X, y=codes, domain=DOMAIN))
    assert_array_equal(result, np.select([codes == 0, codes == 1], [1, 0], 2))


def test_an_unknown_label_or_domain_is_named_with_its_row():
    y, domain = LABEL.copy(), DOMAIN.copy()
    y[17], domain[23] = 9, 1
    with pytest.raises(DataError, match="y: row 117 has the label 9, which is not one of the classes"):
        CELLS.of(Chunk(X, 100, y=y, domain=DOMAIN))
    with pytest.raises(DataError, match="domain: row 123 has the domain 1, which is not one of the domains"):
        CELLS.of(Chunk(X, 100, y=LABEL, domain=domain), np.arange(5, 40))
    with pytest.raises(DataError, match="y: row 119 has the label 255"):  # −1 where the column has no sign
        CELLS.of(Chunk(X, 100, y=np.where(np.arange(N) == 19, 255, 2).astype(np.uint8), domain=DOMAIN), slice(10, 30))


@pytest.mark.parametrize("column, message", [("y", "expected labels"), ("domain", "expected a column of domains")])
def test_a_missing_column_is_named(column, message):
    with pytest.raises(DataError, match=f"{column}: {message}"):
        accumulate(CellMomentStatistic(FEATURES, CELLS), **{column: None})


def test_more_cells_than_can_be_columns_are_refused():
    with pytest.raises(DataError, match=r"1,000 domains of 10 classes .* give 11,000 cells, more than 4,096"):
        Cells(np.arange(1000), np.arange(10))


@pytest.mark.parametrize("classes", [CLASSES, np.array([-1, 2])])
def test_cells_and_their_targets_agree_on_which_rows_are_unlabelled(classes):
    y = np.where(np.arange(N) % 4 == 0, np.nan, rng.choice([-1.0, 2.0], N))
    cells = Cells(None, classes)
    labelled = cell_targets(cells).labelled(y, 0)
    assert_array_equal(labelled, cells.label(Chunk(X, y=y)) < len(classes))
    assert_array_equal(labelled, np.isin(y, classes))  # NaN is unlabelled, also where −1 is a class
