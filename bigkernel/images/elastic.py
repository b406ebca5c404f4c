"""Deformed copies of images: the infinite MNIST of Loosli, Canu & Bottou (2007), any row of it by its number.

A copy of an image x (h, w) is x + α(F₁·∂x/∂horizontal − F₂·∂x/∂vertical), clipped to the range of its pixels and, where
these are integers, truncated; then shifted by a few whole pixels, the background coming in. Derivatives are central
differences with background beyond the edge. F₁ and F₂ are white noise smoothed with a Gaussian of σ pixels and scaled
to variance 1: the Gaussian field with correlation exp(−|p − q|²/4σ²) of pixels p, q. Lengths are those of an image 28
pixels high: α and σ are multiplied by h/28 for others, so that copies look alike.

A copy depends on the seed, its number and its original alone, to the bit. A field is Z·B, with k normals Z and the
leading modes B (k, h·w) of the correlation; both are in fixed point, so coarse that float32 holds every product and
every partial sum without rounding. No block size, BLAS, number of threads or processor can then change a bit. All other
steps are elementwise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.random import Philox
from numpy.typing import NDArray
from scipy.special import ndtri

from bigkernel.errors import ConfigError, DataError
from bigkernel.images.checks import require_image, require_rows, require_seed

Array = NDArray[Any]
RECIPE = 1  # raise it when the same options give other rows
REFERENCE_HEIGHT, REFERENCE_SMOOTHNESS = 28, 4.0
TRUNCATION = 1e-4  # share of a field's variance that is in none of the kept modes, on average over pixels
NORMAL_BITS = 6  # normals are multiples of 2⁻⁶
_EXACT_BITS = 24  # float32 holds integers up to 2²⁴
_DRAW_LEVELS = 2**16
_DRAWS_A_TICK = 16  # one tick of Philox gives 256 bits
_BASIS_BYTES = 2**28
_BLOCK_PIXELS = 2**17  # of one field of a block: buffers stay in the cache of a core


@dataclass(frozen=True)
class Deformation:
    """Elastic deformation of images (height, width), every option resolved.

    Attributes
    ----------
    height, width : int
        Pixels of an image.
    seed : int
        Of all copies, 0 … 2⁶³ − 1.
    strength : float
        α: standard deviation of the displacement, in pixels of an image 28 high; 0 … 28.
    smoothness : float
        σ of the smoothing, in pixels of this image; 0: every pixel has a field value of its own.
    shift : int
        Most pixels that a copy is moved by, either way.
    low, high : float
        Range of the pixels; `low` is the background.

    Raises
    ------
    ConfigError
        An option that is not finite, negative, or too large for the image.
    DataError
        Images with a side above 1,024 pixels.
    """

    height: int
    width: int
    seed: int = 0
    strength: float = 1.0
    smoothness: float = REFERENCE_SMOOTHNESS
    shift: int = 1
    low: float = 0.0
    high: float = 255.0
    recipe: ClassVar[str] = f"{RECIPE}"

    def __post_init__(self) -> None:
        require_image(self.height, self.width, DataError)
        require_seed(self.seed)
        if not 0 <= self.strength <= REFERENCE_HEIGHT:
            raise ConfigError(
                f"strength: expected pixels between 0 and {REFERENCE_HEIGHT} (of an image {REFERENCE_HEIGHT} high), "
                f"found {self.strength}; 1 gives copies that look hand-written"
            )
        if not 0 <= self.smoothness < math.inf:
            raise ConfigError(f"smoothness: expected a finite number of pixels, at least 0, found {self.smoothness}")
        if not 0 <= self.shift < min(self.height, self.width):
            raise ConfigError(
                f"shift: expected whole pixels, at least 0 and below the {min(self.height, self.width)} of the image's "
                f"shorter side, found {self.shift}"
            )

    @property
    def text(self) -> str:
        """The options, in a few words."""
        return f"strength {self.strength:g}, smoothness {self.smoothness:.3g} px, shift {self.shift} px"

    @property
    def n_pixels(self) -> int:
        """Of an image, h·w."""
        return self.height * self.width

    @property
    def block_rows(self) -> int:
        """Copies that are made at a time; it changes no bit."""
        return max(1, min(1024, _BLOCK_PIXELS // self._padded_pixels))

    @property
    def work_bytes(self) -> int:
        """Most memory of `copies` beside what it returns."""
        modes = self._modes
        # a block as two fields, the image, a difference, the stored form, two times modes normals; the basis
        return 4 * self._padded_pixels * (6 * self.block_rows + modes) + 16 * self.block_rows * modes

    @property
    def flops_per_row(self) -> float:
        """Multiplications and additions of one copy's two fields."""
        return 4.0 * self._modes * self._padded_pixels

    @property
    def _modes(self) -> int:
        return len(field_basis(self.height, self.width, self.smoothness)) if self.strength else 0

    @property
    def _pad(self) -> int:
        return max(1, self.shift)

    @property
    def _padded_pixels(self) -> int:
        return (self.height + 2 * self._pad) * (self.width + 2 * self._pad)

    def copies(self, originals: Array, start: int) -> Array:
        """Deformed copies number start, start + 1, … of the given images, one each; computed in float32.

        Parameters
        ----------
        originals : (b, h·w), pixels as stored
        start : int
            Number of the first copy; it decides the random draws.

        Returns
        -------
        (b, h·w), of the same dtype

        Examples
        --------
        >>> deformation = Deformation(28, 28, seed=3)
        >>> images = np.zeros((5, 784), np.uint8)
        >>> images[:, 300:310] = 255
        >>> copies = deformation.copies(images, 60_000)
        >>> bool((copies[2] == deformation.copies(images[:1], 60_002)).all())
        True
        """
        require_rows(originals, self.height, self.width)
        pad, rows = self._pad, self.block_rows
        tall, wide = self.height + 2 * pad, self.width + 2 * pad
        basis = _padded_basis(self.height, self.width, self.smoothness, pad) if self.strength else None
        modes = 0 if basis is None else len(basis)
        image = np.empty((min(rows, len(originals)), tall, wide), np.float32)
        stored = np.empty(image.shape, originals.dtype)
        fields, slope = np.empty((2 * len(image) if modes else 0, tall * wide), np.float32), np.empty_like(image)
        out = np.empty((len(originals), self.height, self.width), originals.dtype)
        for first in range(0, len(originals), rows):
            some = originals[first : first + rows]
            b = len(some)
            drawn = draws(self.seed, start + first, b, 2 * modes + 2)
            x = image[:b]
            x[:] = self.low
            x[:, pad : pad + self.height, pad : pad + self.width] = some.reshape(b, self.height, self.width)
            if basis is not None:
                self._distort(x, drawn[:, : 2 * modes], basis, fields[: 2 * b], slope)
            np.copyto(stored[:b], x, casting="unsafe")
            # a draw u in 0 … 2¹⁶ − 1 becomes a corner ⌊u(2s + 1)/2¹⁶⌋ of the window, which moves by s − corner
            corner = drawn[:, 2 * modes :].astype(np.intp) * (2 * self.shift + 1) // _DRAW_LEVELS + pad - self.shift
            windows = sliding_window_view(stored[:b], (self.height, self.width), axis=(1, 2))
            out[first : first + b] = windows[np.arange(b), corner[:, 0], corner[:, 1]]
        return out.reshape(len(originals), self.n_pixels)

    def _distort(self, x: Array, draws: Array, basis: Array, fields: Array, slope: Array) -> None:
        """Displace and clip padded images x (b, h + 2·pad, w + 2·pad) in place, by fields of the draws (b, 2k)."""
        b, modes, wide = len(x), len(basis), x.shape[2]
        # (2b, k): the normals of F₁ of all images, then those of F₂
        normals = _normals()[draws.reshape(b, 2, modes).swapaxes(0, 1)].reshape(2 * b, modes)
        np.matmul(normals, basis, out=fields)  # exact: see the module's docstring
        # α in pixels of this image; the central difference is halved here
        np.multiply(fields, np.float32(self.strength * self.height / REFERENCE_HEIGHT / 2), out=fields)
        _displace(x.reshape(-1), fields[:b].reshape(-1), fields[b:].reshape(-1), slope.reshape(-1), wide)
        np.clip(x, np.float32(self.low), np.float32(self.high), out=x)


