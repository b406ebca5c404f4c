"""The report of a fit: plain data, which a notebook shows as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bigkernel.html import columns, folded, table


class FitReport(dict[str, Any]):
    """Figures of a fit by name; a dict, and nothing but numbers, text, lists and dicts in it."""

    def _repr_html_(self) -> str:
        """Return a table of the figures; nested ones are folded, and lists of alike ones are tables."""
        nested = {name: value for name, value in self.items() if isinstance(value, Mapping) and name != "kernel"}
        lists = {name: value for name, value in self.items() if _is_table(value)}
        plain = {name: value for name, value in self.items() if name not in (*nested, *lists, "estimator")}
        return (
            table(str(self.get("estimator", "fit")), plain)
            + "".join(folded(name, table(name, value)) for name, value in nested.items() if value)
            + "".join(
                folded(name, columns(list(value[0]), [list(line.values()) for line in value]))
                for name, value in lists.items()
            )
        )


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(line, Mapping) for line in value)
