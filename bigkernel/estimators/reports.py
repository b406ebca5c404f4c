"""The report of a fit: plain data, which a notebook shows as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bigkernel.html import columns, folded, table


class FitReport(dict[str, Any]):
    """Figures of a fit by name; a dict, and nothing but numbers, text, lists and dicts in it."""

    def _repr_html_(self) -> str:
        """Return a table of the figures; nested ones are folded, and lists of alike ones are tables."""
        plain, nested, tables = {}, "", ""
        for name, value in self.items():
            if isinstance(value, Mapping) and name != "kernel":
                nested += folded(name, table(name, value)) if value else ""
            elif isinstance(value, list) and value and all(isinstance(line, Mapping) for line in value):
                tables += folded(name, columns(list(value[0]), [list(line.values()) for line in value]))
            elif name != "estimator":
                plain[name] = value
        return table(str(self.get("estimator", "fit")), plain) + nested + tables
