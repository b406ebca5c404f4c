"""What commands say: every line of it is shown by `visible`, whatever names it holds."""

from __future__ import annotations

import click

from bigkernel.data.visible import visible


def say(text: object = "", *, err: bool = False) -> None:
    """Write lines to standard output or standard error."""
    click.echo(visible(text, lines=True, most=2**20), err=err)
