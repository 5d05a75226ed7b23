"""What spread logs and counters need from a data store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Protocol

import msgspec

from heatsink.errors import InvalidSetting
from heatsink.registry.layouts import Layout

SHARE_MAX = 2**63 - 1


class Row(msgspec.Struct, frozen=True):
    """One entry of a log. It carries the epoch that placed it, so `fsck` can check its place."""

    raw: bytes
    body: bytes
    epoch_ms: int
    buckets: int
    expires_ms: int | None = None
    deleted: bool = False


class Ask(msgspec.Struct, frozen=True):
    """A range of ids, both ends excluded, from one end of which at most `limit` rows are wanted.

    `layout_of` names a key whose layout shall come along, strongly read: the store of a key's bare
    partition can bring it for nothing.
    """

    above: bytes | None
    below: bytes | None
    limit: int
    newest_first: bool
    layout_of: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """Live rows in the order asked for; fewer than the limit only if there are no more."""

    rows: list[Row]
    layout: Layout | None = None


class LogStore(Protocol):
    """Rows by partition and id. Reads see every write acknowledged before they began."""

    def put(self, partition: str, row: Row) -> Awaitable[Row | None]:
        """Write the row unless its id is taken, also by a deleted row; return what took it."""

    async def get(self, partition: str, raw: bytes) -> Row | None:
        """The live row."""

    async def query(self, partition: str, ask: Ask) -> Answer: ...

    async def delete(self, partition: str, tombstone: Row) -> bool:
        """Put the tombstone in the row's place. True if there was a live row."""

    async def erase(self, partition: str) -> int:
        """Remove every trace of a partition's rows and counters. Returns how many rows went."""

    def scan(self) -> AsyncIterator[tuple[str, Row]]:
        """All rows of all partitions, deleted ones too, in any order."""


class Total(msgspec.Struct, frozen=True):
    """A counter's share in one partition.

    `writers` sums what processes with their own running totals have; `sealed_ms` is the time before
    which tokens are refused here; `folded_ms` (on the bare partition) says that partitions used
    only by epochs that ended before it are empty and sealed.
    """

    value: int = 0
    writers: int = 0
    sealed_ms: int = 0
    folded_ms: int = 0


class Running(msgspec.Struct, frozen=True):
    """A process's own totals for one counter: both only grow, so the larger is the newer."""

    raised: int = 0
    lowered: int = 0

    def __add__(self, other: Running) -> Running:
        return Running(self.raised + other.raised, self.lowered + other.lowered)

    def __sub__(self, other: Running) -> Running:
        return Running(self.raised - other.raised, self.lowered - other.lowered)

    def __bool__(self) -> bool:
        return bool(self.raised or self.lowered)

    @property
    def net(self) -> int:
        return self.raised - self.lowered


def check_share(value: int, amount: int) -> None:
    """Refuse an add that takes a share past its bound. One that leads back is always taken."""
    after = value + amount
    if not (-SHARE_MAX <= after <= SHARE_MAX or abs(after) <= abs(value)):
        raise past_the_bound(amount)


def check_running(to: Running) -> None:
    if to.raised > SHARE_MAX or to.lowered > SHARE_MAX:
        raise past_the_bound(to.net)


def past_the_bound(amount: int) -> InvalidSetting:
    return InvalidSetting(
        f"amount {amount} takes a bucket of this counter past 2**63 - 1, the most that it may hold "
        "up or down: count in larger units"
    )


class CounterStore(Protocol):
    """Shares of counters. Every method is one transaction.

    Adds and running totals have a bound, `SHARE_MAX`. What was taken is readable: a fold may make
    a larger share of several, and so may the sum of many writers.
    """

    async def add(self, partition: str, token: bytes, time_ms: int, amount: int) -> int | None:
        """Add and record the token, or return the amount that the token added before.

        `TokenExpired` if the token's time is sealed: nobody can tell any more. `InvalidSetting` if
        it would take the share past its bound.
        """

    async def raise_to(
        self, partition: str, writer: bytes, time_ms: int, to: Running
    ) -> Running | None:
        """Set a process's totals if they are smaller. None when done.

        If this writer was folded away meanwhile: the totals that were counted for it, and nothing
        is changed. `TokenExpired` if the writer's time is sealed, `InvalidSetting` if a total is
        past the bound.
        """

    async def totals(self, partitions: Sequence[str]) -> list[Total]:
        """All shares as of one moment."""

    def shares(self) -> AsyncIterator[str]:
        """Every partition that holds something for a counter."""

    async def fold(self, sources: Sequence[str], target: str, before_ms: int) -> None:
        """Seal the sources before a time, forget older tokens, move what they hold to the target.

        A writer minted before that time is folded into its partition's value, and what was counted
        for it is remembered until the next fold.
        """
