"""Figures in words for terminals and logs: time spans, quantities, rates and sizes with their units."""

from __future__ import annotations

_POWERS = ("", "k", "M", "G", "T", "P")


def printable(text: object) -> str:
    """Text from outside without anything that a terminal would obey."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text))


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


def quantity(value: float) -> str:
    """A number in at most five letters, with k, M, G, T or P for powers of a thousand: "950", "61.4k", "8.7M"."""
    power = 0
    while value >= 999.5 and power < len(_POWERS) - 1:
        value, power = value / 1000, power + 1
    digits = 0 if power == 0 or value >= 99.95 or value == round(value) else 1
    return f"{value:,.{digits}f}{_POWERS[power]}"


def flops_rate(value: float) -> str:
    """Floating-point operations a second: "121 GFLOP/s"."""
    text = quantity(value)
    number, letter = (text[:-1], text[-1]) if text[-1].isalpha() else (text, "")
    return f"{number} {letter}FLOP/s"


def size(count: float) -> str:
    """Bytes: "550 MB"."""
    text = quantity(count)
    return f"{text[:-1]} {text[-1]}B" if text[-1].isalpha() else f"{text} B"


def percent(part: float, whole: float) -> str:
    """ "52 %"; "–" of nothing."""
    return f"{100 * part / whole:.0f} %" if whole > 0 else "–"


def left_of(low: float, high: float | None = None) -> str:
    """A time that is left, or between two: "40s–2m40s left"."""
    first, last = spell(low), spell(low if high is None else high)
    return f"{first} left" if first == last else f"{first}–{last} left"
