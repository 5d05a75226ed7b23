"""One table with adaptive partitions. It charges requests, and changes partitions by policy.

Every request calls `charge`. Once a second, `review` ends a window, decides on changes and applies
them. A caller that stores rows calls `decide` instead of `review`, moves the rows, and then calls
`apply`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

from .limits import (
    BY_KEY,
    BY_PARTITION,
    BY_TABLE,
    LEAST_READ,
    LEAST_WRITE,
    OWN,
    Bucket,
    CapacityVerdict,
    Limit,
    Side,
    SplitSettings,
    TableCapacity,
)
from .partition import Partition, PartitionState
from .policy import CannotHelp, Change, Isolate, Lend, Merge, Split, relieve, unite

SPACE = 1 << 64
WINDOW_S = 1.0


class Ranged(Protocol):
    """Something that holds the hashes in [start, end)."""

    @property
    def start(self) -> int: ...

    @property
    def end(self) -> int: ...


P = TypeVar("P", bound=Ranged)


def equal_ranges(count: int) -> list[tuple[int, int]]:
    """Divide the whole space of hashes into `count` ranges [start, end) of equal size."""
    bounds = [number * SPACE // count for number in range(count + 1)]
    return list(pairwise(bounds))


class PartitionMap(Generic[P]):
    """Maps every 64-bit hash to the partition that holds the hash.

    Every hash is in exactly one range. A change replaces neighbouring partitions by new partitions
    that cover the same range, and increases the map's version.
    """

    def __init__(self, partitions: Iterable[P]) -> None:
        self._partitions = list(partitions)
        self._starts = [one.start for one in self._partitions]
        assert _cover(self._partitions, 0, SPACE)
        self.version = 1

    def find(self, hash_: int) -> P:
        return self._partitions[bisect_right(self._starts, hash_) - 1]

    def replace(self, old: Iterable[P], new: Iterable[P]) -> None:
        """Replace the neighbouring partitions `old` by `new`, which must cover the same range."""
        leaving, coming = list(old), list(new)
        first = bisect_right(self._starts, leaving[0].start) - 1
        last = first + len(leaving)
        assert self._partitions[first:last] == leaving
        assert _cover(coming, leaving[0].start, leaving[-1].end)
        self._partitions[first:last] = coming
        self._starts[first:last] = [one.start for one in coming]
        self.version += 1

    def between(self, first: int, until: int) -> Iterator[P]:
        """Yield, in order, the partitions whose ranges overlap [first, until)."""
        position = bisect_right(self._starts, first) - 1
        while position < len(self._partitions) and self._starts[position] < until:
            yield self._partitions[position]
            position += 1

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[P]:
        return iter(self._partitions)


def _cover(partitions: list[P], start: int, end: int) -> bool:
    edges = [start, *(one.end for one in partitions)]
    return edges[-1] == end and all(
        one.start == edge < one.end for one, edge in zip(partitions, edges, strict=False)
    )


class AdaptiveTable:
    """A table whose partitions split and merge by policy.

    The table starts with `partitions` partitions. Merges never reduce their number below that.
    """

    def __init__(
        self, settings: SplitSettings, capacity: TableCapacity, partitions: int, now_s: float
    ) -> None:
        self._settings = settings
        self._capacity = capacity
        self._partitions_min = partitions
        self._numbers = 0
        self.throttles: Counter[Limit | None] = Counter()
        self._window_began_s = now_s
        self._write_heat = 1 / settings.write_units
        self._read_heat = 1 / settings.read_units
        self._writes = _table_bucket(capacity.writes, settings, now_s, LEAST_WRITE)
        self._reads = _table_bucket(capacity.reads, settings, now_s, LEAST_READ)
        self.map = PartitionMap(
            self._made(start, end, partitions, now_s) for start, end in equal_ranges(partitions)
        )

    def charge(self, key_hash: int, writes: float, reads: float, now_s: float) -> CapacityVerdict:
        """Take the units of one request, or none if a limit throttles the request.

        The verdict says whether the request was accepted.
        """
        partition = self.map.find(key_hash)
        verdict = self._judged(partition, writes, reads, now_s)
        self._record(partition, key_hash, writes, reads, verdict)
        return verdict

    def judge(self, key_hash: int, writes: float, reads: float, now_s: float) -> CapacityVerdict:
        """Return the verdict that `charge` would return, without taking units.

        A transaction is charged for all its actions or for none. So the verdicts on all of them
        come first.
        """
        return self._judged(self.map.find(key_hash), writes, reads, now_s)

    def record(self, key_hash: int, writes: float, reads: float, verdict: CapacityVerdict) -> None:
        """Take the units of a request if `verdict` accepts it, or count the request as throttled.

        A transaction judges all its actions before it records the first. So its actions together
        may exceed a limit.
        """
        self._record(self.map.find(key_hash), key_hash, writes, reads, verdict)

    def _judged(
        self, partition: Partition, writes: float, reads: float, now_s: float
    ) -> CapacityVerdict:
        lend, verdict = self._settings.lend, OWN
        if writes:
            verdict = partition.writes.judge(writes, now_s, self._writes, lend)
        if reads and verdict.accepted:
            verdict = partition.reads.judge(reads, now_s, self._reads, lend)
        return BY_KEY if verdict is BY_PARTITION and partition.is_one_key else verdict

    def _record(
        self,
        partition: Partition,
        key_hash: int,
        writes: float,
        reads: float,
        verdict: CapacityVerdict,
    ) -> None:
        if not verdict.accepted:
            self.throttles[verdict.limit] += 1
            if verdict is BY_TABLE:
                return  # the table's limit: no partition gets hot by it
        if writes:
            partition.writes.record(writes, self._writes, verdict)
        if reads:
            partition.reads.record(reads, self._reads, verdict)
        if heat := writes * self._write_heat + reads * self._read_heat:
            partition.heat.add(key_hash, heat)

    def refund(self, key_hash: int, writes: float, reads: float, verdict: CapacityVerdict) -> None:
        """Give back the units of an accepted action, because another action was throttled."""
        partition = self.map.find(key_hash)
        if writes:
            partition.writes.give_back(writes, self._writes, verdict)
        if reads:
            partition.reads.give_back(reads, self._reads, verdict)

    def review(self, now_s: float) -> list[Change]:
        """Decide on changes, apply them immediately and return them.

        This is for callers that store no rows.
        """
        changes = self.decide(now_s)
        for change in changes:
            self.apply(change, now_s)
        return changes

    def decide(self, now_s: float) -> list[Change]:
        """End the window if it has lasted a second, and return the changes to make.

        A partition with a pending split, isolation or merge gets no further change until `apply`.
        """
        elapsed_s = now_s - self._window_began_s
        if elapsed_s < WINDOW_S:
            return []
        self._window_began_s = now_s
        for partition in self.map:
            partition.end_window(elapsed_s, now_s, self._settings)
        return [*self._lends(), *self._reliefs(now_s), *self._merges(now_s)]

    def _lends(self) -> Iterator[Lend]:
        for partition in self.map:
            began = partition.lent_s > 0 and not partition.is_lent_to
            partition.is_lent_to = partition.lent_s > 0
            if began:
                extra = f"{partition.lent_s:,.0f} units/s beyond its share"
                reason = f"the partition uses {extra}, which other partitions leave unused"
                yield Lend(partition.number, reason)

    def _reliefs(self, now_s: float) -> Iterator[Split | Isolate | CannotHelp]:
        count = len(self.map)
        for partition in self.map:
            if partition.changing or partition.hot_since_s is None:
                continue
            change = relieve(partition.look(now_s), count, self._settings)
            if isinstance(change, CannotHelp):
                if partition.stuck is None:
                    yield change
                partition.stuck = change.reason
            elif change is not None:
                partition.changing = True
                count += 1 if isinstance(change, Split) else 2
                yield change

    def _merges(self, now_s: float) -> Iterator[Merge]:
        spare = len(self.map) - self._partitions_min
        if self._settings.merge_after_s is None:
            return
        for left, right in pairwise(self.map):
            if spare <= 0 or left.changing or right.changing:
                continue
            change = unite(left.look(now_s), right.look(now_s), self._settings)
            if change is not None:
                left.changing = right.changing = True
                spare -= 1
                yield change

    def apply(self, change: Change, now_s: float) -> None:
        """Apply a split, isolation or merge to the map. `Lend` and `CannotHelp` change nothing."""
        if isinstance(change, Lend | CannotHelp):
            return
        old = [self.partition(change.partition)]
        if isinstance(change, Merge):
            old.append(self.partition(change.other))
        for one in old:
            one.writes.refill(now_s)
            one.reads.refill(now_s)
        edges = edges_after(change, old[0].start, old[-1].end)
        count = len(self.map) + len(edges) - 1 - len(old)
        new = [self._heir(old, *bounds, count, now_s) for bounds in pairwise(edges)]
        self.map.replace(old, new)
        self._share_anew(now_s)

    def resize(self, capacity: TableCapacity, now_s: float) -> None:
        """Change the maximum of the whole table. Saved units stay, up to the new maximum."""
        settings, count = self._settings, len(self.map)
        self._capacity = capacity
        self._writes = _resized(self._writes, capacity.writes, settings, now_s, LEAST_WRITE)
        self._reads = _resized(self._reads, capacity.reads, settings, now_s, LEAST_READ)
        writes_each, reads_each = _part(capacity.writes, count), _part(capacity.reads, count)
        for one in self.map:
            writes, reads = one.writes, one.reads
            writes.share = _resized(writes.share, writes_each, settings, now_s, LEAST_WRITE)
            reads.share = _resized(reads.share, reads_each, settings, now_s, LEAST_READ)

    def partition(self, number: int) -> Partition:
        return next(one for one in self.map if one.number == number)

    def partitions(self) -> list[PartitionState]:
        return [partition.state(self._settings) for partition in self.map]

    def _made(self, start: int, end: int, count: int, now_s: float) -> Partition:
        self._numbers += 1
        settings, table = self._settings, self._capacity
        writes = self._side(settings.write_units, _part(table.writes, count), now_s, LEAST_WRITE)
        reads = self._side(settings.read_units, _part(table.reads, count), now_s, LEAST_READ)
        return Partition(self._numbers, start, end, writes, reads)

    def _side(self, limit: float, share: float | None, now_s: float, least: float) -> Side:
        ceiling = Bucket(limit, self._settings.ceiling_s, now_s, least)
        return Side(ceiling, _table_bucket(share, self._settings, now_s, least))

    def _heir(
        self, old: list[Partition], start: int, end: int, count: int, now_s: float
    ) -> Partition:
        """Return the new partition of [start, end), which replaces `old` or a part of it.

        It inherits saved units, debts and heat. `count` is the table's new number of partitions.
        """
        heir = self._made(start, end, count, now_s)
        part = min((end - start) / (old[-1].end - old[0].start), 1.0)
        heir.writes.inherit([one.writes for one in old], part)
        heir.reads.inherit([one.reads for one in old], part)
        for one in old:
            heir.heat.keys.update(one.heat.part(start, end))
        heir.changed(now_s)
        return heir

    def _share_anew(self, now_s: float) -> None:
        """Divide the table's capacity equally among its present partitions."""
        count, burst_s = len(self.map), self._settings.burst_s
        for partition in self.map:
            for side, units in (
                (partition.writes, self._capacity.writes),
                (partition.reads, self._capacity.reads),
            ):
                if side.share is not None and units is not None:
                    side.share.resize(units / count, burst_s, now_s)


def edges_after(change: Split | Isolate | Merge, start: int, end: int) -> list[int]:
    """Return the bounds, in order, of the partitions that replace [start, end)."""
    inner: tuple[int, ...] = ()
    if isinstance(change, Split):
        inner = (change.at,)
    elif isinstance(change, Isolate):
        inner = (change.key, change.key + 1)
    return sorted({start, *inner, end})


def _part(units: float | None, count: int) -> float | None:
    return None if units is None else units / count


def _table_bucket(
    units: float | None, settings: SplitSettings, now_s: float, least: float
) -> Bucket | None:
    if units is None:
        return None
    return Bucket(units, settings.burst_s, now_s, least, settings.saved_s)


def _resized(
    bucket: Bucket | None, units: float | None, settings: SplitSettings, now_s: float, least: float
) -> Bucket | None:
    if bucket is None or units is None:
        return _table_bucket(units, settings, now_s, least)
    bucket.resize(units, settings.burst_s, now_s)
    return bucket
