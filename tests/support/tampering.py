"""Models on disk that are tampered with: each of these gives a function that changes the model at a path.

What is sealed is not sealed again by them, but by `reseal`, as an attacker would; `rewritten` and `poisoned` publish
a model whose checksums and seal are good.
"""

import contextlib
import json
import shutil

import numpy as np

from bigkernel.data import seals, zarr_arrays
from bigkernel.errors import DataError


def reseal(path):
    """Make the seal good again, as an attacker would; what cannot be sealed stays as it is."""
    with contextlib.suppress(DataError, OSError):
        if (path / "zarr.json").is_file():
            seals.write(path)


def edit(change, name="zarr.json"):
    """Change a JSON file of the model: its attributes where it is the group's."""

    def tamper(path):
        file = path / name
        content = json.loads(file.read_text())
        change(content["attributes"]["bigkernel"] if name == "zarr.json" else content)
        file.write_text(json.dumps(content))

    return tamper


def put(*keys):
    """Set a value of the first step: keys …, value."""
    *path, last, value = keys

    def change(attributes):
        here = attributes["steps"][0]
        for key in path:
            here = here[key]
        here[last] = value

    return edit(change)


def drop(*keys):
    """Remove a value of the first step."""

    def change(attributes):
        here = attributes["steps"][0]
        for key in keys[:-1]:
            here = here[key]
        del here[keys[-1]]

    return edit(change)


def without(name):
    """Remove an array with its description."""

    def tamper(path):
        drop("arrays", name)(path)
        shutil.rmtree(path / f"0.{name}")

    return tamper


def claims(shape, chunks, name="landmarks_"):
    """An array that claims to be larger than it is."""

    def tamper(path):
        put("arrays", name, "shape", shape)(path)

        def change(content):
            content["shape"] = shape
            content["chunk_grid"]["configuration"]["chunk_shape"] = chunks

        edit(change, f"0.{name}/zarr.json")(path)

    return tamper


def rewritten(change, name):
    """An array (none: None) as `change` makes it, its description and checksums made good again."""

    def tamper(path):
        stored, attributes = zarr_arrays.read_group(path, "model")
        values = np.asarray(change(stored.get(f"0.{name}")))
        stored[f"0.{name}"] = values
        described = {"shape": list(values.shape), "dtype": values.dtype.str, "sha256": zarr_arrays.digest({"": values})}
        attributes["steps"][0]["arrays"][name] = described
        attributes.pop("kind")
        zarr_arrays.publish(path, "model", stored, attributes, overwrite=True)

    return tamper


def poisoned(value, name="dual_coef_"):
    """An array with a value in it, its checksums made good again."""

    def change(values):
        values = values.copy()
        values.flat[1] = value
        return values

    return rewritten(change, name)


def deep(path):
    content = (path / "zarr.json").read_text()
    (path / "zarr.json").write_text(content.replace('"format": 2', '"format": ' + "[" * 10**5 + "]" * 10**5))
