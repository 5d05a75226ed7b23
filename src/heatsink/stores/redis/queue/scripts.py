"""Runs Lua scripts in Redis. A script is sent once and then called by its hash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any

from heatsink.primitives.slot_time import SlotWitness
from heatsink.stores.redis.connection import Connection, Refused, Word

Now = Callable[[], float]


def server_time() -> float:
    """Return 0, which tells a script to use the server's own clock.

    Tests pass another function in place of this one.
    """
    return 0.0


class SlotClock:
    """Makes the time argument of scripts: what this process knows about each slot's time.

    In tests, `now_ms` replaces the server's clock.
    """

    def __init__(self, witness: SlotWitness, now_ms: Now = server_time) -> None:
        self._witness = witness
        self._now_ms = now_ms

    def words(self, slot: str) -> str:
        """Return what this process knows about the slot's time.

        This is the first argument of all scripts that use the time.
        """
        known = self._witness.evidence(slot)
        return f"{self._now_ms()!r} {known.wall_ms!r} {known.up_ms!r} {known.due_ms!r}"

    def heard(self, slot: str, told: bytes) -> None:
        """Remember the slot's time that a script returned."""
        self._witness.heard(slot, float(told))


class Script:
    """The script `scripts/{name}.lua`, preceded by the files `shared` from `scripts/shared`."""

    def __init__(self, name: str, *shared: str) -> None:
        folder = files(__package__) / "scripts"
        names = [*(f"shared/{part}.lua" for part in shared), f"{name}.lua"]
        texts = [(folder / part).read_text("utf-8") for part in names]
        self._text = "\n".join(texts)
        self._digest = sha1(self._text.encode(), usedforsecurity=False).hexdigest()
        self._sending = asyncio.Lock()
        self._sent = 0

    def words(
        self, key: str, *words: Word, others: Sequence[str] = (), whole: bool = False
    ) -> tuple[Word, ...]:
        """Return the command that runs the script.

        With `whole` it contains the script's text, for a server that does not have the script.
        """
        command, what = ("EVAL", self._text) if whole else ("EVALSHA", self._digest)
        return command, what, 1 + len(others), key, *others, *words

    async def run(
        self,
        connection: Connection,
        key: str,
        *words: Word,
        others: Sequence[str] = (),
        together: bool = False,
    ) -> Any:
        """Run the script with `key`, the keys `others` and the arguments `words`.

        The first key in `others` is the hash that holds the slot's time. With `together`, the call
        goes into a pipeline with other calls.
        """
        keys: list[Word] = [1 + len(others), key, *others]
        call = connection.run_together if together else connection.run
        while True:
            sent = self._sent
            try:
                return await call("EVALSHA", self._digest, *keys, *words)
            except Refused as refused:
                if refused.code != "NOSCRIPT":
                    raise
            async with self._sending:  # of many calls that find no script, one sends it
                if self._sent == sent:
                    self._sent += 1
                    return await connection.run("EVAL", self._text, *keys, *words)
