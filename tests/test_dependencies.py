"""Every package that the code imports is declared in pyproject.toml, and those at import are no extras."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: expected for name, expected in PROJECT["optional-dependencies"].items() if name not in ("docs", "test")}


def declared(requirements: list[str]) -> set[str]:
    """Return the names of distributions, normalised as in PEP 503."""
    return {spelt(re.split(r"[\[<>=!~ ]", requirement)[0]) for requirement in requirements}


def spelt(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the names of other packages that are imported by statements or by `import_module`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "import_module":
            names = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        else:
            continue
        for name in (name.partition(".")[0] for name in names):
            if name != "bigkernel" and name not in sys.stdlib_module_names:
                yield name


def undeclared(path: Path, distributions: Mapping[str, list[str]]) -> Iterator[str]:
    name = path.relative_to(ROOT).as_posix()
    base = declared(PROJECT["dependencies"])
    anywhere = base.union(*map(declared, EXTRAS.values()), {"array-api-strict"})  # by the name of a device, in tests
    tree = ast.parse(path.read_text())
    statements = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    at_import = {package for node in statements for package in imports(node)}
    for package in sorted(set(imports(tree))):
        if not (base if package in at_import else anywhere) & set(map(spelt, distributions.get(package, [package]))):
            yield f"{name}: {package}"


def test_every_imported_package_is_declared_and_none_at_import_is_an_extra():
    distributions = packages_distributions()  # by the name that is imported
    missing = [each for path in sorted((ROOT / "bigkernel").rglob("*.py")) for each in undeclared(path, distributions)]
    assert missing == []


def test_every_extra_is_tested_in_its_oldest_versions():
    tested = [name for name in EXTRAS if name != "gpu"]  # gigabytes, and nothing of it runs without a GPU
    assert re.findall(r"--extra (\w+)", (ROOT / ".ci/oldest.sh").read_text()) == tested
