"""Figures in words: spans, quantities, sizes, rates and settings as people read them, and tables of 80 columns."""

import pytest

from bigkernel.html import MISSING, duration, measured, percent, readable, size
from bigkernel.monitor.terminal.figures import show


def rate(value):
    return measured(value, "FLOP/s")


WORDS = [
    # a duration in at most two units
    (duration, -1e-9, "0 ms"),
    (duration, 0.0004, "0.4 ms"),
    (duration, 0.04, "40 ms"),
    (duration, 3, "3 s"),
    (duration, 0.0999, "0.1 s"),
    (duration, 9.94, "9.9 s"),
    (duration, 59.4, "59 s"),
    (duration, 59.6, "1 min"),
    (duration, 200, "3 min 20 s"),
    (duration, 1234, "20 min 34 s"),
    (duration, 3599.7, "1 h"),
    (duration, 7500, "2 h 05 min"),
    (duration, 86399, "1 day"),
    (duration, 273_600, "3 days 4 h"),
    # with units
    *((rate, value, text) for value, text in ((9.5e12, "9.5 TFLOP/s"), (12, "12 FLOP/s"), (4.3174e9, "4.32 GFLOP/s"))),
    *((size, value, text) for value, text in ((0, "0 B"), (12, "12 B"), (65_536, "65.5 kB"), (550e6, "550 MB"))),
    *((size, value, text) for value, text in ((999_600, "1 MB"), (2**31, "2.15 GB"))),
    (percent, 213.81, "21,381 %"),
]


@pytest.mark.parametrize("say, value, text", WORDS)
def test_figures_are_said_as_people_read_them(say, value, text):
    assert say(value) == text


def test_what_is_not_known_is_a_dash():
    assert percent(1, 0) == "–"
    assert {figure(None) for figure in (duration, size, rate)} == {MISSING}


def test_shares_and_settings_are_said_plainly():
    assert percent(1, 3) == "33 %"
    kernel = {"name": "Gaussian", "sigma": 1.0 / 3}
    assert readable("", [kernel, True, 65_536, "auto"]) == "Gaussian(sigma=0.3333), yes, 65,536, auto"
    assert readable("flops", 5.674e9) == "5.67 GFLOP"


STAGES = dict.fromkeys(("merge", "read", "convert", "block", "exp", "add", "gram", "publish", "landmarks"), 3.6)
FIGURES = {
    "kernel": {"name": "gaussian", "sigma": 0.6},
    "stage_seconds": STAGES,
    "arrays": [f"moments/{name}" for name in STAGES],
    "intact": True,
    "skipped": [],
}


@pytest.mark.parametrize("width", [80, 40])
def test_lines_end_between_two_parts_and_a_title_is_not_broken_by_a_narrow_table(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    show(FIGURES, as_json=False, title="plan: tune on [b]digits.corpus")
    title, *lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert title == "plan: tune on [b]digits.corpus"
    assert max(map(len, lines)) <= width
    assert "kernel         gaussian(sigma=0.6)" in lines
    assert "skipped        none" in lines
    values = [line[15:] for line in lines]
    for parts in ([f"{name}: 3.6 s" for name in STAGES], FIGURES["arrays"]):
        first = next(i for i, value in enumerate(values) if value.startswith(parts[0]))
        count = next(n for n in range(1, 10) if ", ".join(parts) == " ".join(values[first : first + n]))
        assert all(value.endswith(",") for value in values[first : first + count - 1])
        assert count == 1 + sum(len(a) + 1 + len(b.split(", ")[0]) > width - 15 for a, b in zip(
            values[first:], values[first + 1 : first + count], strict=False
        ))  # fmt: skip
    show({"a": 1}, as_json=False, title="a title that is longer than its table")
    assert capsys.readouterr().out.splitlines()[0] == "a title that is longer than its table"
