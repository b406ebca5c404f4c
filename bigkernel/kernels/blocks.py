"""The fast path of a kernel block: landmarks prepared once, blocks filled in preallocated buffers.

Shapes: b rows of a block, d features, m landmarks. Nothing in here allocates more than a few strips of the block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from bigkernel.streaming.chunk import Chunk

Array = NDArray[Any]
_FAR = 1e6  # times from the ends of the range of a dtype, that squares and γ stay
PART_ROWS = 128  # of a block whose parts are computed one after the other
_PLAIN_GAMMA = 1e100  # up to which, and from whose inverse on, squares of γ stay in the range of float64
_MIRRORED = 64  # rows at a time, whole cache lines of either triangle
_STRIP_BYTES = 2**18  # in-place passes go over the block in strips of this size, so that a strip stays in cache


@dataclass
class Bound:
    """k(·, Z) with Z prepared: fills blocks in preallocated buffers. Made by `Kernel.bind`.

    Call `product(rows, out)`, then `finish(out)`. `rows` is what `load` or `rows_of` gives, a (b, columns) buffer with
    x in its first d columns, which is overwritten; `out` is (b, m). Both are of `dtype`, C-contiguous.
    """

    # turns a strip of the argument into a strip of the kernel, in place; a method of a kernel, which is told beside
    value: Callable[[Array], None] = field(metadata={"identity": False})  # `storage.fingerprint.NOT_COMPARED`
    weights: Array  # (columns, m): what the rows are multiplied by
    shift: Array | None  # (d,): subtracted from the rows; None for kernels of the inner product
    stretch: Array | None  # (d,): the rows are multiplied by it (one length per feature)
    landmarks: Array | None  # (m, d): only where no product serves (L1 distances)
    n_features: int
    touching: Array | None = None  # (m, d): shifted and stretched as rows are, where `product` is to look at them again

    @classmethod
    def of_distance(
        cls,
        value: Callable[[Array], None],
        Z: Array,
        gamma: float,
        lengths: Array | None,
        dtype: np.dtype[Any],
        *,
        touching: bool,
    ) -> tuple[Bound, float]:
        """Landmarks Z (m, d) prepared for −γ‖x−z‖², and the error of γ‖x−z‖² that their rounding may cause.

        With `touching` the distances of rows that nearly touch a landmark keep their digits: for kernels whose slope
        in ‖x−z‖² is infinite at 0.
        """
        limits, d = np.finfo(dtype), Z.shape[1]
        weights, squares = np.empty((d + 2, len(Z)), dtype), np.empty(len(Z))
        placed = np.empty(Z.shape, dtype) if touching else None
        with np.errstate(over="ignore", invalid="ignore"):
            # the mean as the blocks see it: rounded once, the same for rows and landmarks
            shift, lost = Z.mean(axis=0).astype(dtype), rounding_of(Z, dtype)
            stretch = None if lengths is None else (1 / lengths).astype(dtype)
            if stretch is not None:
                lost *= stretch
            for strip in strips(Z):
                centred = Z[strip] - shift.astype(np.float64)
                if stretch is not None:
                    centred *= stretch.astype(np.float64)
                centred[...] = centred.astype(dtype)
                squares[strip] = np.einsum("ij,ij->i", centred, centred)
                np.multiply(centred.T, 2 * gamma, out=weights[:-2, strip], casting="same_kind")
                if placed is not None:
                    placed[strip] = centred
            # what rounding leaves of γ‖x−z‖²: of the product, and of the values as they come
            largest = float(squares.max(initial=0.0))
            blur = gamma * largest * limits.eps + (2 * gamma) ** 0.5 * np.linalg.norm(lost)
            vanish = gamma * largest > limits.eps and largest < _FAR * float(limits.tiny)
            if gamma > float(limits.max) / _FAR or vanish:  # rows so small that γ or their squares leave the range
                blur = np.inf
            # [x, ‖x‖², 1] · [2γz, −γ, −γ‖z‖²] = −γ‖x−z‖²
            weights[-2] = -gamma
            weights[-1] = -gamma * squares
        return cls(value, weights, shift, stretch, None, d, placed), float(blur)

    @property
    def columns(self) -> int:
        """Width of the row buffer: d, or d + 2 for kernels of the distance."""
        return int(self.weights.shape[0])

    @property
    def row_bytes(self) -> int:
        """Of a row as `load` gives it."""
        return self.columns * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Of all that was prepared."""
        held = (self.weights, self.landmarks, self.touching)
        return sum(array.nbytes for array in held if array is not None)

    def spare_bytes(self, columns: int) -> int:
        """Bytes that values at so many of the landmarks take beside the block: L1 distances see these in float64."""
        return 0 if self.landmarks is None else 8 * columns * self.n_features

    @cached_property
    def horizon(self) -> float:
        """The squared distance from the landmarks' mean beyond which a row is as good as infinitely far."""
        return float(np.finfo(self.dtype).max) / (16 * max(1.0, self._gamma))

    @property
    def _gamma(self) -> float:
        return -float(self.weights[-2, 0]) if self.weights.size else 1.0

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64: of the rows, of the block and of the product."""
        return self.weights.dtype

    def load(self, chunk: Chunk, block: slice | Array) -> Any:
        """Rows of a block of a chunk, in a buffer of the chunk's that `product` may overwrite."""
        return chunk.load(block, self.columns, self.dtype)

    def rows_of(self, x: Any) -> Any:
        """Rows x (b, d) in a buffer of their own."""
        rows = np.empty((x.shape[0], self.columns), self.dtype)
        rows[:, : self.n_features] = x
        return rows

    def product(self, rows: Any, out: Array) -> None:
        """out ← the kernel's argument: −γ‖x−z‖², ⟨x,z⟩ or ‖x−z‖₁."""
        self.place(rows)
        self.multiply(rows, out)

    def of_itself(self) -> Array | None:
        """k(Z, Z) (m, m), exactly symmetric: one triangle is computed. None where no product in float64 gives it."""
        of_distance, d = self.columns > self.n_features, self.n_features
        gamma = self._gamma if of_distance else 1.0
        plain = type(self) is Bound and self.landmarks is None and self.touching is None and self.dtype == np.float64
        if not (plain and 1 / _PLAIN_GAMMA < gamma < _PLAIN_GAMMA):
            return None
        from bigkernel.kernels.blas import mirror, syrk  # SciPy's, which predictors do without

        out = np.empty((self.weights.shape[1],) * 2)
        syrk(self.weights[:d], out, accumulate=False)
        # (2γz)ᵀ(2γz') to 2γzᵀz' − γ‖z‖² − γ‖z'‖², which is 0 on the diagonal
        scale = 1 / (2 * gamma)
        squares = np.diagonal(out) * (scale / 2)
        for i in range(0, len(out), _MIRRORED):
            j = min(i + _MIRRORED, len(out))
            out[i:j, i:j] = np.triu(out[i:j, i:j])  # below the diagonal may stand anything
            for strip in strips(out[i:j, i:]):
                values = out[i:j, i:][strip]
                if of_distance:
                    values *= scale
                    values -= squares[i:j][strip, None]
                    values -= squares[i:]
                self.value(values)
        mirror(out)
        return out

    def place(self, rows: Any) -> None:
        """Shift and stretch rows as the landmarks are, in place; for kernels of the distance with ‖x‖² and 1 behind."""
        d = self.n_features
        x = rows[:, :d]
        if self.shift is not None:
            np.subtract(x, self.shift, out=x)
        if self.stretch is not None:
            np.multiply(x, self.stretch, out=x)
        if self.columns > d:
            with np.errstate(over="ignore", invalid="ignore"):
                np.einsum("ij,ij->i", x, x, out=rows[:, d])
            near = rows[:, d] < self.horizon
            if not near.all():  # too far for their squares, or for ∞ − ∞: farther than any landmark matters
                x[~near], rows[~near, d] = 0, self.horizon
            rows[:, d + 1] = 1

    def multiply(self, rows: Any, out: Array, some: slice = slice(None)) -> None:
        """out (b, s) ← the argument of placed rows and some of the landmarks."""
        if self.landmarks is not None:
            points = self.landmarks[some].astype(np.float64, copy=False)  # once, and not for every strip
            for strip in strips(out):
                out[strip] = manhattan(rows[strip], points)
            return
        with np.errstate(over="ignore", invalid="ignore"):  # an infinite product is a value of tanh; sums are looked at
            np.matmul(rows, self.weights[:, some], out=out)
        if self.touching is not None:
            self._look_again(rows, out, self.touching[some])

    def _look_again(self, rows: Array, out: Array, landmarks: Array) -> None:
        """Compute the few ‖x−z‖² < √eps·‖x‖² from the differences: the product has lost half of their digits."""
        x, squares = rows[:, : self.n_features], rows[:, self.n_features]
        limits = (-self._gamma * float(np.finfo(self.dtype).eps) ** 0.5 * squares)[:, None]
        most = max(1, _STRIP_BYTES // (self.dtype.itemsize * max(1, self.n_features)))
        for strip in strips(out):
            near, values = x[strip], out[strip]
            found = np.flatnonzero(values > limits[strip])
            for first in range(0, len(found), most):
                i, j = np.divmod(found[first : first + most], values.shape[1])
                gap = near[i] - landmarks[j]
                values[i, j] = -self._gamma * np.einsum("ij,ij->i", gap, gap)

    def finish(self, out: Array) -> None:
        """out ← k, from its argument, in place."""
        for strip in strips(out):
            self.value(out[strip])


@dataclass
class JoinedBound(Bound):
    """Landmarks prepared for a kernel made of kernels: `multiply` gives its values, and `finish` leaves them.

    Attributes
    ----------
    parts : prepared landmarks of each kernel, and the columns (k,) of the rows that it sees; None: all
    join : what two parts become
    factor : of the whole
    """

    parts: Sequence[tuple[Bound, Array | None]] = ()
    join: Callable[..., Any] = np.add
    factor: float = 1.0

    @classmethod
    def of(cls, parts: Sequence[tuple[Bound, Array | None]], n_features: int, **how: Any) -> JoinedBound:
        """Of parts of one dtype."""
        none = np.empty((n_features, 0), parts[0][0].dtype)
        return cls(keep_values, none, None, None, None, n_features, parts=tuple(parts), **how)

    @property
    def nbytes(self) -> int:
        return sum(bound.nbytes for bound, _ in self.parts)

    def spare_bytes(self, columns: int) -> int:
        """A hundred rows of a part, and what that takes."""
        part = PART_ROWS * (columns + self.n_features + 2) * self.dtype.itemsize
        return part + max(bound.spare_bytes(columns) for bound, _ in self.parts)

    def multiply(self, rows: Any, out: Array, some: slice = slice(None)) -> None:
        """out (b, s) ← k of rows and some of the landmarks; a hundred rows at a time, so that a part is small."""
        x = rows[:, : self.n_features]
        for start in range(0, len(out), PART_ROWS):
            strip = slice(start, start + PART_ROWS)
            for number, (bound, columns) in enumerate(self.parts):
                value = _values(bound, x[strip] if columns is None else x[strip, columns], out.shape[1], some)
                if number:
                    self.join(out[strip], value, out=out[strip])
                else:
                    out[strip] = value
            if self.factor != 1:
                out[strip] *= self.dtype.type(self.factor)


def _values(bound: Bound, x: Any, count: int, some: slice) -> Array:
    """k of rows (b, d), which stay as they are, and some of the landmarks, (b, count)."""
    rows, out = bound.rows_of(x), np.empty((x.shape[0], count), bound.dtype)
    bound.place(rows)
    bound.multiply(rows, out, some)
    bound.finish(out)
    return out


def manhattan(x: Array, z: Array) -> Array:
    """‖x−z‖₁ of rows x (b, d) and points z (s, d), (b, s) float64: by SciPy where it is installed, else by NumPy."""
    try:
        from scipy.spatial.distance import cdist  # slow to load, and needed here alone
    except ImportError:
        gap, out = np.empty(z.shape), np.empty((len(x), len(z)))
        for row, values in zip(x, out, strict=True):
            np.abs(np.subtract(z, row, out=gap), out=gap).sum(axis=1, out=values)
        return out
    return np.asarray(cdist(x, z, "cityblock"))


def keep_values(strip: Array) -> None:
    """The strip holds values of the kernel."""


def rounding_of(Z: Array, dtype: Any) -> Array:
    """The largest |z − z rounded to `dtype`| of every feature, (d,)."""
    lost = np.zeros(Z.shape[1])
    for strip in strips(Z):
        np.maximum(lost, np.abs(Z[strip].astype(dtype) - Z[strip]).max(axis=0, initial=0.0), out=lost)
    return lost


def strips(block: Array) -> list[slice]:
    """Slices of rows of `block` that each stay in cache."""
    rows = max(1, _STRIP_BYTES // max(1, block[:1].nbytes))
    return [slice(i, i + rows) for i in range(0, len(block), rows)]
