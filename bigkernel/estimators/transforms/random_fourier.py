"""Random Fourier features as a scikit-learn transformer, computed in the tasks that read the rows."""

from __future__ import annotations

from dataclasses import KW_ONLY
from numbers import Integral
from typing import ClassVar, Self

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from bigkernel.arrays import ColumnLike, RowsLike
from bigkernel.errors import DataError
from bigkernel.estimators.base import parameters
from bigkernel.estimators.fit.basis import draw_spectrum
from bigkernel.estimators.inputs.checks import KERNEL_CONSTRAINTS
from bigkernel.estimators.inputs.read import input_rows
from bigkernel.estimators.transforms.rows import RowTransformer
from bigkernel.kernels.algebra import Kernel
from bigkernel.kernels.functions import as_kernel
from bigkernel.kernels.random_fourier import FourierMap, FourierRows, spectrum_of


@parameters
class RandomFourier(RowTransformer):
    """Random Fourier features of a Gaussian, Laplacian or Matérn kernel.

    √(2/p) [cos Ωᵀ(x − a), sin Ωᵀ(x − a)], whose inner products are k(x, z) on average, with a standard deviation of at
    most p^{-1/2}. A linear method on them approximates the kernel method; `KernelRidge(landmarks="fourier")` is ridge
    on them in one step. Only the seed and the width are stored: the frequencies Ω (d, p/2) are generated in the tasks.
    For zarr arrays, corpora and Rows, the tasks of the next step compute the features.

    Parameters
    ----------
    kernel : Kernel or str
        `Gaussian`, `Laplacian` or `Matern` with one length scale, or (except for the Laplacian) one for each feature;
        or a name: "rbf", "gaussian", "laplacian", "matern".
    n_components : int, default 100
        p: a cosine and a sine for each of p/2 frequencies, and one cosine more if p is odd.
    orthogonal : bool, default False
        Orthogonal directions of the frequencies, d at a time: the same mean, a smaller error. Not for the Laplacian.
    gamma : float, "scale" or "auto", default "scale"
        Of a kernel given by name, as in `KernelRidge`; var is that of a sample of rows.
    random_state : int, RandomState or None

    Attributes
    ----------
    kernel_ : Kernel, every parameter a number
    fourier_seed_ : int
        Determines the frequencies, together with `kernel_` and their number.
    fourier_origin_ : (d,)
        a, the mean of a sample of rows.
    n_features_in_, feature_names_in_

    References
    ----------
    Rahimi & Recht (NIPS 2007); Sutherland & Schneider (UAI 2015) on pairs; Yu, Suresh, Choromanski, Holtmann-Rice &
    Kumar, "Orthogonal random features" (NIPS 2016, arXiv 1610.09072).

    Examples
    --------
    >>> import numpy as np
    >>> from bigkernel import Gaussian, RandomFourier
    >>> X = np.array([[0.0, 0.0], [1.0, 0.0], [3.0, 4.0]])
    >>> features = RandomFourier(Gaussian(sigma=1.0), n_components=20_000, random_state=0).fit_transform(X)
    >>> features.shape
    (3, 20000)
    >>> bool(abs(features @ features.T - Gaussian(sigma=1.0)(X)).max() < 0.02)
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[object]]] = {
        "kernel": [Kernel, StrOptions({"rbf", "gaussian", "laplacian", "matern"})],
        "n_components": [Interval(Integral, 1, None, closed="left")],
        "orthogonal": ["boolean"],
        "gamma": KERNEL_CONSTRAINTS["gamma"],
        "random_state": ["random_state"],
    }

    kernel: Kernel | str = "rbf"
    n_components: int = 100
    _: KW_ONLY
    orthogonal: bool = False
    gamma: float | str = "scale"
    random_state: int | np.random.RandomState | None = None

    def fit(self, X: RowsLike, y: ColumnLike = None) -> Self:
        """Draw a seed, and sample rows of X (n, d) for the origin and the bandwidth "scale".

        Raises
        ------
        ConfigError
            The kernel has no random Fourier features.
        """
        self._validate_params()
        rows = input_rows(self, X, reset=True)
        self.kernel_, self.fourier_seed_, sample = draw_spectrum(
            rows, as_kernel(self.kernel, gamma=self.gamma), self.random_state
        )
        spectrum_of(self.kernel_, self.fourier_seed_, rows.shape[1], orthogonal=self.orthogonal)  # raises early
        self.fourier_origin_ = sample.mean(axis=0)
        if not np.isfinite(self.fourier_origin_).all():
            raise DataError(f"{rows.name}: sums of its values exceed the range of float64; scale the rows")
        return self

    def _row_map(self) -> FourierRows:
        return FourierRows(
            FourierMap(self.kernel_, self.fourier_seed_, self.n_components, self.fourier_origin_, bool(self.orthogonal))
        )
