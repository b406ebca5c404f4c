"""The command `bigkernel ingest`: a corpus from files, folders and stores."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from bigkernel.cli.data import describe
from bigkernel.cli.options import bad_rows_option, json_option, overwrite_option, say, table_options, text_options
from bigkernel.data.atomic_write import remove_at_once, require_target
from bigkernel.data.readers import FORMATS, Source, is_table_file, learn_encoding, open_source
from bigkernel.errors import ConfigError
from bigkernel.monitor.terminal.figures import show

if TYPE_CHECKING:
    from bigkernel.data.corpus import Corpus
    from bigkernel.data.table import TableEncoding

_CLASSES: dict[str, Literal["auto"] | bool] = {"auto": "auto", "classes": True, "numbers": False}
_OF_TABLES = {name: name for name in ("target", "drop", "delimiter", "decimal", "header")} | {"id": "id-column"}
_ID_NAME = re.compile(r"(?i:id|index|.*[_ ]id)|.*[a-z]I[Dd]")
_MOST_IDS = 5_000_000  # to compare in memory
_FORMATS = "\n".join(f"  {name:<8} {text}" for name, text in FORMATS.items())
_EPILOG = f"""\b
Formats (auto: by the first bytes, then by the name; text may be compressed):
{_FORMATS}

\b
Examples:
  bigkernel ingest train-images-idx3-ubyte.gz train.corpus
  bigkernel ingest usps.npz mnist.npz both.corpus        domain 0 and 1
  bigkernel ingest rows.libsvm.gz rows.corpus            stored dense
  bigkernel ingest rows.csv all.corpus --target kind --split test=0.1
  bigkernel ingest rows.csv c.corpus --id-column id --on-bad-rows skip
  bigkernel ingest flights.csv f.corpus --encode --split test=0.1
  bigkernel ingest https://host/store.zarr c.corpus --x data --y none
