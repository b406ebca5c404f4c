"""The steps of a release that a person would get wrong: `python .ci/release.py --help`. It needs Python alone."""

import argparse
import datetime
import hashlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path.cwd()  # run it at the root of the repository
CHANGES = "changes/*.md"
PLACEHOLDER = "example.org"  # a domain that belongs to nobody; pyproject.toml has it until the repository is public


def project() -> dict:
    """Return the table [project] of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def version() -> str:
    """Return the version that the package states."""
    return re.search(r'^__version__ = "(.+)"$', (ROOT / "bigkernel/__init__.py").read_text(encoding="utf-8"), re.M)[1]


def fragment(base: str) -> list[str]:
    """Look whether a change of the package since BASE has a file in changes/."""
    command = ["git", "diff", "--name-only", "--diff-filter=d", f"{base}...HEAD"]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    if any(name.startswith("bigkernel/") for name in files) and not any(name.startswith("changes/") for name in files):
        return ["the package changed, and no file in changes/ says so: add changes/NAME.md (see CONTRIBUTING.md)"]
    return []


def collect(number: str) -> list[str]:
    """Move the files of changes/ into CHANGELOG.md, under VERSION and today's date."""
    page, files = ROOT / "CHANGELOG.md", sorted(ROOT.glob(CHANGES))
    text, heading = page.read_text(encoding="utf-8"), f"## {number} ({datetime.date.today()})\n"
    if not (own := re.search(rf"^## {re.escape(number)} \(unreleased\)\n", text, re.M)):
        text = text.replace("\n## ", f"\n## {number} (unreleased)\n\n## ", 1)
        own = re.search(rf"^## {re.escape(number)} \(unreleased\)\n", text, re.M)
    section, mark, older = text[own.end() :].partition("\n## ")
    lines = [file.read_text(encoding="utf-8").strip() for file in files]
    body = "\n".join(part for part in (section.strip(), *lines) if part)
    page.write_text(f"{text[: own.start()]}{heading}\n{body}\n{mark}{older}", encoding="utf-8")
    for file in files:
        file.unlink()
    return []


def ready(tag: str) -> list[str]:
    """Say what keeps the commit of TAG from being published: versions, changes, addresses."""
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    log, number = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version()
    addresses = project()["urls"].values()
    problems = {
        f"the tag is {tag}, the package is {number}": tag != f"v{number}",
        f"CITATION.cff has no `version: {number}`": f"\nversion: {number}\n" not in cited,
        "CITATION.cff has no date-released": "\ndate-released: " not in cited,
        f"CHANGELOG.md has no dated section of {number}: run `collect {number}`": f"\n## {number} (2" not in log,
        "changes/ still holds files: run `collect`": any(ROOT.glob(CHANGES)),
        "[project.urls] has placeholders: write the true addresses": any(PLACEHOLDER in each for each in addresses),
    }
    return [problem for problem, found in problems.items() if found]


def recipe(archive: str) -> list[str]:
    """Print conda-forge's recipe.yaml for ARCHIVE, the source archive on PyPI."""
    about = project()
    # extras are no packages there: `dask-core` with NumPy is dask[array]
    needs = [re.sub(r"^dask\[array\]", "dask-core", each) for each in about["dependencies"]]
    run = "\n".join("    - " + re.sub(r"([a-z])([<>=!])", r"\1 \2", each, count=1) for each in needs)
    python = about["requires-python"].removeprefix(">=")
    print(f"""schema_version: 1
context:
  version: "{version()}"
  python_min: "{python}"
package:
  name: bigkernel
  version: ${{{{ version }}}}
source:
  url: https://pypi.org/packages/source/b/bigkernel/bigkernel-${{{{ version }}}}.tar.gz
  sha256: {hashlib.sha256(Path(archive).read_bytes()).hexdigest()}
build:
  number: 0
  noarch: python
  script: ${{{{ PYTHON }}}} -m pip install . -vv --no-deps --no-build-isolation
  python:
    entry_points:
      - bigkernel = {about["scripts"]["bigkernel"]}
requirements:
  host:
    - python ${{{{ python_min }}}}.*
    - pip
    - hatchling >=1.27
  run:
    - python >=${{{{ python_min }}}}
{run}
tests:
  - python:
      imports: [bigkernel]
      pip_check: true
      python_version: ${{{{ python_min }}}}.*
  - script:
      - bigkernel --help
about:
  summary: {about["description"]}
  license: {about["license"]}
  license_file: LICENSE
  homepage: {about["urls"]["Homepage"]}""")
    return []


STEPS = {fragment: "base", collect: "version", ready: "tag", recipe: "archive"}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    for step, argument in STEPS.items():
        command = commands.add_parser(step.__name__, help=step.__doc__, description=step.__doc__)
        command.add_argument("value", metavar=argument.upper())
        command.set_defaults(step=step)
    given = parser.parse_args()
    if problems := given.step(given.value):
        sys.exit("\n".join(problems))
