"""Every statistic, kernel and map on a device agrees with NumPy, and the rows of a chunk are copied to it once."""

import gc
import sys
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from peers import accumulate

from bigkernel.errors import ConfigError
from bigkernel.kernels.algebra import OnColumns
from bigkernel.kernels.feature_maps import IdentityMap, LandmarkFamily, LandmarkMap, LandmarkSlices
from bigkernel.kernels.functions import Gaussian, Laplacian, Linear, Matern, Polynomial, Sigmoid
from bigkernel.kernels.kept_blocks import BLOCKS, KeptMap
from bigkernel.kernels.random_fourier import FourierMap
from bigkernel.solvers.anchor_graph import SourceTargetStatistic
from bigkernel.solvers.pseudo_labels import Decision, JointPseudoLabels, LabelQuery, SourceTarget
from bigkernel.statistics.blend import Blend, Deviations, Everywhere, Member
from bigkernel.statistics.domain_cells import CellMomentStatistic, Cells
from bigkernel.statistics.domain_scores import DomainScores
from bigkernel.statistics.held_out import FoldValues, GridScores, HeldOutValues
from bigkernel.statistics.moments import FeatureSums, MomentStatistic, RoundingProbe, Targets
from bigkernel.statistics.predictor import Predictor, Spread
from bigkernel.statistics.products import LeverageSample, ProductStatistic, SoftmaxStatistic
from bigkernel.statistics.qr import QRStatistic
from bigkernel.statistics.scores import ScoreStatistic
from bigkernel.streaming.chunk import DTYPES, Chunk, Workspace
from bigkernel.streaming.devices import HOST, Device, device_of, dtype_of
from bigkernel.streaming.folds import HashFolds
from bigkernel.streaming.row_maps import Scale, UnitNorm

N, D, M, CLASSES = 90, 3, 24, np.array([2, 5, 9])
rng = np.random.default_rng(7)
X, Z = rng.normal(size=(N, D)), rng.normal(size=(M, D))
X[4] = Z[3]  # a row that is a landmark
LABELS, NUMBERS = rng.choice(CLASSES, N), rng.normal(size=(N, 2)) + 1
WEIGHT = rng.uniform(0, 3, N) * (rng.uniform(size=N) > 0.1)
DOMAIN = np.arange(N) % 2
WIDE, NARROW = np.dtype(np.float64), np.dtype(np.float32)
KERNELS = [
    Gaussian(1.1),
    Gaussian(np.array([0.8, 1.0, 1.5])),
    Matern(1.2, nu=0.5),
    Matern(1.2, nu=1.5),
    Matern(1.2, nu=2.5),
    Laplacian(2.0),
    Linear(),
    Polynomial(2, 0.4, 1.5),
    Polynomial(1, 0.4, 1.5),
    Sigmoid(0.05, 0.2),
    0.5 * Gaussian(1.0) + Linear() * Gaussian(2.0),
    OnColumns(Gaussian(1.0), [0, 2]) * OnColumns(Matern(2.0, nu=0.5), [1]),
]
MAP = LandmarkMap(Gaussian(1.1), Z, WIDE)
SHIFT = rng.normal(size=M)
SHIFTED = replace(MAP, shift=SHIFT)
FAMILY = LandmarkFamily((Gaussian(1.1), Matern(1.2, nu=0.5), Matern(3.0)), Z, WIDE, shifts=rng.normal(size=(3, M)))
MAPS = {
    "landmarks": MAP,
    "shifted": SHIFTED,
    "family": FAMILY,
    "rows": IdentityMap(np.full(D, 0.5)),
    "fourier": FourierMap(Gaussian(1.1), 3, 7, np.zeros(D), dtype=WIDE, shift=np.ones(7)),
    "kept": KeptMap(MAP, SHIFT),
}
TARGETS, FOLDS = Targets(3, CLASSES), HashFolds(3)
PROBE = RoundingProbe(rng.normal(size=(1, M, 4)))
GRID = (rng.normal(size=(3, 3, M, 6)), rng.normal(size=(3, 3, 6)), FOLDS, TARGETS)
SPREAD = Spread(rng.normal(size=(M, 4)) / 30, rng.normal(size=(M, 3)), rng.normal(size=3), 0.1, np.ones(3))
PREDICTOR = Predictor(MAP, rng.normal(size=(M, 3)), rng.normal(size=3), CLASSES, True, spread=SPREAD)
CELLS = Cells(np.arange(2), CLASSES)
SIDES = SourceTarget(CELLS, np.array([True, False]))
DECISION = Decision(rng.normal(size=(M, 3)), rng.normal(size=3))
V = rng.normal(size=(M, 9))
STATISTICS = {
    "moments": MomentStatistic(SHIFTED, TARGETS, probe=PROBE),
    "of numbers by fold": MomentStatistic(MAP, Targets(2), folds=FOLDS),
    "of a family": MomentStatistic(FAMILY, TARGETS, "keep", probe=replace(PROBE, vectors=rng.normal(size=(3, M, 4)))),
    "of random features": MomentStatistic(MAPS["fourier"], TARGETS),
    "of rows": MomentStatistic(MAPS["rows"], TARGETS),
    "without targets": MomentStatistic(MAP),
    "of cells": CellMomentStatistic(MAP, cells=CELLS),
    "with anchors": SourceTargetStatistic(MAP, TARGETS, neighbours=3),
    "orthogonal": QRStatistic(SHIFTED, TARGETS),
    "feature sums": FeatureSums(MAP),
    "products": ProductStatistic(MAP, TARGETS, V, "step"),
    "residuals by fold": ProductStatistic(KeptMap(MAP, SHIFT), TARGETS, V, "step", residual=True, folds=FOLDS),
    "softmax": SoftmaxStatistic(MAP, TARGETS, V[:, :3], np.ones(3), "step"),
    "softmax along": SoftmaxStatistic(MAP, TARGETS, V[:, :6], np.ones(6), "step"),
    "leverage": LeverageSample(MAP, TARGETS, V, 20, "sample"),
    "grid scores": GridScores(FAMILY, *GRID, with_loss=True, with_squares=True),
    "values of folds": FoldValues(FAMILY, *GRID, rows=N),
    "held-out values": HeldOutValues(MAP, rng.normal(size=(1, 4, M, 3)), np.ones((1, 4, 3)), FOLDS, TARGETS, 50, N),
    "domain scores": DomainScores(FAMILY, *GRID, domains=np.array([1]), slopes=np.ones((3, 3, 2))),
    "pseudo-labels": JointPseudoLabels(MAP, (LabelQuery(SIDES, DECISION, 2.0),)),
    "scores": ScoreStatistic(PREDICTOR, TARGETS, keep=3),
}


