#!/usr/bin/env bash
# The wheel and the source archive, as they would be published: built, checked by twine, the wheel installed into an empty
# environment, and the blocks of the README run from there. `.ci/wheel.sh [DIRECTORY] [PYTHON]`, after the README's test
# command; the archives stay in DIRECTORY (out/dist).
set -euo pipefail
cd "$(dirname "$0")/.."
dist=${1:-out/dist}
python=${2:-.venv/bin/python}
rm -rf "$dist"
.venv/bin/python -m build --no-isolation --outdir "$dist" . >/dev/null
.venv/bin/python -m twine check --strict "$dist"/*
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
.venv/bin/uv venv --quiet --python "$python" "$place"
.venv/bin/uv pip install --quiet --python "$place/bin/python" "$dist"/*.whl
.venv/bin/uv pip check --quiet --python "$place/bin/python"
"$place/bin/python" -P -c "import sys, bigkernel; assert bigkernel.__file__.startswith(sys.prefix), bigkernel.__file__"
"$place/bin/bigkernel" --help >/dev/null
"$place/bin/python" tests/support/page_blocks.py README.md
du -sm "$dist"/* "$place" | sed "s|\t.*/|\t|; s|^|MB: |"
