#!/usr/bin/env bash
# The quick tests on tonight's builds of what bigkernel stands on: NumPy, SciPy, scikit-learn and xarray from
# scientific-python's index of nightly wheels, Dask, distributed and zarr from their repositories. It needs the network.
set -euo pipefail
cd "$(dirname "$0")/.."
python3 -m venv out/next
python=out/next/bin/python
$python -m pip install --quiet -e ".[test]"
$python -m pip install --quiet --upgrade --pre --no-deps \
  --index-url https://pypi.anaconda.org/scientific-python-nightly-wheels/simple numpy scipy scikit-learn xarray
$python -m pip install --quiet --upgrade --no-deps \
  git+https://github.com/{dask/dask,dask/distributed,zarr-developers/zarr-python}
$python -m pytest
