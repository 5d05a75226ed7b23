"""The shape of one assumption and of what its check observed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import msgspec

from .ground import Ground


class Observed(NamedTuple):
    """What a check saw. `holds` is None if it could not tell."""

    holds: bool | None
    text: str


class Assumption(msgspec.Struct, frozen=True):
    """One assumption: its check, what it costs at most, and where it matters.

    `writes` and `reads` are in units. `dollars` is the additional cost of its tables.
    """

    name: str
    assumed: str
    matters: str
    check: Callable[[Ground], Awaitable[Observed]]
    writes: int = 0
    reads: int = 0
    dollars: float = 0.0


def all_as(wanted: list[str], seen: list[str], shown: str = "") -> Observed:
    """Return whether all observations are as wanted. The text lists them unless `shown` is set."""
    return Observed(wanted == seen, shown or ", ".join(seen))
