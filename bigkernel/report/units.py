"""Figures of a report in words: bytes, rates, durations, moments, settings; – where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from bigkernel.report.page import MISSING


def moment(time: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Local time for people; – where it is no time."""
    try:
        return datetime.fromtimestamp(time).strftime(form)
    except (OverflowError, OSError, ValueError, TypeError):
        return MISSING


def plainly(value: Any) -> str:
    """A setting: kernels as they are called, numbers to six digits; – for none."""
    if value is None:
        return MISSING
    if isinstance(value, Mapping):
        rest = ", ".join(f"{key} = {plainly(item)}" for key, item in value.items() if key != "name")
        return f"{value['name']}({rest})" if "name" in value else rest
    if isinstance(value, list | tuple):
        return ", ".join(plainly(item) for item in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def in_bytes(count: float | None) -> str:
    """Bytes with a unit: "334 MB"; – for none."""
    if not count:
        return MISSING
    unit, size = next(
        ((u, s) for u, s in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)) if count >= s), ("B", 1)
    )
    return f"{count / size:.0f} {unit}" if count / size >= 100 else f"{count / size:.3g} {unit}"


def in_flops(count: float | None) -> str:
    """Floating-point operations with a unit: "5.67 GFLOP"; – for none."""
    if not count:
        return MISSING
    unit, size = next(((u, s) for u, s in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)) if count >= s), ("", 1.0))
    return f"{count / size:.3g} {unit}FLOP"


def per_second(rate: float | None) -> str:
    """A rate: "7.62 GFLOP/s"; – for none."""
    return f"{in_flops(rate)}/s" if rate else MISSING


def count(number: float | None) -> str:
    """A whole number; – for none."""
    return MISSING if number is None else f"{number:,.0f}"


def duration(seconds: float | None) -> str:
    """Seconds: "0.003 s", "12.3 s", "125 s", "1,204 s"; – for none."""
    if not seconds:
        return MISSING
    return f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s" if seconds < 100 else f"{seconds:,.0f} s"


def clock(seconds: float) -> str:
    """A duration in one or two units: "0.5 s", "45 s", "2 min", "1 h 30 min", "3 d 4 h"."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if seconds < 7200:
        left = round(seconds) % 60
        return f"{int(seconds // 60)} min" + (f" {left} s" if left and seconds < 600 else "")
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    return f"{hours // 24} d" + (f" {hours % 24} h" if hours % 24 else "")
