"""`bigkernel certs`: a private certificate authority, and the certificates of one cluster."""

from __future__ import annotations

import os

import click

from bigkernel.cli.options import json_option
from bigkernel.cli.said import say
from bigkernel.cluster.tls_authority import CA_DAYS, make_certificates, renew_certificates
from bigkernel.monitor.terminal.figures import show


@click.command()
@click.argument("directory", type=click.Path())
@click.option(
    "--days",
    type=click.IntRange(1, CA_DAYS),
    default=365,
    show_default=True,
    help="How long the certificates hold, from now.",
)
@click.option(
    "--host",
    "hosts",
    multiple=True,
    metavar="NAME|IP",
    help="Written into the certificates of scheduler and workers, besides localhost; may be given several times.",
)
@click.option("--renew", is_flag=True, help="New certificates from the authority in DIRECTORY.")
@json_option
def certs(directory: str, days: int, hosts: tuple[str, ...], renew: bool, as_json: bool) -> None:
    """Make a private certificate authority and the certificates of a cluster.

    Whoever reaches a Dask scheduler runs code on it. With these certificates scheduler, workers and clients encrypt
    what they say and let in only who shows a certificate of this authority. A key in DIRECTORY is a password: the
    directory has mode 0700, its files 0600, and keys that others could read are refused later on.

    On one machine: --cluster local --tls DIRECTORY, or in a cluster file

    \b
      bigkernel: {cluster: {kind: local, tls: DIRECTORY}}

    On several, started by hand:

    \b
      export DASK_CONFIG=DIRECTORY/dask-tls.yaml
      dask scheduler --host NODE1 --dashboard-address 127.0.0.1:8787
      dask worker tls://NODE1:8786 --host NODE2 \\
          --dashboard-address 127.0.0.1:0 --nthreads 1
      bigkernel fit … --cluster tls://NODE1:8786 --tls DIRECTORY

    Every machine gets ca.pem and the one file of its role: scheduler.pem, worker.pem or client.pem. Keep ca-key.pem
    off the cluster: it signs new certificates. --renew replaces the three (the authority holds for ten years); what
    runs keeps its connections.
    """
    act = renew_certificates if renew else make_certificates
    made = act(directory, days=days, hosts=hosts)
    if as_json:
        figures = [
            {"role": item.role, "file": str(item.path), "serial": item.serial, "ends": item.ends.isoformat()}
            for item in made
        ]
        show({"directory": os.path.abspath(directory), "certificates": figures}, as_json=True)
        return
    rows = {item.role: f"{item.path.name}, until {item.ends:%Y-%m-%d}, serial {item.serial[:16]}…" for item in made}
    show(rows, as_json=False, title=directory)
    say(
        f"\nOn the command line: --cluster local --tls {directory}\n"
        f"                     or --cluster tls://HOST:8786 --tls {directory}\n"
        f"In a cluster file:   tls: {directory}\n"
        f"Started by hand:     DASK_CONFIG={os.path.join(directory, 'dask-tls.yaml')} dask scheduler|worker\n"
        "Every machine gets ca.pem and the file of its role.\nKeep ca-key.pem off the cluster."
    )
