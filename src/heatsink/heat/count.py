"""Count this process's writes, reads and throttles per key: no I/O, bounded memory.

A write only appends a note (key, writes, bytes, bucket) to a list. Later, a loop counts many notes
at a time. This is several times cheaper than counting each write on its own, because the CPU caches
are cold between two requests.

`TopKeys` is a table of the costliest keys (Space-Saving; Metwally, Agrawal, El Abbadi 2005). Unlike
plain Space-Saving, it evicts keys in batches: the table grows to twice its capacity, then the
cheaper half is dropped. An evicted key had a cost of at most `floor`. So if a key is counted again
after its eviction, up to `floor` of its cost may be missing. `floor` is at most the total cost
divided by the capacity. Every key that cost more than `floor` is in the table.

A table is not enough. A key may be hot although no server sees it often: 0.1 writes a second on
each of 10,000 servers. So cost is also *sampled*, before it reaches the table: points fall at
random on the stream of all units, on average one point for every `tau` units (a Poisson process).
Each point counts as `tau` units of the key that it hits. The expected estimate of a key is its true
count, whatever the other keys do and whatever the table evicts. `TopKeys.listed` combines the two:
a key that cost `tau` or more is reported with its exact count from the table, any other key with
its samples. So a server reports about one key for every `tau` units, however many keys it has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from math import ceil, inf
from random import Random
from threading import Lock
from zlib import crc32

from msgspec.structs import replace

from .heat import NOWHERE, UNIT_BYTES, Heat

WRITES, UNITS, BYTES, READS, THROTTLES, ERROR, PLACE, ALARM = range(8)
Entry = list[int]
CAPACITY = 8_192
ALARM_UNITS = 800
BUCKETS_MAX = 16_384
NOTES_MAX = 256
NOTES_KEPT = 65_536
SAMPLES_MAX = 8_192
SURE_HITS = 16  # a cost of this many taus is sampled exactly: chance would add nothing
ERROR_MAX = 0.05  # of a count that the table may lack; beyond that, samples are better
Note = tuple[str, int, int, str | None]
NO_KEYS: Mapping[int, int] = {}
NOTHING: Entry = [0, 0, 0, 0, 0, 0, NOWHERE, 0]


def mark_of(key: str) -> int:
    """Return a short number for a key. The leader's notice names keys to watch by these numbers.

    Two keys may share a number: then both are watched.
    """
    return crc32(key.encode("utf-8", "surrogatepass"))


class TopKeys:
    """Counts of the costliest keys of a window, and samples of all keys.

    `entries` and `samples` are public, since `Tracker` updates them directly. `tau` is the number
    of write units (and throttles) per sample, `tau_reads` the number of reads per sample. The table
    never evicts keys in `watched`, which maps the marks of keys to their own `tau`.

    The leader may name a key to watch in mid-window, when the table has already evicted it. From
    that moment on the key is counted precisely, and `listed` scales this count to the whole window.
    """

    def __init__(
        self,
        capacity: int,
        alarm_units: int,
        tau: int = 1,
        tau_reads: int = 1,
        watched: Mapping[int, int] = NO_KEYS,
    ) -> None:
        self.entries: dict[str, Entry] = {}
        self.samples: dict[str, list[float]] = {}
        self.floor = 0
        self.tau = tau
        self.tau_reads = tau_reads
        self.watched = watched
        self._capacity = capacity
        self._alarm_units = alarm_units
        self._watched_from_s: dict[int, float] = {}  # by the marks of keys watched in mid-window
        self._before: dict[str, Entry] = {}  # what the table had counted of them until then

    def watch(self, marks: Mapping[int, int], at_s: float) -> None:
        """Count these keys precisely from now on, `at_s` seconds after the window began."""
        self.watched = {**self.watched, **marks}
        if self.floor:  # otherwise nothing was evicted, and all counts are precise
            self._watched_from_s.update(dict.fromkeys(marks, at_s))
            for key, entry in self.entries.items():
                if entry[ERROR] and mark_of(key) in marks:
                    self._before[key] = entry.copy()

    def admit(self, key: str) -> Entry:
        """Add and return an entry for a key that is not in the table."""
        if len(self.entries) >= 2 * self._capacity:
            self._let_go()
        missing = self.floor
        if missing and self.watched and (mark := mark_of(key)) in self.watched:
            if mark in self._watched_from_s:
                self._before[key] = NOTHING
            else:
                missing = 0  # it was never evicted, so this is its first cost in the window
        entry = self.entries[key] = [0, 0, 0, 0, 0, missing, NOWHERE, self._alarm_units]
        return entry

    def _let_go(self) -> None:
        """Forget the cheapest keys: keep `capacity` keys, and those that the leader watches.

        `floor` becomes the most that a forgotten key can have cost.
        """
        costs = sorted(map(cost_at_most, self.entries.values()), reverse=True)
        self.floor = floor = max(self.floor, costs[self._capacity])
        watched = self.watched
        for key in [key for key, entry in self.entries.items() if cost_at_most(entry) <= floor]:
            if not watched or mark_of(key) not in watched:
                del self.entries[key]

    def sample(self, key: str, counts: tuple[float, ...]) -> None:
        """Add counts to the samples of a key: (writes, units, bytes, reads, throttles)."""
        sample = self.samples.get(key)
        if sample is None:
            self.samples[key] = list(counts)
            return
        for n, count in enumerate(counts):
            sample[n] += count

    def halve(self, rng: Random) -> None:
        """Keep half of the samples, with double their counts, so that memory stays bounded."""
        kept = [key for key in self.samples if rng.random() < 0.5]
        self.samples = {key: [2 * count for count in self.samples[key]] for key in kept}
        self.tau, self.tau_reads = 2 * self.tau, 2 * self.tau_reads

    def listed(
        self, watched: Mapping[int, int], rng: Random, elapsed_s: float = 0.0
    ) -> dict[str, Heat]:
        """Return the keys to report: those that cost `tau` or more, sampled keys, and watched keys.

        `watched` maps the marks of watched keys to their own tau. A watched key that cost at least
        its tau is reported exactly. If it cost less, it is reported with a probability of cost ÷
        tau, and then counts as if it had cost tau. So the leader learns the rate of a hot key with
        the accuracy that it needs. `elapsed_s` is how long the window lasted.
        """
        listed = {}
        precise = set[str]()  # watched keys that need no samples
        for key, entry in self.entries.items():
            load, reads, heat = entry[UNITS] + entry[THROTTLES], entry[READS], None
            if entry[ERROR] and entry[ERROR] > ERROR_MAX * (load + reads):
                heat = self._since_watched(key, entry, elapsed_s)
                if heat is None:
                    continue
                load, reads = heat.write_units + heat.throttles, heat.reads
            if watched and (own := watched.get(mark_of(key))) is not None:
                precise.add(key)
                share = max(load / own, reads / self.tau_reads)
                if share >= 1:
                    listed[key] = heat or heat_of(entry)
                elif rng.random() < share:
                    listed[key] = scaled(heat or heat_of(entry), 1 / share, own)
            elif load >= self.tau or reads >= self.tau_reads:
                listed[key] = heat or heat_of(entry)
        for key, sample in self.samples.items():
            if key not in listed and key not in precise:
                listed[key] = _sampled(sample, self.tau)
        return listed

    def _since_watched(self, key: str, entry: Entry, elapsed_s: float) -> Heat | None:
        """Return what a key has cost since the leader asked for it, scaled to the whole window.

        The key had been evicted before, so its earlier cost is not known. Returns None if the time
        since then is so short that samples give a better estimate.
        """
        before = self._before.get(key)
        left_s = elapsed_s - self._watched_from_s.get(mark_of(key), elapsed_s)
        if before is None or left_s * self.tau <= elapsed_s:
            return None
        counted = [now - then for now, then in zip(entry, before, strict=True)]
        heat = replace(heat_of(counted), error=0, place=entry[PLACE])
        return scaled(heat, elapsed_s / left_s, ceil(elapsed_s / left_s))


def scaled(heat: Heat, by: float, tau: int) -> Heat:
    """Multiply the counts of a key by `by`, to estimate its heat from a sample.

    A key that was reported with probability 1 ÷ `by` counts `by` times. `tau` is what one sample
    stands for.
    """
    return Heat(
        round(heat.writes * by),
        round(heat.write_units * by),
        round(heat.write_bytes * by),
        round(heat.reads * by),
        round(heat.throttles * by),
        place=heat.place,
        tau=max(heat.tau, tau),
    )


def _sampled(sample: list[float], tau: int) -> Heat:
    writes, units, written_bytes, reads, throttles = map(round, sample)
    return Heat(writes, units, written_bytes, reads, throttles, tau=tau)


def thinned(listed: dict[str, Heat], most: int, rng: Random) -> tuple[dict[str, Heat], int]:
    """Return at most about `most` of the listed keys, and the tau that selected them.

    This is threshold sampling: a key that cost c < tau stays with probability c ÷ tau, and then
    counts as if it had cost tau. So expected estimates do not change. If all keys stay, tau is 1.
    """
    if len(listed) <= most:
        return listed, 1
    costs = sorted((heat.cost for heat in listed.values()), reverse=True)
    left = float(sum(costs))
    sure = 0  # the keys that stay for sure
    while sure < most and costs[sure] * (most - sure) >= left:
        left -= costs[sure]
        sure += 1
    tau = max(left / max(most - sure, 1), 1.0)
    kept = {}
    for key, heat in listed.items():
        share = heat.cost / tau
        if share >= 1:
            kept[key] = heat
        elif rng.random() < share:
            kept[key] = scaled(heat, 1 / share, round(tau))
    return kept, round(tau)


def cost_at_most(entry: Entry) -> int:
    return entry[UNITS] + entry[READS] + entry[THROTTLES] + entry[ERROR]


def heat_of(entry: Entry) -> Heat:
    return Heat(*entry[:ALARM])


class Tracker:
    """The counts of the current window. Any thread may call `record`; `Reporter` ends a window."""

    def __init__(
        self,
        capacity: int = CAPACITY,
        alarm_units: int = ALARM_UNITS,
        gather: Callable[[Tracker], None] | None = None,
        rng: Random | None = None,
    ) -> None:
        """`gather` is called before counts are read, to record costs that the store has reported.

        `rng` chooses the samples. `alarm_units` is how many units make an early report due.
        """
        self.rng = rng or Random()
        self._thresholds: tuple[int, int, Mapping[int, int]] = 1, 1, NO_KEYS
        self._left = self._left_reads = inf
        self.units = self.reads = 0
        """The write units (with throttles) and reads of all keys in the last window."""
        self._units = self._reads = 0
        self._capacity = capacity
        self._alarm_units = alarm_units
        self._gather = gather
        self._lock = Lock()
        self._top = TopKeys(capacity, alarm_units)
        self._entries = self._top.entries
        self._alarmed: set[str] = set()
        self._bucket_units: dict[str, int] = {}
        self._notes: deque[Note] = deque(maxlen=NOTES_KEPT)  # any thread may add while one counts
        self.note = self._notes.append
        """Like `record`, but faster. It takes the arguments of `record` as one tuple, the note.

        Notes are counted when `alarms` or `roll` is called, ten times a second. If neither is
        called for long, the oldest notes are dropped.
        """

    def adopt(self, alarm_units: int) -> None:
        """Set how many units a key must reach to be reported before its window ends.

        The value applies from the next window on.
        """
        self._alarm_units = alarm_units

    def sample(self, tau: int, tau_reads: int, watched: Mapping[int, int]) -> None:
        """Set the number of write units and of reads per sample, and the keys to watch.

        The values apply from the next window on. With a tau of 1, no samples are taken: the table
        alone counts.
        """
        self._thresholds = tau, tau_reads, watched

    def watch(self, marks: Mapping[int, int], at_s: float) -> None:
        """Count these keys precisely from now on, `at_s` seconds after the window began."""
        with self._lock:
            self._count_notes()
            self._top.watch(marks, at_s)

    def record(
        self, key: str, writes: int = 1, written_bytes: int = 0, bucket: str | None = None
    ) -> None:
        """Count `writes` writes of a key, which have `written_bytes` together.

        A call takes well under a microsecond. For a key with several buckets, `bucket` is the
        bucket written to; it is used only for display.
        """
        notes = self._notes
        notes.append((key, writes, written_bytes, bucket))
        if len(notes) >= NOTES_MAX:
            with self._lock:
                self._count_notes()

    def _count_notes(self) -> None:
        notes, entries, admit = self._notes, self._entries, self._top.admit
        bucket_units, left, total = self._bucket_units, self._left, 0
        while notes:
            key, writes, written_bytes, bucket = notes.popleft()
            units = writes
            if written_bytes > UNIT_BYTES:
                units = max(writes, -(-written_bytes // UNIT_BYTES))
            entry = entries.get(key)
            if entry is None:
                entry = admit(key)
            entry[WRITES] += writes
            entry[UNITS] += units
            entry[BYTES] += written_bytes
            total += units
            left -= units
            if left < 0:
                left = self._hit(key, (writes, units, written_bytes, 0, 0), units, left)
            if entry[UNITS] >= entry[ALARM]:
                self._raise_alarm(key, entry)
            if bucket is not None:
                bucket_units[bucket] = bucket_units.get(bucket, 0) + units
        self._left = left
        self._units += total
        if len(bucket_units) > BUCKETS_MAX:
            bucket_units.clear()

    def _hit(self, key: str, counts: tuple[int, ...], cost: int, left: float) -> float:
        """Add a key to the samples, and return the distance to the next point.

        Sampling puts random points on the stream of costs, on average one per tau. Every point that
        lies in a request's `cost` hits the request's key. `cost` is in units, throttles or reads.
        `left` is negative: it says how far the stream has run past the first point.
        """
        tau = self._top.tau if not counts[READS] else self._top.tau_reads
        hits = cost / tau
        if hits < SURE_HITS:
            hits = 0
            while left < 0:
                hits += 1
                left += self.rng.expovariate(1 / tau)
        else:
            left = self.rng.expovariate(1 / tau)
        weight = hits * tau / cost
        self._top.sample(key, tuple(count * weight for count in counts))
        if len(self._top.samples) > SAMPLES_MAX:
            self._top.halve(self.rng)
        return left

    @property
    def bucket_units(self) -> dict[str, int]:
        """The write units that this process has written to each bucket of spread keys."""
        with self._lock:
            self._count_notes()
        return self._bucket_units

    def record_units(self, key: str, units: int) -> None:
        """Add write units to a key: what the store charged beyond the estimate of `record`."""
        self._count(key, UNITS, units)

    def record_read(self, key: str, reads: int = 1) -> None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._top.admit(key)
            entry[READS] += reads
            self._reads += reads
            self._left_reads -= reads
            if self._left_reads < 0:
                counts = (0, 0, 0, reads, 0)
                self._left_reads = self._hit(key, counts, reads, self._left_reads)

    def record_throttle(self, key: str, throttles: int = 1) -> None:
        self._count(key, THROTTLES, throttles)

    def note_places(self, places: Mapping[str, int]) -> None:
        """Record, for each key, the physical partition in which the store put its latest row."""
        with self._lock:
            self._count_notes()
            for key, place in places.items():
                entry = self._entries.get(key)
                if entry is not None:
                    entry[PLACE] = place

    def _count(self, key: str, what: int, amount: int) -> None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._top.admit(key)
            entry[what] += amount
            self._units += amount
            self._left -= amount
            if self._left < 0:
                counts = (0, amount, 0, 0, 0) if what == UNITS else (0, 0, 0, 0, amount)
                self._left = self._hit(key, counts, amount, self._left)

    def _raise_alarm(self, key: str, entry: Entry) -> None:
        """Select a key for an early report.

        The next early report of the key is due when its cost has doubled.
        """
        entry[ALARM] = 2 * entry[UNITS]
        self._alarmed.add(key)

    def alarms(self) -> dict[str, Heat]:
        """Return the keys, with counts, that became due for an early report since the last call."""
        if self._gather is not None:
            self._gather(self)
        with self._lock:
            self._count_notes()
            alarmed, self._alarmed = self._alarmed, set()
            return {key: heat_of(self._entries[key]) for key in alarmed if key in self._entries}

    def roll(self) -> TopKeys:
        """End the window, and return its final counts."""
        if self._gather is not None:
            self._gather(self)
        with self._lock:
            self._count_notes()
            ended = self._top
            self._top = top = TopKeys(self._capacity, self._alarm_units, *self._thresholds)
            self._entries = top.entries
            self._alarmed = set()
            self._left = inf if top.tau <= 1 else self.rng.expovariate(1 / top.tau)
            first = inf if top.tau_reads <= 1 else self.rng.expovariate(1 / top.tau_reads)
            self._left_reads = first
            self.units, self.reads = self._units, self._reads
            self._units = self._reads = 0
        return ended
