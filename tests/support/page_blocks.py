"""The code blocks of Markdown pages, and a driver that runs them: `python page_blocks.py PAGE…` prints one JSON object.

It ends with 1 if a block failed.
The blocks of a page run in order, in one namespace and one empty directory. `python` blocks are executed as they
stand (those of README.md as a file each, in a process of its own). The lines of `sh` blocks are commands of
`bigkernel`, called in this process. A comment `<!-- not run: REASON -->` just above a block leaves it out.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

REASON = r"(?:<!-- not run: (?P<reason>[^>]+?) -->\n)?"
BLOCK = re.compile(REASON + r"^```(?P<kind>\S*)[^\n]*\n(?P<text>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text, first line, and the reason if it is not run."""

    kind: str
    text: str
    line: int
    reason: str | None


def blocks_of(page):
    """Return the fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(match["kind"], match["text"], text.count("\n", 0, match.start("text")) + 1, match["reason"])
        for match in BLOCK.finditer(text)
    ]


def commands_of(block):
    """Return the words of each command of an `sh` block, without comments."""
    lines = block.text.replace("\\\n", " ").splitlines()
    return [command for line in lines if (command := shlex.split(line, comments=True))]


def run_command(command):
    """Call a command of bigkernel in this process; raise if it fails."""
    from click.testing import CliRunner

    from bigkernel.cli import main

    assert command[0] == "bigkernel", f"{command}: not a command of bigkernel"
    result = CliRunner().invoke(main, command[1:])
    if result.exit_code:
        raise RuntimeError(
            f"{shlex.join(command)} ended with {result.exit_code}:\n{result.output}"
        ) from result.exception


def run_file(text):
    """Run `text` as a Python file; raise if it fails, or shows a grid that is too small."""
    Path("pasted.py").write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, "pasted.py"], capture_output=True, text=True, timeout=500)
    if done.returncode or "BestAtEdgeWarning" in done.stderr:
        raise RuntimeError(f"the block as a file ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def run_page(page):
    """Run the blocks of a page in an empty directory; return the traceback of an error, or nothing."""
    names = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        try:
            for block in blocks_of(page):
                if block.reason:
                    continue
                if block.kind == "python" and page.name == "README.md":
                    run_file(block.text)
                elif block.kind == "python":
                    padding = "\n" * (block.line - 1)  # so that a traceback shows the lines of the page
                    exec(compile(padding + block.text, str(page), "exec"), names)
                elif block.kind == "sh":
                    for command in commands_of(block):
                        run_command(command)
        except Exception:
            return traceback.format_exc()
        finally:
            os.chdir("/")
    return ""


if __name__ == "__main__":
    sys.stdout, answer = sys.stderr, sys.stdout
    pages = [Path(name).resolve() for name in sys.argv[1:]]
    problems = {str(page): run_page(page) for page in pages}
    json.dump(problems, answer)
    sys.exit(any(problems.values()))
