"""The command `bigkernel certs`: certificates of one cluster."""

from __future__ import annotations

import os

import click

from bigkernel.cli.options import json_option, say
from bigkernel.monitor.terminal.figures import show


@click.command()
@click.argument("directory", type=click.Path())
@json_option
def certs(directory: str, as_json: bool) -> None:
    """Make the certificates of a cluster in a new DIRECTORY.

    The files ca.pem, cert.pem and key.pem are valid for a year. Anyone who reaches a Dask scheduler can run code on it.
    With these files scheduler, workers and clients encrypt their traffic and accept only processes that have them. The
    key is a password: DIRECTORY has mode 0700, its files 0600, and a key that others can read is refused later on.
    Every machine of the cluster needs all three files.

    On the command line: --cluster local --tls DIRECTORY, or --cluster tls://HOST:8786 --tls DIRECTORY. In a cluster
    file: tls: DIRECTORY, for SSH hosts and SLURM jobs a path that all of them can read. cluster/tls.yaml shows how to
    start scheduler and workers by hand.

    There is no renewal: before the year ends, make a new directory and start the cluster with it.
    """
    from bigkernel.cluster.certificates import FILES, make_certificates

    make_certificates(directory)
    if as_json:
        show({"directory": os.path.abspath(directory), "files": list(FILES)}, as_json=True)
        return
    say(
        f"{directory}: ca.pem, cert.pem and key.pem, valid for a year; copy all three to every machine of the "
        f"cluster\nto use them: --tls {directory}, or tls: {directory} in a cluster file"
    )
