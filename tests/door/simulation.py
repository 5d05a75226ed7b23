"""A simulation of processes that use one spread table while everything goes wrong.

Processes run operations of the core, one upstream call at a time, in a random order. Calls and
answers get lost, processes die between two calls, layouts change, views are stale, and some
processes try to start with another declaration of the table. Every operation leaves its mark in the
history of the items that it touched. `linearizable` then looks for an order of the operations on an
item that explains all answers.

Some items are twins: only transactions write them, always both, with the same value. So each
transaction that reads both must find the same value in both.

Another process scans the table again and again. The table also has strays: rows under the bare key
that belong in buckets, some of them dated in the future. Each scan must show every stray once, and
no row twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from heatsink.door.declaration import by_time, fixed, unspread
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
from heatsink.door.records import record_of
from heatsink.door.times import iso_text
from heatsink.errors import InvalidSetting
from heatsink.registry.decisions import BUCKETS, LogEntry, for_key
from heatsink.registry.declarations import check, note_of

from .grammar import text_of
from .world import TABLE, Process, World

OTHER_RULES = [
    [unspread("MSG#"), fixed("T#", buckets=3)],
    [],
    [by_time("MSG#", iso_text), fixed("T#", buckets=8)],
    [fixed("MSG#", buckets=3), fixed("T#", buckets=3)],
    [by_time("MSG#", iso_text), unspread("MSG#2026"), fixed("T#", buckets=3)],
]
KEYS = ["room", "lobby"]
ATTIC, CELLAR = "attic", "cellar"
"""The keys of strays. One has several buckets, the other has rows with a fixed number of them."""
LOST = WireError(0, {"__type": "Lost", "message": "the answer got lost"})
UNKNOWN = "unknown"
State = dict[str, Any] | None


@dataclass
class Event:
    """One operation on one item: what it does, when, and what its answer says about the item."""

    what: str
    value: str
    began: int
    ended: float = float("inf")
    result: Any = UNKNOWN

    def outcomes(self, state: State) -> Iterator[tuple[Any, State]]:
        """Yield the answer and the next state if the operation takes effect now."""
        n = 0 if state is None else state["n"]
        if self.what == "put":
            yield "ok", {"v": self.value, "n": 0}
        elif self.what == "create":
            yield ("refused", state) if state else ("ok", {"v": self.value, "n": 0})
        elif self.what == "add":
            changed = {"v": state["v"] if state else "", "n": n + 1}
            yield n + 1, changed
        elif self.what == "delete":
            yield n if state else None, None
        elif self.what == "exists":
            yield ("ok" if state else "refused"), state
        else:
            yield None if state is None else (state["v"], state["n"]), state


def linearizable(events: list[Event]) -> bool:
    """Return whether some order of the events explains all their answers.

    An event without an answer may have taken effect at any time after it began, or never.
    """
    events = [one for one in events if one.what != "get" or one.result != UNKNOWN]
    seen: set[tuple[frozenset[int], str]] = set()
    pending: list[tuple[frozenset[int], State]] = [(frozenset(range(len(events))), None)]
    while pending:
        left, state = pending.pop()
        if all(events[one].result == UNKNOWN for one in left):
            return True
        mark = (left, repr(state))
        if mark in seen:
            continue
        seen.add(mark)
        first_end = min(events[one].ended for one in left)
        for one in left:
            event = events[one]
            if event.began > first_end:
                continue
            for result, after in event.outcomes(state):
                if event.result in (UNKNOWN, result):
                    pending.append((left - {one}, after))
    return False


@dataclass
class Running:
    """An operation under way: its steps, the needs that are not met yet, and its events."""

    steps: Steps
    events: dict[str, Event]
    operation: str
    parameters: Body
    needs: list[Need] = field(default_factory=list)
    answers: dict[int, Any] = field(default_factory=dict)
    rows: dict[str, Any] = field(default_factory=dict)


class Client(Process):
    """A process that runs one operation at a time."""

    running: Running | None = None


class Simulation:
    """Some processes, a few items, and a history for each item."""

    def __init__(self, seed: int, *, losses: float = 0.03) -> None:
        self.rng = Random(seed)
        self.world = World()
        self._declaring = Random(f"declarations {seed}")
        self.world.registry.append(note_of(TABLE, record_of(self.world.table)))
        self.losses = losses
        self.clients = [self._client() for _ in range(4)]
        self.now = 0
        self.history: dict[str, list[Event]] = {}
        self.applied = 0
        self._numbers = iter(range(10**9))
        self._scanning = Random(f"scans {seed}")
        self._scanner = Process(self.world.table, self.world.stored, self.world.registry)
        self._strays = self._put_strays()
        self._scanned: set[str] = set()
        self._scan_start: Body = {}
        self._items: list[Body] = []
        self._twins: list[tuple[Body, Body]] = []

    def _client(self) -> Client:
        world = self.world
        other = replace(world.table, rules=self._declaring.choice(OTHER_RULES))
        try:
            check(world.registry.view(), TABLE, record_of(other))
        except InvalidSetting:
            other = world.table  # its operator corrects it
        return Client(other, world.stored, world.registry)

    def run(self, turns: int) -> None:
        for _ in range(turns):
            self.now += 1
            self._disturb()
            self._read_strays()
            client = self.rng.choice(self.clients)
            if client.running is None:
                self._start(client)
            else:
                self._step(client, client.running)

    def _disturb(self) -> None:
        rng, registry = self.rng, self.world.registry
        if rng.random() < 0.02:
            registry.closed_ms += rng.choice([1, 20, 200])
            label = self.world.label(rng.choice(KEYS))
            if not registry.layout(label).full:
                registry.spread(label, rng.choice([1, 2, 5, 8]))
        if rng.random() < 0.02:
            registry.renew(rng.choice(self.clients).view)
        if rng.random() < 0.01:
            number = rng.randrange(len(self.clients))
            self.clients[number] = self._client()  # it died, whatever it was doing

    def _put_strays(self) -> set[str]:
        """Let a program without Heatsink write rows, and return their names."""
        registry = self.world.registry
        at_ms = registry.closed_ms
        decision = for_key(self.world.label(ATTIC), BUCKETS, 3, "a test")
        registry.entries.append(LogEntry(len(registry.entries) + 1, at_ms, at_ms, (decision,)))
        keys = [(ATTIC, f"MSG#{text_of(at_ms + 100 * number)}#{number}") for number in range(8)]
        found = set()
        for key, sort in [*keys, (CELLAR, "T#1")]:
            item = {"pk": {"S": key}, "sk": {"S": sort}}
            self.world.stored.send("PutItem", {"TableName": TABLE, "Item": item})
            found.add(name_of(item))
        return found

    def _read_strays(self) -> None:
        """Read the next page of a scan now and then, or query the strays' keys."""
        rng, scanner = self._scanning, self._scanner
        if rng.random() < 0.05:
            self.world.registry.renew(scanner.view)
            self._query_strays(rng.choice([ATTIC, CELLAR]))
        if rng.random() < 0.4:
            self._scan_on(rng.choice([1, 2, 50]))

    def _scan_on(self, limit: int) -> None:
        given = {"TableName": TABLE, "Limit": limit, **self._scan_start}
        page = self._scanner.send("Scan", given)
        for item in page["Items"]:
            name = name_of(item)
            assert name not in self._scanned, f"{name} is on two pages of a scan"
            self._scanned.add(name)
        if "LastEvaluatedKey" in page:
            self._scan_start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
            return
        missing = self._strays - self._scanned
        assert not missing, f"a scan skips {missing}"
        self._scanned, self._scan_start = set(), {}

    def _query_strays(self, key: str) -> None:
        """A query shows a row only if GetItem finds it. Otherwise it must fail."""
        given = {
            "TableName": TABLE,
            "KeyConditionExpression": "pk = :p",
            "ExpressionAttributeValues": {":p": {"S": key}},
            "ConsistentRead": True,
        }
        try:
            found = self._scanner.send("Query", given)["Items"]
        except WireError as error:
            if "is not in its place" not in error.message:
                raise
            return
        for item in found:
            key_of = {name: item[name] for name in ("pk", "sk")}
            wanted = {"TableName": TABLE, "Key": key_of, "ConsistentRead": True}
            looked = self._scanner.send("GetItem", wanted)
            assert "Item" in looked, f"a query shows {name_of(item)}, which GetItem does not find"

    def _key(self) -> Body:
        rng = self.rng
        if self._items and rng.random() < 0.8:
            return dict(rng.choice(self._items[-8:]))
        time_ms = self.world.registry.closed_ms + rng.randint(-60, 40)
        kind = rng.choice([f"MSG#{text_of(time_ms)}#{rng.randint(0, 9)}"] * 4 + ["META", "T#1"])
        key = {"pk": {"S": rng.choice(KEYS)}, "sk": {"S": kind}}
        self._items.append(key)
        return dict(key)

    def _start(self, client: Client) -> None:
        rng, value = self.rng, f"v{next(self._numbers)}"
        usual = ["put", "create", "add", "add", "delete", "get", "get", "query", "pay"]
        what = rng.choice([*usual, "both", "look", "look"])
        if what in ("both", "look"):
            events, operation, given = self._on_twins(what, value)
        else:
            events, operation, given = self._request(what, self._key(), value)
        for name, event in events.items():
            self.history.setdefault(name, []).append(event)
        parameters = given if operation.startswith("Transact") else {"TableName": TABLE, **given}
        self._begin(client, Running(iter(()), events, operation, parameters))  # type: ignore[arg-type]

    def _begin(self, client: Client, running: Running) -> None:
        steps = client.core.begin(running.operation, running.parameters)
        running.steps = _passed(running) if steps is None else steps
        client.running = running
        self._advance(client, running, None)

    def _request(self, what: str, key: Body, value: str) -> tuple[dict[str, Event], str, Body]:
        event = {name_of(key): Event(what, value, self.now)}
        item = {**key, "v": {"S": value}, "n": {"N": "0"}}
        adding = {
            "Key": key,
            "UpdateExpression": "ADD n :one SET v = if_not_exists(v, :none)",
            "ExpressionAttributeValues": {":one": {"N": "1"}, ":none": {"S": ""}},
        }
        if what == "put":
            return event, "PutItem", {"Item": item}
        if what == "create":
            condition = self.rng.choice(["attribute_not_exists(pk)", "NOT pk = :p", "pk <> :p"])
            values = {"ExpressionAttributeValues": {":p": key["pk"]}} if ":p" in condition else {}
            return event, "PutItem", {"Item": item, "ConditionExpression": condition, **values}
        if what == "add":
            return event, "UpdateItem", {**adding, "ReturnValues": "ALL_NEW"}
        if what == "delete":
            return event, "DeleteItem", {"Key": key, "ReturnValues": "ALL_OLD"}
        if what == "get":
            return event, "GetItem", {"Key": key, "ConsistentRead": True}
        other = self._key()
        if what == "pay" and other != key:
            events = {
                name_of(key): Event("exists", "", self.now),
                name_of(other): Event("put", value, self.now),
            }
            put = {**other, "v": {"S": value}, "n": {"N": "0"}}
            check = {"Key": key, "ConditionExpression": "attribute_exists(pk)"}
            actions = [
                {"ConditionCheck": {"TableName": TABLE, **check}},
                {"Put": {"TableName": TABLE, "Item": put}},
            ]
            return events, "TransactWriteItems", {"TransactItems": actions}
        return self._query(key)

    def _on_twins(self, what: str, value: str) -> tuple[dict[str, Event], str, Body]:
        """Write both items of a pair in one transaction, or read both in one."""
        if not self._twins or self.rng.random() < 0.2:
            self._twins.append((self._new_twin(-20, 0), self._new_twin(-20, 300)))
        pair = self.rng.choice(self._twins[-2:])
        kind = "put" if what == "both" else "get"
        events = {name_of(key): Event(kind, value, self.now) for key in pair}
        if what == "look":
            actions = [{"Get": {"TableName": TABLE, "Key": key}} for key in pair]
            return events, "TransactGetItems", {"TransactItems": actions}
        items = [{**key, "v": {"S": value}, "n": {"N": "0"}} for key in pair]
        actions = [{"Put": {"TableName": TABLE, "Item": item}} for item in items]
        return events, "TransactWriteItems", {"TransactItems": actions}

    def _new_twin(self, from_ms: int, to_ms: int) -> Body:
        time_ms = self.world.registry.closed_ms + self.rng.randint(from_ms, to_ms)
        sort = f"MSG#{text_of(time_ms)}#twin{next(self._numbers)}"
        return {"pk": {"S": self.rng.choice(KEYS)}, "sk": {"S": sort}}

    def _query(self, key: Body) -> tuple[dict[str, Event], str, Body]:
        """Read a whole collection in pages: it reads each of its items once."""
        items = {name_of(one): one for one in self._items if one["pk"] == key["pk"]}
        given: Body = {
            "KeyConditionExpression": "pk = :p",
            "ExpressionAttributeValues": {":p": key["pk"]},
            "ConsistentRead": True,
            "ScanIndexForward": self.rng.random() < 0.5,
        }
        if self.rng.random() < 0.7:
            given["Limit"] = self.rng.choice([2, 5])
        return {name: Event("get", "", self.now) for name in items}, "Query", given

    def _step(self, client: Client, running: Running) -> None:
        """Meet one need of an operation. When all are met, let the operation go on."""
        left = [n for n in range(len(running.needs)) if n not in running.answers]
        number = self.rng.choice(left)
        running.answers[number] = self._meet(client, running.needs[number])
        if len(left) == 1:
            answers = [running.answers[n] for n in range(len(running.needs))]
            self._advance(client, running, answers)

    def _meet(self, client: Client, need: Need) -> Any:
        if not isinstance(need, UpstreamCall):
            assert isinstance(need, LayoutOf | Reach | Renew)
            return client.meet(need)
        roll = self.rng.random()
        if roll < self.losses:
            return LOST
        answer = client.meet(need)
        return LOST if roll < 2 * self.losses else answer

    def _advance(self, client: Client, running: Running, answers: list[Any] | None) -> None:
        try:
            running.needs = next(running.steps) if answers is None else running.steps.send(answers)
            running.answers = {}
        except StopIteration as end:
            self._ended(client, running, end.value)
        except WireError as error:
            self._failed(client, running, error)

    def _ended(self, client: Client, running: Running, answer: Body) -> None:
        if running.operation == "Query":
            for item in answer["Items"]:
                name = name_of(item)
                assert name not in running.rows, f"{name} is on two pages"
                running.rows[name] = seen(item)
            if "LastEvaluatedKey" in answer:
                start = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}
                running.parameters = {**running.parameters, **start}
                self._begin(client, running)
                return
            results = {name: running.rows.get(name) for name in running.events}
        elif running.operation == "TransactGetItems":
            found = [seen(one["Item"]) if "Item" in one else None for one in answer["Responses"]]
            assert found[0] == found[1], f"half of a transaction: {running.parameters} {found}"
            results = dict(zip(running.events, found, strict=True))
        else:
            results = {name: _result(event, answer) for name, event in running.events.items()}
        for name, event in running.events.items():
            event.ended, event.result = self.now, results[name]
        client.running = None

    def _failed(self, client: Client, running: Running, error: WireError) -> None:
        client.running = None
        if error is LOST or error.code == "Lost":
            return
        refused = "ConditionalCheckFailedException", "TransactionCanceledException"
        assert error.code in refused, error
        if running.operation == "TransactWriteItems":
            for name, event in running.events.items():
                if event.what == "exists":
                    event.ended, event.result = self.now, "refused"
                else:
                    self.history[name].remove(event)  # the transaction wrote nothing
            return
        [event] = running.events.values()
        event.ended, event.result = self.now, "refused"

    def check(self) -> None:
        """Raise `AssertionError` for an item whose history has no explanation.

        First read the last scan to its end.
        """
        while self._scan_start:
            self._scan_on(50)
        for name, events in self.history.items():
            assert linearizable(events), f"{name}: {events}"


def _passed(running: Running) -> Steps:
    """Send a request upstream as it is."""
    [answer] = yield [UpstreamCall(running.operation, running.parameters)]
    if isinstance(answer, WireError):
        raise answer
    return dict(answer)


def name_of(key: Body) -> str:
    return f"{key['pk']['S']} {key['sk']['S']}"


def seen(item: Body) -> tuple[str, int]:
    return item["v"]["S"], int(item["n"]["N"])


def _result(event: Event, answer: Body) -> Any:
    """Return what an answer says, as `Event.outcomes` does."""
    if event.what == "add":
        return int(answer["Attributes"]["n"]["N"])
    if event.what == "delete":
        return int(answer["Attributes"]["n"]["N"]) if "Attributes" in answer else None
    if event.what == "get":
        return seen(answer["Item"]) if "Item" in answer else None
    return "ok"
