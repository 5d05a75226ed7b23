"""News of the registry, for fleets too large to ask the store all the time. Never the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from .decision import LogEntry, Meta


class News(msgspec.Struct, frozen=True):
    """A pair (closed time, version) that META once held, and entries of the log up to it.

    The pair is whole, but it may be old, or of another incarnation; entries may be missing.
    """

    closed_ms: int
    version: int
    incarnation: str
    entries: tuple[LogEntry, ...] = ()


class NewsStore(Protocol):
    """May lose everything, at any time, or fall back to what it held before."""

    async def publish(self, meta: Meta, entries: Sequence[LogEntry]) -> None:
        """Entries first, then the pair, in one write. Both were read in the store: committed."""

    async def read(self, after: int) -> News | None:
        """The newest pair, and the entries after a version; None if nothing is known."""
