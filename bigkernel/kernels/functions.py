"""Kernels: small things that are called, `k(X, Z)`, and that bind landmarks for the fast block path.

Shapes: X (n, d) rows, Z (m, d) landmarks, k(X, Z) (n, m), k.diag(X) (n,). Equations as in Schölkopf & Smola, *Learning
with Kernels* (2002), and Rasmussen & Williams (2006), ch. 4, for Matérn.

`k.bind(Z, dtype)` prepares Z once and returns a `Bound`, which fills preallocated blocks without a temporary. Kernels
of the distance make it one product: with ‖x‖² and 1 appended to the rows, 1 and ‖z‖² to the landmarks, the GEMM gives
−γ‖x−z‖² itself. Rows and landmarks are centred by the landmark mean first, without which float32 loses every digit as
soon as the data lie far from 0. A parameter left at "scale" is set from the spread of the landmarks by `resolve`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from bigkernel.errors import ConfigError, DataError
from bigkernel.kernels.blocks import Bound

Array = NDArray[Any]
Scale = Literal["scale"]


class Kernel:
    """The base of all kernels; subclasses are dataclasses of their parameters.

    `get_params` and `set_params` are scikit-learn's, so that `kernel__sigma` works in a grid search.
    """

    name: ClassVar[str]
    positive: ClassVar[bool] = True  # positive definite for every parameter value that is accepted
    _distance: ClassVar[bool] = True  # a function of ‖x−z‖

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """By name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def set_params(self, **params: Any) -> Kernel:
        """Set parameters by name and return the kernel; scikit-learn's convention."""
        for key, value in params.items():
            if key not in self.get_params():
                raise ConfigError(f"{self.name} kernel has no parameter {key!r}; it has {sorted(self.get_params())}")
            setattr(self, key, value)
        return self

    def __call__(self, X: Array, Z: Array | None = None) -> Array:
        """The kernel matrix, shape (n, m); (n, n) and exactly symmetric when Z is not given.

        float32 where both are, float64 otherwise. "scale" parameters are taken from Z.
        """
        X = np.atleast_2d(np.asarray(X))
        other = X if Z is None else np.atleast_2d(np.asarray(Z))
        if X.shape[1] != other.shape[1]:
            raise DataError(f"{self.name} kernel: X has {X.shape[1]} features, Z has {other.shape[1]}")
        dtype = np.float32 if X.dtype == other.dtype == np.float32 else np.float64
        bound = self.resolve(other).bind(other, dtype)
        rows = np.empty((len(X), bound.columns), dtype)
        rows[:, : X.shape[1]] = X
        out = np.empty((len(X), len(other)), dtype)
        bound.product(rows, out)
        bound.finish(out)
        if Z is None:
            np.add(out, out.T.copy(), out=out)
            out *= 0.5
        return out

    def diag(self, X: Array) -> Array:
        """k(x, x) for every row, shape (n,): 1 for kernels of the distance."""
        return np.ones(len(X))

    def resolve(self, Z: Array, weight: Array | None = None) -> Kernel:
        """The same kernel, checked, with every "scale" parameter replaced by its number for (weighted) rows Z."""
        self._check(np.shape(Z)[1])
        return replace(self)  # type: ignore[type-var]

    @property
    def kinked(self) -> bool:
        """True where the slope in ‖x−z‖² is infinite at 0, so that its rounding counts by its root."""
        return False

    def bind(self, Z: Array, dtype: Any = np.float64, *, touching: bool = False) -> Bound:
        """Prepare landmarks Z (m, d) for blocks of `dtype`.

        With `touching` the distances of rows that nearly touch a landmark keep their digits, which `kinked` kernels
        have anyway: for others that share a block with such a one.

        Raises
        ------
        DataError
            float32 cannot resolve the distances between these landmarks at this bandwidth.
        """
        Z = np.asarray(Z, np.float64)
        dtype = np.dtype(dtype)
        if not self._distance:
            return Bound(self.finish, np.ascontiguousarray(Z.T, dtype), None, None, None, Z.shape[1])
        bound, blur = Bound.of_distance(self.finish, Z, *self.widths(), dtype, touching=touching or self.kinked)
        _refuse_blur(self.name, dtype, blur)
        return bound

    def widths(self) -> tuple[float, Array | None]:
        """(γ, lengths per feature or None) with the kernel's argument −γ‖x−z‖²."""
        raise TypeError(f"{self.name} is not a kernel of the Euclidean distance")

    def finish(self, strip: Array) -> None:
        raise TypeError(f"{type(self).__name__} does not say how its argument becomes a value")

    def _check(self, n_features: int) -> None: ...


