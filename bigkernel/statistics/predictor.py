"""A fitted model for prediction: features, coefficients, labels. It imports NumPy alone; `scores` evaluates it.

Every estimator here predicts f(x) = φ(x)ᵀW + b, with φ the rows themselves, their kernel values against m landmarks, or
random features of them. Transformers that learn such a W (components of DICA and JDA, whitened Nyström features) apply
it as a row map, `Projection`. Class probabilities are p(x) = softmax(a ∘ f(x) + b), with a scale and an offset for each
class (`Calibration`); two classes share one scale, which gives Platt's sigmoid of f₂ − f₁. Decisions are by largest
w_k p_k(x), w the class weights. Shapes: n rows, d features, p columns of φ, c targets or classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from bigkernel.arrays import Array, Index
from bigkernel.errors import DataError
from bigkernel.kernels.feature_maps import IdentityMap, LandmarkMap, LandmarkSlices, WithoutCaches, slice_map
from bigkernel.kernels.given import computed_here
from bigkernel.kernels.threads import blas_threads, one_thread
from bigkernel.streaming.chunk import Chunk, MapCost, Workspace
from bigkernel.streaming.devices import HOST, Device, converted, row_squares

if TYPE_CHECKING:
    from bigkernel.kernels.random_fourier import BlockMap, FourierMap  # imports SciPy

_PREPARING = Lock()
# of the features of a block: 12 features, m = 4,000, float32: 1.04 ns a value with 131 rows, 1.6 ns with 2,048. With
# 784 features the product is slower in blocks of few rows, by a tenth with 128
_TILE_BYTES = 2**21
_COLUMNS, _SMALL = 128, 64  # of a triangular matrix that are multiplied, and inverted, at once
_SHARED_ROWS = 512  # of a block, where threads share the rows
_SHARED_FLOPS = 2**24  # that are worth threads
_LIMITED_FLOPS = 2**22  # that are worth the time of a limit, 50 µs


class BlockPredictor(WithoutCaches, ABC):
    """Base of what predicts f of chunks, block by block."""

    classes: Array | None = None  # (c,) labels, or None for numbers
    log_weights: Array | None = None  # (c,) logarithms of class weights; None: no weights

    @property
    @abstractmethod
    def width(self) -> int:
        """c, the number of columns of the values."""

    @property
    @abstractmethod
    def flops_per_row(self) -> float:
        """Floating-point operations per row."""

    @property
    def portable(self) -> bool:
        """Whether a device can compute it; otherwise processors do."""
        return True

    @abstractmethod
    def prepare(self) -> None:
        """Prepare landmarks and coefficients once, also if several threads call this at the same time."""

    @abstractmethod
    def fill(self, chunk: Chunk, block: Index, out: Array) -> None:
        """Write f of rows of the chunk into out (b, c) float64."""

    def blocks_of(self, chunk: Chunk, index: Array | None = None) -> Iterator[Index]:
        """Return rows of the chunk, all or those of `index`, in the blocks that `fill` takes."""
        return chunk.blocks(index)

    def logits_of(self, values: Array) -> Array:
        """Return the logits of the class probabilities, from values (n, c)."""
        return values if self.log_weights is None else values - self.log_weights

    def values(self, chunk: Chunk) -> Array:
        """Compute f of every row of the chunk, (n, c) float64; as many blocks side by side as BLAS has threads."""
        self.prepare()
        if not (chunk.work.on_host or self.portable):
            chunk = chunk.on_host()
        out, flops = np.empty((len(chunk), self.width)), len(chunk) * self.flops_per_row
        threads = blas_threads() if flops > _SHARED_FLOPS and chunk.work.on_host else 1

        def fill_some(chunk: Chunk, blocks: Iterable[Index]) -> None:
            for block in blocks:
                self.fill(chunk, block, out[block])

        # a block of few features is up to six times as slow on two threads of BLAS, if other work runs
        with one_thread() if flops > _LIMITED_FLOPS else nullcontext():
            if threads == 1:
                fill_some(chunk, self.blocks_of(chunk))
                return out
            most = min(chunk.block_rows, _SHARED_ROWS, -(-len(chunk) // threads))
            blocks = [*self.blocks_of(replace(chunk, block_rows=most))]
            own = [replace(chunk, work=Workspace()) for _ in range(threads)]
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(fill_some, own, [blocks[first::threads] for first in range(threads)]))
        return out


@dataclass(frozen=True, eq=False)
class Spread:
    """Var[y|x] = max(k(x,x) − ‖Aᵀφ‖² − ε, 0) + ‖Uᵀφ − u‖² + ℓ, of a fit (`solvers.posterior`)."""

    explained: Array  # A (p, r)
    uncertain: Array  # U (p, q)
    centre: Array  # u (q,)
    level: float  # ℓ
    scale: Array  # (c,) factors of standard deviations
    least: float = 0.0  # ε, what ℓ includes already
    triangular: bool = False  # A is 0 below its diagonal

    @property
    def cost(self) -> MapCost:
        """Operations, the buffers of a row in float64, and the factors, received and unpacked."""
        (p, r), q = self.explained.shape, len(self.centre)
        return MapCost(2.0 * p * (r + q), 8 * (p + r + 2 * q + 8), 2 * 8 * p * (r + q) + 2**18)

    def variance(self, phi: Array, diagonal: Array, device: Device = HOST) -> Array:
        """Compute Var[y|x] (b,) from φ (b, p) float64 on a device, and k(x, x) in `diagonal` (b,)."""
        # max(k(x,x) − ‖Aᵀφ‖² − ε, 0) + ‖Uᵀφ − u‖² + ℓ
        own = device.once(self)
        uncertain = phi @ own.uncertain - own.centre
        if self.triangular:  # columns up to c have c rows
            ends = range(_COLUMNS, len(own.explained) + _COLUMNS, _COLUMNS)
            parts = [row_squares(phi[:, :c] @ own.explained[:c, c - _COLUMNS : c]) for c in ends]
        else:
            parts = [row_squares(phi @ own.explained)]
        variance: Array = np.maximum(diagonal - device.to_host(sum(parts[1:], parts[0])) - self.least, 0)
        variance += device.to_host(row_squares(uncertain)) + self.level
        return variance


@dataclass(frozen=True, eq=False)
class ExactSpread:
    """The `Spread` of an exact fit to p rows without its factors, 16 p² bytes, which cost p³ operations when needed."""

    noise: Array  # αw⁻¹ (p,), of the rows
    with_intercept: bool
    level: float  # ℓ
    scale: Array  # (c,) factors of standard deviations

    @property
    def cost(self) -> MapCost:
        """Operations and buffers of a row, and the factors, with what their computation needs."""
        p = len(self.noise)
        return MapCost(2.0 * p * (p + 1), 8 * (2 * p + 10), 4 * 8 * p * p)

    def factored(self, features: LandmarkMap) -> Spread:
        """Return the spread with its factors."""
        A = features.block(Chunk(features.landmarks), slice(None)).astype(np.float64)
        # A = K + αW⁻¹ = LLᵀ, kᵀA⁻¹k = ‖L⁻¹k‖²
        A[np.diag_indices(len(A))] += self.noise
        half = triangular_inverse(np.linalg.cholesky(A))
        # (1 − 1ᵀA⁻¹k)² / 1ᵀA⁻¹1, the uncertainty of the intercept
        constant = half.sum(axis=1)
        unit = 1 / np.linalg.norm(constant)
        q = int(self.with_intercept)
        uncertain, centre = (unit * (constant @ half))[:, None][:, :q], np.full(q, unit)
        return Spread(half.T, uncertain, centre, self.level, self.scale, triangular=True)


def triangular_inverse(L: Array) -> Array:
    """Invert a lower triangular matrix (p, p) by halves, a third of the operations of NumPy's inverse."""
    if len(L) <= _SMALL:
        return np.tril(np.linalg.inv(L))
    half, inverse = len(L) // 2, np.zeros_like(L)
    inverse[:half, :half] = triangular_inverse(L[:half, :half])
    inverse[half:, half:] = triangular_inverse(L[half:, half:])
    inverse[half:, :half] = -inverse[half:, half:] @ (L[half:, :half] @ inverse[:half, :half])
    return inverse