def both(make, device, tolerance=1e-12):
    """Compare the arrays of two results, by name, relative to the largest number of each."""
    expected, found = make(HOST), make(device)
    assert expected.keys() == found.keys()
    for name, values in expected.items():
        assert isinstance(found[name], np.ndarray)
        assert_allclose(
            found[name], values, rtol=tolerance, atol=tolerance * np.max(np.abs(values), initial=0), err_msg=name
        )


@pytest.mark.parametrize("name", STATISTICS)
def test_statistics_agree_with_numpy(name, device):
    def sums(device):
        columns = {"y": NUMBERS if name == "of numbers by fold" else LABELS, "weight": WEIGHT, "domain": DOMAIN}
        return accumulate(STATISTICS[name], X, device=device, cuts=[20, 61], **columns)

    # rounding of a Gram matrix, which is its own unit
    both(sums, device) if "E" not in sums(HOST) else both(lambda device: {**sums(device), "E": np.zeros(1)}, device)


@pytest.mark.parametrize("dtype", [NARROW, WIDE])
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.formula())
def test_kernels_agree_with_numpy(kernel, dtype, device):
    def values(device):
        work = Workspace(device=device)
        x = X.astype(dtype)
        if kernel.formula().startswith(("gaussian", "matern")):
            x[5] = 1e18 if dtype == NARROW else 1e154  # counts as infinitely far
        return {"B": device.to_host(LandmarkMap(kernel, Z, dtype).block(Chunk(x, work=work), slice(0, 50))).copy()}

    both(values, device, 1e-12 if dtype == WIDE else 5e-6)


SLICES = LandmarkSlices(MAP.kernel, MAP.prepared, M, 7)
MEMBER = Member((Scale(0.5),), PREDICTOR, N)
PREDICTORS = {
    "landmarks": PREDICTOR,
    "slices": replace(PREDICTOR, features=SLICES, spread=None),
    "fourier": Predictor(MAPS["fourier"], rng.normal(size=(7, 2)), np.ones(2)),
    "rows": Predictor(MAPS["rows"], rng.normal(size=(D, 2)), np.ones(2)),
    "deviations": Deviations(PREDICTOR),
    "blend": Blend(Everywhere(D, 2), (MEMBER, MEMBER), CLASSES),
}


