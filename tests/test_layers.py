"""The layers of DESIGN.md: who imports whom, what stands at the top, how long a module may be."""

from __future__ import annotations

import ast
import fnmatch
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bigkernel"

LAYERS = {
    "base": {"errors", "config", "interrupts", "mappings"},
    "numerics": {
        *("blas", "blocks", "chunks", "kernels", "landmarks", "features", "statistics", "solve", "plan"),
        *(
            "mercer",
            "posterior",
            "predictor",
            "folds",
            "families",
            "grid",
            "gcv",
            "scores",
            "certify",
            "indefinite",
            "eigenfunctions",
            "deformed",
            "fourier",
            "sampling",
            "tree",
            "forecast",
            "projections",
            "cells",
            "views",
            "invariance",
            "pseudo",
            "images",
            "resampling",
            "restyled",
            "alignment",
            "anchors",
            "adaptation",
            "bandwidths",
        ),
    },
    "storage": {
        *("arrays", "seals", "disk", "identity", "locks", "survey", "soundness", "corpus", "runs", "io", "ingest"),
        *("predictions", "checks", "labels", "partition", "fetch"),
    },
    "execution": {
        *("sources", "rows", "execution", "sweep", "distribute", "worker", "monitor", "incidents", "preflight"),
        *("filling", "certificates", "credentials", "attach", "clusters", "report", "calibration", "measuring"),
        *("cluster_files", "dask_settings", "ssh", "hosted", "slurm", "digits", "copies", "virtual"),
    },
    "estimators": {"estimators", "search", "model", "model_checks"},
    "front": {"cli", "__main__", "__init__"},
}
ORDER = list(LAYERS)
RANK = {module: rank for rank, names in enumerate(LAYERS.values()) for module in names}

# what a layer may import from outside, on top of what the layers above it in the table may
OUTSIDE = {
    "base": {"dask.config", "yaml"},
    "numerics": {"numpy", "scipy", "threadpoolctl"},
    "storage": {"zarr", "psutil", "PIL", "aiohttp", "fsspec", "pooch", "pyarrow"},
    "execution": {
        *("dask", "distributed", "bokeh", "yaml", "rich", "cryptography", "tornado"),
        "prometheus_client",
    },
    "estimators": {"sklearn", "dask_ml"},
    "front": {"click", "matplotlib", "PIL"},
}
FILES_AND_CHANCE = {"os", "io", "pathlib", "shutil", "tempfile", "socket", "subprocess", "random"}


def module_name(path: Path) -> str:
    """`kernels` for bigkernel/kernels.py, `io` for bigkernel/io/text.py, `__init__` for the package itself."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Dotted names of everything a module imports, wherever in its text."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            if node.module in ("bigkernel", "dask"):
                found.update(f"{node.module}.{alias.name}" for alias in node.names)
            else:
                found.add(str(node.module))
    return found


def ours(names: set[str]) -> set[str]:
    """The modules of bigkernel among dotted names."""
    return {(name.split(".") + ["__init__"])[1] for name in names if name.split(".")[0] == "bigkernel"}


MODULES = sorted(PACKAGE.rglob("*.py"))
IDS = [str(path.relative_to(PACKAGE)) for path in MODULES]


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_a_module_imports_only_from_its_layer_and_those_above(path):
    assert module_name(path) in RANK, f"{path.name} is in no layer of DESIGN.md"
    rank = RANK[module_name(path)]
    upward = {name for name in ours(imports(path)) if RANK.get(name, 99) > rank}
    if module_name(path) != "__init__":
        upward -= {"__init__"}  # bigkernel itself holds the version
    assert upward == set(), f"{module_name(path)} ({ORDER[rank]}) imports upward"


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_a_layer_imports_only_the_packages_it_is_given(path):
    layer = ORDER[RANK[module_name(path)]]
    allowed = set().union(*(OUTSIDE[name] for name in ORDER[: ORDER.index(layer) + 1]))
    if layer == "numerics":
        allowed = OUTSIDE["numerics"]
    outside = {name for name in imports(path) if name.split(".")[0] not in {*sys.stdlib_module_names, "bigkernel"}}
    refused = {name for name in outside if name not in allowed and name.split(".")[0] not in allowed}
    assert refused == set(), f"{module_name(path)} is in the layer {layer}"


@pytest.mark.parametrize("module", sorted(LAYERS["numerics"]))
def test_numerics_touch_no_file_and_no_global_chance(module):
    path = PACKAGE / f"{module}.py"
    assert {name.split(".")[0] for name in imports(path)} & FILES_AND_CHANCE == set()
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert "open" not in {call.id for call in calls if isinstance(call, ast.Name)}
    assert ".random." not in path.read_text().replace("np.random.RandomState", ""), "global random state"


def test_modules_import_one_another_without_a_circle():
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        name = module_name(path)
        graph.setdefault(name, set()).update(ours(imports(path)) - {name, "__init__"})
    graph.pop("__init__")
    while graph:
        free = {name for name, needs in graph.items() if not needs & set(graph)}
        assert free, f"a circle among {sorted(graph)}"
        graph = {name: needs for name, needs in graph.items() if name not in free}


@pytest.mark.parametrize("path", MODULES, ids=IDS)
def test_a_module_has_at_most_400_lines_and_says_what_it_is(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    assert ast.get_docstring(ast.parse(text))


def test_nothing_else_stands_at_the_top_of_the_repository():
    named = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "bigkernel", "pipelines", "tests", "cluster"}
    ignored = [line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()]
    found = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
    found = {name for name in found if not any(fnmatch.fnmatch(name, pattern) for pattern in ignored)}
    assert found - named == set()


def test_ci_runs_the_test_command_of_the_readme_to_the_letter():
    root = Path(__file__).parents[1]
    commands = [line for line in (root / "README.md").read_text().splitlines() if line.endswith("-m pytest")]
    assert len(commands) == 1
    assert commands[0] in (root / ".ci" / "run").read_text().splitlines()
