"""Lines of a text file, a quarter of a megabyte at a time, and the numbers in them.

Text is UTF-8, gzip or plain; lines are counted from 1 and end in LF, CRLF or CR within a line of the file.
"""

from __future__ import annotations

from collections.abc import Iterator

from bigkernel.data.readers.source import open_stream
from bigkernel.errors import DataError

_READ_BYTES = 2**18
_MOST_LINE_BYTES = 2**26


def number_in(text: str) -> float | None:
    """A decimal number as C writes it (nan and inf included), else None."""
    try:
        return float(text) if text.isascii() and "_" not in text else None
    except ValueError:
        return None


def lines_of(path: str, *, skip: bool = False, closed: bool = False) -> Iterator[tuple[int, list[str]]]:
    """(number of the first line, lines) a quarter of a megabyte at a time; empty lines are allowed at the end only.

    Parameters
    ----------
    path : str
    skip : pass over line 1
    closed : refuse a last line without its end, which may have been cut

    Raises
    ------
    DataError
        Names path and line: not UTF-8, a line of more than 64 MiB, an empty line between rows.
    """
    number, rest, empty = 1, b"", 0
    with open_stream(path) as stream:
        while True:
            piece = stream.read(_READ_BYTES)
            cut = piece.rfind(b"\n") + 1
            if piece and not cut:
                rest += piece
                if len(rest) > _MOST_LINE_BYTES:
                    raise DataError(f"{path}: line {number}: longer than {_MOST_LINE_BYTES:,} bytes; is this text?")
                continue
            raw, rest = (rest + piece[:cut], piece[cut:]) if piece else (rest, b"")
            if closed and not piece and raw:
                raise DataError(
                    f"{path}: line {number}: the file ends within this line, at {raw[-20:]!r}: it may have been cut; "
                    "copy it again, or end the line if it is whole"
                )
            rows = _decoded(path, number, raw)
            first, number = number, number + len(rows)
            while rows and not rows[-1].strip():
                rows.pop()
            if rows:
                empty = empty or next((at for at, line in enumerate(rows, first) if not line.strip()), 0)
                if empty:
                    raise DataError(f"{path}: line {empty}: an empty line between rows; remove it")
            if first + len(rows) < number:
                empty = empty or first + len(rows)
            if skip and rows:
                first, rows, skip = first + 1, rows[1:], False
            if rows:
                yield first, rows
            if not piece:
                return


def _decoded(path: str, number: int, raw: bytes) -> list[str]:
    try:
        text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        line = number + raw.count(b"\n", 0, error.start)
        raise DataError(
            f"{path}: line {line}: byte {raw[error.start]:#04x} is not UTF-8 text; convert the file to UTF-8"
        ) from None
    if "\0" in text:
        line = number + text.count("\n", 0, text.index("\0"))
        raise DataError(f"{path}: line {line}: a NUL character; this is not text in UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n").split("\n") if text else []
