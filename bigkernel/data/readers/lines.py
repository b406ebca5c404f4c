"""Lines of a text file, a quarter of a megabyte at a time, and the numbers in them.

Text is UTF-8, gzip or plain; lines are counted from 1.
"""

from __future__ import annotations

from collections.abc import Iterator

from bigkernel.data.readers.source import open_stream
from bigkernel.errors import DataError

_READ_BYTES = 2**18
_MOST_LINE_BYTES = 2**26


def number_in(text: str) -> float | None:
    """Return a decimal number as C writes it (nan and inf included), else None."""
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def lines_of(path: str, *, closed: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yield (number of the first line, lines), a quarter of a megabyte at a time; empty lines are among them.

    Parameters
    ----------
    path : str
    closed : refuse a last line without its end, which may have been cut

    Raises
    ------
    DataError
        Names path and line: not UTF-8, or a line of more than 64 MiB.
    """
    number, rest = 1, b""
    with open_stream(path) as stream:
        while piece := stream.read(_READ_BYTES):
            whole, end, after = piece.rpartition(b"\n")
            if not end:
                rest += piece
                if len(rest) > _MOST_LINE_BYTES:
                    raise DataError(f"{path}: line {number}: longer than {_MOST_LINE_BYTES:,} bytes; is this text?")
                continue
            lines = _decoded(path, number, rest + whole)
            yield number, lines
            number, rest = number + len(lines), after
    if rest and closed:
        raise DataError(
            f"{path}: line {number}: the file ends within this line, at {rest[-20:]!r}: it may have been cut; copy it "
            "again, or end the line if it is whole"
        )
    if rest:
        yield number, _decoded(path, number, rest)


def _decoded(path: str, number: int, raw: bytes) -> list[str]:
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line = number + raw.count(b"\n", 0, error.start)
        raise DataError(f"{path}: line {line}: not UTF-8 text; convert the file to UTF-8") from None
    if "\0" in text:
        line = number + text.count("\n", 0, text.index("\0"))
        raise DataError(f"{path}: line {line}: a NUL character; this is not text in UTF-8")
    return text.replace("\r", "").split("\n")
