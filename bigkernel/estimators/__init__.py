"""Estimators in scikit-learn's manners, for rows of any size: NumPy, Dask and zarr arrays, corpora and Rows."""

from bigkernel import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
