"""Figures in words, one way each: time spans, sizes, rates, shares and settings; – where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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


def measured(value: float | None, unit: str) -> str:
    """A quantity to three digits, with a power of a thousand before its unit: "121 GFLOP/s", "2.15 GB"."""
    if value is None:
        return MISSING
    power = 0
    while value >= 999.5 and power < len(_POWERS) - 1:
        value, power = value / 1000, power + 1
    return f"{value:,.0f} {_POWERS[power]}{unit}" if value >= 99.5 else f"{value:.3g} {_POWERS[power]}{unit}"


def size(count: float | None) -> str:
    """Bytes: "630 MB", "2.15 GB"."""
    return measured(count, "B")


def percent(part: float, whole: float = 1.0) -> str:
    """ "52 %"; – of nothing."""
    return f"{100 * part / whole:,.0f} %" if whole > 0 else MISSING


def readable(name: str, value: Any) -> str:
    """A figure for people, with the unit that its name ends in; kernels as they are called."""
    if value is None:
        return MISSING
    if isinstance(value, Mapping) and "name" in value:  # a kernel
        rest = (f"{key}={readable(key, item)}" for key, item in value.items() if key != "name")
        return f"{value['name']}({', '.join(rest)})"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {readable(name, item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(readable(name, item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if "bytes" in name and isinstance(value, int):
        return size(value)
    if name == "flops":
        return measured(value, "FLOP")
    if isinstance(value, float):
        return duration(value) if "seconds" in name else f"{value:,.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
