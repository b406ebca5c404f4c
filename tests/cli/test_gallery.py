"""The notebook of the gallery runs, and shows tables and pictures."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "docs" / "gallery" / "digits.ipynb"
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
def test_every_cell_runs_and_shows_its_result(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KERNEL, NOTEBOOK], capture_output=True, text=True, timeout=200, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    shown = [line.split()[0] for line in done.stdout.splitlines()]
    assert (shown.count("html"), shown.count("picture")) == (3, 4)
    assert "% error on 397 rows" in done.stdout
    error = float(done.stdout.partition("%")[0].split()[-1])
    assert error < 5


def test_the_notebook_is_stored_without_outputs():
    found = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    for cell in found["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
            ast.parse(source)
        else:
            assert source.strip()