@pytest.mark.parametrize("row_maps", [(), (Scale(0.5), UnitNorm())], ids=["stored", "mapped"])
@pytest.mark.parametrize("name", PREDICTORS)
def test_predictions_agree_with_numpy(name, row_maps, device):
    def values(device):
        x = np.rint(50 * X).astype(np.int16) if row_maps else X
        chunk = Chunk(x, row_maps=row_maps, block_rows=32, work=Workspace(device=device))
        return {"f": PREDICTORS[name].values(chunk)}

    both(values, device)


@pytest.fixture
def copies(device, monkeypatch):
    """Return the shapes of arrays of at least 20 numbers, as they are copied to the device ("up") and back."""
    seen = {"up": [], "down": []}

    def recorded(copy, shapes):
        def copied(self, x):
            out = copy(self, x)
            if out is not x and np.prod(x.shape) >= 20:
                shapes.append(tuple(x.shape))
            return out

        return copied

    monkeypatch.setattr(Device, "array", recorded(Device.array, seen["up"]))
    monkeypatch.setattr(Device, "to_host", recorded(Device.to_host, seen["down"]))
    return seen


def test_the_rows_of_a_chunk_go_up_once_and_the_sums_of_a_segment_come_down_once(device, copies):
    features = replace(MAP, shift=SHIFT.copy())  # none of it was copied by another test
    accumulate(MomentStatistic(features, TARGETS, folds=FOLDS), X, y=LABELS, device=device, cuts=[60])
    assert copies["up"].count((60, D)) == copies["up"].count((30, D)) == 1
    # the prepared landmarks once, and beside them the shift, targets and positions of the rows of blocks
    assert [shape for shape in copies["up"] if M in shape] == [(D + 2, M)]
    assert sorted(copies["down"]) == [(4, M), (4, M, 3), (4, M, M)]


def test_a_few_columns_of_a_product_go_down_and_up_and_its_sums_come_down_once(device, copies):
    accumulate(ProductStatistic(MAP, TARGETS, V.copy(), "step"), X, y=LABELS, device=device, block_rows=45)
    assert copies["down"] == [(45, 9), (45, 9), (M, 9)]
    assert [shape for shape in copies["up"] if 9 in shape] == [(M, 9), (9, 45), (9, 45)]


def test_kept_blocks_stay_on_the_device(device, copies):
    features, work = KeptMap(MAP), Workspace(device=device, kept_bytes=2**20)
    first = device.to_host(features.block(Chunk(X, work=work), slice(0, 45))).copy()
    assert BLOCKS.held_bytes(features.owner) == 45 * M * 8
    copies["up"].clear()
    again = features.block(Chunk(X, work=work), slice(0, 45))
    assert copies["up"] == []
    assert_array_equal(device.to_host(again), first)
    BLOCKS.release(features.owner)


def test_what_is_copied_once_is_forgotten_with_the_original(device):
    held, array = len(device._copies), np.arange(3.0)
    copy = device.once(array)
    assert device.once(array) is copy
    assert len(device._copies) == held + 1
    del array, copy
    gc.collect()
    assert len(device._copies) == held


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_are_copied_in_their_dtype_and_back(dtype, device):
    x = np.arange(12).astype(dtype).reshape(4, 3)[::-1, 1:]
    x.flags.writeable = False
    copy = device.array(x)
    assert dtype_of(copy) == dtype
    assert_array_equal(device.to_host(copy), x)
    copy[0, 0] = 1  # is no view of the original
    assert x[0, 0] == 10


def test_a_device_is_named_and_auto_takes_what_there_is():
    assert device_of("cpu") is HOST
    with pytest.raises(ConfigError, match=r"expected one of cpu, cuda, auto, found 'gpu'"):
        device_of("gpu")


@pytest.mark.parametrize("library", [None, "a build for the CPU"])
def test_without_a_gpu_the_error_says_what_is_missing_and_auto_is_the_cpu(library, monkeypatch):
    device_of.cache_clear()
    if library is None:
        monkeypatch.setitem(sys.modules, "array_api_compat.torch", None)
    else:
        torch = pytest.importorskip("array_api_compat.torch")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=r"bigkernel\[gpu\]" if library is None else "finds no GPU"):
        device_of("cuda")
    assert device_of("auto") is HOST
    device_of.cache_clear()
