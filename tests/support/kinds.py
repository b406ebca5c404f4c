"""Rows as each kind of input that estimators take."""

import itertools

import dask.array as da
import numpy as np
import zarr
from scipy import sparse

from bigkernel.engine.rows import Rows, as_rows

LAZY = ["dask", "zarr", "corpus", "rows"]
KINDS = ["numpy", *LAZY]
_NUMBERS = itertools.count()


def of_kind(kind, X, make_corpus, tmp_path, **corpus):
    """Return rows X as one of the kinds of input; `corpus`: columns and classes of a corpus or of rows."""
    number = next(_NUMBERS)
    if kind == "dask":
        return da.from_array(X, chunks=(33, -(-X.shape[1] // 2)))
    if kind == "zarr":
        return zarr.create_array(tmp_path / f"{number}.zarr", chunks=(17, X.shape[1]), data=X)
    if kind == "corpus":
        return make_corpus(X, name=f"corpus {number}", **corpus)
    columns = {name: values for name, values in corpus.items() if name != "classes"}
    return as_rows(X, **columns) if kind == "rows" else X


def fit_arguments(kind, X, make_corpus, tmp_path, *, classes=(), chunk_rows=25, **columns):
    """Return rows of a kind, and their columns as `fit` takes them: None if the rows carry them."""
    d, given = X.shape[1], {name: values for name, values in columns.items() if values is not None}
    if kind.startswith("dask"):
        layouts = {"rows": (40, d), "blocks": (29, 3), "uneven": ((1, 80, len(X) - 81), d), "one chunk": X.shape}
        lazy = {name: da.from_array(values, chunks=41) for name, values in given.items()}
        return da.from_array(X, chunks=layouts[kind[5:]]), *map(lazy.get, columns)
    if kind == "sparse":
        return sparse.csr_array(X), *columns.values()
    if kind.endswith("zarr"):
        layout = {"chunks": (5, 2), "shards": (20, d)} if kind == "sharded zarr" else {"chunks": (16, d)}
        return zarr.create_array(tmp_path / kind, overwrite=True, **layout, data=X), *columns.values()
    if kind == "rows":
        return as_rows(X, **given), *[None] * len(columns)
    corpus = make_corpus(X, name=kind, chunk_rows=chunk_rows, classes=classes, **given)
    return corpus, *[None] * len(columns)


def plain(X):
    """Return the result of a transform as a NumPy array."""
    return X.read(0, len(X)).load(slice(None), X.shape[1], np.float64) if isinstance(X, Rows) else np.asarray(X)
