"""Two emulators in one process: one used directly, one through the core while layouts change."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from heatsink.door.core import Core
from heatsink.door.declaration import SpreadTable, by_time, described, fixed, unspread
from heatsink.door.keys import TAG
from heatsink.door.migration import IndexMigration, MigrationPace, Moves, Pause, Record, Settle
from heatsink.door.protocol import (
    Body,
    LayoutOf,
    Need,
    Reach,
    Renew,
    Steps,
    UpstreamCall,
    WireError,
)
from heatsink.door.times import iso_text
from heatsink.emulator.engine import API, Engine
from heatsink.emulator.settings import EngineSettings
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import BUCKETS, PIN, Decision, LogEntry, View, for_key
from heatsink.registry.layouts import Layout
from heatsink.testing.clocks import ManualClock

TABLE = "chat"
START_MS = 1_794_744_000_000  # 2026-11-15T12:00:00Z
SEED = b"0123456789abcdef"
INDEX = "by-kind"
PACE = MigrationPace(per_value_s=10**6, record_each=3)
PLENTY = EngineSettings(read_limit=10**9, write_limit=10**9)
LAGGING = EngineSettings(read_limit=10**9, write_limit=10**9, index_lag_s=1.0)


class Registry:
    """The decisions that all processes share, and the closed time."""

    def __init__(self) -> None:
        self.entries: list[LogEntry] = []
        self.closed_ms = START_MS

    def append(self, *decisions: Decision) -> None:
        entry = LogEntry(len(self.entries) + 1, self.closed_ms, self.closed_ms, decisions)
        self.entries.append(entry)

    def layout(self, label: str) -> Layout:
        return self.view().layout(label)

    def view(self) -> View:
        view = View()
        self.renew(view)
        return view

    def renew(self, view: View) -> None:
        for entry in self.entries[view.version :]:
            assert view.apply(entry)
        view.adopt(self.closed_ms, len(self.entries))

    def spread(self, label: str, buckets: int) -> None:
        """Give a key another number of buckets from the closed time on."""
        if self.layout(label).epochs[-1].start_ms >= self.closed_ms:
            self.closed_ms += 1
        self.append(for_key(label, BUCKETS, buckets, "a test"))

    def complete(self, table: str = TABLE) -> None:
        note = Subject(Kind.ADOPTED, f"{table}/{self.closed_ms}")
        self.append(Decision(note, PIN, 1, "adoption is complete"))


class TurnedClock(ManualClock):
    """A clock that a program without an event loop turns."""

    def turn(self, seconds: float) -> None:
        self._passed_s += seconds


class NoHeat:
    def record(self, key: str, writes: int = 1, written_bytes: int = 0) -> None: ...

    def record_read(self, key: str, reads: int = 1) -> None: ...


class Upstream:
    """An emulator, called without a socket."""

    def __init__(self, clock: ManualClock, settings: EngineSettings = PLENTY) -> None:
        self.engine = Engine(settings, clock, Random(1))
        self.sent: list[UpstreamCall] = []
        self.used: list[Any] = []
        """What each answer says about consumed capacity, if it says anything."""

    def send(self, operation: str, parameters: Body) -> Body:
        status, body = self.engine.answer(API + operation, msgspec.json.encode(parameters))
        answer: Body = msgspec.json.decode(body)
        if status != 200:
            raise WireError(status, answer)
        if "ConsumedCapacity" in answer:
            self.used.append(answer["ConsumedCapacity"])
        return answer

    def meet(self, call: UpstreamCall) -> Any:
        self.sent.append(call)
        try:
            return self.send(call.operation, call.parameters)
        except WireError as error:
            return error


class Process:
    """A process with its own view, which uses the core on an emulator."""

    def __init__(self, table: SpreadTable, upstream: Upstream, registry: Registry) -> None:
        self.registry = registry
        self.upstream = upstream
        self.view = registry.view()
        self.core = Core([table], self.view, SEED, NoHeat())

    def send(self, operation: str, parameters: Body) -> Body:
        steps = self.core.begin(operation, parameters)
        if steps is None:
            return self.upstream.send(operation, parameters)
        return self.run(steps)

    def run(self, steps: Steps) -> Body:
        try:
            needs = next(steps)
            while True:
                needs = steps.send([self.meet(need) for need in needs])
        except StopIteration as end:
            return dict(end.value)

    def meet(self, need: Need) -> Any:
        if isinstance(need, UpstreamCall):
            return self.upstream.meet(need)
        if isinstance(need, LayoutOf):
            return self.registry.layout(need.label)
        if isinstance(need, Reach):
            self.registry.closed_ms = max(self.registry.closed_ms, need.time_ms + 1)
        assert isinstance(need, Reach | Renew)
        self.registry.renew(self.view)
        return None

    def migration(self, pace: MigrationPace = PACE) -> IndexMigration:
        """Return a migration of the index, as this process would run it."""
        return IndexMigration(self.core.places[TABLE], self.view, INDEX, pace)


def declared(**others: Any) -> SpreadTable:
    rules = [by_time("MSG#", iso_text), by_time("LOG#", iso_text), unspread("MSG#D")]
    return SpreadTable(
        TABLE, partition_key="pk", sort_key="sk", rules=[*rules, fixed("T#", buckets=3)], **others
    )


DEFINITION: Body = {
    "TableName": TABLE,
    "BillingMode": "PAY_PER_REQUEST",
    "KeySchema": [
        {"AttributeName": "pk", "KeyType": "HASH"},
        {"AttributeName": "sk", "KeyType": "RANGE"},
    ],
    "AttributeDefinitions": [
        {"AttributeName": name, "AttributeType": kind}
        for name, kind in (("pk", "S"), ("sk", "S"), ("kind", "S"), ("score", "N"))
    ],
    "GlobalSecondaryIndexes": [
        {
            "IndexName": "by-kind",
            "KeySchema": [
                {"AttributeName": "kind", "KeyType": "HASH"},
                {"AttributeName": "score", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "ALL"},
        },
        {
            "IndexName": "by-pk",
            "KeySchema": [
                {"AttributeName": "pk", "KeyType": "HASH"},
                {"AttributeName": "score", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "ALL"},
        },
    ],
    "LocalSecondaryIndexes": [
        {
            "IndexName": "by-score",
            "KeySchema": [
                {"AttributeName": "pk", "KeyType": "HASH"},
                {"AttributeName": "score", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "ALL"},
        },
        {
            "IndexName": "by-score-few",
            "KeySchema": [
                {"AttributeName": "pk", "KeyType": "HASH"},
                {"AttributeName": "score", "KeyType": "RANGE"},
            ],
            "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["n", "m"]},
        },
    ],
}


class World:
    """The same table twice: `plain` is an emulator, `spread` a core in front of another one."""

    def __init__(
        self,
        processes: int = 1,
        *,
        spread_index: bool = False,
        settings: EngineSettings = PLENTY,
        **others: Any,
    ) -> None:
        """With `spread_index`, the index by-kind is spread, too. `settings` are of its table."""
        self.clock = TurnedClock(START_MS / 1000)
        self.plain = Upstream(self.clock)
        self.stored = Upstream(self.clock, settings)
        for upstream in (self.plain, self.stored):
            upstream.send("CreateTable", DEFINITION)
        found = self.stored.send("DescribeTable", {"TableName": TABLE})
        self.table = described(declared(**others), found["Table"])
        self.registry = Registry()
        self.registry.complete()
        self.registry.closed_ms += 1
        self.processes = [Process(self.table, self.stored, self.registry) for _ in range(processes)]
        self.has_spread_index = spread_index
        if spread_index:
            self.migrate(self.processes[0].migration().spread())

    past_ms = 20_000

    def migrate(self, steps: Moves) -> Any:
        """Take all steps of a migration."""
        try:
            needs = next(steps)
            while True:
                needs = steps.send([self.meet(need) for need in needs])
        except StopIteration as end:
            return end.value

    def meet(self, need: Any) -> Any:
        """Meet a need of a migration, which the first process runs."""
        if isinstance(need, Pause):
            return self.stored.engine.tend()
        if isinstance(need, Settle):
            self.registry.closed_ms += 1
            for process in self.processes:
                self.renew(process)
            return None
        if isinstance(need, Record):
            is_known = self.registry.view().pins.get(need.note.key) == need.seen
            if is_known:
                self.registry.append(need.note)
                self.renew(self.processes[0])
            return is_known
        return self.processes[0].meet(need)

    def spread_value(self, value: str, buckets: int) -> None:
        """Give a value of the index another number of buckets, for all processes."""
        label = self.processes[0].core.places[TABLE].indexes[INDEX].label(value)
        if not self.registry.layout(label).full:
            self.registry.spread(label, buckets)
        self.registry.closed_ms += 1

    def now_ms(self) -> int:
        return self.registry.closed_ms

    def is_spread(self, key: str) -> bool:
        return self.registry.layout(self.label(key)).max_buckets > 1

    def change(self, rng: Random, key: str) -> None:
        """Let time pass, and give a key another number of buckets."""
        registry, label = self.registry, self.label(key)
        registry.closed_ms += rng.choice([1, 50, 1_000, 5_000])
        if not registry.layout(label).full:
            registry.spread(label, rng.choice([1, 2, 3, 4, 8]))
        registry.closed_ms += rng.choice([0, 1, 500])
        if self.has_spread_index:
            self.spread_value(rng.choice("uvw"), rng.choice([1, 2, 3, 5]))
        for process in self.processes:
            if rng.random() < 0.5:
                self.renew(process)

    def renew(self, process: Process) -> None:
        self.registry.renew(process.view)

    def label(self, key: str) -> str:
        return self.processes[0].core.places[TABLE].label(key)


def outcome(send: Any, operation: str, parameters: Body) -> Body:
    """Return an answer, or an error in its place. No answer may show the name of a bucket."""
    given = msgspec.json.decode(msgspec.json.encode(parameters))
    try:
        answer: Body = send(operation, given)
    except WireError as error:
        answer = {"error": error.code, "body": dict(error.body)}
    assert TAG not in msgspec.json.encode(answer).decode()
    return answer