def _displace(x: Array, across: Array, down: Array, slope: Array, wide: int) -> None:
    """x += across·(x right − x left) − down·(x below − x above), in place, on padded images in one flat buffer.

    Fields are 0 on the padding, so that what stands in the next image or line does not matter. Fields are overwritten.
    """
    inner = slice(wide, x.size - wide)
    across, down, slope = across[inner], down[inner], slope[: across[inner].size]
    np.subtract(x[wide + 1 : x.size - wide + 1], x[wide - 1 : x.size - wide - 1], out=slope)
    np.multiply(across, slope, out=across)
    np.subtract(x[2 * wide :], x[: x.size - 2 * wide], out=slope)
    np.multiply(down, slope, out=down)
    np.subtract(across, down, out=across)
    np.add(x[inner], across, out=x[inner])


def draws(seed: int, start: int, rows: int, count: int) -> Array:
    """`count` draws of 16 bits for each of the rows start, start + 1, …, (rows, count), little-endian uint16.

    Row i begins at its own tick of the counter of Philox, so that any rows can be drawn without those before them.
    """
    ticks = -(-count // _DRAWS_A_TICK)
    raw = Philox(key=seed).advance(start * ticks).random_raw(4 * ticks * rows)
    # as little-endian pieces on every machine
    drawn: Array = np.asarray(raw).astype("<u8", copy=False).view("<u2").reshape(rows, -1)[:, :count]
    return drawn


@lru_cache(maxsize=1)
def _normals() -> Array:
    """A normal for each draw of 16 bits, (65536,) float32: its quantile, to a multiple of 2⁻⁶."""
    quantiles = ndtri((np.arange(_DRAW_LEVELS) + 0.5) / _DRAW_LEVELS)
    table: Array = (np.rint(quantiles * 2**NORMAL_BITS) / 2**NORMAL_BITS).astype(np.float32)
    table.setflags(write=False)
    return table


@lru_cache(maxsize=16)
def field_basis(height: int, width: int, smoothness: float) -> Array:
    """Modes B of a smooth field: Z·B, with k standard normals Z, has the correlation exp(−|p − q|²/4σ²).

    The correlation is a product of one down and one across the image, and so are its eigenvectors. The leading ones
    are kept until they hold all but `TRUNCATION` of the variance, and scaled to variance 1 at every pixel.

    Returns
    -------
    (k, h·w) float32, multiples of a power of 2 so coarse that sums of Z·B are exact in float32

    Raises
    ------
    ConfigError
        So many modes that the basis would take more than 256 MiB.
    """
    down_values, down = _modes(height, smoothness)
    across_values, across = _modes(width, smoothness)
    variance = np.outer(down_values, across_values).reshape(-1)
    order = np.argsort(-variance, kind="stable")
    held = np.cumsum(variance[order]) / variance.sum()
    kept = order[: 1 + int(np.searchsorted(held, 1 - TRUNCATION))]
    if 8 * len(kept) * height * width > _BASIS_BYTES:
        raise ConfigError(
            f"smoothness: {smoothness} pixels on images of {height}×{width} need {len(kept):,} modes, above "
            "256 MiB; choose a larger one"
        )
    v, h = np.divmod(kept, width)
    # √(λ_v λ_h)·u_v ⊗ u_h, one row a mode
    product = down[:, v].T[:, :, None] * across[:, h].T[:, None, :]
    basis = np.sqrt(variance[kept])[:, None] * product.reshape(len(kept), -1)
    basis /= np.sqrt(np.einsum("kp,kp->p", basis, basis))
    return _fixed_point(basis)


def _modes(n: int, smoothness: float) -> tuple[Array, Array]:
    """Eigenvalues (n,), falling, and eigenvectors (n, n) of the correlation of n pixels in a line."""
    apart = np.subtract.outer(np.arange(n), np.arange(n))
    if smoothness:
        values, vectors = np.linalg.eigh(np.exp(-((apart / (2 * smoothness)) ** 2)))
    else:
        values, vectors = np.ones(n), np.eye(n)
    # signs are LAPACK's choice: the first pixel that is not small is positive
    lead = np.argmax(np.abs(vectors) > 0.5 / np.sqrt(n), axis=0)
    vectors = vectors * np.sign(vectors[lead, np.arange(n)])
    return np.maximum(values[::-1], 0.0), vectors[:, ::-1]


def _fixed_point(basis: Array) -> Array:
    """The basis to multiples of 2⁻ᵇ, b the largest for which |Z|·|B| stays below 2²⁴ units of 2⁻ᵇ⁻⁶."""
    largest = float(_normals().max())
    for bits in range(_EXACT_BITS - NORMAL_BITS, 0, -1):
        rounded = np.rint(basis * 2.0**bits) / 2.0**bits
        if largest * np.abs(rounded).sum(axis=0).max() < 2.0 ** (_EXACT_BITS - NORMAL_BITS - bits):
            fixed: Array = rounded.astype(np.float32)
            fixed.setflags(write=False)
            return fixed
    raise AssertionError("a basis of at most 2²⁵ modes has room for a bit")


@lru_cache(maxsize=4)
def _padded_basis(height: int, width: int, smoothness: float, pad: int) -> Array:
    """`field_basis` with `pad` pixels of 0 around each mode, (k, (h + 2·pad)(w + 2·pad))."""
    basis = field_basis(height, width, smoothness)
    framed = np.pad(basis.reshape(-1, height, width), ((0, 0), (pad, pad), (pad, pad)))
    return framed.reshape(len(basis), -1)
