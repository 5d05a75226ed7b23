"""What the docs show is what happens: every Python block and every example runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES_WITH_CODE = [page for page in PAGES if "```python" in page.read_text()]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def run_python(arguments: list[str], folder: Path) -> str:
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=lambda page: page.name)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    output = run_python([str(script)], tmp_path)
    for claim in re.findall(r"print\(.*\)  # (.*)\n", "\n".join(blocks)):
        if not claim[0].islower():
            assert claim in output, claim


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    assert run_python([str(example)], tmp_path)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "ARCHITECTURE.md"], ids=lambda page: page.name)
def test_links_inside_the_project_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
