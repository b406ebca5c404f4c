"""Estimators in scikit-learn's manners, for rows of any size: NumPy, Dask and zarr arrays, corpora and Rows."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
