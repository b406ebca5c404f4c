"""Text from outside, as it may be shown: names of files, hosts and classes, lines of journals, messages of others.

What leaves for a terminal, a log, a page or a label passes `visible`, so that nothing in it is obeyed: escape sequences
and control characters become the letters that Python would write for them, and so do marks that turn the direction of
writing, what is no character (a byte of a file name that is no UTF-8, as a lone surrogate) and what has no width.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Mapping, MutableMapping
from typing import Any
from unicodedata import category

MOST_LETTERS = 10_000  # of one text


def visible(text: object, *, lines: bool = False, most: int = MOST_LETTERS) -> str:
    """Show a text on one line (or on its `lines`), at most so many letters of it; the rest is counted.

    Examples
    --------
    >>> visible("a\\x1b[2Jb\\n")
    'a\\\\x1b[2Jb\\\\n'
    >>> visible("x" * 20, most=5)
    'xxxxx… (20 letters)'
    """
    found = str(text)
    cut = f"… ({len(found):,} letters)" if len(found) > most else ""
    found = found[:most]
    if not found.isprintable():
        kept = "\n" if lines else ""
        found = "".join(
            # spaces of any width are printed as they are
            letter if letter in kept or letter.isprintable() or category(letter) == "Zs" else repr(letter)[1:-1]
            for letter in found
        )
    return found + cut


def all_visible(value: Any, *, most: int = MOST_LETTERS) -> Any:
    """Nested lists and dicts of plain data with every text in them, keys too, as `visible` shows its lines."""
    if isinstance(value, str):
        return visible(value, lines=True, most=most)
    if isinstance(value, Mapping):
        return {all_visible(key, most=most): all_visible(item, most=most) for key, item in value.items()}
    return [all_visible(item, most=most) for item in value] if isinstance(value, list | tuple) else value


class Log(logging.LoggerAdapter[logging.Logger]):
    """The logger of a module, which shows what its lines are about by `visible`."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if not self.isEnabledFor(level):
            return
        error = kwargs.pop("exc_info", None)
        error = sys.exc_info()[1] if error is True else error
        if error:
            msg, args = f"{msg}\n%s", (*args, _Shown("".join(traceback.format_exception(error))))
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        super().log(level, msg, *map(_argument, args), **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Leave the line as it is: it is ours."""
        return msg, kwargs


class _Shown(str):
    """Lines that are shown as lines."""


def _argument(value: object) -> object:
    if isinstance(value, _Shown):
        return visible(value, lines=True)
    return visible(value) if isinstance(value, str | BaseException | os.PathLike) else value


def log_of(module: str) -> Log:
    """Return the log of a module, by its name."""
    return Log(logging.getLogger(module), {})
