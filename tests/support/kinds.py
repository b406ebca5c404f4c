"""The same rows as each kind of input that estimators take, and what a transform gave as an array."""

import itertools

import dask.array as da
import numpy as np
import zarr

from bigkernel.engine.rows import Rows, as_rows

LAZY = ["dask", "zarr", "corpus", "rows"]
KINDS = ["numpy", *LAZY]
_NUMBERS = itertools.count()


def of_kind(kind, X, make_corpus, tmp_path, **corpus):
    """Rows X as one of the kinds of input; `corpus`: columns and classes, which a corpus and rows carry."""
    number = next(_NUMBERS)
    if kind == "dask":
        return da.from_array(X, chunks=(33, -(-X.shape[1] // 2)))
    if kind == "zarr":
        return zarr.create_array(tmp_path / f"{number}.zarr", chunks=(17, X.shape[1]), data=X)
    if kind == "corpus":
        return make_corpus(X, name=f"corpus {number}", **corpus)
    columns = {name: values for name, values in corpus.items() if name != "classes"}
    return as_rows(X, **columns) if kind == "rows" else X


def plain(X):
    """What a transform gave, as a NumPy array."""
    return X.read(0, len(X)).load(slice(None), X.shape[1], np.float64) if isinstance(X, Rows) else np.asarray(X)
