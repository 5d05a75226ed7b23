"""Where in our commands the keys are, which decide to what node of a cluster a command is sent."""

from __future__ import annotations

from typing import Any


class KnownKeys:
    """Takes the place of the driver's own, which asks the cluster's first master: for all commands
    at the start, and at each XREADGROUP. While that one is down nothing would work, though our keys
    are elsewhere.
    """

    async def initialize(self, _: object = None) -> None:
        """Nobody is asked."""

    async def get_keys(self, *words: Any) -> tuple[Any, ...]:
        """One is enough: all keys of a command are in one slot."""
        place = 2 if words[0] in ("XGROUP", "XINFO") else 1
        if words[0] == "XREADGROUP":
            place = words.index("STREAMS") + 1
        return words[place : place + 1]
