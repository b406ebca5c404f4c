"""What `verbose` shows of a fit in Python: nothing, lines, or one line in a notebook; and records for `logging`."""

import itertools
import sys
import types
from unittest.mock import Mock

import numpy as np
import pytest

from bigkernel import KernelRidge, SweepSearchCV
from bigkernel.events.job import Incident, Note, emit
from bigkernel.monitor.terminal import bar

X = np.random.default_rng(3).normal(size=(400, 3))
pytestmark = pytest.mark.usefixtures("small_steps")
TEXTS = {"n": "a note\n", "i": "an incident\n", "l": " of 5 segments", "s": "2 candidates, 2 splits"}


class Noting(KernelRidge):
    def _method(self):
        emit(Note("a note"))
        emit(Incident("retry", "an incident"))
        return super()._method()


@pytest.fixture
def fit(monkeypatch, capfd):
    """Return a function that fits as if it took so many seconds, with a line at every event, and returns the output."""

    def fit(seconds, verbose, kind=Noting):
        times = itertools.chain([0.0], itertools.count(seconds, 1e-5))
        monkeypatch.setattr(bar, "time", types.SimpleNamespace(monotonic=lambda: next(times)))
        monkeypatch.setattr(bar, "_LINE_SECONDS", 0.0)
        kind(n_landmarks=9, random_state=0, verbose=verbose).fit(X, X[:, 0])
        written = capfd.readouterr()
        assert written.out == ""
        return written.err

    return fit


def search(verbose, **settings):
    return SweepSearchCV(Noting(**settings), {"landmarks": ["uniform", "k-means"]}, cv=2, refit=False, verbose=verbose)


CASES = [(99, 0, ""), (1.9, 1, "i"), (2.1, 1, "il"), (0.4, 2, "ni"), (0.6, 2, "nil"), (1.9, True, "i")]


@pytest.mark.parametrize(("seconds", "verbose", "expected"), CASES)
def test_a_fit_and_a_search_write_what_verbose_says_and_log_all(fit, caplog, seconds, verbose, expected):
    caplog.set_level("INFO", logger="bigkernel")
    for kind, also in ((Noting, ""), (search, "s" if verbose == 2 else "")):
        written = fit(seconds, verbose, kind)
        assert [kind for kind, text in TEXTS.items() if text in written] == list(expected + also), written
        assert bool(written) == bool(expected)
    text = "\n".join(one.getMessage() for one in caplog.records if one.name.startswith("bigkernel."))
    assert all(line in text for line in ("a note", "an incident", "moments: sweep of 400 rows begins", "sweep ended"))


def test_a_notebook_shows_one_line_in_its_cell_and_empties_it(fit, monkeypatch):
    cell = Mock()
    monkeypatch.setitem(sys.modules, "ipykernel", Mock())
    monkeypatch.setitem(sys.modules, "IPython.display", cell)
    monkeypatch.setattr(bar, "_REFRESHES", 1e9)
    assert TEXTS["l"] not in fit(9, 1)
    shown = [(name, arguments[0]["text/plain"]) for name, arguments, _ in cell.mock_calls]
    assert [name for name, _ in shown] == ["display"] + ["display().update"] * (len(shown) - 1)
    assert any(TEXTS["l"] in text for _, text in shown)
    assert shown[-1] == ("display().update", "")
