"""The wheel contains the package and its data and works from any folder; the sdist contains the tests."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED = {".py", ".pyi", ".yaml", ".css", ".html", ".js"}
SMOKE = """
import sys

import numpy as np

import bigkernel
from bigkernel import KernelRidge, load_model, save_model

assert bigkernel.__file__.startswith(sys.prefix), bigkernel.__file__
rng = np.random.default_rng(0)
X = rng.normal(size=(200, 3))
model = KernelRidge(n_landmarks=50, alpha=1e-3, random_state=0).fit(X, X[:, 0])
save_model(model, "numbers.model")
assert np.array_equal(load_model("numbers.model").predict(X), model.predict(X))
assert model.score(X, X[:, 0]) > 0.9
np.savez("rows.npz", x=X, y=(X[:, 0] > 0).astype(int))
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def call(*command, cwd):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the folder of the wheel and the source distribution."""
    out = tmp_path_factory.mktemp("dist")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT, cwd=out)
    return out


def test_the_distributions_pass_the_checks_of_twine(built):
    call(sys.executable, "-m", "twine", "check", "--strict", *built.iterdir(), cwd=built)


def test_the_wheel_holds_the_package_with_its_data_and_nothing_else(built):
    (wheel,) = built.glob("*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    files = [path for path in (ROOT / "bigkernel").rglob("*") if path.suffix in SHIPPED or path.name == "py.typed"]
    assert names == {path.relative_to(ROOT).as_posix() for path in files}


def test_the_source_distribution_holds_what_its_tests_need(built):
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert {"bigkernel", "tests", "pipelines", "cluster", "docs", "README.md", "LICENSE", "pyproject.toml"} <= names


def test_the_installed_wheel_works_from_another_folder(built, tmp_path):
    # its libraries are those of this interpreter, at the end of the path
    home, work = tmp_path / "venv", tmp_path / "work"
    work.mkdir()
    venv.create(home, symlinks=True)
    (wheel,) = built.glob("*.whl")
    python = home / "bin" / "python"
    call(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel, cwd=work)
    (own,) = home.glob("lib/python*/site-packages")
    (own / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    call(python, "-c", SMOKE, cwd=work)

    command = home / "bin" / "bigkernel"
    assert "predict" in call(command, "--help", cwd=work)
    call(command, "ingest", "rows.npz", "rows.corpus", cwd=work)
    fit = ("rows.corpus", "rows.model", "--landmarks", "20", "--cluster", "local", "--workers", "1")
    fitted = json.loads(call(command, "fit", *fit, "--dashboard-port", "0", "--json", cwd=work))
    assert fitted["executor"] == "dask"
