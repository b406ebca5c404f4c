"""The option --transform: a row transform by its name, with parameters.

    unit-norm    project:n-components=300    moments:spread=0.25,aspect=0.3

Its value is parsed here without any library; `steps` makes estimators.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from bigkernel.errors import ConfigError

if TYPE_CHECKING:
    from bigkernel.data.corpus import Corpus

TRANSFORMS = {
    "scale": "Rescaler",
    "unit-norm": "UnitNormalizer",
    "standardize": "Standardizer",
    "project": "Projector",
    "metric": "LearnedMetric",
    "moments": "MomentNormalizer",
    "orientations": "OrientationFeatures",
}


class Transform(click.ParamType):
    """NAME or NAME:KEY=VALUE,KEY=VALUE; a validated text."""

    name = "transform"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            read(value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        return str(value)


def read(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the parameters in a text.

    >>> read("project:n-components=300,whiten=yes")
    ('project', {'n_components': 300, 'whiten': True})
    """
    name, _, given = text.partition(":")
    if name not in TRANSFORMS:
        raise ConfigError(f"{name!r} is not one of {', '.join(map(repr, TRANSFORMS))}")
    parameters: dict[str, Any] = {}
    for setting in given.split(",") if given else []:
        key, equals, value = setting.partition("=")
        if not (key and equals and value):
            raise ConfigError(f"{text!r}: expected NAME:KEY=VALUE,KEY=VALUE, found {setting!r}")
        if (key := key.replace("-", "_")) in parameters:
            raise ConfigError(f"{text!r}: expected every parameter once, found {setting!r} twice")
        parameters[key] = _value(value)
    return name, parameters


def _value(text: str) -> Any:
    """Parse a whole number, a number, yes or no, or a word."""
    if text in ("yes", "no"):
        return text == "yes"
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text
    return text


def steps(texts: Sequence[str], corpus: Corpus) -> list[tuple[str, Any]]:
    """Return the transforms of the option as named steps of a Pipeline, not fitted."""
    from bigkernel import estimators
    from bigkernel.estimators.inputs.checks import require_valid

    named: dict[str, Any] = {}
    for name, given in map(read, texts):
        if name in named:
            raise ConfigError(f"--transform {name}: expected once, found twice")
        named[name] = made = getattr(estimators, TRANSFORMS[name])()
        known = {"image_shape": corpus.info.image_shape, "factor": 1 / corpus.info.scale, "random_state": 0}
        own = {key: value for key, value in known.items() if key in made.get_params()}
        try:
            made.set_params(**own | given)
        except ValueError as error:
            raise ConfigError(f"--transform {name}: {error}") from error
        require_valid(made, f"--transform {name}")
    return list(named.items())
