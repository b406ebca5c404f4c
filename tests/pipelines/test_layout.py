"""What all experiments have in common: which modules they import, their help, and refused options and data."""

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
    """Dotted names of everything that a module imports: a.b of `from a import b`."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def module_of(name):
    """The module that holds a dotted name below `pipelines`."""
    return name if name in MODULES else name.rpartition(".")[0]


def test_an_experiment_imports_nothing_of_another():
    for module, path in MODULES.items():
        home = module.split(".")[:2]
        others = {module_of(name) for name in imports(path) if name.startswith("pipelines.")}
        assert [name for name in others if name.split(".")[:2] not in (home, ["pipelines", "shared"])] == [], module


def test_experiments_use_public_names_and_of_the_command_line_few_parts():
    names = {name for path in MODULES.values() for name in imports(path) if name.startswith("bigkernel.")}
    assert [name for name in names if "._" in name] == []
    of_commands = {tuple(name.split(".")[2:3]) for name in names if name.startswith("bigkernel.cli")}
    assert of_commands <= {("Commands",), ("options",), ("transforms",)}


def test_every_experiment_is_in_the_table():
    packages = {module.split(".")[1] for module in MODULES if module.count(".")} - {"__main__", "shared"}
    assert {module.split(".")[0] for module, _ in PIPELINES.values()} == packages


@pytest.mark.parametrize("name", PIPELINES)
def test_help_has_an_example_and_names_the_report(name):
    text = " ".join(call(name, "--help").stdout.split())
    assert name in ("bench", "deform") or (f"python -m pipelines {name}" in text and "report.html" in text)


DATA = "--data {0} --out {0}/out"
REFUSED = {  # arguments; exit code and message
    f"wine {DATA}": (3, "winequality-white.csv: not found; it is UCI Wine Quality"),
    f"usps-mnist {DATA}": (3, "digits16_USPS_1800.mat"),
    f"domains --experiment pair --quick {DATA}": (3, "digits16_USPS_1800.mat"),
    f"domains --experiment rotated --quick {DATA}": (3, "train-labels-idx1-ubyte.gz"),
    f"labels --set mnist {DATA}": (3, "not found; it is the images of MNIST's training digits"),
    "scaling --segments 5 --out {0}/out": (8, "two numbers or more"),
    "scaling --rows 1000 --landmarks 600 --out {0}/out": (8, "600 landmarks: expected at most half of the 1,000 rows"),
    "scaling --rows 1000 --out {0}/out": (8, "give fewer --landmarks or more --rows"),
    "corpus": (2, "--run DIR is missing"),
    "corpus --data {0} --run {0}/out": (3, "train-images-idx3-ubyte.gz"),
    "corpus --run {0}/out --transform strokes": (2, "'strokes' is not one of"),
    "corpus --run {0}/out --transform orientations:cell=4": (8, "Invalid parameter 'cell' for estimator"),
    "corpus --run {0}/out --sigma 0": (8, "expected numbers above 0"),
    "corpus --run {0}/out --alpha -1,2": (8, "expected gcv or numbers of at least 0"),
    "corpus --run {0}/out --search-rows 500": (8, "give several --sigma or --alpha"),
}


@pytest.mark.parametrize("arguments, refused", REFUSED.items(), ids=REFUSED)
def test_missing_data_and_invalid_options_are_refused_before_any_result(tmp_path, arguments, refused):
    code, message = refused
    assert message in call(*arguments.format(tmp_path).split(), code=code).stderr
    # a run of `corpus` records the error
    assert arguments.startswith("corpus") or not [path for path in tmp_path.rglob("*") if path.is_file()]
