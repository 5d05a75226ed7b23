"""Bugs that somebody might write into indexes and streams, each planted for one run."""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from unittest.mock import patch

from heatsink.emulator import table as tables
from heatsink.emulator.engine import STREAMS_API
from heatsink.emulator.expiry import Walk
from heatsink.emulator.indexes import GlobalIndex, IndexChange, _Lagging, change_of
from heatsink.emulator.operations import streams as stream_operations
from heatsink.emulator.operations import writes
from heatsink.emulator.rows import StoredItem, token_of
from heatsink.emulator.streams import Shard, Stream
from heatsink.emulator.units import Charge, take_together
from heatsink.stores.dynamodb.wire.keys import IndexSchema, Key
from tests.planted import Bugs

from .bugs import _operation

FOLLOWER_BUGS = bug = Bugs()


@bug
def an_entry_stays_where_it_was_when_its_key_changes() -> Iterator[None]:
    def forgetful(*arguments: Any) -> IndexChange | None:
        change = change_of(*arguments)
        moved = change is not None and change.added is not None
        return change._replace(removed=None) if change is not None and moved else change

    with patch.object(tables, "change_of", forgetful):
        yield


@bug
def an_entry_stays_when_its_item_leaves_the_index() -> Iterator[None]:
    def sticky(
        index: Any, key: Key, old: StoredItem | None, new: StoredItem | None
    ) -> IndexChange | None:
        change = change_of(index, key, old, new)
        if new is not None and change is not None and change.added is None:
            return None
        return change

    with patch.object(tables, "change_of", sticky):
        yield


@bug
def items_with_one_key_share_an_entry() -> Iterator[None]:
    """The key of an entry lacks the primary key of its item."""
    key_of = IndexSchema.key_of

    def short(self: IndexSchema, key: Key, item: Any) -> Key | None:
        found = key_of(self, key, item)
        if found is None or not isinstance(found.sort, tuple):
            return found
        return Key(found.hash, found.sort[: len(self.sort_parts)])

    with patch.object(IndexSchema, "key_of", short):
        yield


@bug
def a_backfill_brings_deleted_items_back() -> Iterator[None]:
    """It reads the table once, at its beginning, and adds the items later."""
    step = Walk.step

    def stale(self: Walk, count: int) -> Iterator[tuple[Key, StoredItem]]:
        if not hasattr(self, "seen"):
            self.seen = list(step(self, 10**6))  # type: ignore[attr-defined]
        seen = self.seen  # type: ignore[attr-defined]
        found, seen[:] = seen[:count], seen[count:]
        self.is_done = not seen
        return iter(found)

    with patch.object(Walk, "step", stale):
        yield


@bug
def writes_during_a_backfill_miss_the_index() -> Iterator[None]:
    def blind(
        index: Any, key: Key, old: StoredItem | None, new: StoredItem | None
    ) -> IndexChange | None:
        filling = isinstance(index, GlobalIndex) and index.status == "CREATING"
        return None if filling and old is not None else change_of(index, key, old, new)

    with patch.object(tables, "change_of", blind):
        yield


@bug
def changes_overtake_each_other_on_the_way_to_the_index() -> Iterator[None]:
    def hasty(self: _Lagging, removed: Any, added: Any, row: Any) -> None:
        assert self._rng is not None or self._lag_s
        lag_s = self._lag_s if self._rng is None else self._rng.uniform(0.0, self._lag_s)
        self._coming.append((self._clock.monotonic_s() + lag_s, removed, added, row))
        ordered = sorted(self._coming, key=lambda one: one[0])
        self._coming.clear()
        self._coming.extend(ordered)

    with patch.object(_Lagging, "send", hasty):
        yield


@bug
def an_index_is_charged_by_the_keys_of_the_table() -> Iterator[None]:
    """A hot value of the index then throttles nobody."""
    charges = writes.PlannedWrite.charges

    def spread(self: writes.PlannedWrite, factor: int = 1) -> list[Charge]:
        token = token_of(f"{self.key!r}")
        first, *rest = charges(self, factor)
        return [first, *(one._replace(token=token) for one in rest)]

    with patch.object(writes.PlannedWrite, "charges", spread):
        yield


@bug
def a_page_of_an_index_goes_on_after_its_sort_key() -> Iterator[None]:
    """Items with the same key in the index as the last one are skipped."""
    start_key = IndexSchema.start_key

    def far(self: IndexSchema, key: Any) -> Key:
        found = start_key(self, key)
        assert isinstance(found.sort, tuple)
        return Key(found.hash, (*found.sort[: len(self.sort_parts)], "~~~~"))

    with patch.object(IndexSchema, "start_key", far):
        yield


@bug
def a_throttled_index_misses_the_entry() -> Iterator[None]:
    """The table takes the write, and only the index refuses it."""

    def lenient(operation: Any, charges: list[Charge]) -> Any:
        return take_together(operation, charges[:1])

    commit = writes.PlannedWrite.commit

    def partial(self: writes.PlannedWrite) -> None:
        fits = [
            change
            for change in self.changes
            if not isinstance(change.target, GlobalIndex)
            or change.added is None
            or change.target.throughput.judge("Write", token_of(change.added.hash), 1.0).accepted
        ]
        if len(fits) == len(self.changes):
            commit(self)
        else:
            self.table.write(self.key, self.old, self.new, tuple(fits))

    with (
        patch.object(writes, "take_together", lenient),
        patch.object(writes.PlannedWrite, "commit", partial),
    ):
        yield


@bug
def a_closed_shard_still_gets_records() -> Iterator[None]:
    """Consumers that have read it to its end never see them."""
    follow = Stream._follow

    def late(self: Stream) -> None:
        before = list(self._open)
        follow(self)
        for shard in self._open:
            parents = [one for one in before if one.id == shard.parent]
            if parents and not hasattr(parents[0], "late"):
                parents[0].late = True  # type: ignore[attr-defined]
                shard.changes = parents[0].changes

    with patch.object(Stream, "_follow", late):
        yield


@bug
def a_child_does_not_name_its_parent() -> Iterator[None]:
    """A consumer then reads both at the same time, and changes of an item out of order."""
    describe = Shard.describe

    def orphan(self: Shard) -> dict[str, Any]:
        return {name: one for name, one in describe(self).items() if name != "ParentShardId"}

    shards = Stream.shards

    def youngest_first(self: Stream) -> list[Shard]:
        return shards(self)[::-1]

    with (
        patch.object(Shard, "describe", orphan),
        patch.object(Stream, "shards", youngest_first),
    ):
        yield


@bug
def the_end_of_a_closed_shard_is_not_read() -> Iterator[None]:
    """As soon as a shard is closed, there is no next iterator."""
    get_records = stream_operations.get_records

    def cut(database: Any, request: Any) -> Any:
        answer = get_records(database, request)
        arn, _, rest = request.shard_iterator.partition("|1|")
        place = urlsafe_b64decode(rest).decode()
        shard = database.streams[arn].shard(place.split('"')[1])
        if shard.last is not None:
            answer.pop("NextShardIterator", None)
        return answer

    with _operation(STREAMS_API + "GetRecords", cut):
        yield


@bug
def a_split_of_shards_loses_what_the_parent_has() -> Iterator[None]:
    def clean(self: Stream, shard: Shard, edges: list[int]) -> None:
        shard.changes.clear()
        shard.last = max(self._next - 1, shard.first)
        self._next = max(self._next, shard.last + 1)
        shard.closed_s = self._clock.now_s()
        self._open.replace([shard], [self._opened(shard.id, *two) for two in pairwise(edges)])

    with patch.object(Stream, "_replace", clean):
        yield