"""


@click.command(epilog=_EPILOG)
@click.argument("sources", type=click.Path(), nargs=-1, required=True, metavar="SOURCE...")
@click.argument("corpus", type=click.Path())
@click.option("--format", type=click.Choice(["auto", *FORMATS]), default="auto", show_default=True)
@click.option(
    "--labels", type=click.Path(), multiple=True, help="idx, npy: label file of each source; or none [detected]."
)
@table_options
@click.option("--encode", is_flag=True, help="csv, parquet: encode text, dates and missing values; see below.")
@click.option("--encode-as", type=click.Path(), metavar="PATH", help="Encode as another corpus, or a model, does.")
@click.option("--group-column", "group", help="csv, parquet: column of the groups (rows that belong together).")
@click.option("--id-column", "id", help="csv, parquet: column of ids, whole numbers or text, that predictions repeat.")
@text_options
@click.option("--x", help="npz, zarr: name of the matrix [the largest; x].")
@click.option("--y", help="npz, zarr: name of the labels, or none.")
@click.option("--features", type=click.IntRange(1), help="libsvm: number of features [the largest index].")
@click.option("--zero-based", is_flag=True, help="libsvm: indices start at 0.")
@click.option("--dtype", help="Store rows as this dtype [as in the source].")
@bad_rows_option
@click.option(
    "--split",
    multiple=True,
    metavar="NAME=SHARE",
    help="Put a share of the rows, chosen by a hash, into CORPUS-NAME; may be repeated.",
)
@click.option("--split-by", type=click.Choice(["row", "group"]), default="row", show_default=True)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the split.")
@click.option("--chunk-rows", type=click.IntRange(1), help="Rows per chunk [about 8 MB of rows].")
@click.option("--name", help="Name of the corpus [that of the first source].")
@overwrite_option
@json_option
def ingest(
    sources: tuple[str, ...], corpus: str, labels: tuple[str, ...], labels_are: str, on_bad_rows: str,
    encode: bool, encode_as: str | None, split: tuple[str, ...], split_by: Literal["row", "group"], seed: int,
    chunk_rows: int | None, name: str | None, overwrite: bool, as_json: bool, **reading: Any,
) -> None:  # fmt: skip
    """Read each SOURCE (file, folder or URL) into one corpus at CORPUS.

    Rows are streamed: memory does not depend on the size of a file. A damaged source ends with an error that names the
    file and the row (of data, from 0), and leaves no corpus; only a text file truncated within its last number is not
    detected (csv). Several sources must agree in features and dtype; the column `domain` numbers them from 0.
    With --encode columns of text and dates become numbers, as `TableEncoder` does it, and missing values medians. What
    was learned is kept with the corpus and with models fitted to it: bigkernel predict MODEL new.csv.
    With --split or --on-bad-rows skip the column `row` keeps the row of the source; over several it counts on.
    """
    from bigkernel.data.corpus import open_corpus
    from bigkernel.data.ingest import ingest as ingest_sources
    from bigkernel.data.readers.source import SkippedRows
    from bigkernel.data.write_corpus import Split, split_path
    from bigkernel.monitor.terminal.bar import bar

    if len(labels) not in (0, len(sources)) and labels != ("none",):
        raise click.UsageError(
            f"--labels: expected one file for each of {len(sources)} sources, or none, found {len(labels)}"
        )
    if split_by == "group" and not split:
        raise click.UsageError("--split-by needs --split NAME=SHARE")
    require_target(corpus, "the corpus")
    start = time.perf_counter()
    shares = Split(_shares(split), split_by, seed) if split else None
    # a file of labels for each source, or one word for all
    each = labels if len(labels) == len(sources) else labels * len(sources) or (None,) * len(sources)
    reading["skipped"] = skipped = SkippedRows() if on_bad_rows == "skip" else None
    if encode or encode_as:
        reading["encode"] = _encoding(sources, encode_as, reading)
    opened = [open_source(path, labels=file, **reading) for path, file in zip(sources, each, strict=True)]
    what = os.path.basename(opened[0].path.rstrip("/")) + (f" and {len(opened) - 1} more" if len(opened) > 1 else "")
    with bar(f"ingest {what}", enabled=not as_json) as update:
        made = ingest_sources(
            opened,
            corpus,
            name=name,
            overwrite=overwrite,
            classes=_CLASSES[labels_are],
            split=shares,
            chunk_rows=chunk_rows,
            progress=update,
        )
    formats = ", ".join(dict.fromkeys(source.format for source in opened))
    figures: dict[str, Any] = {"format": formats, **describe(made, as_json=as_json)}
    if skipped is not None:
        figures |= {"skipped_rows": skipped.count}
        if skipped.first:
            figures["first_skipped" if as_json else "first_skipped_(rows_from_0)"] = skipped.first
    parts = {share: open_corpus(split_path(corpus, share)) for share in (shares.shares if shares else ())}
    figures |= {
        f"share {share}": f"{part.n_rows:,} rows in {split_path(corpus, share)}" for share, part in parts.items()
    }
    other = "numbers" if made.info.classes else "classes"
    ambiguous = bool(made.info.classes) or figures.get("labels_are") == "whole numbers"
    if labels_are == "auto" and ambiguous and not as_json and str not in set(map(type, made.info.classes)):
        figures["labels_are"] += f" (change it by --labels-are {other})"
    notes = _notes(opened, made, figures) + _notes_of_ids([made, *parts.values()])
    figures |= {"notes": notes} if as_json else {}
    show({**figures, "seconds": time.perf_counter() - start}, as_json=as_json, title=corpus)
    for note in () if as_json else notes:
        say(note)


def open_rows(path: str, beside: str, encode: TableEncoding | None = None, **options: Any) -> Corpus:
    """Open a corpus, or a table as one beside a path until the command ends; see `_as_corpus`."""
    from bigkernel.data.corpus import open_corpus

    if is_table_file(path):
        path = click.get_current_context().with_resource(_as_corpus(path, beside, encode, **options))
    elif given := [name for name in _OF_TABLES if options.get(name) not in (None, (), "none")]:
        raise click.UsageError(f"--{_OF_TABLES[given[0]]}: is of tables, and {path} is none")
    return open_corpus(path)


@contextmanager
def _as_corpus(
    path: str, beside: str, encode: TableEncoding | None, *, quiet: bool, labels_are: str = "auto", **reading: Any
) -> Iterator[str]:
    """Yield the path of the rows of a table, as numbers as `encode` says or is learned; say what was chosen."""
    from bigkernel.data.ingest import ingest as ingest_sources
    from bigkernel.data.run_lock import claimed
    from bigkernel.monitor.terminal.bar import bar

    place = Path(os.path.abspath(beside)).with_name(f".{Path(beside).name}-rows.corpus")
    with claimed(place, "the rows of a table"):
        try:
            source = open_source(path, encode=encode or _encoding((path,), None, reading), **reading)
            with bar(f"read {os.path.basename(path)}", enabled=not quiet) as update:
                made = ingest_sources(source, place, overwrite=True, classes=_CLASSES[labels_are], progress=update)
            figures = describe(made, as_json=False)
            notes = _notes([source], made, figures) + ([] if encode else _notes_of_ids([made], keeps=False))
            if source.labelled and not encode:
                other = "numbers" if made.info.classes else "classes"
                notes += [f"{made.info.target!r} has {figures['labels_are']}; for {other} --labels-are {other}"]
            for note in () if quiet else notes:
                say(f"{path}: {note}", err=True)
            yield str(place)
        finally:
            remove_at_once(place)


def _encoding(sources: tuple[str, ...], encode_as: str | None, reading: dict[str, Any]) -> TableEncoding:
    """Return how a corpus or model encodes tables, or learn it from the sources."""
    if encode_as is None:
        return learn_encoding([open_source(path, **{**reading, "encode": True}) for path in sources])
    from bigkernel.cli.describe import encoding_at

    return encoding_at(encode_as)


def _notes(opened: list[Source], made: Corpus, figures: dict[str, Any]) -> list[str]:
    """Return what was chosen in reading, and what labels lack."""
    from bigkernel.data.labels import looks_missing

    notes = list(dict.fromkeys(note for source in opened for note in source.notes))
    labels = made.info.classes or {*figures.get("labels", {}).values()}
    if len(labels) == 1:
        notes.append("all rows have one label; --target (--y) names another column")
    if unlabelled := figures.get("unlabelled"):
        notes.append(f"{unlabelled:,} rows without a label: unlabelled")
    odd = filter(looks_missing, made.info.classes)
    advice = "looks like a missing label; for rows without a label, write -1 or leave the cell empty"
    return notes + [f"class {label!r} {advice}" for label in odd]


def _notes_of_ids(made: list[Corpus], *, keeps: bool = True) -> list[str]:
    """Return what may be wrong with the ids of corpora of one source, which may keep them, or is called like ids."""
    info = made[0].info
    if "id" not in made[0].columns:
        feature = next(filter(_ID_NAME.fullmatch, info.feature_names), "")
        column = shlex.quote(feature)
        advice = f"keep it as the id: --id-column {column}, or " * keeps + f"leave it out: --drop {column}"
        return [f"column {feature!r} is called like an id and is a feature; {advice}"] if feature else []
    if (rows := sum(one.n_rows for one in made)) > _MOST_IDS:
        return [f"column {info.id_column!r}: not checked for repeated ids, as there are more than {_MOST_IDS:,}"]
    repeated = rows - len({one for corpus in made for one in corpus.column("id").tolist()})
    joined = "predictions cannot be joined by them one to one"
    return [f"column {info.id_column!r}: {repeated:,} repeated ids; {joined}"] if repeated else []


def _shares(pairs: tuple[str, ...]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for pair in pairs:
        name, _, share = pair.partition("=")
        try:
            number = float(share)
        except ValueError:
            raise ConfigError(f"split: expected NAME=SHARE, such as test=0.1, found {pair!r}") from None
        if name in shares:
            raise ConfigError(f"split: {name!r} is given twice")
        shares[name] = number
    return shares
