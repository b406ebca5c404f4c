"""Kernel methods on data larger than memory, on a Dask cluster.

Rows stream through a feature map into additive statistics, in one sweep over the workers; the small m×m problems are
solved locally; the model streams back over the rows to predict.

Public names are listed in `__init__.pyi` and loaded on first access (scientific Python's SPEC 1).
"""

import importlib
import re
from pathlib import Path

__version__ = "0.1.0"


def attach(package, file):
    """Return `__getattr__`, `__dir__` and `__all__` of a package from the `.pyi` beside its file."""
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    modules = {name: module for module, name in re.findall(r"^from (\S+) import \w+ as (\w+)$", stub, re.MULTILINE)}

    def load(name):
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(modules[name], package), name)

    return load, lambda: sorted(modules), sorted(modules)


__getattr__, __dir__, __all__ = attach(__name__, __file__)
