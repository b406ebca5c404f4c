"""The templates of a page: Jinja2 files in `templates`, all text escaped."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bigkernel.data.visible import visible
from bigkernel.monitor.format import duration
from bigkernel.monitor.palette import DARK, LIGHT, properties

_FEWEST_CONTENTS = 3  # headings


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=_in_letters,
    )
    environment.globals["light"], environment.globals["dark"] = (
        Markup(properties(colours)) for colours in (LIGHT, DARK)
    )
    environment.filters |= {"unbroken": _unbroken, "data_url": _data_url, "duration": duration, "places": _places}
    return environment


def render_page(*, parts: Sequence[tuple[str, dict[str, Any]]], **values: Any) -> str:
    """Render `page.html`, every heading under an anchor of its own and, where there are some, in a list of contents."""
    anchored = [
        (macro, {**each, "anchor": f"s{place}"} if macro == "heading" else each)
        for place, (macro, each) in enumerate(parts)
    ]
    contents = [(each["anchor"], each["text"]) for macro, each in anchored if macro == "heading"]
    shown = contents if len(contents) >= _FEWEST_CONTENTS else []
    return _environment().get_template("page.html").render(parts=anchored, contents=shown, **values)


def draw(name: str, **values: Any) -> Markup:
    """Render a macro of `drawings.html`."""
    return Markup(getattr(_drawings(), name)(**values))


def _in_letters(value: Any) -> Any:
    """A value as the page shows it: text from outside in letters; what is made by our own templates as it is."""
    return visible(value, lines=True) if isinstance(value, str) and not isinstance(value, Markup) else value


@cache
def _drawings() -> Any:
    return _environment().get_template("drawings.html").module


def _unbroken(text: str) -> str:
    """A text in which a number stays with its %."""
    return str(text).replace(" %", "\u00a0%")


def _data_url(png: bytes) -> Markup:
    """A picture as an address: markup of our own, which is never cut short as text from outside is."""
    return Markup(f"data:image/png;base64,{base64.b64encode(png).decode()}")


def _places(value: float, digits: int = 2) -> str:
    return f"{value:.{digits}f}"
