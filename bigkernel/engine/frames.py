"""Tables of other libraries as arrays: Dask DataFrames stay lazy, xarray arrays give what they hold.

Nothing is imported for them: an object of a library can only come from one that has imported it. pandas frames and
Arrow tables lie in memory and are arrays to NumPy already.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import dask
import numpy as np
from dask.utils import is_dataframe_like, is_series_like
from numpy.typing import NDArray

from bigkernel.errors import DataError

if TYPE_CHECKING:
    import dask.array as da

_NUMERIC = "biuf"


def is_dask_frame(values: Any) -> bool:
    """Tell a Dask DataFrame or Series."""
    # an xarray array looks like a Series, but has no partitions
    partitioned = dask.is_dask_collection(values) and hasattr(values, "npartitions") and not hasattr(values, "chunks")
    return partitioned and (is_dataframe_like(values) or is_series_like(values))


def is_dask_array(values: Any) -> bool:
    """Tell a Dask array; its module, with numba and more, loads where there is a collection of Dask, and not else."""
    if not dask.is_dask_collection(values):
        return False
    import dask.array as da

    return isinstance(values, da.Array)


def unwrapped(values: Any, name: str) -> Any:
    """What `engine.sources` reads in place of an object of another library; anything else as it is.

    Parameters
    ----------
    values : a Dask DataFrame or Series becomes a Dask array, an xarray DataArray the array inside it
    name : for messages

    Raises
    ------
    DataError
        A table that is no matrix of numbers of one dtype; names the columns and says how to make it one.
    """
    if is_dask_frame(values):
        return _dask_array(values, name)
    xarray = sys.modules.get("xarray")
    if xarray is not None and isinstance(values, xarray.DataArray):
        return values.data
    if xarray is not None and isinstance(values, xarray.Dataset):
        raise DataError(
            f"{name}: an xarray Dataset of {', '.join(map(str, values)) or 'no variable'}; give one of its variables "
            "with the dimensions (rows, features), or stack them with to_dataarray() and transpose()"
        )
    return values


def feature_names(values: Any) -> Any:
    """A frame without rows that has the columns of a Dask DataFrame, for scikit-learn's checks of names, or None."""
    return values._meta if is_dask_frame(values) and is_dataframe_like(values) else None


def _dask_array(frame: Any, name: str) -> da.Array:
    """A Dask array (n, d) or (n,) with a chunk a partition, whose rows are counted in a pass of its own."""
    import dask.array as da

    dtype = _common_dtype(frame, name)
    # a shuffle between workers (P2P) wants all its tasks in one graph, and each task of ours takes a partition alone
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        pieces, count_of = frame.to_delayed(), dask.delayed(len)
    # of the partitions as they will be read: those of fewer columns may be others
    counts: Sequence[int] = dask.compute(*(count_of(piece) for piece in pieces))
    tail = () if is_series_like(frame) else (len(frame.columns),)
    number = dask.delayed(_numbers, pure=True)  # another process names its tasks alike, and so can resume
    parts = [
        da.from_delayed(number(part, (count, *tail), dtype, f"{name}: partition {i}"), (count, *tail), dtype)
        for i, (part, count) in enumerate(zip(pieces, counts, strict=True))
        if count
    ]
    return da.concatenate(parts) if parts else da.zeros((0, *tail), dtype=dtype)


def _common_dtype(frame: Any, name: str) -> np.dtype[Any]:
    """The one dtype of all columns."""
    series = is_series_like(frame)
    labels = [name] if series else [str(column) for column in frame._meta.columns]
    if not labels:
        raise DataError(f"{name}: a Dask DataFrame without columns")
    if twice := sorted({label for label in labels if labels.count(label) > 1}):
        raise DataError(
            f"{name}: a Dask DataFrame with several columns of one name ({', '.join(twice[:5])}); rename them"
        )
    if name == "y" and not series and len(labels) == 1:
        raise DataError(f"y: a Dask DataFrame of one column; give the column, frame[{labels[0]!r}]")
    kinds = {name: frame.dtype} if series else dict(zip(labels, frame._meta.dtypes, strict=True))
    odd = [column for column, dtype in kinds.items() if not _is_number(dtype)]
    what = "Series" if series else "DataFrame"
    if odd:
        raise DataError(
            f"{name}: a Dask {what} with {len(odd)} of {len(kinds)} columns that are not NumPy's numbers "
            f"({', '.join(f'{column}: {kinds[column]}' for column in odd[:5])}); drop them, encode them, or convert "
            "with astype(\"float64\") (pandas' own numbers and Arrow's, in which values may be missing, too)"
        )
    found = sorted({str(dtype) for dtype in kinds.values()})
    if len(found) > 1:
        common = np.result_type(*kinds.values())
        raise DataError(
            f"{name}: a Dask DataFrame whose columns are of {', '.join(found)}; rows are read as one dtype: "
            f'take astype("{common}")'
        )
    return np.dtype(found[0])


def _is_number(dtype: Any) -> bool:
    return isinstance(dtype, np.dtype) and dtype.kind in _NUMERIC


def _numbers(part: Any, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> NDArray[Any]:
    """The values of a partition; refused where it is not as its frame said."""
    values = np.ascontiguousarray(part.to_numpy())
    if values.shape != shape or values.dtype != dtype:
        raise DataError(
            f"{name}: {values.shape} values of {values.dtype}, where {shape} of {dtype} were found before; what the "
            "frame is read from was changed meanwhile, or its schema is not that of its files"
        )
    return values
