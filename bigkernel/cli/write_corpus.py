"""`write_corpus`: a corpus from what Python holds, or makes piece by piece.

Shapes: n rows, d features. Labels are decided as `bigkernel ingest` does: whole numbers and names become classes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any, Literal, Protocol

import dask
import numpy as np
import zarr
from dask.utils import is_dataframe_like
from numpy.typing import NDArray

from bigkernel.cli.label_arguments import Classes, Wanted, checked_classes, checked_labels
from bigkernel.config import settings
from bigkernel.data.corpus import COLUMNS, Corpus, CorpusInfo, CorpusWriter, open_corpus
from bigkernel.data.corpus_arguments import checked_attributes, require_count
from bigkernel.data.labels import AUTO_CLASSES, Labels, survey
from bigkernel.data.targets import require_target
from bigkernel.engine.frames import unwrapped
from bigkernel.engine.make_sources import source_of
from bigkernel.engine.rows import Rows, as_rows
from bigkernel.errors import DataError
from bigkernel.streaming.chunk import Chunk

Array = NDArray[Any]


def write_corpus(
    path: str | os.PathLike[str],
    X: Any,
    y: Any = None,
    *,
    weight: Any = None,
    domain: Any = None,
    group: Any = None,
    classes: Classes = "auto",
    name: str | None = None,
    image_shape: tuple[int, int] | None = None,
    scale: float = 1.0,
    chunk_rows: int | None = None,
    overwrite: bool = False,
) -> Corpus:
    """Write rows and what goes with them as a corpus, chunk by chunk; it appears when it is whole.

    Parameters
    ----------
    path : where the corpus goes; must not exist, unless `overwrite` (then only a corpus is replaced)
    X : (n, d) of numbers, or (n, h, w), which are pictures
        A NumPy, Dask, zarr or xarray array, a frame (pandas, Dask, Arrow), `Rows` or a corpus; a SciPy sparse matrix,
        which is made dense a piece at a time; or an iterator of pieces (k, d), of pairs (X, y) of them, or of mappings
        {"x": …, "y": …, "weight": …}. It is stored in its own dtype; bool as uint8.
    y : labels (n,), or None. Whole numbers and text become classes, as `classes` says, −1 and "-1" among them meaning
        unlabelled; all else is numbers, NaN where there is none.
    weight, domain, group : (n,), or None
    classes : "auto", True, False, or the labels in a sequence
        "auto": whole numbers are classes where at most 1,000 differ. Names that come in pieces must be given: they are
        stored as places in the sorted list of all.
    name : of the corpus; None: that of its directory
    image_shape : (h, w) of a row, where rows are pictures
    scale : divides stored values into the range that is meant (255 for pixels of 8 bits)
    chunk_rows : None: about `bigkernel.chunk-bytes` (8 MB) of rows

    Raises
    ------
    ConfigError
        A name, image shape, scale or chunk_rows that is none; nothing is read or written then.
    DataError
        Rows that are no matrix of finite numbers, columns of other lengths, a target that exists or cannot be written,
        no row at all. Nothing is left at `path` then.
    PlanTooLarge
        The rows do not fit on the disk.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> from bigkernel import write_corpus
    >>> folder = tempfile.TemporaryDirectory()
    >>> corpus = write_corpus(pathlib.Path(folder.name, "ab"), np.eye(3), ["b", "a", "b"])
    >>> corpus.info.classes, corpus[:2], corpus.head(2)["y"].tolist()
    (('a', 'b'), array([[1., 0., 0.],
           [0., 1., 0.]]), ['b', 'a'])
    >>> folder.cleanup()
    """
    given = {"y": y, "weight": weight, "domain": domain, "group": group}
    given = {column: values for column, values in given.items() if values is not None}
    where = os.fspath(path)
    named = os.path.basename(os.path.abspath(path)) if name in (None, "") else name
    attributes, chunk_rows = checked_attributes(named, image_shape, scale), require_count("chunk_rows", chunk_rows)
    wanted = checked_classes(classes)
    if isinstance(X, Iterator):
        if given:
            raise DataError(f"{next(iter(given))}: X comes in pieces; let each piece bring its own, as a pair (X, y)")
        pieces: Iterator[_Piece] = (_piece(f"piece {i} of X", *_parted(piece)) for i, piece in enumerate(X))
        first = next(pieces, None)
        if first is None:
            raise DataError(f"{where}: X gave no piece, so there is no row to write")
        labels = _labels_to_come(first.y, wanted)
        pieces = chain([first], pieces)
    else:
        first = _piece("X", X, given)
        labels = _surveyed(first, wanted)
        pieces = iter([first])
        require_target(path, "the corpus", needed_bytes=int(len(first.rows) * first.rows.row_bytes))
    info = CorpusInfo(**attributes, source="Python")
    if info.image_shape is None:
        info = replace(info, image_shape=first.image_shape)
    else:
        _require_width(info.image_shape, first.rows.shape[1])
    writer = _writer(path, first, labels, info, overwrite, chunk_rows)
    count = 0
    with writer:
        for piece in pieces:
            _require_alike(piece, first)
            for values in piece.blocks(labels):
                writer.append(**values)
                count += values["x"].shape[0]
        if not count:
            raise DataError(f"{where}: there is no row to write")
        writer.info = replace(writer.info, classes=labels.classes if labels else first.rows.classes)
    return open_corpus(path)


@dataclass(frozen=True)
class _Piece:
    """Rows with their columns but for labels `y`, which may be text; `n_rows` is None where more pieces follow."""

    rows: Rows
    y: Any
    image_shape: tuple[int, int] | None

    def blocks(self, labels: _Labelling | None) -> Iterator[dict[str, Array]]:
        """What is stored, a few MB at a time."""
        y = None if self.y is None else source_of(self.y, "y") if _is_lazy(self.y) else self.y
        for start, stop in pairwise(self.rows.bounds(settings())):
            chunk = self.rows.read(start, stop)
            chunk.require_sound(self.rows.name)
            mapped = self._mapped(chunk.x)
            values = {"x": mapped.astype(np.uint8) if mapped.dtype.kind == "b" else mapped}
            for column in self.rows.columns:
                values[column] = getattr(chunk, column)
            if y is not None and labels is not None:
                values["y"] = labels.encode(y[start:stop] if isinstance(y, np.ndarray) else y.read(start, stop))
            yield values

    def _mapped(self, x: Any) -> Any:
        if not self.rows.row_maps:
            return x
        return Chunk(x, row_maps=self.rows.row_maps).load(slice(None), self.rows.shape[1], np.float64).copy()


class _Labelling(Protocol):
    """How labels are stored: as `ingest.labels.Labels`, which were surveyed, or as they come."""

    @property
    def classes(self) -> tuple[int | str, ...]: ...

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def encode(self, y: Array) -> Array: ...


class _Listed(Labels):
    """Labels that the caller has listed."""

    def encode(self, y: Array) -> Array:
        """See `Labels`."""
        try:
            return super().encode(y)
        except DataError:
            other = np.setdiff1d(y, np.array([*self.classes, -1]).astype(y.dtype))[:5]
            raise DataError(f"y: {other.tolist()} are none of the classes {list(self.classes)[:20]}") from None


@dataclass
class _Coming:
    """Labels of pieces, numbers all: what whole ones among them are is decided when all have come."""

    dtype: np.dtype[Any]
    wanted: Literal["auto"] | bool
    seen: set[int] = field(default_factory=set)

    @property
    def classes(self) -> tuple[int | str, ...]:
        """The distinct labels, where they are classes."""
        found = tuple(sorted(self.seen - {-1}))
        return found if self.wanted is True or 1 < len(found) <= AUTO_CLASSES else ()

    def encode(self, y: Array) -> Array:
        """Labels of one piece as they are stored."""
        if y.dtype.kind not in "biuf" or (self.dtype.kind == "i" and y.dtype.kind == "f"):
            raise DataError(f"y: a piece has labels of {y.dtype}, the first had {self.dtype}; make all of one kind")
        if self.dtype.kind == "i" and (self.wanted is True or len(self.seen) <= AUTO_CLASSES + 1):
            self.seen.update(np.unique(y).tolist())
        return y.astype(self.dtype)


def _piece(name: str, X: Any, columns: Mapping[str, Any]) -> _Piece:
    """A piece of what the caller gave, its columns checked against its rows."""
    X, shape = unwrapped(X, name), None
    if len(getattr(X, "shape", ())) == 3 and not isinstance(X, Rows | Corpus):
        if isinstance(X, zarr.Array):
            import dask.array as da

            X = da.from_zarr(X)
        shape = (int(X.shape[1]), int(X.shape[2]))
        X = X.reshape(X.shape[0], shape[0] * shape[1])
    if isinstance(X, Corpus):
        shape = X.info.image_shape
    if is_dataframe_like(X) and (text := [f"{key}: {kind}" for key, kind in X.dtypes.items() if not _is_numeric(kind)]):
        raise DataError(f"{name}: columns that are no numbers ({', '.join(text[:5])}); drop them or encode them")
    y = columns.get("y")
    y = None if y is None else checked_labels(unwrapped(y, "y") if _is_lazy(y) else np.asarray(y))
    rows = as_rows(X, **{column: values for column, values in columns.items() if column != "y"})
    rows = replace(rows, name=name, columns={key: rows.columns[key] for key in COLUMNS if key in rows.columns})
    if y is not None:
        if y.shape != (len(rows),):
            raise DataError(f"y: expected {len(rows)} labels to go with {name}, found shape {y.shape}")
        rows = replace(rows, columns={key: source for key, source in rows.columns.items() if key != "y"}, classes=())
    return _Piece(rows, y, shape)


def _is_numeric(dtype: Any) -> bool:
    """Tell if a column of a frame holds numbers, be they NumPy's, pandas' own or Arrow's."""
    return getattr(dtype, "kind", "O") in "biuf"


