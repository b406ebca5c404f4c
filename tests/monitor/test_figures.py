"""Figures on the terminal: a table of 80 columns whose lines end between two parts of a value."""

import pytest

from bigkernel.monitor.terminal.figures import show

STAGES = dict.fromkeys(("merge", "read", "convert", "block", "exp", "add", "gram", "publish", "landmarks"), 3.6)
FIGURES = {
    "kernel": {"name": "gaussian", "sigma": 0.6},
    "stage_seconds": STAGES,
    "arrays": [f"moments/{name}" for name in STAGES],
    "sound": True,
    "skipped": [],
}


@pytest.mark.parametrize("width", [80, 40])
def test_lines_end_between_two_parts_and_a_title_is_not_broken_by_a_narrow_table(width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", str(width))
    show(FIGURES, as_json=False, title="plan: tune on [b]digits.corpus")
    title, *lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert title == "plan: tune on [b]digits.corpus"
    assert max(map(len, lines)) <= width
    assert "kernel         gaussian(sigma = 0.6)" in lines
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
