"""The live page about the emulator's partitions.

The path /partitions returns the page's data as JSON, and /explain says in words which partitions
are hot.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from heatsink.emulator.engine import Engine
from heatsink.emulator.explanation import explain

STATIC = Path(__file__).parent / "static"
PARTITIONS = "/partitions"
EXPLAIN = "/explain"
KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
FILES = {"/": "index.html", "/page.css": "page.css", "/page.js": "page.js", "/icon.svg": "icon.svg"}

_encode = msgspec.json.Encoder().encode


def answer(path: str, engine: Engine) -> tuple[str, bytes] | None:
    """Return the content type and the content of a path; None if there is no such path."""
    if path == PARTITIONS:
        return "application/json", _encode(engine.partitions())
    if path == EXPLAIN:
        return "application/json", _encode({"lines": explain(engine.partitions())})
    name = FILES.get(path)
    if name is None:
        return None
    file = STATIC / name
    return f"{KINDS[file.suffix]}; charset=utf-8", file.read_bytes()
