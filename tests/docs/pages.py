"""The pages of the docs, taken apart: their blocks of code, and which of them are to be run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
TUTORIAL = DOCS / "tutorial" / "hot-conversation.md"
PAGES = [README, *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(
    r"(?P<before>[^\n]*\n)\n?(?P<mark>[ ]*<!-- not run: [^\n]* -->\n)?"
    r"(?P<indent>[ ]*)```(?P<language>\w+)\n(?P<text>.*?)\n(?P=indent)```",
    re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """`before` is the line above: it may say under which name to save the block."""

    language: str
    text: str
    is_run: bool
    before: str


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    return [
        Block(found["language"], dedent(found["text"]), not found["mark"], found["before"])
        for found in FENCE.finditer(page.read_text())
    ]


def with_blocks(language: str) -> list[Path]:
    return [page for page in PAGES if any(each.language == language for each in blocks(page))]
