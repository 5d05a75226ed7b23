"""The Lua that runs inside Redis: constant files, sent once and called by their hash."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha1
from importlib.resources import files
from typing import Any

from heatsink.stores.redis.connection import Connection, Refused, Word

Now = Callable[[], float]


def server_time() -> float:
    """0 lets a script ask the server's own clock; tests bring one of theirs."""
    return 0.0


class Script:
    """`scripts/{name}.lua`, behind those of `scripts/shared` that it needs."""

    def __init__(self, name: str, *shared: str) -> None:
        folder = files(__package__) / "scripts"
        names = [*(f"shared/{part}.lua" for part in shared), f"{name}.lua"]
        texts = [(folder / part).read_text("utf-8") for part in names]
        self._text = "\n".join(texts)
        self._digest = sha1(self._text.encode(), usedforsecurity=False).hexdigest()

    async def run(self, connection: Connection, key: str, *words: Word) -> Any:
        try:
            return await connection.run("EVALSHA", self._digest, 1, key, *words)
        except Refused as refused:
            if refused.code != "NOSCRIPT":
                raise
        return await connection.run("EVAL", self._text, 1, key, *words)
