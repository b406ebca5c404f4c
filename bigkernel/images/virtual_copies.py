"""Virtual copies and domains: rows of images with restyled copies of them, or redrawn in the styles of several domains.

Nothing is stored: the rows are made by the tasks that ask for them, from the images as they are stored; row maps come
after. Images are rows of h·w pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bigkernel.config import settings
from bigkernel.data.corpus import Corpus, chunk_rows_for
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.engine.sources import NumpySource, Source
from bigkernel.errors import ConfigError, DataError
from bigkernel.images.image_sources import (
    Chosen,
    DeformedSource,
    DomainNumbers,
    Ones,
    Repeated,
    RowNumbers,
    SharedWeight,
    StyledSource,
)
from bigkernel.images.pose_and_strokes import square_side
from bigkernel.images.restyle import Restyling, Style, Styling

Array = NDArray[Any]
_LARGEST_INTEGER, _LARGEST_FLOAT = 2**24, 1e30  # pixels that float32 holds, with room for sums of them


def image_shape_of(X: Any, image_shape: tuple[int, int] | None, d: int) -> tuple[int, int]:
    """(height, width) of rows of d pixels: as given, or as the corpus X says, or of a square.

    Raises
    ------
    DataError
        Sides whose product is not d; or no shape is known and d is no square.
    """
    if image_shape is None and isinstance(X, Corpus):
        image_shape = X.info.image_shape
    if image_shape is None:
        return square_side(d), square_side(d)
    height, width = (int(side) for side in image_shape)
    if height * width != d:
        raise DataError(f"image_shape {height}×{width} is {height * width} pixels, but rows have {d}")
    return height, width


def pixel_range(rows: Rows) -> tuple[float, float]:
    """Smallest and largest pixel of rows as stored: 0 and 255 where they are of 8 bits, else every row is read.

    Raises
    ------
    DataError
        Pixels that are not numbers, not finite, or too large for float32; names the first such row.
    """
    source = rows.x
    if source.dtype == np.uint8:
        return 0.0, 255.0
    if source.dtype.kind not in "uif":
        raise DataError(f"{rows.name}: expected pixels that are numbers, found dtype {source.dtype}")
    largest = _LARGEST_FLOAT if source.dtype.kind == "f" else _LARGEST_INTEGER
    low, high = np.inf, -np.inf
    for start, stop in pairwise(rows.bounds(settings())):
        x = source.read(start, stop)
        # NaN makes the comparison false
        bad = np.flatnonzero(~((x >= -largest) & (x <= largest)).all(axis=1))
        if bad.size and rows.bad_rows == "skip":
            x = np.delete(x, bad, axis=0)
        elif bad.size:
            raise DataError(
                f"{rows.name}: row {start + int(bad[0])} has a pixel that is not finite or beyond ±{largest:g}; "
                "clean it or leave it out"
            )
        if len(x):
            low, high = min(low, float(x.min())), max(high, float(x.max()))
    return (low, high) if low <= high else (0.0, 0.0)


def virtual_copies(
    X: Any,
    y: Any = None,
    *,
    copies: int = 5,
    seed: int = 0,
    only: Any = "all",
    image_shape: tuple[int, int] | None = None,
    restyling: Restyling | None = None,
) -> Rows:
    """Rows of images as they are, and after them `copies` restyled copies of each chosen one, round by round.

    An image that is copied and its copies share its weight equally, so that nothing counts more than before; columns
    of the image go with its copies, which share its `group` (its number, where there is no such column). Rows 0 … n − 1
    are those of X. Copy number i depends on the image, `seed` and i alone.

    Parameters
    ----------
    X : rows of images: NumPy, Dask or zarr array, Corpus, or Rows (whose row maps are applied to the copies too)
    y : (n,) or None
        Labels; None: the column of X, if any.
    copies : int
        Of each; 0: the rows as they are.
    seed : int
    only : "all", "labelled", or ids (k,) or bool (n,)
        Which rows are copied. "labelled": those with a label, which is neither −1 nor NaN, whatever the type of the
        column; with source and target in one matrix these are the source.
    image_shape : (height, width) or None
        None: that of a corpus, or a square.
    restyling : Restyling or None
        None: its ranges as they are by default, for the range of the pixels, for which the rows are read once unless
        they are of 8 bits. `seed` takes the place of its own.

    Raises
    ------
    DataError
        Rows that are no images of this shape, pixels that are not finite, no row to copy, or no labels to tell.
    ConfigError
        An option out of its range.

    Examples
    --------
    >>> X = np.zeros((4, 64), np.uint8)
    >>> rows = virtual_copies(X, np.array([0, 1, -1, -1]), copies=2, only="labelled")
    >>> len(rows), rows.column("y").tolist(), rows.column("weight").round(2).tolist()
    (8, [0, 1, -1, -1, 0, 1, 0, 1], [0.33, 0.33, 1.0, 1.0, 0.33, 0.33, 0.33, 0.33])
    """
    if copies < 0:
        raise ConfigError(f"copies: expected at least 0, found {copies}")
    rows = _readable(as_rows(X, y))
    n, d = len(rows), rows.stored_width
    height, width = image_shape_of(X, image_shape, d)
    if restyling is None:
        low, high = pixel_range(rows)
        restyling = Restyling(height, width, seed, low=low, high=high)
    elif (restyling.height, restyling.width) != (height, width):
        raise DataError(
            f"restyling: is for images of {restyling.height}×{restyling.width} pixels, found {height}×{width}"
        )
    restyling, ids = replace(restyling, seed=seed), _chosen(rows, only)
    if not copies:
        return rows
    chosen = None if ids is None else Chosen(ids, len(ids))
    n_rows = n + copies * (n if ids is None else len(ids))
    columns: dict[str, Source] = {name: Repeated(source, n, n_rows, chosen) for name, source in rows.columns.items()}
    columns.setdefault("group", Repeated(RowNumbers(n), n, n_rows, chosen))
    weight = rows.columns.get("weight", Ones(n))
    columns["weight"] = SharedWeight(weight, n, n_rows, chosen, share=1 / (copies + 1))
    chunk_rows = chunk_rows_for(d, rows.dtype.itemsize, n_rows)
    made = DeformedSource(rows.x, n, n_rows, chosen, chunk_rows=chunk_rows, deformation=restyling)
    return replace(rows, x=made, columns=columns, name=f"{rows.name} with {copies} copies")


def _readable(rows: Rows) -> Rows:
    """The rows, unless a cluster holds them: a task that makes rows of others cannot ask the cluster for these."""
    if rows.persisted:
        raise DataError(
            f"{rows.name}: a Dask array that is persisted on a cluster; give the array as it was before persist(), or "
            "a zarr array or corpus"
        )
    return rows


def _chosen(rows: Rows, only: Any) -> Array | None:
    if not isinstance(only, str):
        return _sorted_ids(only, len(rows))
    if only == "all":
        return None
    if only != "labelled":
        raise ConfigError(f"only: expected all, labelled, or row ids, found {only!r}")
    source = rows.columns.get("y")
    if source is None:
        raise DataError(f"{rows.name}: only labelled rows are to be copied, and there are no labels")
    step = 2**20
    found = [start + _labelled(source.read(start, min(start + step, len(rows)))) for start in range(0, len(rows), step)]
    ids = np.concatenate([np.zeros(0, np.int64), *found])
    if not len(ids):
        raise DataError(f"{rows.name}: only labelled rows are to be copied, and no row has a label")
    return ids


def styled_domains(
    X: Any, styles: Sequence[Style], *, seed: int = 0, image_shape: tuple[int, int] | None = None
) -> Rows:
    """Rows of images, each redrawn in the style of its domain, with the column `domain` (numbers of the styles).

    Which domain a row is in depends on `seed` and its number alone, and is as likely to be any of them.

    Parameters
    ----------
    X : rows of images, as for `virtual_copies`
    styles : sequence of Style, one a domain
    seed : int
    image_shape : (height, width) or None
        None: that of a corpus, or a square.

    Raises
    ------
    DataError
        Rows that are no images of this shape, or pixels that are not finite.
    ConfigError
        No style.

    Examples
    --------
    >>> rows = styled_domains(np.zeros((6, 64), np.uint8), [Style(), Style(rotation=30)])
    >>> rows.shape, rows.column("domain").tolist()
    ((6, 64), [1, 1, 1, 0, 1, 1])
    """
    rows = _readable(as_rows(X))
    height, width = image_shape_of(X, image_shape, rows.stored_width)
    low, high = pixel_range(rows)
    styling = Styling(height, width, tuple(styles), seed, low, high)
    columns = {**rows.columns, "domain": DomainNumbers(len(rows), styling)}
    source = StyledSource(rows.x, styling)
    if rows.in_memory:  # then so are the results
        return replace(rows, x=NumpySource(source.read(0, len(rows))), columns=columns)
    return replace(rows, x=source, columns=columns)


def restyle(
    X: Array,
    y: Any = None,
    *,
    copies: int = 5,
    seed: int = 0,
    only: Any = "all",
    image_shape: tuple[int, int] | None = None,
    restyling: Restyling | None = None,
) -> tuple[Array, Array | None, Array]:
    """`virtual_copies` of images in memory, as arrays.

    Parameters
    ----------
    X : (n, h·w)
    y : (n,) or None
    copies, seed, only, image_shape, restyling : see `virtual_copies`

    Returns
    -------
    X : (N, h·w), the n images, then round by round copies of the k chosen ones; N = n + copies·k
    y : (N,), their labels, or None
    weight : (N,), 1/(copies + 1) for images that are copied and their copies, 1 for others

    Examples
    --------
    >>> X, y, weight = restyle(np.eye(64), np.arange(64) - 1, copies=2, only="labelled")
    >>> X.shape, y.shape, float(weight.sum().round(9))
    ((190, 64), (190,), 64.0)
    """
    rows = virtual_copies(
        np.asarray(X), y, copies=copies, seed=seed, only=only, image_shape=image_shape, restyling=restyling
    )
    weight = rows.column("weight")
    return rows.x.read(0, len(rows)), rows.column("y"), np.ones(len(rows)) if weight is None else weight


def _labelled(y: Array) -> Array:
    """Ids of the rows that have a label: not −1 and not NaN, as for `Cells`."""
    missing = (y == -1) | (np.isnan(y) if y.dtype.kind == "f" else False)
    return np.flatnonzero(~missing.reshape(len(y), -1).any(axis=1))


def _sorted_ids(only: Any, n: int) -> Array:
    """Row ids given as ids (k,) or as bool (n,), sorted, int64.

    Raises
    ------
    DataError
        Not within n rows, twice the same, or none.
    """
    only = np.asarray(only)
    if only.dtype == bool and only.shape == (n,):
        only = np.flatnonzero(only)
    if only.ndim != 1 or only.dtype.kind not in "iu" or not len(only):
        raise DataError(f"only: expected row ids (k,) or bool ({n},), at least one, found {only.dtype} {only.shape}")
    ids = np.unique(only).astype(np.int64)
    if len(ids) < len(only) or ids[0] < 0 or ids[-1] >= n:
        raise DataError(f"only: expected different row ids of 0 … {n - 1}, found {ids[0]} … {ids[-1]}")
    return ids
