"""The notebooks of the gallery run, and show tables and pictures."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

GALLERY = Path(__file__).parents[2] / "docs" / "gallery"
# tables and pictures, and what is said of the error
NOTEBOOKS = {
    "digits.ipynb": (3, 4, r"(\S+)% error on 397 rows", 5.0),
    "maps.ipynb": (4, 2, r"(\S+) K of error", 0.5),
    "student.ipynb": (3, 1, r"(\S+) times the error", 1.02),
}
# as a notebook does, this shows the last expression of a cell in its richest form
KERNEL = """
import ast, json, sys, warnings
import matplotlib
matplotlib.use("Agg")
from matplotlib.axes import Axes
warnings.simplefilter("error")
names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] != "code":
        continue
    tree = ast.parse("".join(cell["source"]))
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        continue
    value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    if isinstance(value, Axes):
        value.figure.canvas.draw()
        print("picture", len(value.get_children()))
    elif hasattr(value, "_repr_mimebundle_"):
        print("html", len(value._repr_mimebundle_()["text/html"]))
    elif hasattr(value, "_repr_html_"):
        print("html", len(value._repr_html_()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_cell_runs_and_shows_its_result(name, tmp_path):
    tables, pictures, says, most = NOTEBOOKS[name]
    done = subprocess.run(
        [sys.executable, "-c", KERNEL, GALLERY / name], capture_output=True, text=True, timeout=200, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    shown = [line.split()[0] for line in done.stdout.splitlines()]
    assert (shown.count("html"), shown.count("picture")) == (tables, pictures)
    assert float(re.search(says, done.stdout)[1]) < most


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks_are_stored_without_outputs(name):
    found = json.loads((GALLERY / name).read_text(encoding="utf-8"))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    for cell in found["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            ast.parse(source)
        else:
            assert source.strip()