@dataclass(frozen=True, eq=False)
class Predictor(BlockPredictor):
    """f(x) = φ(x)ᵀW + b."""

    features: IdentityMap | LandmarkMap | LandmarkSlices | FourierMap  # a single map of width p
    coef: Array  # (p, c)
    intercept: Array  # (c,)
    classes: Array | None = None  # (c,) labels, or None for numbers
    logits: bool = False  # softmax of the values, less the logarithms of class weights, gives the class probabilities
    log_weights: Array | None = None  # (c,) these logarithms; None: no weights
    spread: Spread | ExactSpread | None = None  # of standard deviations, where they were asked for

    @classmethod
    def of(cls, features: BlockMap, coef: Array, intercept: Array, classes: Array | None = None) -> Predictor:
        """Create a predictor that reads many landmarks in slices."""
        return cls(slice_map(features), coef, intercept, classes)

    def sliced(self) -> Self:
        """Return a predictor of f alone that reads many landmarks in slices."""
        return replace(self, features=slice_map(self.features), spread=None)

    @property
    def width(self) -> int:
        return int(self.coef.shape[1])

    @property
    def n_features(self) -> int:
        """d, the number of features of the mapped rows."""
        return int(self.features.n_features)

    @property
    def n_landmarks(self) -> int:
        """p, the number of columns of the features."""
        return int(self.features.width)

    @cached_property
    def flops_per_row(self) -> float:
        return self.features.cost.flops_per_row + 2.0 * self.features.width * len(self.intercept)

    @property
    def fixed_bytes(self) -> int:
        """Upper bound on the bytes of the model in a process."""
        return self.features.cost.fixed_bytes + 8 * self.features.width * (len(self.intercept) + 2)

    def work_bytes(self, block_rows: int) -> int:
        """Return the bytes that a task needs to predict, without its chunk."""
        return self.fixed_bytes + min(block_rows, self._most_rows) * self.features.cost.row_bytes

    @cached_property
    def portable(self) -> bool:
        return next(computed_here(self.features), None) is None

    @cached_property
    def weights(self) -> Array:
        """The coefficients in the dtype of the features."""
        return np.asarray(self.coef.astype(self.features.dtype))

    def prepare(self) -> None:
        if "weights" not in self.__dict__:
            with _PREPARING:
                if isinstance(self.features, LandmarkMap):
                    _ = self.features.prepared
                _ = self.weights

    def blocks_of(self, chunk: Chunk, index: Array | None = None) -> Iterator[Index]:
        """Return rows of the chunk in blocks whose features stay in the cache of a core, if their product is small."""
        rows = min(chunk.block_rows, self._most_rows) if chunk.work.on_host else chunk.block_rows
        return replace(chunk, block_rows=rows).blocks(index)

    @cached_property
    def _most_rows(self) -> int:
        return max(_TILE_BYTES // max(1, self.features.cost.row_bytes), 2 * self.n_features)

    def fill(self, chunk: Chunk, block: Index, out: Array) -> None:
        out[...], device = self.intercept, chunk.work.device
        weights = device.once(self.weights)
        for columns, phi in self.features.slices(chunk, block):
            with chunk.work.stage("predict"):
                out += device.to_host(phi @ weights[columns, :])

    @property
    def keeps_factors(self) -> bool:
        """Whether the factors of standard deviations are part of the model, not computed for some rows at a time."""
        return isinstance(self.spread, Spread)

    def factored(self) -> Self:
        """Return a predictor with the factors of standard deviations."""
        if not isinstance(self.spread, ExactSpread):
            return self
        assert isinstance(self.features, LandmarkMap)
        return replace(self, spread=self.spread.factored(self.features))

    @property
    def spread_cost(self) -> MapCost:
        """The cost of standard deviations."""
        assert self.spread is not None
        cost = self.spread.cost
        return replace(cost, row_bytes=cost.row_bytes + self.features.cost.row_bytes)

    def fill_both(self, chunk: Chunk, block: Index, mean: Array, std: Array) -> None:
        """Write f of rows of the chunk and the standard deviations of y around it, both (b, c) float64."""
        assert isinstance(self.spread, Spread)
        assert not isinstance(self.features, IdentityMap | LandmarkSlices)
        diagonal, device = self.features.diagonal(chunk, block), chunk.work.device
        phi = self.features.block(chunk, block)
        with chunk.work.stage("predict"):
            mean[...] = self.intercept + device.to_host(phi @ device.once(self.weights))
            variance = self.spread.variance(converted(phi, np.float64), diagonal, device)
            std[...] = np.sqrt(variance)[:, None] * self.spread.scale


@dataclass(frozen=True, eq=False)
class Projection:
    """Row map z(x) = φ(x)ᵀW + b from d features to r, applied in the task that reads the rows."""

    n_features: int  # d
    predictor: Predictor  # features of width p, `coef` (p, r) and `intercept` (r,)
    name: ClassVar[str] = "projection"

    def width(self, d: int) -> int:
        if d != self.n_features:
            raise DataError(f"projection: expected rows of {self.n_features} features, found {d}")
        return self.predictor.width

    def cost(self, d: int, itemsize: int) -> MapCost:
        predictor = self.predictor
        # values are float64 before they are converted to the dtype of the rows
        row_bytes = predictor.features.cost.row_bytes + (8 + itemsize) * predictor.width
        return MapCost(predictor.flops_per_row, row_bytes, predictor.fixed_bytes)

    def apply(self, x: Array) -> Array:
        # in blocks of its own: x may be a whole array
        mapped: Array = self.predictor.values(Chunk(x)).astype(x.dtype, copy=False)
        return mapped


@dataclass(frozen=True, eq=False)
class Calibration:
    """The scale a and the offset b of calibrated logits."""

    scale: Array  # (c,) float64
    offset: Array  # (c,) float64
    rows: int = 0  # number of held-out rows of the calibration; 0 if unknown
    log_loss: float = float("nan")  # on these rows, mean −log p of the true class in nats; NaN if unknown
    # (c,) logarithms of class weights, which decision values include and logits do not; None: no weights
    log_weights: Array | None = None

    def logits(self, values: Array) -> Array:
        """Return the logits of values of f, (n, c)."""
        return np.asarray(values * self.scale + self.offset)


def log_softmax(logits: Array) -> Array:
    """Compute log p of logits, (n, c)."""
    out: Array = logits - logits.max(axis=1, keepdims=True)
    out -= np.log(np.exp(out).sum(axis=1, keepdims=True))
    return out


def softmax(logits: Array, slope: float | Array = 1.0) -> Array:
    """Compute p of slope·logits, (…, c), with rows of sum 1."""
    out: Array = np.exp(slope * (logits - logits.max(axis=-1, keepdims=True)))
    out /= out.sum(axis=-1, keepdims=True)
    return out
