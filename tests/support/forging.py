"""Forged model files: changed, with correct checksums."""

import json
import zlib

_SUM_AT = len('{"__metadata__":{"crc32":"')


def parts_of(path):
    """Return header, values and array bytes of a model file."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + length]), bytearray(content[8 + length :])
    return header, json.loads(header["__metadata__"]["values"]), data


def write_parts(path, header, values, data):
    """Write them with correct checksums."""
    metadata = dict(header["__metadata__"], crc32="00000000", values=json.dumps(values))
    places = {name: entry.get("data_offsets") for name, entry in header.items() if name != "__metadata__"}
    metadata["arrays"] = json.dumps({name: zlib.crc32(data[slice(*place)]) for name, place in places.items()})
    header = {"__metadata__": {"crc32": metadata.pop("crc32"), **metadata}, **{n: header[n] for n in places}}
    content = json.dumps(header, separators=(",", ":")).encode()
    content = content[:_SUM_AT] + f"{zlib.crc32(content):08x}".encode() + content[_SUM_AT + 8 :]
    path.write_bytes(len(content).to_bytes(8, "little") + content + data)


def forge(path, change):
    """Change a file in place by `change(header, values, data)`."""
    header, values, data = parts_of(path)
    change(header, values, data)
    write_parts(path, header, values, data)


def put(*keys):
    """Set a value of the description: keys …, value."""
    *path, last, value = keys

    def change(header, values, data):
        for key in path:
            values = values[key]
        values[last] = value

    return change


def drop(*keys):
    """Remove a value of the description."""

    def change(header, values, data):
        for key in keys[:-1]:
            values = values[key]
        del values[keys[-1]]

    return change


def number(name, value, at=0):
    """Set a number (float64) of an array."""
    import numpy as np

    def change(header, values, data):
        start = header[name]["data_offsets"][0] + 8 * at
        data[start : start + 8] = np.float64(value).tobytes()

    return change


def reshaped(name, *shape):
    """Give an array another shape."""
    return lambda header, values, data: header[name].update(shape=list(shape))
