"""Figures in words: spans, quantities, sizes, rates and settings as people read them, here and in narrow columns."""

import pytest

from bigkernel.monitor.format import (
    MISSING,
    count,
    duration,
    eta,
    flops,
    flops_rate,
    moment,
    percent,
    plainly,
    printable,
    quantity,
    rounds_in_words,
    size,
    spell,
)


@pytest.mark.parametrize(
    "seconds, text",
    [
        (-1e-9, "0 ms"),
        (0.0004, "0.4 ms"),
        (0.04, "40 ms"),
        (3, "3 s"),
        (0.0999, "0.1 s"),
        (9.94, "9.9 s"),
        (59.4, "59 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (1234, "20 min 34 s"),
        (3599.7, "1 h"),
        (7500, "2 h 05 min"),
        (86399, "1 day"),
        (273_600, "3 days 4 h"),
    ],
)
def test_a_duration_is_said_in_at_most_two_units(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    "left, text",
    [
        ((180, 120, 240), "about 3 min (2 to 4)"),
        ((45, 40, 51), "about 45 s (40 to 51)"),
        ((7000, 6900, 7100), "about 1.9 h (1.9 to 2)"),
        ((300, 300, 300), "about 5 min"),
        ((0, 0, 0), "about 0 s"),
        ((260_000, 250_000, 280_000), "about 3 days (2.9 to 3.2)"),
    ],
)
def test_the_time_left_is_said_with_its_range(left, text):
    assert eta(dict(zip(("expected", "low", "high"), left, strict=True))) == text
    assert eta(None) == ""


@pytest.mark.parametrize(
    "seconds, text",
    [
        (-3, "0s"),
        (0.4, "0s"),
        (99.4, "99s"),
        (100, "1m40s"),
        (133, "2m13s"),
        (5999, "99m59s"),
        (6000, "1h40m"),
        (3.0e5, "83h20m"),
        (5e5, "5d18h"),
    ],
)
def test_time_spans_are_short_and_name_their_units(seconds, text):
    assert spell(seconds) == text


@pytest.mark.parametrize(
    "value, text",
    [
        (0, "0"),
        (950, "950"),
        (999.7, "1.0k"),
        (1000, "1k"),
        (61_440, "61.4k"),
        (999_600, "1.0M"),
        (8.7e6, "8.7M"),
        (121e9, "121G"),
        (2e18, "2,000P"),
    ],
)
def test_quantities_have_three_digits_and_a_power_of_a_thousand(value, text):
    assert quantity(value) == text


def test_rates_sizes_and_shares_have_units():
    assert flops_rate(9.5e12) == "9.5 TFLOP/s"
    assert flops_rate(12) == "12 FLOP/s"
    assert size(550e6) == "550 MB"
    assert flops_rate(4.3174e9) == "4.32 GFLOP/s"
    assert flops(5.674e9) == "5.67 GFLOP"
    assert [size(value) for value in (0, 12, 65_536, 999_600, 2**31)] == ["0 B", "12 B", "65.5 kB", "1 MB", "2.15 GB"]
    assert percent(1, 3) == "33 %"
    assert percent(213.81) == "21,381 %"
    assert percent(1, 0) == "–"
    assert count(65_536) == "65,536"


def test_what_is_not_known_is_a_dash():
    assert {figure(None) for figure in (duration, size, flops, flops_rate, count, plainly)} == {MISSING}
    assert {moment(time) for time in (1e300, float("nan"), "yesterday")} == {MISSING}


def test_settings_are_said_plainly():
    kernel = {"name": "Gaussian", "sigma": 1.0 / 3}
    assert plainly([kernel, True, 65_536, "auto"]) == "Gaussian(sigma = 0.333333), yes, 65,536, auto"


def test_text_from_outside_moves_no_cursor():
    assert printable("a\x1b[2Jb\n") == "a [2Jb "


@pytest.mark.parametrize(
    "rounds, words",
    [
        ([], "none"),
        ([{"equivocation": 0.5, "changed": 1.0}], "1; equivocation 0.50 → 0.50"),
        ([{"equivocation": "much", "changed": 1.0}], "–"),
        ([{"changed": 1.0}], "–"),
        ([3], "–"),
        ("ten", "–"),
        (None, "–"),
    ],
)
def test_rounds_are_told_in_a_line_whatever_a_journal_holds(rounds, words):
    assert rounds_in_words(rounds) == words
