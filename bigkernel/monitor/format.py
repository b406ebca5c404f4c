"""Figures in words, one way each: time spans, quantities, sizes, rates and settings; – where there is none.

`duration`, `size` and `flops_rate` are for whoever reads; `spell` and `quantity` say the same in the few letters that a
column of a terminal or an axis has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bigkernel import html

MISSING = "–"
_POWERS = ("", "k", "M", "G", "T", "P")


def duration(seconds: float | None) -> str:
    """A time span in at most two units: "0.4 ms", "40 ms", "4.2 s", "42 s", "3 min 20 s", "2 h 05 min", "3 days"."""
    if seconds is None:
        return MISSING
    if seconds < 0.0995:
        thousandths = 1e3 * max(0.0, seconds)
        return f"{thousandths:.0f} ms" if thousandths >= 9.95 or not thousandths else f"{thousandths:.1f} ms"
    if seconds < 9.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole, minutes, hours = round(seconds), round(seconds / 60), round(seconds / 3600)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60:02d} s" if whole % 60 else "")
    if minutes < 24 * 60:
        return f"{minutes // 60} h" + (f" {minutes % 60:02d} min" if minutes % 60 else "")
    return f"{hours // 24} {'day' if hours < 48 else 'days'}" + (f" {hours % 24} h" if hours % 24 else "")


def spell(seconds: float) -> str:
    """A time span in at most six letters: "45s", "2m13s", "3h05m", "5d18h"."""
    whole = round(max(0.0, seconds))
    if whole < 100:
        return f"{whole}s"
    if whole < 100 * 60:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 100 * 3600:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400:,}d{whole % 86400 // 3600:02d}h"


def left_of(low: float, high: float | None = None) -> str:
    """A time that is left, or between two, in few letters: "40s-2m40s left"."""
    first, last = spell(low), spell(low if high is None else high)
    return f"{first} left" if first == last else f"{first}-{last} left"


def quantity(value: float) -> str:
    """A number in at most five letters, with k, M, G, T or P for powers of a thousand: "950", "61.4k", "8.7M"."""
    value, power = _scaled(value)
    digits = 0 if not power or value >= 99.95 or value == round(value) else 1
    return f"{value:,.{digits}f}{power}"


def _scaled(value: float) -> tuple[float, str]:
    power = 0
    while value >= 999.5 and power < len(_POWERS) - 1:
        value, power = value / 1000, power + 1
    return value, _POWERS[power]


def size(count: float | None) -> str:
    """Bytes, to three digits: "630 MB", "2.15 GB"."""
    return _measured(count, "B")


def flops(count: float | None) -> str:
    """Floating-point operations, to three digits: "5.67 GFLOP"."""
    return _measured(count, "FLOP")


def flops_rate(value: float | None) -> str:
    """Floating-point operations a second, to three digits: "121 GFLOP/s", "4.32 GFLOP/s"."""
    return _measured(value, "FLOP/s")


def _measured(value: float | None, unit: str) -> str:
    if value is None:
        return MISSING
    value, power = _scaled(value)
    return f"{value:,.0f} {power}{unit}" if value >= 99.5 else f"{value:.3g} {power}{unit}"


def percent(part: float, whole: float = 1.0) -> str:
    """ "52 %"; – of nothing."""
    return f"{100 * part / whole:,.0f} %" if whole > 0 else MISSING


def plainly(value: Any) -> str:
    """A setting: kernels as they are called, numbers to six digits."""
    if value is None:
        return MISSING
    if isinstance(value, Mapping):
        rest = ", ".join(f"{key} = {plainly(item)}" for key, item in value.items() if key != "name")
        return f"{value['name']}({rest})" if "name" in value else rest
    if isinstance(value, list | tuple):
        return ", ".join(plainly(item) for item in value)
    return f"{value:.6g}" if isinstance(value, float) else html.readable("", value)
