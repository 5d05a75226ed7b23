"""Bugs that somebody might write into an engine whose rows move, each planted for one run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

from heatsink.emulator.adaptation import Adaptation
from heatsink.emulator.capacity.limits import Side
from heatsink.emulator.capacity.partition import Partition
from heatsink.emulator.capacity.policy import Isolate
from heatsink.emulator.capacity.table import SPACE, AdaptiveTable, PartitionMap
from heatsink.emulator.database import Database
from heatsink.emulator.engine import OPERATIONS
from heatsink.emulator.operations import batches, reads, writes
from heatsink.emulator.rows import Collection, Items, Rows, RowShelf, RowsMove, StoredItem, token_of
from heatsink.emulator.table import EngineTable, Replica, _store
from heatsink.stores.dynamodb.wire.keys import Key
from tests.planted import Bugs

BUGS = bug = Bugs()


def _operation(name: str, function: Any) -> Any:
    return patch.dict(OPERATIONS, {name: (OPERATIONS[name][0], function)})


@bug
def a_row_at_the_border_of_a_split_is_dropped() -> Iterator[None]:
    """The first key of the new partition stays behind, where nobody looks for it."""
    places = Items.places

    def beyond(self: Items, after: tuple[Any, ...], until: int) -> Iterator[tuple[int, Any]]:
        found = places(self, after, until)
        return (place for place in found if len(after) > 1 or place[0] != after[0])

    with patch.object(Items, "places", beyond):
        yield


@bug
def the_frontier_runs_ahead_of_the_rows() -> Iterator[None]:
    """Half of what a step was to move is still in the old partition when it is looked for."""
    step = RowsMove.step

    def hasty(self: RowsMove, rows: int) -> bool:
        done = step(self, rows)
        ahead = next(self._source.places((self.frontier,), self._end), None)
        if ahead is not None:
            self.frontier = min(ahead[0] + 1, self._end)
        return done

    with patch.object(RowsMove, "step", hasty):
        yield


@bug
def a_row_is_copied_and_never_taken_away() -> Iterator[None]:
    def keep(self: Items, _token: int, hash_: Any) -> Collection:
        return self.collections[hash_]

    with patch.object(Items, "detach", keep):
        yield


@bug
def a_scan_reads_source_and_target_whole() -> Iterator[None]:
    """Rows that have moved are met in both."""

    def whole(self: Rows, first: int, until: int) -> Iterator[tuple[Items, int, int]]:
        for shelf in self.map.between(first, until):
            yield shelf.items, shelf.start, shelf.end
            if shelf.move is not None and shelf.move.start > shelf.start:
                yield shelf.move.target, shelf.start, shelf.end

    with patch.object(Rows, "_pieces", whole):
        yield


@bug
def a_write_goes_to_the_old_partition_during_a_move() -> Iterator[None]:
    def old(self: Rows, key: Key, row: StoredItem) -> None:
        token = token_of(key.hash)
        self.map.find(token).items.put(token, key, row)

    with patch.object(Rows, "put", old):
        yield


@bug
def a_delete_misses_what_has_moved() -> Iterator[None]:
    def old(self: Rows, key: Key) -> None:
        token = token_of(key.hash)
        self.map.find(token).items.remove(token, key)

    with patch.object(Rows, "remove", old):
        yield


@bug
def a_read_looks_in_the_old_partition_during_a_move() -> Iterator[None]:
    def old(self: Rows, key: Key) -> StoredItem | None:
        return self.map.find(token_of(key.hash)).items.get(key)

    with patch.object(Rows, "get", old):
        yield


@bug
def a_scan_goes_on_from_the_beginning_of_its_partition() -> Iterator[None]:
    """Where the last page ended is forgotten when its partition is not what it was."""
    scan = Rows.scan

    def forgetful(self: Rows, first: int = 0, until: int = SPACE, after: Any = None) -> Any:
        if after is not None and self.map.find(token_of(after.hash)).move is not None:
            first, after = max(self.map.find(token_of(after.hash)).start, first), None
        return scan(self, first, until, after)

    with patch.object(Rows, "scan", forgetful):
        yield


@bug
def a_scan_skips_the_rest_of_the_key_it_stopped_in() -> Iterator[None]:
    scan = Rows.scan

    def skip(self: Rows, first: int = 0, until: int = SPACE, after: Any = None) -> Any:
        if after is not None:
            first, after = token_of(after.hash) + 1, None
        return scan(self, first, until, after)

    with patch.object(Rows, "scan", skip):
        yield


@bug
def segments_follow_the_partitions() -> Iterator[None]:
    """A segment is some of the partitions there are, and they change between its pages."""
    scan = reads.scan

    def cut(database: Database, request: Any) -> Any:
        starts = [shelf.start for shelf in database.table(request.table_name).rows.map]

        def segment(request: Any) -> tuple[int, int]:
            edges = [*starts, *[SPACE] * ((request.total_segments or 1) + 1)]
            share = -(-len(starts) // (request.total_segments or 1))
            number = request.segment or 0
            return edges[number * share], edges[(number + 1) * share]

        with patch.object(reads, "_segment", segment):
            return scan(database, request)

    with _operation("Scan", cut):
        yield


@bug
def a_merge_loses_the_right_side() -> Iterator[None]:
    def lose(self: Rows, at: int) -> None:
        left, right = self.map.find(at - 1), self.map.find(at)
        kept = Items(left.start, right.end)
        for token, hash_ in list(left.items.places((left.start,), at)):
            kept.attach(token, hash_, left.items.detach(token, hash_))
        self.map.replace([left, right], [RowShelf(left.start, right.end, kept)])

    with patch.object(Rows, "end_merge", lose):
        yield


@bug
def an_isolated_key_takes_its_neighbours_rows_along() -> Iterator[None]:
    cuts = Adaptation._cuts

    def one_cut(self: Adaptation, change: Any) -> list[int]:
        found = cuts(self, change)
        return found[:1] if isinstance(change, Isolate) else found

    with patch.object(Adaptation, "_cuts", one_cut):
        yield


@bug
def the_order_of_a_key_is_lost_when_it_moves() -> Iterator[None]:
    attach = Items.attach

    def shuffled(self: Items, token: int, hash_: Any, collection: Collection) -> None:
        collection.sorts.sort(key=lambda sort: sort[::-1])
        attach(self, token, hash_, collection)

    with patch.object(Items, "attach", shuffled):
        yield


@bug
def the_version_of_the_map_is_not_raised() -> Iterator[None]:
    replace = PartitionMap.replace

    def silent(self: PartitionMap[Any], old: Any, new: Any) -> None:
        version = self.version
        replace(self, old, new)
        self.version = version

    with patch.object(PartitionMap, "replace", silent):
        yield


@bug
def limits_change_before_the_rows_are_there() -> Iterator[None]:
    """The policy sees new partitions while the rows of the old one still move."""
    begin = Adaptation.begin

    def early(self: Adaptation, change: Any) -> None:
        begin(self, change)
        self._adaptive.apply(change, self._clock.monotonic_s())
        if self._jobs and self._jobs[-1].change is change:
            self._jobs[-1].change = Isolate(-1, -1, "")

    def apply(self: AdaptiveTable, change: Any, now_s: float) -> None:
        if change.partition != -1:
            applied(self, change, now_s)

    applied = AdaptiveTable.apply
    with patch.object(Adaptation, "begin", early), patch.object(AdaptiveTable, "apply", apply):
        yield


@bug
def a_partition_is_changed_twice_at_once() -> Iterator[None]:
    never = property(lambda _: False, lambda *_: None)
    with patch.object(Partition, "changing", never):
        yield


@bug
def new_partitions_begin_with_full_buckets() -> Iterator[None]:
    """A key that is split off gets a second's worth again, and again."""
    with patch.object(Side, "inherit", lambda *_: None):
        yield


@bug
def a_throttled_write_is_carried_out() -> Iterator[None]:
    units = writes.PlannedWrite.units

    def eager(self: writes.PlannedWrite, factor: int = 1) -> float:
        if self.failure is None:
            self.commit()
        return units(self, factor)

    with patch.object(writes.PlannedWrite, "units", eager):
        yield


@bug
def a_batch_does_not_tell_what_was_throttled() -> Iterator[None]:
    write = batches.batch_write_item

    def quiet(database: Database, request: Any) -> Any:
        return {**write(database, request), "UnprocessedItems": {}}

    with _operation("BatchWriteItem", quiet):
        yield


@bug
def a_replica_overtakes_itself() -> Iterator[None]:
    """Changes arrive at it in another order than they were made in."""

    def last_first(self: Replica) -> Rows:
        while self._coming and self._coming[0][0] <= self._clock.monotonic_s():
            _, key, row = self._coming.pop()
            _store(self._rows, key, row)
        return self._rows

    with patch.object(Replica, "rows", last_first):
        yield


@bug
def a_consistent_read_asks_the_replica() -> Iterator[None]:
    read_from = EngineTable.read_from
    with patch.object(EngineTable, "read_from", lambda self, _: read_from(self, False)):
        yield
