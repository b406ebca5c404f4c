"""Safe display of external text: names of files, hosts and classes, lines of journals, messages of other programs.

Text for a terminal, a log, a page or a label passes through `visible`: escape sequences, control characters, marks of
writing direction, invalid characters (such as lone surrogates from file names that are not UTF-8) and characters
without width are shown as Python would escape them.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Mapping, MutableMapping
from typing import Any
from unicodedata import category

MOST_LETTERS = 10_000  # longest text


def visible(text: object, *, lines: bool = False, most: int = MOST_LETTERS) -> str:
    r"""Show a text on one line (or on its `lines`), with at most `most` letters and a count of the rest.

    Examples
    --------
    >>> visible("a\x1b[2Jb\n")
    'a\\x1b[2Jb\\n'
    >>> visible("x" * 20, most=5)
    'xxxxx… (20 letters)'
    """
    shown = str(text)
    cut = f"… ({len(shown):,} letters)" if len(shown) > most else ""
    shown = shown[:most]
    if not shown.isprintable():
        kept = "\n" if lines else ""
        shown = "".join(
            # spaces of any width are printed unchanged
            letter if letter in kept or letter.isprintable() or category(letter) == "Zs" else repr(letter)[1:-1]
            for letter in shown
        )
    return shown + cut


def all_visible(value: Any, *, most: int = MOST_LETTERS) -> Any:
    """Apply `visible` to every text in nested lists and dicts of plain data, keys included."""
    if isinstance(value, str):
        return visible(value, lines=True, most=most)
    if isinstance(value, Mapping):
        return {all_visible(key, most=most): all_visible(item, most=most) for key, item in value.items()}
    return [all_visible(item, most=most) for item in value] if isinstance(value, list | tuple) else value


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger that passes its arguments through `visible`."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        error = kwargs.pop("exc_info", None)
        error = sys.exc_info()[1] if error is True else error
        shown = [visible(one) if isinstance(one, str | BaseException | os.PathLike) else one for one in args]
        if error:
            msg, shown = f"{msg}\n%s", [*shown, visible("".join(traceback.format_exception(error)), lines=True)]
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        super().log(level, msg, *shown, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Return the line unchanged: its format string is ours."""
        return msg, kwargs


def log_of(module: str) -> Log:
    """Return the logger of a module, by its name."""
    return Log(logging.getLogger(module), {})
