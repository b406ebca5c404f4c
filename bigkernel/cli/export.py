"""`bigkernel export`: a model as one file that needs NumPy alone."""

from __future__ import annotations

import os

import click

from bigkernel.cli.options import json_option, overwrite_option
from bigkernel.monitor.terminal.figures import show


@click.command()
@click.argument("model", type=click.Path())
@click.argument("file", type=click.Path())
@overwrite_option
@json_option
def export(model: str, file: str, overwrite: bool, as_json: bool) -> None:
    """Make FILE of MODEL, a predictor: for services that have NumPy and this package alone.

    \b
    bigkernel export digits.model digits.predictor

    `bigkernel.Predictor.load(FILE)` reads it in some hundredths of a second, without scikit-learn, Dask or zarr, and
    gives the numbers of the model. What needs more than NumPy (random features, functions as kernels) is refused by
    name.
    """
    from bigkernel.models.persistence import load_model
    from bigkernel.models.predictor import Predictor

    predictor = Predictor.of(load_model(model))
    predictor.save(file, overwrite=overwrite)
    found = {"kind": "predictor", "path": file, "features": predictor.n_features, "bytes": os.path.getsize(file)}
    show(found, as_json=as_json, title=file)
