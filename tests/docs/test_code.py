"""What the docs show is what happens: every Python block and every example runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from .pages import PAGES, ROOT, TUTORIAL, blocks, name_of, with_blocks

PAGES_WITH_CODE = [page for page in with_blocks("python") if page != TUTORIAL]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run_python(arguments: list[str], folder: Path) -> str:
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.timeout(180)  # machines may be busy
@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=name_of)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    shown = [block for block in blocks(page) if block.language == "python" and block.is_run]
    code = "\n".join(block.text for block in shown) + "\n"
    script = tmp_path / "page.py"
    script.write_text(code)
    output = run_python([str(script)], tmp_path)
    for claim in re.findall(r"print\(.*\)  # (.*)\n", code):
        if not claim[0].islower():
            assert claim in output, claim


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_block_of_code_begins_and_ends_on_lines_of_its_own(page: Path) -> None:
    lines = [line.strip() for line in page.read_text().splitlines()]
    assert not [line for line in lines if "```" in line.removeprefix("```")]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    assert run_python([str(example)], tmp_path)
