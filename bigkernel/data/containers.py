"""What a container means: the one place that says what is read of an array, a frame or a matrix of any library.

Sources of rows and columns, arguments of estimators and `write_corpus` take objects through `contained`:

* Masked cells are missing, also in blocks of Dask arrays: NaN, or None among whole numbers and text that are labels.
* Columns of frames (pandas, Polars, Arrow, Dask) are numbers. `names_of` has their names, and `by_name` matches them.
* Arrays of zarr and xarray that are packed by the CF conventions are decoded (`cf`). Of one of xarray the array inside
  is read. Sparse matrices are CSR, and dense in blocks of Dask arrays.
* Arrays of PyTorch, CuPy and others with DLPack are copied to main memory if they are on a GPU.
* Text, categories and times are refused, and by `refuse_rounded` whole numbers beyond 2**53, which float64 rounds.

Libraries are known by attributes, and none is imported: their objects exist only after their import.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from bigkernel.arrays import Array, DType
from bigkernel.data.labels import is_missing
from bigkernel.errors import DataError
from bigkernel.streaming.chunk import rounded_cells

if TYPE_CHECKING:
    import dask.array as da
    import dask.dataframe as dd
    from dask.delayed import Delayed

_ADVICE = "encode text, categories and times by TableEncoder, as in make_pipeline(TableEncoder(), …), or leave them out"
_SHOWN = 20  # names in an error
_IN_MAIN_MEMORY = (1, 3, 11)  # devices of DLPack: CPU, and host memory of CUDA and ROCm


def contained(values: Any, name: str, *, labels: bool = False) -> Any:
    """Return what a source reads of an object: an array, a CSR matrix, a Dask array, or a zarr array.

    `labels`: text may be among the values, and whole numbers stay so, of any size. `DataError` for `name`: a list of
    tables, times, a column that holds no numbers, or whole numbers that float64 rounds.
    """
    if hasattr(values, "store_path") or hasattr(values, "to_dataset"):  # of zarr or xarray
        from bigkernel.data.cf import decoded  # loads zarr

        values = decoded(values)
    if hasattr(values, "dims") and hasattr(values, "dtype"):  # xarray
        values = values.data
    if is_dask_frame(values):
        return _array_of(values, name)
    if is_dask_array(values):
        from bigkernel.data.dask_arrays import as_dask_array  # loads dask.array

        return as_dask_array(values)
    if hasattr(values, "store_path"):  # zarr
        return values
    if hasattr(values, "tocsr") and values.ndim == 2:
        from scipy import sparse

        values = sparse.csr_array(values.tocsr())
        refuse_rounded(values.data, f"{name}: stored values")
        return values
    if is_frame(values):
        return _numbers_in(values, name)
    if batches_in(values):
        raise DataError(
            f"{name}: found a {type(values).__name__} of tables, arrays or pairs; join them, as by pandas.concat, and "
            "pass y apart; write_corpus takes them as batches"
        )
    array = plain(values, name, labels=labels)
    if not labels:
        refuse_rounded(array, name)
    return array


def in_memory(values: Any, name: str, *, labels: bool = False) -> Array:
    """Return an object of any kind as a dense array; see `contained`."""
    values = contained(values, name, labels=labels)
    return plain(values.compute() if is_dask_array(values) else values, name, labels=labels)


def length(values: Any) -> int:
    """Return the number of rows of an object; of a lazy frame they are counted."""
    return int(len(values) if hasattr(values, "__len__") else values.shape[0])  # arrays of zarr have no length


def plain(values: Any, name: str = "X", *, labels: bool = False) -> Array:
    """Return values in memory, as those of a block, as a dense array without a mask."""
    values = _of_host(values)
    if (dense := getattr(values, "toarray", getattr(values, "todense", None))) is not None:
        values = dense()
    mask = np.ma.getmaskarray(values) if isinstance(values, np.ma.MaskedArray) else np.False_
    try:
        array: Array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{name}: expected rows of one length, and y apart from X: {error}") from error
    kind = array.dtype.kind
    if kind == "V" or (kind == "O" and not array.ndim):
        found = f"fields {array.dtype.names}" if kind == "V" else f"a {type(values).__name__}"
        raise DataError(f"{name}: expected numbers in an array or a frame, found {found}; make one of them")
    times = kind in "mM" or (kind == "O" and any(isinstance(cell, date | time | timedelta) for cell in array.flat))
    if times and not labels:
        raise DataError(f"{name}: expected numbers, found times; {_ADVICE}")
    if not mask.any():
        return array
    numbers = kind in "fc" or (kind in "biu" and not labels)
    array = array.astype(array.dtype if kind in "fc" else np.float64 if numbers else object)
    array[mask] = np.nan if numbers else None
    return array


def is_on_device(values: Any) -> bool:
    """Return whether an array of another library lies outside of main memory."""
    return hasattr(values, "__dlpack_device__") and int(values.__dlpack_device__()[0]) not in _IN_MAIN_MEMORY


def _of_host(values: Any) -> Any:
    """Return an array of another library without its gradient and, if it is on a device, copied to main memory."""
    values = getattr(values, "detach", lambda: values)()  # PyTorch
    copy = getattr(values, "cpu", getattr(values, "get", None)) if is_on_device(values) else None
    return values if copy is None else copy()


def batches_in(values: Any) -> list[Any]:
    """Return the batches of a list of them, or of one that is a pair (X, y) or a mapping; [] of anything else."""
    if isinstance(values, Mapping):
        return [values]
    if not (isinstance(values, list | tuple) and len(values)):
        return []
    first = values[0]
    if isinstance(values, tuple) and _is_table(first) and not _is_table(values[-1]):
        return [values]
    inner = first[0] if isinstance(first, tuple) and first else first
    return [*values] if isinstance(first, Mapping) or _is_table(inner) else []


def _is_table(values: Any) -> bool:
    return is_frame(values) or len(getattr(values, "shape", ())) > 1


def refuse_rounded(values: Array, name: str, columns: Sequence[Any] = ()) -> None:
    """Raise `DataError` for whole numbers that float64 rounds; names the row, and the column if there are several."""
    if (beyond := rounded_cells(values)) is not None:
        row, *place = np.argwhere(beyond)[0].tolist()
        where = "".join(f", column {columns[i] if columns else i!r}" for i in place)
        raise DataError(
            f"{name}: row {row}{where}: found {values[row, *place]}, and float64 rounds whole numbers beyond 2**53; "
            "subtract an offset, or leave the column out if it holds ids"
        )


def is_frame(values: Any) -> bool:
    """Return whether an object is a table in memory: a frame of pandas or Polars, or a table of Arrow."""
    pandas = hasattr(values, "iloc") and values.ndim == 2 and not is_dask_frame(values)
    return pandas or hasattr(values, "column_names") or (hasattr(values, "to_series") and hasattr(values, "schema"))


def names_of(values: Any) -> tuple[Any, ...]:
    """Return the names of the columns of a frame, a corpus or rows; () if there are none, or they are 0 … d − 1."""
    if hasattr(values, "batches"):
        return tuple(getattr(values, "info", values).feature_names)
    framed = is_frame(values) or (is_dask_frame(values) and values.ndim == 2)
    names = tuple(getattr(values, "column_names", getattr(values, "columns", ()))) if framed else ()
    return () if names == tuple(range(len(names))) else names


def by_name(values: Any, expected: Sequence[Any], name: str, whose: str) -> Any:
    """Return a frame with its columns in the expected order; `DataError` for `name` if it has other columns."""
    found = names_of(values)
    if found == tuple(expected):
        return values
    if len({*found}) == len(found) == len(expected) and {*found} == {*expected}:
        return getattr(values, "select", values.__getitem__)([*expected])
    has, wants = (", ".join(map(repr, names[:_SHOWN])) or "none" for names in (found, expected))
    raise DataError(f"{name}: expected the columns of {whose}, with the names {wants}; found {has}")


def _numbers_in(frame: Any, name: str) -> Array:
    """Return a frame (n, d) or Series (n,) as numbers, NaN where one is missing; `DataError` names another column."""
    if not is_frame(frame):
        return _numbers_of(frame, name)
    names, kinds = tuple(getattr(frame, "column_names", frame.columns)), {*getattr(frame, "dtypes", ())}
    if len(kinds) == 1 and isinstance(kind := kinds.pop(), np.dtype) and kind.kind in "biuf":
        array = np.asarray(frame)  # without a copy
        refuse_rounded(array, name, names)
        return array
    if hasattr(frame, "iloc"):
        columns = [frame.iloc[:, place] for place in range(len(names))]
    else:
        columns = [*map(getattr(frame, "column", getattr(frame, "to_series", None)), range(len(names)))]  # type: ignore
    each = [_numbers_of(own, f"{name}: column {label!r}") for label, own in zip(names, columns, strict=True)]
    return np.stack(each, 1) if each else np.empty((len(frame), 0))


def _numbers_of(column: Any, what: str) -> Array:
    """Return a column of a frame as numbers, with NaN where one is missing."""
    kind, cells = getattr(column, "dtype", getattr(column, "type", None)), np.asarray(column)
    found = [*cells] if cells.dtype.kind == "O" else []
    odd = (cell for cell in found if not (is_missing(cell) or isinstance(cell, Real | Decimal)))
    if (cell := next(odd, None)) is not None or hasattr(kind, "categories") or cells.dtype.kind not in "biufO":
        such = "" if cell is None else f", such as {str(cell)!r:.50}"
        raise DataError(f"{what}: expected numbers, found {kind}{such}; {_ADVICE}")
    holed = cells.dtype.kind == "f" and "int64" in str(kind).lower()  # missing ones made floats of whole numbers
    refuse_rounded(np.nan_to_num(cells).astype(np.int64) if holed else cells, what)
    return np.array([np.nan if is_missing(cell) else float(cell) for cell in found]) if found else cells


def is_dask_frame(values: object) -> TypeGuard[dd.DataFrame]:
    """Return True for a Dask DataFrame or Series."""
    lazy = hasattr(values, "__dask_graph__") and hasattr(values, "npartitions")
    return lazy and hasattr(values, "ndim") and not hasattr(values, "chunks")


def is_dask_array(values: object) -> TypeGuard[da.Array]:
    """Return True for a Dask collection that is an array, of whatever class, and none of xarray."""
    return hasattr(values, "__dask_graph__") and not hasattr(values, "dims") and hasattr(values, "chunks")


def _array_of(frame: dd.DataFrame, name: str) -> da.Array:
    """Return the numbers of a Dask DataFrame (n, d) or Series (n,)."""
    import dask

    like = _numbers_in(frame._meta_nonempty, name)
    # pure: another process gives its tasks the same names, and so can resume
    read = dask.delayed(_numbers_of_part, pure=True)
    return array_of_partitions(frame, name, like.shape[1:], like.dtype, read, names_of(frame))


def array_of_partitions(
    frame: dd.DataFrame, name: str, tail: tuple[int, ...], dtype: DType, read: Delayed, *more: object
) -> da.Array:
    """Return what `read` gives of each partition as a Dask array (n, *tail); rows are counted in a separate pass."""
    import dask

    from bigkernel.data import dask_arrays as da

    # a shuffle between workers (P2P) needs all its tasks in one graph, and our tasks take single partitions
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        pieces, count_of = frame.to_delayed(), dask.delayed(len)
    # of the partitions as they will be read: fewer columns may mean other partitions
    counts: Sequence[int] = dask.compute(*(count_of(piece) for piece in pieces))
    chunks = [
        da.from_delayed(read(piece, (count, *tail), dtype, f"{name}: partition {i}", *more), (count, *tail), dtype)
        for i, (piece, count) in enumerate(zip(pieces, counts, strict=True))
        if count
    ]
    return da.concatenate(chunks) if chunks else da.zeros((0, *tail), dtype=dtype)


def _numbers_of_part(
    part: dd.DataFrame, shape: tuple[int, ...], dtype: DType, name: str, names: tuple[Any, ...]
) -> Array:
    """Return the numbers of a partition; raise an error if it does not match its frame."""
    values = _numbers_in(by_name(part, names, name, "the frame") if names else part, name)
    if values.shape != shape or not np.can_cast(values.dtype, dtype):
        raise DataError(
            f"{name}: expected {shape} values of {dtype} as before, found {values.shape} of {values.dtype}; the "
            "source of the frame has changed, or its schema differs from that of its files"
        )
    return np.ascontiguousarray(values, dtype)
