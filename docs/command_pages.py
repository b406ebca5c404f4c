"""A Sphinx directive that shows the help of every command, as the command line prints it."""

from __future__ import annotations

from typing import Any

import click
from docutils import nodes
from docutils.parsers.rst import Directive

from bigkernel.cli import main


class CommandPages(Directive):
    """`.. command-pages::` becomes a section a command of `bigkernel`."""

    def run(self) -> list[nodes.Node]:
        """Return a section with the help of each command."""
        with click.Context(main, info_name="bigkernel", max_content_width=88) as root:
            return [self._section(name, root) for name in main.list_commands(root)]

    def _section(self, name: str, root: click.Context) -> nodes.section:
        command = main.get_command(root, name)
        assert command is not None
        with click.Context(command, info_name=name, parent=root, max_content_width=88) as context:
            text = command.get_help(context)
        section = nodes.section(ids=[name], names=[name])
        section += nodes.title(text=f"bigkernel {name}")
        section += nodes.literal_block(text, text, language="text")
        self.state.document.note_implicit_target(section, section)
        return section


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command-pages", CommandPages)
    return {"parallel_read_safe": True}
