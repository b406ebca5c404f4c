"""A Sphinx directive that lists every message of the package: errors by class, warnings, notes and other texts."""

from __future__ import annotations

from typing import Any

from collect_messages import Message, messages
from docutils import nodes
from docutils.parsers.rst import Directive


class MessagePages(Directive):
    """`.. message-pages::` becomes a section a kind of message."""

    def run(self) -> list[nodes.Node]:
        """Return a section with a table for each kind."""
        kinds: dict[str, list[Message]] = {}
        for one in messages():
            kinds.setdefault(one.kind, []).append(one)
        return [self._section(kind, found) for kind, found in kinds.items()]

    def _section(self, kind: str, found: list[Message]) -> nodes.section:
        section = nodes.section(ids=[nodes.make_id(f"messages-{kind}")], names=[f"messages-{kind.lower()}"])
        section += nodes.title(text=f"{kind} ({len(found)})")
        listed = nodes.bullet_list()
        for one in found:
            text = nodes.paragraph("", "", nodes.literal(text=one.module), nodes.Text(f": {one.text}"))
            listed += nodes.list_item("", text)
        section += listed
        self.state.document.note_implicit_target(section, section)
        return section


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("message-pages", MessagePages)
    return {"parallel_read_safe": True}
