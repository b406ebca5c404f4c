"""The command `bigkernel fetch`: public data sets."""

from __future__ import annotations

import shlex
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

    Each file is taken from the first mirror that sends it with the right SHA-256, that of its decompressed content.
    Some mirrors serve without encryption; the digest makes that safe. Existing files with the right content are kept,
    and no other file is ever replaced.
    """
    from bigkernel.monitor.terminal.bar import bar

    chosen = DATASETS[dataset]
    files: dict[str, str] = {}
    for file in chosen.files:
        with bar(f"fetch {file.name}", enabled=not as_json, unit="bytes") as update:
            mirror = fetch_file(file, directory, progress=update)
        files[file.name] = f"from {urlsplit(mirror).netloc}" if mirror else "already present"
    following = [command.format(dir=shlex.quote(directory)) for command in chosen.next_commands]
    figures = {"data_set": chosen.description, "files": files}
    if as_json:
        show({**figures, "next": following}, as_json=True)
        return
    show(figures, as_json=False, title=directory)
    say("\n  ".join(["next:", *following]))
