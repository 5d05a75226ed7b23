"""Runs Lua scripts in Redis. A script is sent once and then called by its hash."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from hashlib import sha1
from importlib.resources import files
from typing import Any

from heatsink.primitives.slot_time import SlotWitness
from heatsink.stores.redis.connection import Connection, RedisRefused, Word

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
        """Return, as text, what this process knows about the time of a slot.

        This is the first argument of all scripts that use the time.
        """
        known = self._witness.evidence(slot)
        return f"{self._now_ms()!r} {known.wall_ms!r} {known.up_ms!r} {known.due_ms!r}"

    def heard(self, slot: str, told: bytes) -> None:
        """Remember the slot's time that a script returned."""
        self._witness.heard(slot, float(told))


class Script:
    """The script `scripts/{name}.lua`, preceded by files from `scripts/shared`.

    Each of the `levels` names some of these files. Each level is a Lua function inside the function
    of the level before. When Lua creates a function, it looks for the variables that the function
    uses. It finds a variable of an outer level at once, but has to search among the variables of
    the same level. So a call of a script with many functions takes less time if the functions are
    on several levels.
    """

    def __init__(self, name: str, *levels: str) -> None:
        folder = files(__package__) / "scripts"
        *outer, last = [
            [f"shared/{part}.lua" for part in level.split()] for level in levels or ("",)
        ]
        blocks = [
            "\n".join((folder / part).read_text("utf-8") for part in parts)
            for parts in (*outer, [*last, f"{name}.lua"])
        ]
        depth = len(blocks) - 1
        self._text = "\nlocal function inner()\n".join(blocks) + "\nend return inner()" * depth
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
        """Run the script. `key` is its first key, and `words` are its arguments.

        The first of the `others`, its further keys, is the hash that holds the slot's time. With
        `together`, the call goes into a pipeline with other calls.
        """
        keys: list[Word] = [1 + len(others), key, *others]
        call = connection.run_together if together else connection.run
        while True:
            sent = self._sent
            try:
                return await call("EVALSHA", self._digest, *keys, *words)
            except RedisRefused as refused:
                if refused.code != "NOSCRIPT":
                    raise
            async with self._sending:  # of many calls that find no script, one sends it
                if self._sent == sent:
                    self._sent += 1
                    return await connection.run("EVAL", self._text, *keys, *words)
