"""The package and its command line load heavy libraries only when needed."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import subprocess
import sys
from pathlib import Path

import click
import dask
import numpy as np
import pytest

import bigkernel
from bigkernel.cli import COMMANDS, main, model_options
from bigkernel.cluster.dask_settings import configuration
from bigkernel.engine.rows import as_rows
from bigkernel.estimators.fit.basis import CHOICES, FOURIER
from bigkernel.kernels.feature_maps import LandmarkMap
from bigkernel.kernels.functions import KERNELS, Gaussian
from bigkernel.statistics.domain_cells import Cells, cell_targets
from bigkernel.statistics.moments import MomentStatistic, Targets

HEAVY = ("dask.array", "dask_ml", "numba", "onnx", "pandas", "pyarrow", "sklearn", "sparse")
HEAVY += ("array_api_compat", "array_api_strict", "cupy", "torch")
LOADED = f"print(*sorted({{*sys.modules}} & {{*{HEAVY}}}))"


def loaded_by(*lines: str) -> set[str]:
    """Return the heavy libraries that a new interpreter has loaded after some lines of Python."""
    code = "\n".join(["import sys", *lines, LOADED])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_the_public_names_are_listed_and_nothing_else():
    assert dir(bigkernel) == sorted(bigkernel.__all__)
    assert {name for name in dir(bigkernel) if not hasattr(bigkernel, name)} == set()
    assert dir(bigkernel) == sorted(bigkernel.__all__)  # after modules were loaded


PACKAGES = [
    package
    for package in pkgutil.iter_modules(bigkernel.__path__, "bigkernel.")
    if package.ispkg and Path(bigkernel.__path__[0], package.name.rpartition(".")[2], "__init__.pyi").exists()
]


@pytest.mark.parametrize("name", [package.name for package in PACKAGES])
def test_a_package_lists_its_names_and_none_shadows_a_module(name):
    package = importlib.import_module(name)
    assert dir(package) == sorted(package.__all__)
    assert {expected for expected in package.__all__ if not hasattr(package, expected)} == set()
    assert {module.name for module in pkgutil.iter_modules(package.__path__)} & {*package.__all__} == set()


def test_importing_the_package_loads_nothing_but_itself():
    code = "import sys; known = {*sys.modules}; import bigkernel; print(*({*sys.modules} - known))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert loaded - set(sys.stdlib_module_names) == {"bigkernel"}


def test_estimators_and_saved_models_load_neither_dask_arrays_nor_xarray():
    lines = (
        "import bigkernel.estimators.persistence",
        "from bigkernel import Ridge",
        "Ridge().fit([[0.0], [1.0]], [0, 1]).predict([[1.0]])",
        "assert 'xarray' not in sys.modules",
    )
    assert not loaded_by(*lines) & {"dask.array", "dask_ml", "numba", "sparse"}


def test_no_array_library_is_loaded_for_fits_and_predictions_by_processors():
    lines = (
        "from bigkernel import KernelRidge, KernelRidgeClassifier, Matern",
        "X = [[i / 7, i % 3] for i in range(40)]",
        "KernelRidge(n_landmarks=5, alpha='cv').fit(X, range(40)).predict(X, return_std=True)",
        "KernelRidge(Matern(nu=0.5), n_landmarks=5, solver='cg').fit(X, range(40)).predict(X[:1])",
        "KernelRidgeClassifier(n_landmarks=5, probability=True).fit(X, [i % 2 for i in range(40)]).predict_proba(X)",
    )
    assert not loaded_by(*lines) & {"array_api_compat", "array_api_strict", "cupy", "torch"}


def test_names_of_packages_info_and_workers_load_no_heavy_library(tmp_path, make_corpus, rng):
    X, labels = rng.normal(size=(90, 3)), np.arange(90) % 2
    corpus = make_corpus(X, y=labels, domain=labels, classes=(0, 1))
    features, cells = LandmarkMap(Gaussian(1.0), X[:4], np.dtype("f4")), Cells(np.arange(2), np.arange(2))
    statistics = [MomentStatistic(features, targets) for targets in (Targets(2, np.arange(2)), cell_targets(cells))]
    (tmp_path / "task").write_bytes(pickle.dumps((statistics, as_rows(corpus))))
    path = str(corpus.path)
    lines = (  # in this order, as each may load more than those before
        # a name of a package loads its module and not the others
        "from bigkernel.statistics import MomentStatistic",
        "from bigkernel.kernels import Gaussian",
        "assert not {'zarr', 'bigkernel.kernels.random_fourier', 'bigkernel.statistics.predictor'} & {*sys.modules}",
        "from bigkernel.cli import main",
        "from click.testing import CliRunner",
        f"for arguments in (['info', {path!r}], ['info', '--json', {path!r}]):",
        "    result = CliRunner().invoke(main, arguments)",
        "    assert result.exit_code == 0 and '90' in result.output, result.output",
        "assert 'distributed' not in sys.modules",
        # an unpickled sweep
        "import pickle",
        f"statistics, rows = pickle.loads(open({str(tmp_path / 'task')!r}, 'rb').read())",
        "from bigkernel import sweep",
        "for statistic in statistics:",
        "    assert sweep(rows, statistic, client='serial').total['rows'].sum() == 90",
        # all modules of workers
        "import importlib, pkgutil",
        "names = 'streaming kernels statistics data events engine monitor.dashboard'.split()",
        "for package in (importlib.import_module(f'bigkernel.{name}') for name in names):",
        "    for module in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):",
        "        if module.name != 'bigkernel.data.dask_arrays':  # its users load it late",
        "            importlib.import_module(module.name)",
        "assert not {'cryptography', 'prometheus_client'} & {*sys.modules}",
    )
    assert loaded_by(*lines) == set()


def test_help_of_every_command_loads_no_heavy_library():
    lines = (
        "from bigkernel.cli import COMMANDS, main",
        "from click.testing import CliRunner",
        "for arguments in ([], *([name] for name in COMMANDS)):",
        "    result = CliRunner().invoke(main, [*arguments, '--help'])",
        "    assert result.exit_code == 0 and 'Usage' in result.output, (arguments, result.output)",
        "assert not {'bigkernel.estimators.base', 'distributed', 'scipy'} & {*sys.modules}",
    )
    assert loaded_by(*lines) == set()


def test_rows_are_ingested_and_checked_without_scikit_learn(tmp_path):
    np.save(tmp_path / "rows.npy", np.zeros((4, 3)))
    lines = (
        "from bigkernel.cli import main",
        f"main(['ingest', {str(tmp_path / 'rows.npy')!r}, {str(tmp_path / 'c')!r}, '--json'], standalone_mode=False)",
        f"main(['check', {str(tmp_path / 'c')!r}, '--json'], standalone_mode=False)",
    )
    assert "sklearn" not in loaded_by(*lines)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_of_commands_agrees_with_the_commands(name):
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name
    assert COMMANDS[name][1].split()[0] == str(command.help).split()[0]


def test_an_unknown_command_is_not_in_the_table():
    assert main.get_command(click.Context(main), "fitt") is None


def test_choices_in_help_match_those_of_the_library():
    assert tuple(KERNELS) == model_options.KERNELS
    assert model_options.LANDMARKS == CHOICES
    assert model_options.FOURIER == FOURIER


@pytest.mark.parametrize(
    "arguments, line",
    [
        (["--cluster", "local", "--workers", "2"], "bigkernel: starting 2 workers on this machine …"),
        (["--cluster", "local"], "bigkernel: starting one worker per processor on this machine …"),
        (["--cluster", "tcp://127.0.0.1:1"], "bigkernel: connecting to tcp://127.0.0.1:1 …"),
        ([], ""),
        (["--cluster", "local", "--json"], ""),
    ],
    ids=str,
)
def test_progress_is_printed_before_any_file_is_read(run, tmp_path, arguments, line):
    result = run("fit", tmp_path / "none.corpus", tmp_path / "out.model", *arguments, code=3)
    assert [said for said in result.stderr.splitlines() if said.startswith("bigkernel:")] == ([line] if line else [])
    assert result.stdout == ""


def test_a_scheduler_preloads_its_page_unless_monitoring_is_off():
    page = "bigkernel.monitor.dashboard.server"
    assert configuration(8787)["distributed.scheduler.preload"] == [page]
    with dask.config.set({"bigkernel.monitor": False}):
        assert configuration(8787)["distributed.scheduler.preload"] == []