def _parted(piece: Any) -> tuple[Any, Mapping[str, Any]]:
    """The rows and the columns of what an iterator gave."""
    if isinstance(piece, Mapping):
        unknown = sorted(set(piece) - {"x", *COLUMNS})
        if "x" not in piece or unknown:
            raise DataError(f"X: a piece has {', '.join(map(str, piece))}; expected x and any of {', '.join(COLUMNS)}")
        return piece["x"], {key: values for key, values in piece.items() if key != "x"}
    if isinstance(piece, tuple):
        if len(piece) != 2:
            raise DataError(f"X: a piece is a tuple of {len(piece)}; expected a pair (X, y)")
        return piece[0], {"y": piece[1]}
    return piece, {}


def _require_alike(piece: _Piece, first: _Piece) -> None:
    """Refuse a piece that has other features or columns than the first."""
    (name, width, columns), (_, wanted, before) = (
        (one.rows.name, one.rows.shape[1], sorted({*one.rows.columns, *(() if one.y is None else "y")}))
        for one in (piece, first)
    )
    if (width, columns) != (wanted, before):
        raise DataError(
            f"{name}: rows of {width} features with {', '.join(columns) or 'no column'}; the first piece had {wanted} "
            f"with {', '.join(before) or 'none'}"
        )


def _is_lazy(y: Any) -> bool:
    return dask.is_dask_collection(y) or isinstance(y, zarr.Array)


