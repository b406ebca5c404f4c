"""Random Fourier features: φ(x) with E[φ(x)ᵀφ(z)] = k(x, z), for kernels of the difference x − z.

    φ(x) = √(2/p) [cos Ωᵀ(x − a), sin Ωᵀ(x − a)],   columns ω of Ω (d, p/2) sampled from the spectrum of k

(Rahimi & Recht 2007). Their other form, √(2/p) cos(ωᵀx + b), needs twice the products, has a larger variance for the
Gaussian (Sutherland & Schneider 2015), and k(x, x) = 1 only in the mean, while pairs have it exactly. The origin a, a
point near the rows, keeps float32 accurate and only rotates each pair, so that methods linear in φ do not depend on it.
The last one of an odd number of features is √(2/p) cos(ωᵀ(x − a) + b), b uniform.

Spectra: Gaussian N(0, diag σ⁻²); Laplacian, Cauchy of scale 1/σ in each coordinate; Matérn, multivariate t
of 2ν degrees of freedom over σ. Orthogonal features (Yu et al. 2016) take d frequencies at a time in uniformly
distributed orthogonal directions, with the lengths of independent ones: unbiased, and closer to k. The Laplacian's
spectrum is not isotropic and has no such form.

Frequency j is a function of the kernel, the seed and j alone, so that fewer features are the first of more: its normals
and uniforms are quantiles of words of Philox 4×64 whose counter starts at j. They are computed once per process, where
rows are processed, and never stored. Shapes: d features of the rows, p the width of φ.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.random import Philox
from scipy import linalg
from scipy.special import gammaincinv, ndtri

from bigkernel.arrays import Array, DType
from bigkernel.errors import ConfigError, DataError
from bigkernel.kernels.algebra import Kernel, exact_unit, strips
from bigkernel.kernels.feature_maps import UFUNC_BYTES, IdentityMap, LandmarkMap, SingleMap
from bigkernel.kernels.functions import Gaussian, Laplacian, Matern
from bigkernel.kernels.threads import one_thread
from bigkernel.streaming.chunk import Chunk, MapCost
from bigkernel.streaming.devices import all_of, write

_RADIAL = 5  # uniforms of a frequency for the degrees of freedom of t, at most 5; one for the length follows
_LEADING = _RADIAL + 2  # with one for the phase; those of the direction follow


@dataclass(frozen=True)
class Spectrum:
    """The values that determine the frequencies of a kernel."""

    name: str  # of the kernel
    scales: tuple[float, ...]  # factors of frequencies of unit scale, one or one per feature
    degrees: int  # of freedom of t; 0: normal
    seed: int  # ≥ 0
    n_features: int  # d
    orthogonal: bool = False

    def frequencies(self, count: int) -> tuple[Array, Array]:
        """Return the first `count` frequencies (d, count) and a phase of each (count,), from 0 to 2π; float64."""
        uniforms = _uniforms(self.seed, count, _LEADING + self.n_features)
        directions = uniforms[:, _LEADING:]
        if self.name == Laplacian.name:
            omega = np.tan(np.pi * (directions - 0.5))
        else:
            omega = ndtri(directions)
            if self.orthogonal:
                omega = _orthogonalize(omega)
                # lengths of normal vectors: χ with d degrees of freedom
                omega *= np.sqrt(2 * gammaincinv(self.n_features / 2, uniforms[:, _RADIAL]))[:, None]
            if self.degrees:
                chi2 = (ndtri(uniforms[:, : self.degrees]) ** 2).sum(axis=1)
                omega *= np.sqrt(self.degrees / chi2)[:, None]
        omega *= np.asarray(self.scales)
        return np.ascontiguousarray(omega.T), 2 * np.pi * uniforms[:, _RADIAL + 1]


def spectrum_of(kernel: Kernel, seed: int, n_features: int, *, orthogonal: bool = False) -> Spectrum:
    """Return the spectrum of a resolved kernel.

    `ConfigError`: the kernel is not a function of x − z, or orthogonal features are requested and its spectrum is not
    isotropic.
    """
    if isinstance(kernel, Gaussian | Matern):
        scales = tuple(float(scale) for scale in 1 / np.atleast_1d(np.asarray(kernel.sigma, np.float64)))
        degrees = round(2 * kernel.nu) if isinstance(kernel, Matern) else 0
        return Spectrum(kernel.name, scales, degrees, seed, n_features, orthogonal)
    if not isinstance(kernel, Laplacian):
        raise ConfigError(
            f"{kernel.name} kernel: random Fourier features need a kernel of x − z; expected a gaussian, matern or "
            "laplacian kernel"
        )
    if orthogonal:
        raise ConfigError(
            "laplacian kernel: orthogonal frequencies need a rotation-invariant kernel; set orthogonal=False, or use "
            "a gaussian or matern kernel"
        )
    return Spectrum(kernel.name, (1 / float(kernel.sigma),), 0, seed, n_features)


@dataclass(frozen=True, eq=False)
class FourierMap(SingleMap):
    """The features φ of the module docstring."""

    kernel: Kernel  # gaussian, matern or laplacian, every parameter a number
    seed: int  # ≥ 0
    width: int  # p
    origin: Array  # a, (d,)
    orthogonal: bool = False
    dtype: DType = field(default_factory=lambda: np.dtype(np.float32))  # of the block
    shift: Array | None = None  # (p,) subtracted from every row of the block, or None; see `feature_maps.centre_of`

    def __post_init__(self) -> None:
        _ = self.spectrum  # raises for kernels without one

    @property
    def spectrum(self) -> Spectrum:
        """The distribution of the frequencies."""
        return spectrum_of(self.kernel, self.seed, self.n_features, orthogonal=self.orthogonal)

    @property
    def n_features(self) -> int:
        return len(self.origin)

    @property
    def cost(self) -> MapCost:
        """Cost as in `FeatureMap`, with the frequencies and the arrays that they are computed from."""
        d, count, itemsize = self.n_features, -(-self.width // 2), self.dtype.itemsize
        made = (d + _LEADING + 3) * count * 4 * 8 + self.orthogonal * d * min(d, count) * 4 * 8
        return MapCost(2.0 * count * d, (self.width + d) * itemsize, d * count * itemsize + made + UFUNC_BYTES)

    def diagonal(self, chunk: Chunk, block: slice | Array) -> Array:
        """Return k(x, x) = 1 of rows of the chunk, (b,)."""
        return np.ones(len(np.arange(len(chunk))[block]))

    def block(self, chunk: Chunk, block: slice | Array, spare: int = 0) -> Array:
        pairs, count = self.width // 2, -(-self.width // 2)
        spectrum = self.spectrum
        unit = exact_unit(max(spectrum.scales), self.dtype)
        frequencies, phases = _frequencies(spectrum, count, self.dtype.name, unit)
        rows, device = chunk.load(block, self.n_features, self.dtype), chunk.work.device
        out, xp = chunk.work.buffer("block", (rows.shape[0], self.width + spare), self.dtype), device.xp
        scale = float(self.dtype.type((2 / self.width) ** 0.5))
        with chunk.work.stage("block"), np.errstate(over="ignore", invalid="ignore"):
            rows -= device.array(self.origin.astype(self.dtype))
            if unit != 1:
                rows *= unit
            write(out[:, :count], "matmul", rows, device.once(frequencies))
        with chunk.work.stage("exp"):
            out[:, self.width :] = 0
            for strip in strips(out):
                cosines, sines = out[strip, :count], out[strip, count : self.width]
                finite = xp.isfinite(cosines)
                if not all_of(finite):  # phases beyond the range of the dtype; NaN rows stay NaN
                    cosines[~finite & ~xp.any(xp.isnan(rows[strip, :]), axis=1, keepdims=True)] = 0
                write(sines, "sin", cosines[:, :pairs])
                if count > pairs:
                    cosines[:, pairs] += float(phases[pairs])
                write(cosines, "cos", cosines)
                features = out[strip, : self.width]
                features *= scale
                if self.shift is not None:
                    features -= device.once(self.shift)
        return out

    def of(self, X: Array) -> Array:
        """Compute φ of rows X (n, d) in memory, (n, p) of the dtype of the map."""
        return self.block(Chunk(X, block_rows=max(1, len(X))), slice(None))


BlockMap = IdentityMap | LandmarkMap | FourierMap
"""The maps that give one block."""


@dataclass(frozen=True, eq=False)
class FourierRows:
    """φ as a row map: rows of d features become rows of p, in the task that reads them."""

    features: FourierMap
    name: ClassVar[str] = "fourier"

    def width(self, d: int) -> int:
        if d != self.features.n_features:
            raise DataError(f"fourier features: expected rows of {self.features.n_features} features, found {d}")
        return self.features.width

    def cost(self, d: int, itemsize: int) -> MapCost:
        return replace(self.features, dtype=np.dtype(f"f{itemsize}")).cost

    def apply(self, x: Array) -> Array:
        chunk, features = Chunk(x), replace(self.features, dtype=x.dtype)
        out = np.empty((len(x), features.width), x.dtype)
        for block in chunk.blocks():  # buffers of one block serve a whole array
            out[block] = features.block(chunk, block)
        return out


@lru_cache(maxsize=2)
def _frequencies(spectrum: Spectrum, count: int, dtype: str, unit: float) -> tuple[Array, Array]:
    """Compute frequencies over `unit`, and phases, once per process."""
    frequencies, phases = spectrum.frequencies(count)
    frequencies, phases = (frequencies / unit).astype(dtype), phases.astype(dtype)
    frequencies.setflags(write=False)
    return frequencies, phases


def _uniforms(seed: int, count: int, size: int) -> Array:
    """Return uniform numbers in the open interval (0, 1), `size` for each of `count` frequencies, (count, size)."""
    ticks = -(-size // 4)
    raw = np.asarray(Philox(key=seed).random_raw(4 * ticks * count)).reshape(count, -1)[:, :size]
    return np.asarray(((raw >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)


def _orthogonalize(normals: Array) -> Array:
    """Turn rows (count, d) of normals into unit vectors, uniformly distributed, d at a time orthogonal."""
    d = normals.shape[1]
    with one_thread():
        for start in range(0, len(normals), d):
            piece = normals[start : start + d]
            Q, R = linalg.qr(piece.T, mode="economic", check_finite=False)
            # with a positive diagonal of R the distribution is Haar's, whatever signs the factorization takes
            piece[...] = (Q * np.where(np.diagonal(R) < 0, -1.0, 1.0)).T
    return normals
