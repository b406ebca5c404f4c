"""Learn layers of patch kernels from rows: per layer, a sweep samples patches for spherical k-means and whitening.

The sample is a function of the seed and of the row numbers: it does not depend on chunks, executor or number of
workers, and neither do the landmarks. Spherical k-means: Dhillon & Modha, Concept decompositions for large sparse text
data using clustering, Machine Learning 42 (2001). Shapes: X (n, q) rows of unit length, m centres.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse

from bigkernel.arrays import Array
from bigkernel.engine.rows import Rows
from bigkernel.engine.sweep import sweep
from bigkernel.errors import DataError
from bigkernel.images.patch_layers import PatchFeatures, PatchGrid, PatchLayer
from bigkernel.kernels.blas import one_thread
from bigkernel.kernels.landmarks import uniform
from bigkernel.streaming.chunk import Chunk
from bigkernel.streaming.plan import Accumulator, Footprint

SAMPLE_BYTES = 2**27  # limit of the sampled patches of a layer
_PATCHES_A_ROW = 16
_LEAST_CONTRAST = 1e-4  # norm of a patch of an image with maximum 1, below which its direction is rounding
_SAMPLED = 8  # sampled rows per initial centre
_PIECE = 8192  # rows whose similarities to all centres are held at a time
_FLOOR = 1e-3  # added to the eigenvalues of K_ZZ, whose trace is m


@dataclass(frozen=True)
class LayerOptions:
    """Options of a layer: p, places from cell to cell, σ, and the largest m."""

    patch: int
    subsampling: int
    sigma: float
    n_landmarks: int


@dataclass(frozen=True, eq=False)
class PatchSample:
    """A statistic of `per_row` patches of some rows, at random places, scaled to unit length.

    Patches without contrast are left out. The accumulator holds `patches` (k, q) and `order` (k,), by row and sample
    number.
    """

    grid: PatchGrid  # of the mapped rows as images
    ids: NDArray[np.int64]  # sorted numbers of the sampled rows
    seed: int  # of the places
    per_row: int = _PATCHES_A_ROW

    def zero(self) -> Accumulator:
        return {"patches": np.empty((0, self.grid.width)), "order": np.empty(0)}

    def merge(self, a: Accumulator, b: Accumulator) -> Accumulator:
        return {name: np.concatenate([a[name], b[name]]) for name in a}

    def footprint(self, block_rows: int) -> Footprint:
        q, per_row = self.grid.width, self.per_row
        numbers = min(block_rows, len(self.ids)) * (self.grid.image_width + 2 * per_row * q)
        return Footprint(0.0, 8 * len(self.ids) * per_row * (q + 1), 8 * numbers)

    def update(self, total: Accumulator, chunk: Chunk) -> None:
        first, last = np.searchsorted(self.ids, (chunk.start, chunk.start + len(chunk)))
        for block in chunk.blocks(self.ids[first:last] - chunk.start):
            images = chunk.load(block, self.grid.image_width, np.float64)
            with chunk.work.stage("patches"):
                numbers = chunk.start + np.asarray(block)
                patches, kept = self._patches(images, numbers)
                order = (numbers[:, None] * self.per_row + np.arange(self.per_row))[kept]
                total["patches"] = np.concatenate([total["patches"], patches])
                total["order"] = np.concatenate([total["order"], order])

    def _patches(self, images: Array, ids: NDArray[np.int64]) -> tuple[Array, Array]:
        """Return patches (k, q) of unit length at the places of row ids, and which have contrast (b, per_row)."""
        grid = self.grid
        generators = (np.random.default_rng([self.seed, int(row)]) for row in ids)
        corners = np.stack([rng.integers(grid.places, size=(self.per_row, 2)) for rng in generators])
        peak = np.abs(images).max(axis=1, initial=0)
        with np.errstate(invalid="ignore"):
            scaled = images / np.where(peak == 0, 1, peak)[:, None]
        windows = grid.windows(scaled)[np.arange(len(images))[:, None], corners[..., 0], corners[..., 1]]
        patches = windows.reshape(len(images), self.per_row, grid.width)
        kept = grid.normalise(patches) > _LEAST_CONTRAST
        return patches[kept], kept


def learn_layers(
    rows: Rows,
    image: tuple[int, int, int],
    options: Sequence[LayerOptions],
    rng: np.random.RandomState,
    *,
    n_patches: int = 100_000,
) -> tuple[PatchLayer, ...]:
    """Learn layers for images of (height, width, channels), each by a sweep over the output of the layers before it.

    The generator samples rows, places and initial centres. The sample of a layer has `n_patches`, or fewer if they
    exceed `SAMPLE_BYTES`. `DataError` if a patch does not fit in the image of its layer, or no patch has contrast.
    """
    of_layer = image
    for place, layer in enumerate(options):  # raises before the first sweep
        grid = PatchGrid(*of_layer, layer.patch, layer.subsampling, centred=not place)
        of_layer = (*grid.cells, layer.n_landmarks)
    source = Rows(rows.x, {}, rows.row_maps, rows.name, bad_rows=rows.bad_rows)
    layers: tuple[PatchLayer, ...] = ()
    for layer in options:
        # patches of pixels are centred; those of features are not
        grid = PatchGrid(*image, layer.patch, layer.subsampling, centred=not layers)
        mapped = source.map(PatchFeatures(layers, unit_norm=False)) if layers else source
        patches = _sample(mapped, grid, rng, n_patches, f"patches of layer {len(layers) + 1}")
        with one_thread():
            Z = spherical_means(patches, layer.n_landmarks, rng)
            # k(z, z′) = exp((⟨z, z′⟩ − 1)/σ²)
            K = np.exp((Z @ Z.T - 1) / layer.sigma**2)
            layers = (*layers, PatchLayer(grid, layer.sigma, Z, inverse_root(K, _FLOOR)))
        image = (*grid.cells, len(Z))
    return layers


def _sample(rows: Rows, grid: PatchGrid, rng: np.random.RandomState, n_patches: int, what: str) -> Array:
    """Sample patches (k, q) of unit length from some rows, in the order of the rows, k ≤ n_patches."""
    count = max(1, min(n_patches, SAMPLE_BYTES // (8 * grid.width)))
    down, across = grid.places
    # twice as many places as patches, since many have no contrast
    per_row = max(_PATCHES_A_ROW, min(-(-2 * count // len(rows)), 4 * down * across))
    ids = uniform(len(rows), min(len(rows), -(-2 * count // per_row)), rng)
    total = sweep(rows, PatchSample(grid, ids, int(rng.randint(2**31 - 1)), per_row), what=what).total
    patches = total["patches"][np.argsort(total["order"])]
    if not len(patches):
        raise DataError(
            f"{rows.name}: all patches of {grid.patch}×{grid.patch} pixels in {len(ids):,} rows are constant; check "
            "the images, or use larger patches"
        )
    return np.asarray(patches[np.sort(rng.permutation(len(patches))[:count])])


def spherical_means(X: Array, count: int, rng: np.random.RandomState, *, steps: int = 15) -> Array:
    """Compute centres Z (m, q) of unit length, m ≤ count, with a large Σ max_j ⟨x, z_j⟩, by Lloyd's algorithm.

    X (n, q) has rows of unit length, float64. There are fewer centres if fewer rows are different. A centre without
    rows moves to the row that is farthest from its centre.
    """
    sampled = np.unique(X[rng.permutation(len(X))[: _SAMPLED * count]], axis=0)  # different initial centres
    Z = sampled[rng.permutation(len(sampled))[:count]]
    nearest: Array | None = None
    for _ in range(steps):
        before, (nearest, similarity) = nearest, _nearest(X, Z)
        if before is not None and np.array_equal(nearest, before):
            break
        Z = _means(X, nearest, similarity, Z)
    return Z


def _nearest(X: Array, Z: Array) -> tuple[Array, Array]:
    """Return the centre with the largest inner product, and that product, for every row."""
    nearest, similarity = np.empty(len(X), np.intp), np.empty(len(X))
    for start in range(0, len(X), _PIECE):
        rows = slice(start, start + _PIECE)
        products = X[rows] @ Z.T
        nearest[rows] = products.argmax(axis=1)
        similarity[rows] = products.max(axis=1)
    return nearest, similarity


def _means(X: Array, nearest: Array, similarity: Array, Z: Array) -> Array:
    """Return the normalised means of the rows of each centre."""
    members = sparse.csr_matrix((np.ones(len(X)), (nearest, np.arange(len(X)))), shape=(len(Z), len(X)))
    means: Array = members @ X
    lengths = np.sqrt(np.einsum("ij,ij->i", means, means))
    lost = np.flatnonzero(lengths <= len(X) * np.finfo(np.float64).eps)
    means[lost] = X[np.argsort(similarity, kind="stable")[: len(lost)]]
    lengths[lost] = 1
    return np.asarray(means / lengths[:, None])


def inverse_root(K: Array, floor: float) -> Array:
    """Compute (K + floor·I)^(−½) of a positive semi-definite matrix K (m, m), float64."""
    values, vectors = linalg.eigh(K, check_finite=False)
    root: Array = (vectors / np.sqrt(np.maximum(values, 0) + floor)) @ vectors.T
    return (root + root.T) / 2
