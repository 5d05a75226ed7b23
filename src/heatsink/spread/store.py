"""The interfaces that a data store implements for logs and counters, and their rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Protocol

import msgspec

from heatsink.errors import InvalidSetting
from heatsink.registry.layouts import Layout

SHARE_MAX = 2**63 - 1


class Row(msgspec.Struct, frozen=True):
    """One entry of a log. The row names the epoch that placed it, so that `fsck` can check it."""

    raw: bytes
    body: bytes
    epoch_ms: int
    buckets: int
    expires_ms: int | None = None
    deleted: bool = False


class Ask(msgspec.Struct, frozen=True):
    """A query: at most `limit` rows with ids between `above` and `below`, which are excluded.

    If `layout_of` names a key, the store also returns the key's layout, read consistently. In
    DynamoDB a query of the bare key returns the layout at no extra cost.
    """

    above: bytes | None
    below: bytes | None
    limit: int
    newest_first: bool
    layout_of: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """The live rows that a query found, in the requested order.

    If there are fewer rows than the query's limit, the partition has no more rows in the range.
    """

    rows: list[Row]
    layout: Layout | None = None


class LogStore(Protocol):
    """Rows by partition and id.

    A read sees every write that was acknowledged before the read began.
    """

    def put(self, partition: str, row: Row) -> Awaitable[Row | None]:
        """Write the row, and return None.

        If a row or a tombstone with the same id exists, write nothing and return what exists.
        """

    async def get(self, partition: str, raw: bytes) -> Row | None:
        """Return the row with this id; None if there is none, or if it expired or was deleted."""

    async def query(self, partition: str, ask: Ask) -> Answer: ...

    async def delete(self, partition: str, tombstone: Row) -> bool:
        """Write the tombstone. It replaces the row with the same id, if there is one.

        Returns True if that row was live.
        """

    async def erase(self, partition: str) -> int:
        """Remove all rows, tombstones and counters of a partition. Returns the number of rows."""

    def scan(self) -> AsyncIterator[tuple[str, Row]]:
        """Iterate over all rows of all partitions, including tombstones, in any order."""


class Total(msgspec.Struct, frozen=True):
    """The part of a counter that one bucket holds (its *share*).

    A *fold* moves the totals of old buckets into the share of the bare key. `value` is the sum of
    all adds with a token, and of what folds have moved here. `writers` is the sum of the running
    totals that processes wrote. Adds whose token is from before `sealed_ms` are refused.
    `folded_ms` is set only in the share of the bare key. A bucket is old if all epochs that used it
    ended before this time. Folds have emptied all old buckets, and these accept no more adds.
    """

    value: int = 0
    writers: int = 0
    sealed_ms: int = 0
    folded_ms: int = 0


class Running(msgspec.Struct, frozen=True):
    """One process's two totals of one counter. Both only grow, so larger totals are newer."""

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

    Every method is one transaction. No single add may take a share's sum of adds past
    `SHARE_MAX`, and no writer may take its totals past it. But a fold, or many writers together,
    may take a share past this bound. The store must still be able to read such a share.
    """

    async def add(self, partition: str, token: bytes, time_ms: int, amount: int) -> int | None:
        """Add the amount to the partition's share, record the token, and return None.

        If the token was used before, add nothing and return the amount of its first use. Raises
        `TokenExpired` if the token is from before the share's `sealed_ms`, since the record of the
        token may be deleted. Raises `InvalidSetting` if the add would take the share past its
        bound.
        """

    async def raise_to(
        self, partition: str, writer: bytes, time_ms: int, to: Running
    ) -> Running | None:
        """Increase a writer's totals to `to`, and return None.

        If a fold has already added the writer's totals to the counter, change nothing and return
        the totals that were added. Raises `TokenExpired` if the writer is from before the share's
        `sealed_ms`, and `InvalidSetting` if the totals exceed their bound.
        """

    async def totals(self, partitions: Sequence[str]) -> list[Total]:
        """Return the counter's share in each of these partitions, all read at the same moment."""

    def shares(self) -> AsyncIterator[str]:
        """Iterate over all partitions that hold a share of a counter."""

    async def fold(self, sources: Sequence[str], target: str, before_ms: int) -> None:
        """Move the values of the shares `sources` to the share `target`.

        Each source is sealed: it refuses adds with tokens from before `before_ms`, and the records
        of such tokens are deleted. The totals of writers from before `before_ms` are included in
        the move. The store remembers these totals until the next fold.
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
