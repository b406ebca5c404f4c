"""What is said of a corpus when it is written: what `open_corpus` would refuse is refused before anything is done."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bigkernel.errors import ConfigError


def checked_attributes(name: Any, image_shape: Any, scale: Any) -> dict[str, Any]:
    """The name, image shape and scale of a corpus as plain str, two ints (or None) and float.

    Raises
    ------
    ConfigError
        A name that is no str, sides that are not two whole numbers from 1, a scale that is no finite number above 0.
    """
    if not isinstance(name, str):
        raise ConfigError(f"name: expected a str, found {name!r}")
    if image_shape is not None:
        sides = tuple(image_shape) if isinstance(image_shape, tuple | list | np.ndarray) else ()
        if len(sides) != 2 or not all(is_count(side) for side in sides):
            raise ConfigError(f"image_shape: expected (height, width), two whole numbers from 1, found {image_shape!r}")
        image_shape = int(sides[0]), int(sides[1])
    plain = isinstance(scale, int | float | np.integer | np.floating) and not isinstance(scale, bool)
    try:
        divisor = float(scale) if plain else math.nan
    except OverflowError:
        divisor = math.inf
    if not 0 < divisor < math.inf:
        raise ConfigError(f"scale: expected a finite number above 0, found {scale!r}")
    return {"name": str(name), "image_shape": image_shape, "scale": divisor}


def require_count(name: str, value: Any) -> int | None:
    """A whole number from 1 as an int, or None as it is.

    Raises
    ------
    ConfigError
        Anything else.
    """
    if value is not None and not is_count(value):
        raise ConfigError(f"{name}: expected a whole number from 1, or None, found {value!r}")
    return None if value is None else int(value)


def is_count(value: Any) -> bool:
    """Tell a whole number from 1; True is none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)
