#!/usr/bin/env bash
# The oldest versions that pyproject.toml allows, of what bigkernel needs and of its extras, in an environment of their own,
# and the tests of what a job needs on them: fits, searches, clusters, runs, stores, models, maps and pages.
# `.ci/oldest.sh [DIRECTORY]`; some ten minutes on two processors.
set -euo pipefail
cd "$(dirname "$0")/.."
place=${1:-$(mktemp -d)}
python3.11 -m venv "$place"
"$place/bin/pip" install --quiet uv
extras=(--extra plots --extra dashboard --extra metrics --extra maps --extra data --extra s3 --extra ssh --extra slurm --extra tls --extra onnx)
"$place/bin/uv" pip compile --quiet --python-version 3.11 --resolution lowest-direct "${extras[@]}" pyproject.toml \
  --output-file "$place/oldest.txt" >/dev/null
"$place/bin/uv" pip install --quiet --python "$place/bin/python" -r "$place/oldest.txt" -e . pytest pytest-timeout \
  pytest-xdist hypothesis jsonschema
# a new numcodecs warns under an old zarr; an old scikit-learn says another error of weights that are all zero
OPENBLAS_NUM_THREADS=1 "$place/bin/python" -m pytest -W "ignore:crc32c usage" \
  tests/data/test_{corpus,zarr_arrays,run_directory,stores}.py tests/streaming tests/engine tests/search \
  tests/test_startup.py tests/models tests/estimators/test_{kernel_ridge,cg_fits,xarray}.py tests/monitor/test_metrics.py \
  tests/cluster/test_{connect,certificates}.py --deselect tests/search/test_refusals.py::test_weights \
  tests/faults/test_changing_stores.py tests/faults/test_run_protocol.py
