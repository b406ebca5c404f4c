"""The report of a fit: plain data, which a notebook shows as a table."""

from __future__ import annotations

from typing import Any

import bigkernel


class FitReport(dict[str, Any]):
    """Figures of a fit by name; a dict, and nothing but numbers, text, lists and dicts in it."""

    def _repr_html_(self) -> str:
        return bigkernel._html_of(self)