@dataclass
class Gaussian(Kernel):
    """exp(−‖x−z‖²/(2σ²)).

    Parameters
    ----------
    sigma : float, array of shape (d,) or "scale"
        Bandwidth σ in the units of the rows; an array gives every feature its own length. "scale" sets
        σ² = d·var/2 (γ = 1/(d·var), as in scikit-learn's SVC).

    Examples
    --------
    >>> Gaussian(sigma=1.0)([[0.0]], [[0.0], [1.0]]).round(4)
    array([[1.    , 0.6065]])
    """

    sigma: float | Array | Scale = "scale"
    name: ClassVar[str] = "gaussian"

    def resolve(self, Z: Array, weight: Array | None = None) -> Gaussian:
        self._check(np.shape(Z)[1])
        return replace(self, sigma=(_spread(Z, weight) / 2) ** 0.5) if _unset(self.sigma) else replace(self)

    def widths(self) -> tuple[float, Array | None]:
        return _isotropic(self.sigma, lambda sigma: 1 / (2 * sigma**2))

    def _check(self, n_features: int) -> None:
        _check_widths(self.name, "sigma", self.sigma, n_features)

    def finish(self, strip: Array) -> None:
        np.minimum(strip, 0, out=strip)
        np.exp(strip, out=strip)


@dataclass
class Matern(Kernel):
    """Matérn kernel of smoothness ν: 1/2: e^{−r}, 3/2: (1+r)e^{−r}, 5/2: (1+r+r²/3)e^{−r}, r = √(2ν)‖x−z‖/ℓ.

    Parameters
    ----------
    length_scale : float, array of shape (d,) or "scale"
        ℓ in the units of the rows; "scale" sets ℓ² = d·var/2.
    nu : 0.5, 1.5 or 2.5
    """

    length_scale: float | Array | Scale = "scale"
    nu: float = 1.5
    name: ClassVar[str] = "matern"

    def resolve(self, Z: Array, weight: Array | None = None) -> Matern:
        self._check(np.shape(Z)[1])
        return (
            replace(self, length_scale=(_spread(Z, weight) / 2) ** 0.5) if _unset(self.length_scale) else replace(self)
        )

    def widths(self) -> tuple[float, Array | None]:
        gamma, lengths = _isotropic(self.length_scale, lambda length: 1 / (2 * length**2))
        return 4 * self.nu * gamma, lengths  # γ‖x−z‖² = r²

    @property
    def kinked(self) -> bool:
        return self.nu == 0.5

    def _check(self, n_features: int) -> None:
        _check_widths(self.name, "length_scale", self.length_scale, n_features)
        if self.nu not in (0.5, 1.5, 2.5):
            raise ConfigError(f"matern kernel: expected nu of 0.5, 1.5 or 2.5, found {self.nu!r}")

    def finish(self, strip: Array) -> None:
        np.minimum(strip, 0, out=strip)
        np.negative(strip, out=strip)
        r = np.sqrt(strip)
        if self.nu == 0.5:
            strip[...] = 1
        else:
            strip *= 0 if self.nu == 1.5 else 1 / 3  # r²/3 for ν = 5/2
            strip += r
            strip += 1
        np.negative(r, out=r)
        np.exp(r, out=r)
        strip *= r


