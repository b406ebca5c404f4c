"""The wheel contains the package and its data; the sdist contains the tests. `.ci/wheel.sh` installs and runs it."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHIPPED = {".py", ".pyi", ".yaml", ".css", ".html", ".js"}
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the folder of the wheel and the source distribution."""
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    return out


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
