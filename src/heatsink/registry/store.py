"""What the registry needs from a data store."""

from __future__ import annotations

from typing import Protocol

from .decision import LogEntry, Meta, Reading, Snapshot
from .layout import Layout


class RegistryStore(Protocol):
    """The truth. Every read is strongly consistent and every change one transaction."""

    async def found(self, meta: Meta) -> Reading:
        """Write META unless there is one; either way, what is there."""

    async def meta(self) -> Reading: ...

    async def advance(self, closed_ms: int) -> Reading:
        """Raise the closed time, if it is lower. Returns META after that."""

    async def append(self, entry: LogEntry, term: int | None) -> None:
        """Commit one version under `rules.check_append`, or raise what that raises."""

    async def log(self, after: int, upto: int) -> list[LogEntry]:
        """The versions from `after + 1` to `upto`, without those already trimmed away."""

    async def layout(self, key: str) -> Layout: ...

    async def snapshot(self) -> Snapshot: ...

    async def trim(self, below: int) -> None:
        """Forget log entries below a version; snapshots still hold what they said."""
