"""The interfaces that a data store implements for logs and counters, and their rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Protocol

import msgspec

from heatsink.errors import InvalidSetting
from heatsink.registry.layouts import Layout

SHARE_MAX = 2**63 - 1


class Row(msgspec.Struct, frozen=True):
    """One entry of a log. It contains the epoch that placed it, so `fsck` can check its place."""

    raw: bytes
    body: bytes
    epoch_ms: int
    buckets: int
    expires_ms: int | None = None
    deleted: bool = False


class Ask(msgspec.Struct, frozen=True):
    """A query: at most `limit` rows from one end of a range of ids, both bounds excluded.

    If `layout_of` names a key, the store also returns the key's layout, read consistently. In
    DynamoDB a query of the key's bare partition returns it at no extra cost.
    """

    above: bytes | None
    below: bytes | None
    limit: int
    newest_first: bool
    layout_of: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """Live rows in the requested order, fewer than the limit only if there are no more."""

    rows: list[Row]
    layout: Layout | None = None


class LogStore(Protocol):
    """Rows by partition and id. Reads see every write acknowledged before they began."""

    def put(self, partition: str, row: Row) -> Awaitable[Row | None]:
        """Write the row unless its id exists, even as a tombstone; return the existing row."""

    async def get(self, partition: str, raw: bytes) -> Row | None:
        """The row with this id; None if there is none, or if it expired or was deleted."""

    async def query(self, partition: str, ask: Ask) -> Answer: ...

    async def delete(self, partition: str, tombstone: Row) -> bool:
        """Put the tombstone in the row's place. True if there was a live row."""

    async def erase(self, partition: str) -> int:
        """Remove all rows, tombstones and counters of a partition; return the number of rows."""

    def scan(self) -> AsyncIterator[tuple[str, Row]]:
        """All rows of all partitions, deleted ones too, in any order."""


class Total(msgspec.Struct, frozen=True):
    """The part of a counter that one partition holds (its *share*).

    `value` is the sum of all adds with a token, and `writers` the sum of the running totals that
    processes wrote. Tokens from before `sealed_ms` are refused. `folded_ms` is set on the bare
    partition: all partitions that only epochs before this time used are empty and sealed.
    """

    value: int = 0
    writers: int = 0
    sealed_ms: int = 0
    folded_ms: int = 0


class Running(msgspec.Struct, frozen=True):
    """One process's totals of one counter. Both only grow, so larger totals are newer."""

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


class CounterStore(Protocol):
    """Counters by partition. A *share* is the part of a counter that one partition holds.

    Every method is one transaction. `SHARE_MAX` bounds adds and running totals only. A fold of
    several shares, or the sum of many writers, may be larger and must stay readable.
    """

    async def add(self, partition: str, token: bytes, time_ms: int, amount: int) -> int | None:
        """Add the amount and record the token. If the token was used, return its earlier amount.

        Raises `TokenExpired` if the token's time is sealed, since its record may be gone, and
        `InvalidSetting` if the add would take the share past its bound.
        """

    async def raise_to(
        self, partition: str, writer: bytes, time_ms: int, to: Running
    ) -> Running | None:
        """Raise a writer's totals to `to`. Returns None.

        If the writer was folded meanwhile, change nothing and return the totals counted for it.
        Raises `TokenExpired` if the writer's time is sealed, `InvalidSetting` past the bound.
        """

    async def totals(self, partitions: Sequence[str]) -> list[Total]:
        """The counter's total in each of these partitions, all read at the same moment."""

    def shares(self) -> AsyncIterator[str]:
        """All partitions that hold part of a counter."""

    async def fold(self, sources: Sequence[str], target: str, before_ms: int) -> None:
        """Seal the sources before a time, drop their older tokens, and move their values.

        The values are added to the target. The totals of a writer that was minted before that time
        are added to its partition's value first, and are remembered until the next fold.
        """


def check_share(value: int, amount: int) -> None:
    """Raise `InvalidSetting` if an add takes a share past its bound.

    An add towards zero is always accepted.
    """
    after = value + amount
    if not (-SHARE_MAX <= after <= SHARE_MAX or abs(after) <= abs(value)):
        raise past_the_bound(amount)


def check_running(to: Running) -> None:
    if to.raised > SHARE_MAX or to.lowered > SHARE_MAX:
        raise past_the_bound(to.net)


def past_the_bound(amount: int) -> InvalidSetting:
    return InvalidSetting(
        f"amount {amount} takes a bucket of this counter past its limit of ±(2**63 - 1): "
        "count in larger units",
        field="amount",
    )
