"""Kernel methods on data larger than memory, on a Dask cluster.

Rows stream through a feature map into additive statistics, in one sweep over the workers; the small m×m problems are
solved locally; the model streams back over the rows to predict.

Public names are listed in `__init__.pyi` and loaded on first access (scientific Python's SPEC 1).
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
del lazy_loader
