"""Kernel functions by their equations; the base class and composite kernels are in `algebra`.

Shapes: X (n, d) rows, Z (m, d) landmarks, k(X, Z) (n, m), k.diag(X) (n,). Equations as in Schölkopf & Smola, *Learning
with Kernels* (2002), and Rasmussen & Williams (2006), ch. 4, for Matérn.

Kernels of the distance need one product: with ‖x‖² and 1 appended to the rows, 1 and ‖z‖² to the landmarks, the GEMM
gives −γ‖x−z‖² itself. Rows and landmarks are centred by the landmark mean first, because float32 would lose every digit
of data far from 0. A width of "scale" or "auto" becomes a number in `resolve`, by one rule (as in scikit-learn's SVC):
γ = 1/(d·var) of the landmarks, or γ = 1/d as if their variance were 1. The Laplacian uses the standard deviation
instead of the variance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from bigkernel.arrays import Array
from bigkernel.errors import ConfigError
from bigkernel.kernels.algebra import (
    Kernel,
    OnColumns,
    PreparedLandmarks,
    PreparedPoints,
    Product,
    Scaled,
    Sum,
    refuse_blur,
    require_range,
    rounding_of,
)
from bigkernel.kernels.given import PAIRWISE, Pairwise, Precomputed
from bigkernel.streaming.devices import NUMPY, converted, dtype_of, empty_like, namespace, write

Scale = Literal["scale", "auto"]
SCALES: tuple[str, ...] = get_args(Scale)
Width: TypeAlias = float | Array | Scale


class _Euclidean(Kernel):
    """A function of ‖x−z‖ over one length, or one length per feature."""

    sigma: Width
    _factor: ClassVar[float] = 1.0  # the argument over −‖x−z‖²/(2σ²)

    def resolve(self, Z: Array, weight: Array | None = None) -> Kernel:
        sigma = self.sigma
        _check_number(self.name, "sigma", sigma, np.shape(Z)[1])
        if isinstance(sigma, str):
            sigma = (_spread(sigma, Z, weight) / 2) ** 0.5
        return replace(self, sigma=sigma)  # type: ignore[type-var]

    def widths(self) -> tuple[float, Array | None]:
        assert not isinstance(self.sigma, str)
        if np.ndim(self.sigma) == 0:
            return self._factor * (1 / (2 * float(self.sigma) ** 2)), None
        return self._factor * 0.5, np.asarray(self.sigma, np.float64)


def _width(
    kernel: str, sigma: Width, other: Width | None, name: str, convert: Callable[[float | Array], float | Array]
) -> Width:
    """Return σ, or what another parametrisation gives instead; words ("scale") mean the same in both."""
    if other is None:
        return sigma
    if not (isinstance(sigma, str) and sigma == "scale"):
        raise ConfigError(f"{kernel} kernel: expected sigma or {name}, found both")
    if isinstance(other, str):
        return other
    _check_number(kernel, name, other, np.size(other))
    return convert(np.asarray(other, np.float64) if np.ndim(other) else other)


@dataclass(init=False)
class Gaussian(_Euclidean):
    """exp(−‖x−z‖²/(2σ²)).

    Parameters
    ----------
    sigma : float, array of shape (d,), "scale" or "auto"
        Bandwidth σ in the units of the rows; an array gives every feature its own length. "scale" sets
        σ² = d·var/2 (γ = 1/(d·var), as in scikit-learn's SVC), "auto" σ² = d/2 (γ = 1/d).
    gamma : the same as γ = 1/(2σ²), instead of sigma

    Examples
    --------
    >>> Gaussian(sigma=1.0)([[0.0]], [[0.0], [1.0]]).round(4)
    array([[1.    , 0.6065]])
    """

    sigma: Width = "scale"
    name: ClassVar[str] = "gaussian"

    def __init__(self, sigma: Width = "scale", *, gamma: Width | None = None) -> None:
        self.sigma = _width(self.name, sigma, gamma, "gamma", lambda gamma: (2 * gamma) ** -0.5)

    def finish(self, strip: Array) -> None:
        _below_zero(strip)
        write(strip, "exp", strip)

    def with_slope(self, squares: Array) -> tuple[Array, Array]:
        """Return k and dk/d‖x−z‖² at squared distances, for a width of 1."""
        k = np.exp(squares / -2)
        return k, k / -2


@dataclass(init=False)
class Matern(_Euclidean):
    """Matérn kernel of smoothness ν: 1/2: e^{−r}, 3/2: (1+r)e^{−r}, 5/2: (1+r+r²/3)e^{−r}, r = √(2ν)‖x−z‖/σ.

    Parameters
    ----------
    sigma : float, array of shape (d,), "scale" or "auto"
        Length scale σ in the units of the rows; "scale" sets σ² = d·var/2, "auto" σ² = d/2.
    nu : 0.5, 1.5 or 2.5
    length_scale : σ by its name in scikit-learn, instead of sigma
    """

    sigma: Width = "scale"
    nu: float = 1.5
    name: ClassVar[str] = "matern"

    def __init__(self, sigma: Width = "scale", nu: float = 1.5, *, length_scale: Width | None = None) -> None:
        self.sigma, self.nu = _width(self.name, sigma, length_scale, "length_scale", lambda length: length), nu

    @property
    def _factor(self) -> float:  # type: ignore[override]
        return 4 * self.nu  # γ‖x−z‖² = r²

    @property
    def kinked(self) -> bool:  # type: ignore[override]
        return self.nu == 0.5

    def resolve(self, Z: Array, weight: Array | None = None) -> Kernel:
        if self.nu not in (0.5, 1.5, 2.5):
            raise ConfigError(f"matern kernel: expected nu of 0.5, 1.5 or 2.5, found {self.nu!r}")
        return super().resolve(Z, weight)

    def finish(self, strip: Array) -> None:
        _below_zero(strip)
        write(strip, "negative", strip)
        r = strip if self.nu == 0.5 else empty_like(strip, strip.shape)
        write(r, "sqrt", strip)
        if self.nu == 1.5:
            write(strip, "add", r, 1)
        elif self.nu == 2.5:
            strip *= 1 / 3
            strip += r
            strip += 1
        write(r, "negative", r)
        write(r, "exp", r)
        if self.nu != 0.5:
            strip *= r

    def with_slope(self, squares: Array) -> tuple[Array, Array]:
        """Return k and dk/d‖x−z‖² at squared distances, for a width of 1; the slope is 0 where x = z."""
        r = np.sqrt(2 * self.nu * squares)
        decay = np.exp(-r)
        if self.nu == 0.5:
            apart = r > 1e-5  # there is no slope at a kink
            return decay, np.where(apart, decay / np.where(apart, -2 * r, 1), 0)
        if self.nu == 1.5:
            return (1 + r) * decay, -1.5 * decay
        return (1 + r + r * r / 3) * decay, -2.5 / 3 * (1 + r) * decay


@dataclass(init=False)
class Laplacian(Kernel):
    """exp(−‖x−z‖₁/σ), of L1 distances, which are no matrix product: several times slower than Gaussian.

    Parameters
    ----------
    sigma : float, "scale" or "auto"
        "scale" sets σ = d·std, "auto" σ = d.
    gamma : the same as γ = 1/σ, instead of sigma
    """

    sigma: Width = "scale"
    name: ClassVar[str] = "laplacian"

    def __init__(self, sigma: Width = "scale", *, gamma: Width | None = None) -> None:
        self.sigma = _width(self.name, sigma, gamma, "gamma", lambda gamma: 1 / gamma)

    def resolve(self, Z: Array, weight: Array | None = None) -> Laplacian:
        _check_number(self.name, "sigma", self.sigma)
        sigma, d = self.sigma, np.shape(Z)[1]
        return replace(self, sigma=d * (_spread(sigma, Z, weight) / d) ** 0.5 if isinstance(sigma, str) else sigma)

    def bind(self, Z: Array, dtype: DTypeLike = np.float64, *, touching: bool = False) -> PreparedLandmarks:
        Z = np.asarray(Z, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            gamma = 1 / float(self.resolve(Z).sigma)
            blur = float(rounding_of(Z, dtype).sum() * gamma)
        require_range(self.name, dtype, gamma)
        refuse_blur(self.name, np.dtype(dtype), blur)
        none = np.empty((Z.shape[1], 0), dtype)
        return PreparedPoints(self.finish, none, Z.shape[1], kernel=self, points=Z.astype(dtype))

    def prepared_bytes(self, m: int, d: int, itemsize: int) -> int:
        """Return the bytes of the landmarks, also in float64, from which L1 distances are computed."""
        return m * d * (itemsize + 8)

    def fill(self, x: Array, points: Array | None, some: slice, out: Array) -> None:
        """Write ‖x−z‖₁ of rows x (b, d) and points (s, d) into out (b, s), by SciPy if installed, else by NumPy."""
        assert points is not None
        if not isinstance(x, NUMPY):  # feature by feature
            xp = namespace(x)
            sums = xp.zeros_like(out, dtype=xp.float64)
            for j in range(points.shape[1]):
                sums += xp.abs(x[:, j : j + 1] - points[:, j][None, :])
            out[...] = converted(sums, dtype_of(out))
            return
        try:
            from scipy.spatial.distance import cdist  # slow to load, and needed only here
        except ImportError:
            gap, row_sums = np.empty(points.shape), np.empty(out.shape)
            for row, values in zip(x, row_sums, strict=True):
                np.abs(np.subtract(points, row, out=gap), out=gap).sum(axis=1, out=values)
            out[...] = row_sums
        else:
            out[...] = cdist(x, points, "cityblock")

    def finish(self, strip: Array) -> None:
        strip *= -1 / float(self.sigma)
        write(strip, "exp", strip)


@dataclass
class Linear(Kernel):
    """⟨x, z⟩."""

    name: ClassVar[str] = "linear"
    of_distance: ClassVar[bool] = False

    def diag(self, X: Array) -> Array:
        X = np.asarray(X, np.float64)
        return np.asarray(np.einsum("ij,ij->i", X, X))


class _Projected(Linear):
    """A function of γ⟨x,z⟩ + c; "scale" sets γ = 1/(d·var), "auto" γ = 1/d."""

    gamma: float | Scale
    coef0: float

    def resolve(self, Z: Array, weight: Array | None = None) -> Kernel:
        _check_number(self.name, "gamma", self.gamma)
        self._check()
        gamma = 1 / _spread(self.gamma, Z, weight) if isinstance(self.gamma, str) else self.gamma
        return replace(self, gamma=gamma)  # type: ignore[call-arg]

    def bind(self, Z: Array, dtype: DTypeLike = np.float64, *, touching: bool = False) -> PreparedLandmarks:
        assert not isinstance(self.gamma, str)
        require_range(self.name, dtype, float(self.gamma))
        return super().bind(Z, dtype)

    def diag(self, X: Array) -> Array:
        value = super().diag(X)
        self.resolve(X).finish(value)
        return value

    def finish(self, strip: Array) -> None:
        assert not isinstance(self.gamma, str)
        strip *= self.gamma
        strip += self.coef0

    def _check(self) -> None: ...


@dataclass
class Polynomial(_Projected):
    """(γ⟨x,z⟩ + c)^p.

    Parameters
    ----------
    degree : int ≥ 1
    gamma : float, "scale" or "auto"
        "scale" sets γ = 1/(d·var), "auto" γ = 1/d.
    coef0 : float ≥ 0 (below 0 the kernel is not positive definite)
    """

    degree: int = 3
    gamma: float | Scale = "scale"
    coef0: float = 1.0
    name: ClassVar[str] = "polynomial"

    def _check(self) -> None:
        sound = isinstance(self.degree, int | np.integer | float) and not isinstance(self.degree, bool)
        if not sound or not 1 <= self.degree < 1000 or self.degree != int(self.degree):
            raise ConfigError(f"polynomial kernel: expected an integer degree of at least 1, found {self.degree!r}")
        if not 0 <= self.coef0 < np.inf:
            raise ConfigError(f"polynomial kernel: expected coef0 of at least 0, found {self.coef0!r}")

    def finish(self, strip: Array) -> None:
        super().finish(strip)
        base = converted(strip, dtype_of(strip), copy=True) if self.degree > 1 else strip
        for _ in range(int(self.degree) - 1):
            strip *= base


@dataclass
class Sigmoid(_Projected):
    """tanh(γ⟨x,z⟩ + c), not positive definite in general; solvers drop the negative part of the core and warn.

    Parameters
    ----------
    gamma : float, "scale" or "auto"
        "scale" sets γ = 1/(d·var), "auto" γ = 1/d.
    coef0 : float
    """

    gamma: float | Scale = "scale"
    coef0: float = 1.0
    name: ClassVar[str] = "sigmoid"
    positive: ClassVar[bool] = False

    def _check(self) -> None:
        if not np.isfinite(self.coef0):
            raise ConfigError(f"sigmoid kernel: expected a finite coef0, found {self.coef0!r}")

    def finish(self, strip: Array) -> None:
        super().finish(strip)
        write(strip, "tanh", strip)


KERNELS: dict[str, type[Kernel]] = {k.name: k for k in (Gaussian, Laplacian, Matern, Linear, Polynomial, Sigmoid)}
"""The kernels by name."""
STORED = KERNELS | {k.name: k for k in (Sum, Product, Scaled, OnColumns, Precomputed, Pairwise)}
"""The closed table of kernels that a model file may name."""


def as_kernel(
    kernel: Kernel | Callable[..., ArrayLike] | str,
    *,
    gamma: float | str = "scale",
    degree: int = 3,
    coef0: float = 1.0,
) -> Kernel:
    """Return a kernel object for a kernel, a function, or a name of scikit-learn's with scikit-learn's parameters.

    "rbf" (or "gaussian"), "laplacian", "linear", "polynomial" (or "poly"), "sigmoid", and "matern"; "chi2",
    "additive_chi2" and "cosine"; "precomputed".

    Parameters
    ----------
    gamma : float, "scale" or "auto"
        For "rbf", "polynomial", "sigmoid", "matern" (σ² = 1/(2γ)), "laplacian" and "chi2"; the others ignore it.
        "scale": 1/(d·var) of the landmarks, 1/(d·std) for "laplacian"; "auto": 1/d; both are 1 for "chi2".
    """
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, type):
        raise ConfigError(f"kernel: expected a kernel object or a name, found class {kernel.__name__}")
    if not (gamma in SCALES if isinstance(gamma, str) else isinstance(gamma, int | float | np.number) and gamma > 0):
        raise ConfigError(f"gamma: expected a number above 0, 'scale' or 'auto', found {gamma!r}")
    if callable(kernel) or kernel in PAIRWISE:
        return Pairwise(kernel, gamma=None if kernel != "chi2" or isinstance(gamma, str) else gamma)
    if kernel == Precomputed.name:
        return Precomputed()
    if not isinstance(kernel, str):
        raise ConfigError(f"kernel: expected a kernel object or a name, found {type(kernel).__name__}")
    name = {"rbf": "gaussian", "poly": "polynomial"}.get(kernel, kernel)
    if name not in KERNELS:
        raise ConfigError(f"kernel: {kernel!r} is not one of {', '.join(sorted(KERNELS))} (or rbf, poly)")
    params: Mapping[str, object] = {
        "gaussian": {"gamma": gamma},
        "matern": {"sigma": gamma if isinstance(gamma, str) else (2 * gamma) ** -0.5},
        "laplacian": {"gamma": gamma},
        "polynomial": {"degree": degree, "gamma": gamma, "coef0": coef0},
        "sigmoid": {"gamma": gamma, "coef0": coef0},
    }.get(name, {})
    return KERNELS[name](**params)


def _below_zero(strip: Array) -> None:
    """Replace what rounding made positive, where x is almost z, by 0."""
    if not isinstance(strip, NUMPY):
        write(strip, "clip", strip, None, 0.0)
    elif strip.max(initial=-np.inf) > 0:  # the check costs a third of the writing, on a device a wait
        np.minimum(strip, 0, out=strip)


def _spread(width: str, Z: Array, weight: Array | None) -> float:
    """Return d·var of the (weighted) landmarks for "scale", or 1 if they do not vary; d for "auto"."""
    if width == "auto":
        return float(np.shape(Z)[1])
    Z = np.asarray(Z, np.float64)
    weights = np.ones(len(Z)) if weight is None or not weight.sum() > 0 else weight
    mean = np.average(Z, axis=0, weights=weights).mean()
    spread = float(np.average(np.einsum("ij,ij->i", Z - mean, Z - mean), weights=weights))
    return spread if np.isfinite(spread) and spread > 0 else 1.0


def _check_number(kernel: str, name: str, value: object, n_features: int | None = None) -> None:
    """Raise `ConfigError` unless a parameter is a positive number, one for each of `n_features`, or in `SCALES`."""
    if isinstance(value, str):
        if value not in SCALES:
            raise ConfigError(f"{kernel} kernel: expected {name} to be a number, 'scale' or 'auto', found {value!r}")
        return
    widths = np.asarray(value)
    wide = widths.astype(np.float64) if widths.dtype.kind in "iuf" else np.zeros(1)
    if not ((wide > 1e-160) & (wide < 1e160)).all():
        raise ConfigError(f"{kernel} kernel: expected a finite {name} above 0 (1e-160 to 1e160), found {value!r}")
    if widths.ndim and (n_features is None or widths.shape != (n_features,)):
        expected = "one number" if n_features is None else f"shape ({n_features},)"
        raise ConfigError(f"{kernel} kernel: expected {name} of {expected}, found {widths.shape}")
