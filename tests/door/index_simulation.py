"""A simulation of processes that use a table while one of its indexes is spread, and brought back.

Processes run operations of the core, one upstream call at a time. Meanwhile an operator runs the
migration, dies and runs it again, values get other numbers of buckets, sweeps move items, answers
get lost, and a program without Heatsink writes now and then. In most runs, indexes lag behind the
table. At any moment, a process whose view is up to date must find in the index what the table
holds. While changes of an item have not reached the index, a query may miss the item, or return it
on two pages.

Some rows are strays: they are under the bare key, and belong in buckets of the table.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

from heatsink.door.migration import Moves, Pause, Record, Settle
from heatsink.door.places import application_key
from heatsink.door.protocol import Body, Need, Steps, UpstreamCall, WireError
from heatsink.door.spread_indexes import RESERVED, shadow_of
from heatsink.errors import Unavailable
from heatsink.registry.spread_indexes import DAY_MS, READING, note_on

from .grammar import text_of
from .lagging import LONG_S, USUAL_S, Delays
from .simulation import LOST
from .world import INDEX, LAGGING, TABLE, Process, World, outcome

VALUES = ["u", "v"]
ITEMS, STRAYS = 7, 4
TURN_S = 0.5
PAGES_MAX = 100
SHADOW = shadow_of(INDEX)
DEFAULT = "SET kind = if_not_exists(kind, :v), score = :s"
COMPUTED, OTHER = "SET kind = wanted", "attribute_exists(wanted)"
FAILURES = ("ConditionalCheckFailedException", "TransactionCanceledException", "Lost")


@dataclass
class Running:
    """An operation under way. `began` is the number of the turn in which it began."""

    steps: Steps
    began: int
    name: str
    token: str = ""
    needs: list[Need] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)


class Client(Process):
    """A process that runs one operation at a time."""

    running: Running | None = None


class IndexSimulation:
    """Some processes, a few items, and an operator."""

    def __init__(self, seed: int, *, losses: float = 0.03) -> None:
        self.rng = Random(seed)
        self.delays = Delays(Random(seed), USUAL_S[seed % len(USUAL_S)])
        with self.delays.planted():
            self.world = World(settings=LAGGING)
        self.losses = losses
        world = self.world
        self.clients = [Client(world.table, world.stored, world.registry) for _ in range(3)]
        self.reader = Process(world.table, world.stored, world.registry)
        self.operator = world.processes[0]
        self.moves: Moves | None = None
        self.needs: list[Any] = []
        self.answers: list[Any] = []
        self.asked = 0
        self.now = 0
        self.foreign: set[str] = set()
        self.begun: set[str] = set()
        self.done: set[str] = set()
        self.requests: dict[str, Body] = {}
        self.steps_seen: set[str] = set()
        self.anomalies: Counter[str] = Counter()
        """How often a query missed a late item, or returned it twice."""
        self._put_strays()

    def run(self, turns: int) -> None:
        with self.delays.planted():
            self._run(turns)

    def _run(self, turns: int) -> None:
        for self.now in range(turns):
            self.world.clock.turn(TURN_S)
            self._disturb()
            client = self.rng.choice([*self.clients, None])
            if client is None:
                self._operate()
            elif client.running is None:
                self._start(client)
            else:
                self._step(client, client.running)
            if self.rng.random() < 0.25:
                self.check()
        self._finish()

    def _disturb(self) -> None:
        rng, registry = self.rng, self.world.registry
        if rng.random() < 0.03:
            registry.renew(rng.choice(self.clients).view)
        if rng.random() < 0.04 and self._note() is not None:
            registry.closed_ms += rng.choice([1, 50])
            self._give(rng.choice(VALUES), rng.choice([1, 2, 5]))
            registry.closed_ms += rng.choice([0, 1, 50])
        if rng.random() < 0.005:
            self._let_a_day_pass()
            self.requests.clear()  # DynamoDB has forgotten their tokens
            for client in self.clients:
                registry.renew(client.view)
                client.running = None
        if rng.random() < 0.01:
            number = rng.randrange(len(self.clients))
            world = self.world
            self.clients[number] = Client(world.table, world.stored, world.registry)
        if rng.random() < 0.01 and self.moves is not None:
            self.moves = None  # the operator's run was killed
        if rng.random() < 0.004:
            self._write_past()

    def _put_strays(self) -> None:
        world = self.world
        world.registry.spread(world.label("attic"), 3)
        for number in range(STRAYS):
            sort = f"MSG#{text_of(world.registry.closed_ms + 20 * number)}#{number}"
            row = {"pk": {"S": "attic"}, "sk": {"S": sort}, "kind": {"S": VALUES[number % 2]}}
            item = {**row, "score": {"N": "1"}}
            world.stored.send("PutItem", {"TableName": TABLE, "Item": item})

    def _give(self, value: str, buckets: int) -> None:
        label, registry = f"\0index:{TABLE}/{INDEX}/{value}", self.world.registry
        if not registry.layout(label).full:
            registry.spread(label, buckets)

    def _let_a_day_pass(self) -> None:
        self.world.registry.closed_ms += DAY_MS
        self.world.clock.turn(DAY_MS / 1000)

    def _note(self) -> Any:
        return note_on(self.world.registry.view(), TABLE, INDEX)

    def _write_past(self) -> None:
        """Another program sets an item's value without Heatsink."""
        key = self._key()
        given = {"TableName": TABLE, "Key": key, "UpdateExpression": "SET kind = :x, score = :s"}
        values = {":x": {"S": self.rng.choice(VALUES)}, ":s": {"N": "1"}}
        outcome_of(self.world, "UpdateItem", {**given, "ExpressionAttributeValues": values})
        self.foreign.add(key["sk"]["S"])

    def _operate(self) -> None:
        """Let the operator's run go on by one need, or begin another run."""
        rng = self.rng
        if self.moves is None:
            note = self._note()
            step = note.step if note is not None else "left"
            migration = self.operator_migration()
            if step in ("restoring", "returning", "clearing"):
                self.moves = migration.leave()
            elif step == "spread":
                self.moves = rng.choice([migration.sweep] * 4 + [migration.leave])()
            else:
                leaves = step in ("filled", "reading", "deleting") and rng.random() < 0.1
                self.moves = migration.leave() if leaves else migration.spread()
            self._advance(None)
            return
        note = self._note()
        self.steps_seen.add(note.step if note is not None else "")
        self.delays.are_long = note is not None and note.step == "spread"
        number = len(self.answers)
        need = self.needs[number]
        if isinstance(need, Settle):
            running = [one.running for one in self.clients if one.running is not None]
            if any(one.began <= self.asked for one in running):
                return  # its call may still arrive
        self.answers.append(self._met(need))
        if len(self.answers) == len(self.needs):
            self._advance(self.answers)

    def operator_migration(self) -> Any:
        return self.operator.migration()

    def _met(self, need: Any) -> Any:
        registry = self.world.registry
        if isinstance(need, Pause):
            self.world.clock.turn(need.seconds)
            return self.world.stored.engine.tend()
        if isinstance(need, Settle):
            registry.closed_ms += 1
            for process in (*self.clients, self.operator):
                registry.renew(process.view)
            return None
        if isinstance(need, Record):
            if registry.view().pins.get(need.note.key) != need.seen:
                return False
            registry.closed_ms += 1
            registry.append(need.note)
            registry.renew(self.operator.view)
            return True
        return self.operator.meet(need)

    def _advance(self, answers: list[Any] | None) -> None:
        assert self.moves is not None
        try:
            self.needs = next(self.moves) if answers is None else self.moves.send(answers)
            self.answers, self.asked = [], self.now
        except StopIteration:
            self.moves = None
        except Unavailable:
            self.moves = None  # the operator runs it again

    def _key(self) -> Body:
        return {"pk": {"S": "p"}, "sk": {"S": f"META{self.rng.randrange(ITEMS)}"}}

    def _start(self, client: Client) -> None:
        rng, key = self.rng, self._key()
        value = {":v": {"S": rng.choice(VALUES)}, ":s": {"N": rng.choice("112")}}
        given: Body = {"TableName": TABLE, "Key": key}
        known = {**given, "ConditionExpression": "attribute_exists(pk)"}
        setting = {**given, "ExpressionAttributeValues": value}
        one = {":one": {"N": "1"}}
        writes: list[tuple[str, Body]] = [
            (
                "PutItem",
                {"TableName": TABLE, "Item": {**key, "kind": value[":v"], "score": value[":s"]}},
            ),
            ("PutItem", {"TableName": TABLE, "Item": {**key, "score": value[":s"]}}),
            ("UpdateItem", {**setting, "UpdateExpression": "SET kind = :v, score = :s"}),
            ("UpdateItem", {**setting, "UpdateExpression": DEFAULT}),
            ("UpdateItem", {**setting, "UpdateExpression": DEFAULT}),
            ("UpdateItem", {**known, "UpdateExpression": "REMOVE kind"}),
            ("UpdateItem", {**known, "UpdateExpression": "REMOVE kind", "ReturnValues": "ALL_NEW"}),
            ("UpdateItem", {**setting, "UpdateExpression": "SET wanted = :v, score = :s"}),
            ("UpdateItem", {**given, "UpdateExpression": COMPUTED, "ConditionExpression": OTHER}),
            (
                "UpdateItem",
                {
                    **known,
                    "UpdateExpression": "ADD n :one",
                    "ExpressionAttributeValues": one,
                    "ReturnValues": rng.choice(["ALL_NEW", "ALL_OLD"]),
                },
            ),
            ("DeleteItem", {**given, "ReturnValues": "ALL_OLD"}),
            ("DeleteItem", given),
            ("GetItem", given),
            ("TransactWriteItems", {}),
            ("TransactWriteItems", {}),
        ]
        name, parameters = rng.choice(writes)
        token = ""
        if name == "TransactWriteItems":
            token = rng.choice([f"t{len(self.begun)}", *list(self.requests)[-3:]])
            parameters = self.requests.setdefault(token, self._transaction(token, key, value))
            self.begun.add(token)
        steps = client.core.begin(name, parameters)
        if steps is None:
            steps = _passed(name, parameters)
        client.running = Running(steps, self.now, name, token)
        self._go_on(client, client.running, None)

    def _transaction(self, token: str, key: Body, value: Body) -> Body:
        """Count one transaction and set a value, once for each token."""
        counting = {
            "TableName": TABLE,
            "Key": {"pk": {"S": "p"}, "sk": {"S": "COUNT"}},
            "UpdateExpression": "ADD n :one",
            "ExpressionAttributeValues": {":one": {"N": "1"}},
        }
        setting = {
            "TableName": TABLE,
            "Key": key,
            "UpdateExpression": "SET kind = :v, score = :s",
            "ExpressionAttributeValues": value,
        }
        actions = [{"Update": counting}, {"Update": setting}]
        return {"TransactItems": actions, "ClientRequestToken": token}

    def _step(self, client: Client, running: Running) -> None:
        need = running.needs[len(running.answers)]
        running.answers.append(self._answer(client, need))
        if len(running.answers) == len(running.needs):
            self._go_on(client, running, running.answers)

    def _answer(self, client: Client, need: Need) -> Any:
        if not isinstance(need, UpstreamCall):
            return client.meet(need)
        roll = self.rng.random()
        if roll < self.losses:
            return LOST
        answer = client.meet(need)
        return LOST if roll < 2 * self.losses else answer

    def _go_on(self, client: Client, running: Running, answers: list[Any] | None) -> None:
        try:
            running.needs = next(running.steps) if answers is None else running.steps.send(answers)
            running.answers = []
        except StopIteration as end:
            client.running = None
            self.done.add(running.token)
            self._expect(RESERVED not in str(end.value), "an answer shows a shadow attribute")
        except WireError as error:
            client.running = None
            self._expect(error is LOST or error.code in FAILURES, str(error))

    def _expect(self, holds: bool, what: str) -> None:
        assert holds, what

    def check(self) -> None:
        """Raise `AssertionError` if the index does not show what the table holds."""
        world = self.world
        world.registry.renew(self.reader.view)
        rows = world.stored.send("Scan", {"TableName": TABLE})["Items"]
        note, late = self._note(), self.delays.late()
        if note is not None and note.step in READING:
            self._check_shadows(rows)
        for value in VALUES:
            found = self._queried(value)
            twice = {row for row, times in Counter(found).items() if times > 1}
            assert twice <= late, f"{value}: rows are on two pages: {twice - late}"
            whole = (row for row in rows if "score" in row)
            known = {row["sk"]["S"] for row in whole if row.get("kind") == {"S": value}}
            wrong = set(found) - known
            assert wrong <= late, f"{value}: rows with another value are shown: {wrong - late}"
            missing = known - set(found) - self.foreign
            assert missing <= late, f"{value}: rows are missing: {missing - late}"
            self.anomalies.update(twice=len(twice), missing=len(missing), wrong=len(wrong))
        ghosts = [row for row in rows if "score" not in row and row["sk"]["S"] != "COUNT"]
        assert not ghosts, f"nobody wrote these items: {ghosts}"
        count = next((int(row["n"]["N"]) for row in rows if row["sk"]["S"] == "COUNT"), 0)
        assert len(self.done - {""}) <= count <= len(self.begun), "a transaction took effect twice"

    def _check_shadows(self, rows: list[Body]) -> None:
        """Raise if an item's shadow has another value than its attribute. The table never lags."""
        for row in rows:
            shadow = application_key(row[SHADOW]["S"]) if SHADOW in row else None
            is_right = shadow == row.get("kind", {}).get("S")
            assert is_right or row["sk"]["S"] in self.foreign, f"a wrong shadow: {row}"

    def _queried(self, value: str) -> list[str]:
        """Read all pages of a value. Its buckets may change between two pages."""
        found: list[str] = []
        given: Body = {
            "TableName": TABLE,
            "IndexName": INDEX,
            "KeyConditionExpression": "kind = :k",
            "ExpressionAttributeValues": {":k": {"S": value}},
            "Limit": self.rng.choice([1, 3, 50]),
            "ScanIndexForward": self.rng.random() < 0.5,
        }
        for _ in range(PAGES_MAX):
            answer = self.reader.send("Query", given)
            assert RESERVED not in str(answer["Items"]), "a row shows a shadow attribute"
            assert all(row["kind"] == {"S": value} for row in answer["Items"]), "another value"
            rows = [row["sk"]["S"] for row in answer["Items"]]
            assert len(rows) == len(set(rows)), f"{value}: a row is on one page twice: {rows}"
            found += rows
            if "LastEvaluatedKey" not in answer:
                return found
            given["ExclusiveStartKey"] = answer["LastEvaluatedKey"]
        raise AssertionError(f"the pages of {value} do not end: {found}")

    def _finish(self) -> None:
        """Let everybody end what they do, bring the index back, and look at the table."""
        self.losses = 0.0
        for client in self.clients:
            while client.running is not None:
                self._step(client, client.running)
        self.check()
        self._settled(self.operator_migration().spread() if self._goes_on() else None)
        self.check()
        note = self._note()
        if note is not None and note.step == "spread":
            for value in VALUES:
                self._give(value, 1)
            for _ in range(2):
                self._settled(self.operator_migration().sweep())
                self._let_a_day_pass()  # after the second one, retired buckets are not asked
                self._check_all()
        self._settled(self.operator_migration().leave())
        for row in self.world.stored.send("Scan", {"TableName": TABLE})["Items"]:
            assert SHADOW not in row, f"a shadow is left behind: {row}"
        self._check_all()

    def _check_all(self) -> None:
        """Wait for the indexes, and check every item."""
        self.world.clock.turn(LONG_S)
        assert not self.delays.late()
        self.check()

    def _goes_on(self) -> bool:
        note = self._note()
        return note is None or note.step not in ("restoring", "returning", "clearing")

    def _settled(self, moves: Moves | None) -> None:
        self.moves = moves
        if moves is not None:
            self.asked = self.now
            self._advance(None)
        while self.moves is not None:
            self._operate()


def _passed(name: str, parameters: Body) -> Steps:
    [answer] = yield [UpstreamCall(name, parameters)]
    if isinstance(answer, WireError):
        raise answer
    return dict(answer)


def outcome_of(world: World, operation: str, parameters: Body) -> Body:
    return outcome(world.stored.send, operation, parameters)
