"""Architecture: imports between packages, entries of the repository, lengths of functions."""

from __future__ import annotations

import ast
import fnmatch
import graphlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import bigkernel
from bigkernel import estimators

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bigkernel"

MOST_ENTRIES = 10  # of the package, apart from its packages
MOST_BASES = 3  # of bigkernel, of an estimator
MOST_LINES = 60  # of a function without its docstring; in the engine with it

# third-party packages that these packages may import
THIRD_PARTY = {
    "root": "dask numpy yaml",
    "streaming": "array_api_compat array_api_strict numpy torch",  # beside NumPy: once a device is asked for
    "kernels": "numpy scipy sklearn threadpoolctl",  # sklearn: for its kernels by name
    "statistics": "numpy",
    "solvers": "numpy scipy threadpoolctl",
    "events": "distributed numpy",
    "monitor": "distributed prometheus_client rich tornado",
    "engine": "dask distributed numpy psutil scipy threadpoolctl zarr",
}
# packages without files, clocks and global random state
NUMERICS = ("streaming", "kernels", "statistics", "solvers")
IMPURE = {"datetime", "glob", "io", "os", "pathlib", "random", "shutil", "socket", "subprocess", "tempfile", "time"}
STAGE_CLOCK = ("streaming.chunk", "time")  # a chunk measures the time of its stages


def packages_in_order() -> list[str]:
    """Return the first column of the table in DESIGN.md."""
    text = (PACKAGE / "DESIGN.md").read_text(encoding="utf-8")
    table = re.search(r"^## Packages\n.*?(?=^## )", text, re.MULTILINE | re.DOTALL)
    assert table is not None
    return re.findall(r"^\| `(\w+)` \| \S.* \|$", table[0], re.MULTILINE)


def module_name(path: Path) -> str:
    """Return the dotted name of a module, without that of the whole package."""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


def public_names() -> dict[str, str]:
    """Return the module and name of each public name, from the stub of the root."""
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    return {
        alias.asname or alias.name: f"{node.module}.{alias.name}"
        for node in ast.walk(stub)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


ORDER = packages_in_order()
PUBLIC = public_names()
PATHS = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
BY_STRING = re.compile(rf"bigkernel\.({'|'.join(map(re.escape, filter(None, PATHS)))})(:\w+)?")
MODULES = [name for name in PATHS if name != "__main__"]  # the entry point


@cache
def tree_of(name: str) -> ast.Module:
    """Parse a module."""
    return ast.parse(PATHS[name].read_text(encoding="utf-8"))


def is_name(node: ast.expr, name: str) -> bool:
    """Return whether an expression is this name."""
    return isinstance(node, ast.Name) and node.id == name


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the dotted names that a module imports: at its top, in functions, for types, by string.

    `bigkernel.x` and `getattr(bigkernel, "x")` import the module of a public name.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and BY_STRING.fullmatch(node.value):
            yield node.value.partition(":")[0]
        elif isinstance(node, ast.Attribute) and is_name(node.value, "bigkernel"):
            yield f"bigkernel.{PUBLIC.get(node.attr, node.attr)}"
        elif isinstance(node, ast.Call) and is_name(node.func, "getattr"):
            of, requested = node.args[:2]
            if is_name(of, "bigkernel") and isinstance(requested, ast.Constant):
                yield f"bigkernel.{PUBLIC.get(str(requested.value), '')}"


@cache
def imports(name: str) -> tuple[str, ...]:
    """Return the dotted names that a module imports."""
    return tuple(imported(tree_of(name)))


def modules_imported(name: str) -> set[str]:
    """Return the modules of bigkernel that a module imports."""
    modules = set()
    for dotted in imports(name):
        if dotted.startswith("bigkernel."):
            target = dotted.removeprefix("bigkernel.")
            while target not in PATHS:
                target = target.rpartition(".")[0]
            modules.add(target)
    return modules - {"", name}


def inside(name: str) -> set[str]:
    """Return the modules and packages in a package."""
    paths = PATHS[name].parent.iterdir()
    return {path.stem for path in paths if path.suffix == ".py" or (path / "__init__.py").exists()} - {"__init__"}


def third_party(name: str) -> set[str]:
    """Return the third-party packages that a module imports."""
    return {dotted.split(".")[0] for dotted in imports(name)} - {"bigkernel"} - sys.stdlib_module_names


def package_of(name: str) -> str:
    """Return the package of a module."""
    top = name.split(".")[0]
    return top if top and (PACKAGE / top).is_dir() else "root"


def functions(name: str) -> Iterator[tuple[str, int, int]]:
    """Yield every function of a module with its number of lines and those of its docstring."""
    for node in ast.walk(tree_of(name)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            documented = 0 if ast.get_docstring(node) is None else (first.end_lineno or 0) - first.lineno + 1
            yield f"{name}.{node.name}", (node.end_lineno or 0) - node.lineno + 1, documented


def test_the_table_names_every_package():
    packages = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert sorted(ORDER) == sorted(packages | {"root"})


def test_a_module_imports_only_from_its_package_and_those_above():
    upward = {
        (name, other)
        for name in MODULES
        for other in modules_imported(name)
        if ORDER.index(package_of(other)) > ORDER.index(package_of(name))
    }
    assert upward == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import_module('bigkernel.cli.tune')", {"bigkernel.cli.tune"}),
        ("lazy.load('bigkernel.monitor')", {"bigkernel.monitor"}),
        ("view = 'bigkernel.monitor.report:write'", {"bigkernel.monitor.report"}),
        ("def f():\n import bigkernel\n return bigkernel.connect", {"bigkernel", "bigkernel.cluster.connect.connect"}),
        ("getattr(bigkernel, 'sweep')", {"bigkernel.engine.sweep.sweep"}),
        ("text = 'bigkernel.unknown'", set()),
    ],
)
def test_imports_by_string_and_through_the_root_are_detected(text, expected):
    assert set(imported(ast.parse(text))) == expected


