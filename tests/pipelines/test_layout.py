"""The layout of `pipelines/`: experiments stand beside one another, on `pipelines.shared` and on bigkernel alone."""

import ast
from functools import cache
from pathlib import Path

import pytest
from pipeline_runs import call

from pipelines.__main__ import PIPELINES

ROOT = Path(__file__).parents[2]
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "pipelines").rglob("*.py"))
}


@cache
def imports(path):
    """Dotted names of everything that a module imports, wherever in its text; of `from a import b` both a and a.b."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def module_of(name):
    """The module that holds a dotted name below `pipelines`."""
    return name if name in MODULES else name.rpartition(".")[0]


def test_an_experiment_imports_nothing_of_another():
    for module, path in MODULES.items():
        home = module.split(".")[:2]
        others = {module_of(name) for name in imports(path) if name.startswith("pipelines.")}
        assert [name for name in others if name.split(".")[:2] not in (home, ["pipelines", "shared"])] == [], module


def test_of_bigkernel_only_what_is_public_and_of_the_command_line_only_options_and_transforms():
    names = {name for path in MODULES.values() for name in imports(path) if name.startswith("bigkernel.")}
    assert [name for name in names if any(part.startswith("_") for part in name.split("."))] == []
    of_commands = {tuple(name.split(".")[2:3]) for name in names if name.startswith("bigkernel.cli")}
    assert of_commands <= {("options",), ("transforms",)}


def test_every_experiment_is_in_the_table():
    packages = {module.split(".")[1] for module in MODULES if module.count(".")} - {"__main__", "shared"}
    assert {module.split(".")[0] for module, _ in PIPELINES.values()} == packages


@pytest.mark.parametrize("name", PIPELINES)
def test_help_teaches_what_is_done_and_left(name):
    said = " ".join(call(name, "--help").stdout.split())
    assert name in ("bench", "deform") or (f"python -m pipelines {name}" in said and "report.html" in said)
