"""How model files hold a penalty for each target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from bigkernel.estimators.file_content import Content
from bigkernel.estimators.state_schema import Entry, PenaltyNumber


@dataclass(frozen=True)
class Penalties(PenaltyNumber):
    """A penalty, or a list of one for each of several targets."""

    def read(self, content: Content) -> Any:
        """See `Entry`."""
        value = content.values.get(self.name)
        if not isinstance(value, list) or len(value) < 2:
            return super().read(content)
        if not all(isinstance(one, float) and 0 <= one < math.inf for one in value):
            return super().read(content)
        if content.sizes.setdefault("c", len(value)) != len(value):
            raise content.refuse(f"{self.name} must have a penalty for each target, found {len(value)}")
        return np.array(content.values.pop(self.name))


def per_target(schema: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The schema of an estimator that may have a penalty for each target."""
    return tuple(Penalties(one.name, one.path) if isinstance(one, PenaltyNumber) else one for one in schema)
