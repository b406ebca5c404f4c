"""`bigkernel fetch`: public data sets, from the first mirror that has the right content."""

from __future__ import annotations

import shlex
from typing import Any
from urllib.parse import urlsplit

import click

from bigkernel.cli.options import json_option, say
from bigkernel.data.download import DATASETS, fetch_file
from bigkernel.monitor.terminal.figures import show

_EPILOG = "\b\nData sets:\n" + "\n".join(f"  {name:<6} {one.description}" for name, one in DATASETS.items())


@click.command(epilog=_EPILOG)
@click.argument("dataset", type=click.Choice(list(DATASETS)))
@click.argument("directory", type=click.Path(file_okay=False))
@json_option
def fetch(dataset: str, directory: str, as_json: bool) -> None:
    """Fetch a public data set into DIRECTORY.

    Each file is taken from the first mirror that sends it with the right SHA-256, which is that of its content after
    gzip; some mirrors serve without encryption, and the digest is why that does no harm. What is there already with the
    right content stays; nothing else is ever replaced.
    """
    from bigkernel.monitor.terminal.bar import bar

    chosen = DATASETS[dataset]
    following = [command.format(dir=shlex.quote(directory)) for command in chosen.next_commands]
    figures: dict[str, Any] = {"data_set": chosen.description}
    files: list[dict[str, Any]] = []
    for file in chosen.files:
        stated = {"name": file.name, "content_bytes": file.content_bytes, "sha256": file.sha256}
        with bar(f"fetch {file.name}", enabled=not as_json, unit="bytes") as update:
            fetched = fetch_file(file, directory, progress=update)
        files.append({**stated, "mirror": fetched.mirror, "failures": list(fetched.failures)})
    if as_json:
        show({**figures, "files": files, "next": following}, as_json=True)
        return
    for entry in files:
        figures[entry["name"]] = f"from {urlsplit(entry['mirror']).netloc}" if entry["mirror"] else "was there"
    show(figures, as_json=False, title=directory)
    say("next:")
    for command in following:
        say(f"  {command}")
