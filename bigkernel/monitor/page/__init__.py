"""The page of jobs: one HTML file that shows a state (`Board.snapshot`), live or embedded.

Its script draws everything and inserts external text as text only. Without an embedded state the page requests one from
its scheduler every second. A Content-Security-Policy allows this script by its digest and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from bigkernel.data.visible import all_visible
from bigkernel.events.job import plain
from bigkernel.monitor.palette import DARK, LIGHT, properties

_SCRIPTS = ("outcome.js", "page.js")


def render(state: Mapping[str, Any] | None = None) -> str:
    """Return the page, with an embedded state or live."""
    script = "\n".join(_file(name) for name in _SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = "'self'" if state is None else "'none'"
    values = {
        "policy": f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {allowed}; base-uri 'none'; form-action 'none'",
        "style": _fill(_file("page.css"), {"light": properties(LIGHT), "dark": properties(DARK)}),
        "state": to_json(state).replace("<", "\\u003c"),  # so that no text in it ends the element
        "script": script,
    }
    return _fill(_file("page.html"), values)


def to_json(state: Mapping[str, Any] | None) -> str:
    """Return a state as JSON with control characters escaped."""
    return json.dumps(all_visible(plain(state)), allow_nan=False, ensure_ascii=True)


def _fill(text: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda slot: values[slot[1]], text)


@cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