def test_imports_have_no_cycle():
    try:
        graphlib.TopologicalSorter({name: modules_imported(name) for name in MODULES}).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" ← ".join(error.args[1]))


def test_packages_import_allowed_libraries():
    extra = {
        (name, library)
        for name in MODULES
        for library in third_party(name) - {*THIRD_PARTY.get(package_of(name), "").split()}
        if package_of(name) in THIRD_PARTY
    }
    assert extra == set()


def test_numerics_use_no_file_clock_or_random_state():
    uses = set()
    for name in MODULES:
        if package_of(name) not in NUMERICS:
            continue
        uses |= {(name, dotted.split(".")[0]) for dotted in imports(name) if dotted.split(".")[0] in IMPURE}
        for node in ast.walk(tree_of(name)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
                uses.add((name, "open"))
            # np.random.normal, but no classes
            if isinstance(node, ast.Attribute) and node.attr[0].islower() and ast.unparse(node.value) == "np.random":
                uses.add((name, ast.unparse(node)))
    assert uses == {STAGE_CLOCK}


def test_every_module_has_a_docstring():
    assert [name for name in PATHS if not ast.get_docstring(tree_of(name))] == []


@pytest.mark.parametrize(
    "name", [name for name in MODULES if name and PATHS[name].stem == "__init__" and inside(name)], ids=str
)
def test_a_package_lists_its_modules_each_of_which_imports_from_those_above(name):
    listed = re.findall(r"^(\w+) : \S", ast.get_docstring(tree_of(name)), re.M)
    assert sorted(listed) == sorted(inside(name))
    for module in MODULES:
        if not module.startswith(f"{name}."):
            continue
        place = listed.index(module.removeprefix(f"{name}.").split(".")[0])
        others = [
            one.removeprefix(f"{name}.").split(".")[0] for one in modules_imported(module) if one.startswith(f"{name}.")
        ]
        assert [one for one in others if listed.index(one) > place] == [], module


@pytest.mark.parametrize(
    "name", [one for one in MODULES if one.startswith(("estimators.fit.", "estimators.inputs.", "search."))]
)
def test_a_module_of_fits_and_searches_says_which_file_tests_it(name):
    room = ROOT / "tests" / package_of(name)
    named = re.search(r"Tests: (\w+/\w+\.py)\.", ast.get_docstring(tree_of(name)))
    file = room / f"test_{PATHS[name].stem}.py" if named is None else ROOT / "tests" / named[1]
    assert file.exists()


def test_estimators_have_few_bases():
    for name in (*estimators.__all__, "SweepSearchCV"):
        above = [one for one in getattr(bigkernel, name).__mro__[1:] if one.__module__.startswith("bigkernel")]
        assert len(above) <= MOST_BASES, above


def test_functions_have_a_limited_length():
    too_long = {
        function
        for name in PATHS
        for function, lines, documented in functions(name)
        if lines - documented * (package_of(name) != "engine") > MOST_LINES
    }
    assert too_long == set()


def test_the_package_has_few_other_entries():
    entries = [path for path in PACKAGE.iterdir() if path.name != "__pycache__" and path.name not in ORDER]
    assert len(entries) <= MOST_ENTRIES, sorted(path.name for path in entries)


def test_the_repository_has_no_other_entries():
    pages = {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "CITATION.cff", "changes"}
    named = {"pyproject.toml", "bigkernel", "pipelines", "tests", "cluster", "docs"} | pages
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()]
    entries = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    entries = {name for name in entries if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)}
    assert entries - named == set()


def test_ci_runs_the_test_command_of_the_readme():
    root = Path(__file__).parents[1]
    commands = [line for line in (root / "README.md").read_text().splitlines() if line.endswith("-m pytest")]
    assert len(commands) == 1
    assert commands[0] in (root / ".ci" / "run").read_text().splitlines()
