"""What commands say: every line of it is shown by `visible`, whatever names it holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bigkernel.data.visible import visible

if TYPE_CHECKING:
    from bigkernel.events.kinds import Event


def say(text: object = "", *, err: bool = False) -> None:
    """Write lines to standard output or standard error."""
    click.echo(visible(text, lines=True, most=2**20), err=err)


def say_step(event: Event) -> None:
    """Say which step of a calibration begins, on standard error: they differ too much in length for a bar."""
    from bigkernel.events.kinds import Step

    if isinstance(event, Step) and event.done < event.total:
        say(f"  {event.done + 1} of {event.total}: {event.what.partition(': ')[2]} …", err=True)
