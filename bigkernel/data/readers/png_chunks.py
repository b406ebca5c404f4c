"""The chunks of a PNG file, looked through before an image decoder sees them.

Decoders forgive much: missing rows become zeros, and not every checksum is compared. Here every chunk must have its
CRC, the pixel data must be one zlib stream of exactly the bytes that the head announces, and nothing may follow the
end. A file is read in pieces, and no more is decompressed than the image has. Format: https://www.w3.org/TR/png-3
(chunks, 5.3; passes of interlaced images, 8.1; pixel data, 10).
"""

from __future__ import annotations

import struct
import zlib
from typing import BinaryIO

from bigkernel.errors import DataError

MAGIC = b"\x89PNG\r\n\x1a\n"
DAMAGED = "a damaged or cut PNG image"
DEPTHS = {0: (1, 2, 4, 8, 16), 2: (8, 16), 3: (1, 2, 4, 8), 4: (8, 16), 6: (8, 16)}  # bits by colour type
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
_WHOLE = ((0, 0, 1, 1),)  # passes: first row and column, steps of rows and columns
_ADAM7 = (
    *((0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4)),
    *((2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)),
)
_PIECE_BYTES = 2**16


def pixel_bytes(height: int, width: int, bits: int, colour: int, *, interlaced: bool) -> int:
    """Bytes of the pixel data of an image once decompressed: its rows in whole bytes, one byte for the filter of each.

    Parameters
    ----------
    height, width : pixels
    bits : of a sample
    colour : colour type, a key of `DEPTHS`
    interlaced : in seven passes (Adam7), each an image of its own, without those that have no pixel
    """
    total = 0
    for row, column, down, across in _ADAM7 if interlaced else _WHOLE:
        rows, columns = -(-(height - row) // down), -(-(width - column) // across)
        if rows > 0 and columns > 0:
            total += rows * (1 + -(-columns * bits * _CHANNELS[colour] // 8))
    return total


def require_whole(path: str, expected_bytes: int) -> None:
    """Refuse a PNG file that is damaged or cut, or whose pixel data are not `expected_bytes` once decompressed.

    Raises
    ------
    DataError
        Names the path, the byte where the chunk in question begins, and what is wrong with it.
    OSError
        The file cannot be read.
    """
    with open(path, "rb") as file:
        _Walk(path, file, expected_bytes).run()


class _Walk:
    """One pass over the chunks of an open file."""

    def __init__(self, path: str, file: BinaryIO, expected_bytes: int) -> None:
        self._path, self._file, self._expected = path, file, expected_bytes
        self._pixels, self._found = zlib.decompressobj(), 0
        self._at = len(MAGIC)  # where the present chunk begins
        self._before = b""

    def run(self) -> None:
        self._file.seek(self._at)
        begun = False
        while self._before != b"IEND":
            kind = self._chunk(begun)
            begun, self._before = begun or kind == b"IDAT", kind
        if self._file.read(1):
            raise self._fault("more follows the end of the image")
        if self._found < self._expected or not self._pixels.eof:
            found = f"{self._found:,} bytes of pixels" + ("" if self._pixels.eof else " in a stream without its end")
            raise DataError(
                f"{self._path}: {DAMAGED}: {found}, but its head announces {self._expected:,}; write it again"
            )

    def _chunk(self, begun: bool) -> bytes:
        """Read the chunk at hand; its type."""
        length, kind = struct.unpack(">I4s", self._read(8))
        if kind == b"IDAT" and begun and self._before != b"IDAT":
            raise self._fault("pixel data after another chunk")
        crc, left = zlib.crc32(kind), length
        while left:
            piece = self._read(min(left, _PIECE_BYTES))
            crc, left = zlib.crc32(piece, crc), left - len(piece)
            if kind == b"IDAT":
                self._inflate(piece)
        if struct.pack(">I", crc) != self._read(4):
            raise self._fault(f"the checksum of its chunk {kind.decode('latin-1')!r} does not fit")
        self._at += 12 + length
        return bytes(kind)

    def _inflate(self, piece: bytes) -> None:
        try:
            # one byte more than expected tells that there are more; a limit of 0 would be none
            self._found += len(self._pixels.decompress(piece, self._expected - self._found + 1))
        except zlib.error as error:
            raise self._fault(f"its pixel data cannot be decompressed ({error})") from error
        if self._found > self._expected or self._pixels.unused_data:
            raise self._fault(f"more pixel data than the {self._expected:,} bytes that its head announces")

    def _read(self, count: int) -> bytes:
        found = self._file.read(count)
        if len(found) < count:
            raise self._fault("the file ends within this chunk")
        return found

    def _fault(self, what: str) -> DataError:
        return DataError(f"{self._path}: {DAMAGED}: byte {self._at}: {what}; write it again")