def _surveyed(whole: _Piece, classes: Wanted) -> _Labelling | None:
    """How the labels of all rows are stored."""
    if whole.y is None:
        return None
    if isinstance(classes, tuple):
        return _listed(classes)
    if not _is_lazy(whole.y):
        return survey([whole.y], path="y", classes=classes)
    column = source_of(whole.y, "y")
    blocks = (column.read(start, stop) for start, stop in pairwise(whole.rows.bounds(settings())))
    return survey(blocks, path="y", classes=classes)


def _labels_to_come(y: Any, classes: Wanted) -> _Labelling | None:
    """How the labels of pieces are stored, of which `y` are the first."""
    if y is None:
        return None
    if isinstance(classes, tuple):
        return _listed(classes)
    if y.dtype.kind not in "biuf":
        raise DataError(f"y: labels of {y.dtype} come in pieces; give all names that there are: classes=[…]")
    whole = y.dtype.kind in "biu" and classes is not False
    return _Coming(np.dtype(np.int64 if whole else np.float64), classes)


def _listed(classes: Sequence[int | str]) -> Labels:
    """Labels that the caller lists."""
    return _Listed(tuple(sorted({*classes} - {-1, "-1"})), 0, "y")


def _require_width(image_shape: tuple[int, int], width: int) -> None:
    """Refuse pictures of another number of pixels than a row has."""
    height, breadth = image_shape
    if height * breadth != width:
        raise DataError(f"image_shape: pictures of {height} by {breadth} have {height * breadth} pixels, rows {width}")


def _writer(
    path: str | os.PathLike[str],
    first: _Piece,
    labels: _Labelling | None,
    info: CorpusInfo,
    overwrite: bool,
    chunk_rows: int | None,
) -> CorpusWriter:
    """The writer of rows like those of the first piece."""
    rows, width = first.rows, first.rows.shape[1]
    dtype = np.dtype(np.float64) if rows.row_maps else rows.dtype
    dtype = np.dtype(np.uint8) if dtype.kind == "b" else dtype
    if not width:
        raise DataError(f"{rows.name}: rows of 0 features; at least one is needed")
    kinds = {column: source.dtype for column, source in rows.columns.items()}
    if labels is not None:
        kinds["y"] = labels.dtype
    return CorpusWriter(
        path,
        n_features=width,
        dtype=dtype,
        columns=kinds,
        info=info,
        chunk_rows=chunk_rows,
        overwrite=overwrite,
    )
