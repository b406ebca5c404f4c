"""The templates of a page: Jinja2 files in `templates`, all text escaped."""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bigkernel.monitor.format import duration
from bigkernel.storage.visible import visible


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
    environment.filters |= {"unbroken": _unbroken, "data_url": _data_url, "duration": duration, "places": _places}
    return environment


def render_page(**values: Any) -> str:
    """Render `page.html`."""
    return _environment().get_template("page.html").render(**values)


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
