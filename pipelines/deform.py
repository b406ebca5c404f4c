"""`python -m pipelines deform`: a corpus of images with deformed copies of them."""

from pathlib import Path

import click

from bigkernel import open_corpus
from bigkernel.errors import DataError
from pipelines.shared.deformed import ELASTIC, RESTYLED
from pipelines.shared.digit_corpora import deform as write_copies
from pipelines.shared.experiments import seed_option

KINDS = {"elastic": ELASTIC, "restyled": RESTYLED}


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--rows", required=True, type=click.IntRange(1), help="Rows of the corpus, including the originals.")
@click.option("--kind", type=click.Choice(list(KINDS)), default="elastic", show_default=True, help="See below.")
@click.option(
    "--strength", default=1.0, show_default=True, type=click.FloatRange(0, 28), help="Factor of the displacement."
)
@seed_option
@click.option("--quiet", is_flag=True, help="Show no bar.")
def deform(source: Path, target: Path, rows: int, kind: str, strength: float, seed: int, quiet: bool) -> None:
    """Write a corpus of images and deformed copies of them.

    \b
    elastic   a smooth random displacement, a small rotation and shift
    restyled  other sizes, slants, places and pens

    SOURCE is a corpus of images of 8-bit pixels, as `bigkernel ingest` makes it. Its rows come first, then copies of
    all of them, round by round. A row depends on the seed, its number and its original alone. Labels and other columns
    are repeated; `group` is the number of the original, so that copies can share a fold. TARGET must not exist.

    \b
    python -m pipelines deform mnist.corpus million.corpus --rows 1000000
    """
    if target.exists():
        raise DataError(f"{target}: already exists; choose another path")
    options = {"seed": seed, "variation": KINDS[kind].times(strength)}
    made = write_copies(open_corpus(source), target, rows, **options, quiet=quiet)
    click.echo(f"{target}: {len(made):,} rows of {made.n_features} pixels")
