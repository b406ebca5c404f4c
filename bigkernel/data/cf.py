"""Arrays whose attributes say what values stand for, by the climate and forecast (CF) conventions.

A stored value is missing (NaN) if it is `_FillValue`, `missing_value` or `nodata`, or outside `valid_range`; any other
one stands for value · scale_factor + add_offset. xarray writes such arrays, and decodes them unless told otherwise.
"""

from __future__ import annotations

import base64
from math import inf
from typing import Any

import numpy as np
import zarr

from bigkernel.arrays import Array, DType
from bigkernel.errors import DataError

_SCALE, _OFFSET = {"scale_factor", "scales"}, {"add_offset", "offsets"}
_MISSING = {"_FillValue", "missing_value", "nodata"}
_KEYS = {*_SCALE, *_OFFSET, *_MISSING, "valid_range", "valid_min", "valid_max", "_Unsigned"}


class DecodedArray(zarr.Array[Any]):
    """A zarr array whose values are decoded when they are read; `packing` is that of `decode`."""

    packing: tuple[Any, ...]

    @property
    def dtype(self) -> DType:
        """Dtype of the numbers."""
        return np.dtype(str(self.packing[0]))

    def __getitem__(self, selection: Any) -> Any:
        return decode(super().__getitem__(selection), self.packing)


def decode(stored: Any, packing: tuple[Any, ...]) -> Array:
    """Return the numbers of stored values: NaN for missing ones, all others scaled."""
    dtype, kind, missing, low, high, scale, offset = packing
    values = np.asarray(stored).astype(f"{kind}{stored.dtype.itemsize}", copy=False)
    absent = (values < low) | (values > high)
    for fill in missing:
        absent |= (stored == fill) | (values == fill)
    return np.asarray(np.where(absent, np.nan, values).astype(np.float64, copy=False) * scale + offset, dtype)


def decoded(array: Any) -> Any:
    """Return an array of zarr or xarray that is decoded when it is read; others, and those without packing, unchanged.

    `DataError`: attributes are no numbers or differ between bands, or floats of xarray may be scaled already.
    """
    attrs, of_zarr = getattr(array, "attrs", {}), isinstance(array, zarr.Array)
    if not attrs or not (of_zarr or hasattr(array, "to_dataset")) or isinstance(array, DecodedArray):
        return array
    try:
        packing = _packing_of(array, {**attrs}, of_zarr) if array.dtype.kind in "iuf" else None
    except (ValueError, TypeError) as error:
        raise DataError(
            f"{array.name or 'X'}: cannot be decoded by its attributes {sorted(_KEYS & attrs.keys())}: {error}; decode "
            "it as xarray.decode_cf does, and remove these attributes"
        ) from None
    if packing is None:
        return array
    if of_zarr:
        result = DecodedArray(array.async_array)
        result.packing = packing
        return result
    data, none = array.data, np.empty((0,) * array.ndim, packing[0])
    lazy = hasattr(data, "map_blocks")
    result = array.copy(data=data.map_blocks(decode, packing, meta=none) if lazy else decode(data, packing))
    result.attrs = {key: value for key, value in attrs.items() if key not in _KEYS}
    return result


def _packing_of(array: Any, attrs: dict[str, Any], of_zarr: bool) -> tuple[Any, ...] | None:
    """Return the packing for `decode`; None: values are as they are stored; `ValueError`: it is not understood."""

    def numbers(*keys: str) -> list[Any]:
        return [one for key in keys for one in np.ravel(attrs.get(key, [])).tolist() if one == one]

    size, whole, fill = array.dtype.itemsize, array.dtype.kind in "iu", attrs.get("_FillValue")
    kind = {"true": "u", "false": "i"}.get(str(attrs.get("_Unsigned")), array.dtype.kind) if whole else "f"
    # xarray keeps it in the metadata of zarr 2, and in zarr 3 a double as text
    if of_zarr and array.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in attrs:
        attrs["_FillValue"] = np.nan if array.fill_value is None else array.fill_value
    elif isinstance(fill, str):
        attrs["_FillValue"] = np.frombuffer(base64.b64decode(fill), "<f8")
    missing = sorted({*map(float, numbers(*_MISSING))})
    scale, offset = float(*{*numbers(*_SCALE)} or {1}), float(*{*numbers(*_OFFSET)})
    ends = numbers("valid_range") or (numbers("valid_min") or [-inf]) + (numbers("valid_max") or [inf])
    scaled = (scale, offset) != (1, 0)
    if scaled and not (of_zarr or whole):
        raise ValueError("these floats may be scaled already")
    if not (of_zarr or whole or missing):
        ends = [-inf, inf]  # xarray leaves the range of stored values to floats that it has decoded
    if whole and scaled and any(isinstance(end, float) and abs(end) < inf for end in ends):  # of the numbers
        ends = sorted(np.rint((np.array(ends) - offset) / scale).tolist())
    low, high = (end + 256**size if kind == "u" and end < 0 else end for end in ends)
    if not scaled and not missing and kind == array.dtype.kind and (low, high) == (-inf, inf):
        return None
    dtype = "f4" if size <= (2 if whole else 4) and not scaled else "f8"
    return dtype, kind, missing, low, high, scale, offset