@dataclass
class Laplacian(Kernel):
    """exp(−γ‖x−z‖₁), in distances of L1; no product helps here, so it is several times slower than Gaussian.

    Parameters
    ----------
    gamma : float or "scale"
        "scale" sets γ = 1/(d·std).
    """

    gamma: float | Scale = "scale"
    name: ClassVar[str] = "laplacian"

    def resolve(self, Z: Array, weight: Array | None = None) -> Laplacian:
        self._check(np.shape(Z)[1])
        d = np.shape(Z)[1]
        return replace(self, gamma=1 / (d * (_spread(Z, weight) / d) ** 0.5)) if _unset(self.gamma) else replace(self)

    def bind(self, Z: Array, dtype: Any = np.float64, *, touching: bool = False) -> Bound:
        Z = np.asarray(Z, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            gamma = float(self.resolve(Z).gamma)
            blur = float(np.abs(Z.astype(dtype) - Z).max(axis=0).sum() * gamma)
        if gamma > float(np.finfo(dtype).max):
            blur = np.inf
        _refuse_blur(self.name, np.dtype(dtype), blur)
        return Bound(self.finish, np.empty((Z.shape[1], 0), dtype), None, None, Z.astype(dtype), Z.shape[1])

    def _check(self, n_features: int) -> None:
        _check_widths(self.name, "gamma", self.gamma, None)

    def finish(self, strip: Array) -> None:
        assert not isinstance(self.gamma, str)
        strip *= -self.gamma
        np.exp(strip, out=strip)


@dataclass
class Linear(Kernel):
    """⟨x, z⟩."""

    name: ClassVar[str] = "linear"
    _distance: ClassVar[bool] = False

    def diag(self, X: Array) -> Array:
        return _squares(X)

    def finish(self, strip: Array) -> None: ...


class _Projected(Kernel):
    """A function of γ⟨x,z⟩ + c; "scale" sets γ = 1/(d·var)."""

    gamma: float | Scale
    _distance: ClassVar[bool] = False

    def resolve(self, Z: Array, weight: Array | None = None) -> Kernel:
        self._check(np.shape(Z)[1])
        return replace(self, gamma=1 / _spread(Z, weight)) if _unset(self.gamma) else replace(self)  # type: ignore[type-var]

    def diag(self, X: Array) -> Array:
        value = _squares(X)
        self.resolve(X).finish(value)
        return value


@dataclass
class Polynomial(_Projected):
    """(γ⟨x,z⟩ + c)^p.

    Parameters
    ----------
    degree : int ≥ 1
    gamma : float or "scale"
        "scale" sets γ = 1/(d·var).
    coef0 : float ≥ 0 (below 0 the kernel is not positive definite)
    """

    degree: int = 3
    gamma: float | Scale = "scale"
    coef0: float = 1.0
    name: ClassVar[str] = "polynomial"

    def _check(self, n_features: int) -> None:
        _check_widths(self.name, "gamma", self.gamma, None)
        sound = isinstance(self.degree, int | np.integer | float) and not isinstance(self.degree, bool)
        if not sound or not 1 <= self.degree < 1000 or self.degree != int(self.degree):
            raise ConfigError(f"polynomial kernel: expected an integer degree of at least 1, found {self.degree!r}")
        if not 0 <= self.coef0 < np.inf:
            raise ConfigError(f"polynomial kernel: expected coef0 of at least 0, found {self.coef0!r}")

    def finish(self, strip: Array) -> None:
        assert not isinstance(self.gamma, str)
        strip *= self.gamma
        strip += self.coef0
        base = strip.copy() if self.degree > 1 else strip
        for _ in range(int(self.degree) - 1):
            strip *= base


@dataclass
class Sigmoid(_Projected):
    """tanh(γ⟨x,z⟩ + c): not positive definite in general; a solver drops the negative part of its core and warns.

    Parameters
    ----------
    gamma : float or "scale"
        "scale" sets γ = 1/(d·var).
    coef0 : float
    """

    gamma: float | Scale = "scale"
    coef0: float = 1.0
    name: ClassVar[str] = "sigmoid"
    positive: ClassVar[bool] = False

    def _check(self, n_features: int) -> None:
        _check_widths(self.name, "gamma", self.gamma, None)
        if not np.isfinite(self.coef0):
            raise ConfigError(f"sigmoid kernel: expected a finite coef0, found {self.coef0!r}")

    def finish(self, strip: Array) -> None:
        assert not isinstance(self.gamma, str)
        strip *= self.gamma
        strip += self.coef0
        np.tanh(strip, out=strip)


KERNELS: dict[str, type[Kernel]] = {k.name: k for k in (Gaussian, Laplacian, Matern, Linear, Polynomial, Sigmoid)}
"""The closed table of kernels by name: what a model file may name."""


def as_kernel(kernel: Kernel | str, *, gamma: float | None = None, degree: int = 3, coef0: float = 1.0) -> Kernel:
    """A kernel object from itself or from one of scikit-learn's names, with scikit-learn's parameters.

    "rbf" (or "gaussian"), "laplacian", "linear", "polynomial" (or "poly"), "sigmoid", and "matern". `gamma=None`
    leaves the bandwidth data-driven.
    """
    if isinstance(kernel, Kernel):
        return kernel
    if not isinstance(kernel, str):
        raise ConfigError(f"kernel: expected a kernel object or a name, found {type(kernel).__name__}")
    name = {"rbf": "gaussian", "poly": "polynomial"}.get(kernel, kernel)
    if name not in KERNELS:
        raise ConfigError(f"kernel: {kernel!r} is none of {', '.join(sorted(KERNELS))} (or rbf, poly)")
    if gamma is not None and not gamma > 0:
        raise ConfigError(f"gamma: expected a number above 0, found {gamma!r}")
    params: Mapping[str, Any] = {
        "gaussian": {"sigma": "scale" if gamma is None else (2 * gamma) ** -0.5},
        "matern": {"length_scale": "scale" if gamma is None else (2 * gamma) ** -0.5},
        "laplacian": {"gamma": "scale" if gamma is None else gamma},
        "polynomial": {"degree": degree, "gamma": "scale" if gamma is None else gamma, "coef0": coef0},
        "sigmoid": {"gamma": "scale" if gamma is None else gamma, "coef0": coef0},
    }.get(name, {})
    return KERNELS[name](**params)


def _unset(value: Any) -> bool:
    return isinstance(value, str)


def _spread(Z: Array, weight: Array | None = None) -> float:
    """d·var of the landmarks (rows weighted where weights are given); 1 where they do not vary at all."""
    Z = np.asarray(Z, np.float64)
    weights = np.ones(len(Z)) if weight is None or not weight.sum() > 0 else weight
    mean = np.average(Z, axis=0, weights=weights).mean()
    spread = float(np.average(np.einsum("ij,ij->i", Z - mean, Z - mean), weights=weights))
    return spread if np.isfinite(spread) and spread > 0 else 1.0


def _squares(X: Array) -> Array:
    X = np.asarray(X, np.float64)
    squares: Array = np.einsum("ij,ij->i", X, X)
    return squares


def _isotropic(width: Any, gamma: Any) -> tuple[float, Array | None]:
    """(γ, None) for one width; (γ of width 1, widths) for one a feature."""
    if np.ndim(width) == 0:
        return float(gamma(float(width))), None
    return float(gamma(1.0)), np.asarray(width, np.float64)


def _refuse_blur(kernel: str, dtype: np.dtype[Any], blur: float) -> None:
    if not blur < 0.01:
        raise DataError(
            f"{kernel} kernel: in {dtype} the distances between these landmarks carry an error of {blur:.1e} "
            "bandwidths (expected below 0.01); use dtype='float64', scale or shift the rows, or take a larger bandwidth"
        )


def _check_widths(kernel: str, name: str, value: Any, n_features: int | None) -> None:
    if _unset(value):
        if value != "scale":
            raise ConfigError(f"{kernel} kernel: expected {name} to be a number or 'scale', found {value!r}")
        return
    widths = np.asarray(value)
    if widths.dtype.kind not in "iuf" or not ((widths > 1e-160) & (widths < 1e160)).all():
        raise ConfigError(f"{kernel} kernel: expected a finite {name} above 0 (1e-160 to 1e160), found {value!r}")
    if widths.ndim and (n_features is None or widths.shape != (n_features,)):
        raise ConfigError(f"{kernel} kernel: expected {name} of shape ({n_features},), found {widths.shape}")
