"""The differential test: the same requests on an emulator, and through Heatsink on a spread table.

Heatsink is the core alone (`world.World`), or an attached client or a door (`live.LiveWorld`).
Answers must be equal: sequences for queries of the table, the same rows over all pages for scans,
batches and global indexes, and the same errors, word for word. Consumed capacity differs, since a
request may take several calls: it must be the sum of what they consumed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any, Protocol

import msgspec

from heatsink.door.protocol import Body
from heatsink.door.spread_indexes import SUFFIX

from .grammar import HOT, Grammar
from .world import TABLE, Upstream, outcome

PAGES_MAX = 400
REUSED = "IdempotentParameterMismatchException"
COMPUTED = "is set to a value that DynamoDB computes"  # of an attribute with a spread index
INDEX = re.compile(r"IndexName: by-[\w-]+")


class Process(Protocol):
    """A way to a spread table. Several processes differ in how new their views are."""

    def send(self, operation: str, parameters: Body) -> Body: ...


class Pair(Protocol):
    """The same table twice: `plain` is used directly, the other one through `processes`."""

    @property
    def plain(self) -> Upstream: ...

    @property
    def processes(self) -> Sequence[Process]: ...

    past_ms: int
    """How long ago a sort key may be dated."""

    def now_ms(self) -> int: ...

    def is_spread(self, key: str) -> bool: ...

    def change(self, rng: Random, key: str) -> None:
        """Let time pass, and give a key another number of buckets."""

    def renew(self, process: Any) -> None: ...


class Differential:
    """Runs random requests on both tables while layouts change."""

    def __init__(self, seed: int, world: Pair) -> None:
        self.rng = Random(seed)
        self.world = world
        self.grammar = Grammar(self.rng, world.now_ms(), world.past_ms)
        self.count = 0
        self.spread = 0
        self.errors = 0
        self.computed = 0

    def run(self, requests: int) -> None:
        for _ in range(requests):
            if self.rng.random() < 0.06:
                self._change()
            self._one()

    def _change(self) -> None:
        self.world.change(self.rng, self.rng.choice(HOT))
        self.grammar.now_ms = self.world.now_ms()

    def _one(self) -> None:
        self.grammar.now_ms = self.world.now_ms()
        operation, parameters = self.grammar.request()
        process = self.rng.choice(self.world.processes)
        if not _is_consistent(operation, parameters):
            self.world.renew(process)
        self.count += 1
        self.spread += self._touches_spread(operation, parameters)
        if operation == "Scan" or parameters.get("IndexName") == "by-kind":
            self.compare_pages(operation, parameters, process)
        elif operation == "Query":
            self._compare_query(parameters, process)
        else:
            self._compare(operation, parameters, process)

    def _touches_spread(self, operation: str, parameters: Body) -> bool:
        """Whether a request concerns a key with several buckets. `T#` has them from birth."""
        spread = [key for key in HOT if self.world.is_spread(key)]
        if operation == "Scan":
            return bool(spread)
        request = msgspec.json.encode(parameters).decode()
        return any(f'"{key}"' in request for key in spread) or '"T#' in request

    def _compare(self, operation: str, parameters: Body, process: Process) -> Body:
        found = outcome(partial(sent, process), operation, parameters)
        if COMPUTED in str(found.get("body")):
            self.computed += 1
            return found
        plain = outcome(self.world.plain.send, operation, parameters)
        self.errors += "error" in plain
        if plain.get("error") == REUSED and found.get("error") == "ValidationException":
            return plain  # a wrong expression with a token of another request: either error is due
        assert comparable(found) == comparable(plain), (operation, parameters)
        return plain

    def _compare_query(self, parameters: Body, process: Process) -> None:
        """Follow the pages of a query for a while: each must be the same."""
        for _ in range(self.rng.choice([1, 1, 3, 8])):
            answer = self._compare("Query", parameters, process)
            if "LastEvaluatedKey" not in answer:
                return
            if self.rng.random() < 0.3:
                self._change()
            process = self.rng.choice(self.world.processes)
            if not parameters.get("ConsistentRead"):
                self.world.renew(process)
            parameters = {**parameters, "ExclusiveStartKey": answer["LastEvaluatedKey"]}

    def compare_pages(self, operation: str, parameters: Body, process: Process) -> None:
        plain = _all_segments(self.world.plain.send, operation, parameters)
        found = _all_segments(partial(sent, process), operation, parameters)
        if "error" in plain:
            found, plain = comparable(found), comparable(plain)
        assert found == plain, (operation, parameters)
        self.errors += "error" in plain


def sent(process: Process, operation: str, parameters: Body) -> Body:
    """Send a request. Check that it says to have consumed what its upstream calls consumed."""
    upstream = getattr(process, "upstream", None)
    if upstream is None:  # it is in another process
        return process.send(operation, parameters)
    upstream.used.clear()
    answer = process.send(operation, parameters)
    assert ("ConsumedCapacity" in answer) == bool(upstream.used), (operation, parameters)
    shown = _numbers(answer.get("ConsumedCapacity"))
    assert shown == _numbers(upstream.used), (operation, parameters, upstream.used)
    return answer


def _numbers(used: Any, path: str = "") -> Counter[str]:
    """Return the sums of all numbers in consumed capacities, by their paths."""
    if isinstance(used, list):
        return sum((_numbers(one, path) for one in used), Counter[str]())
    if isinstance(used, dict):
        inner = ((f"{path}/{name.removesuffix(SUFFIX)}", one) for name, one in used.items())
        return sum((_numbers(one, at) for at, one in inner), Counter[str]())
    is_number = isinstance(used, int | float) and "Partition" not in path
    return Counter({path: used}) if is_number else Counter()


def _is_consistent(operation: str, parameters: Body) -> bool:
    """Whether the request may meet a view that is behind: it reads strongly, or it writes."""
    if operation in ("GetItem", "Query"):
        return bool(parameters.get("ConsistentRead"))
    if operation == "BatchGetItem":
        items = parameters.get("RequestItems")
        wanted = items.get(TABLE) if isinstance(items, dict) else None
        return isinstance(wanted, dict) and bool(wanted.get("ConsistentRead"))
    return operation != "Scan"


def _all_segments(send: Any, operation: str, parameters: Body) -> Body:
    """Return the rows of all segments. A key may be in another segment if it is spread."""
    total = parameters.get("TotalSegments")
    if not isinstance(total, int) or "Segment" not in parameters:
        return _all_pages(send, operation, parameters)
    parts = [
        _all_pages(send, operation, {**parameters, "Segment": number}) for number in range(total)
    ]
    if "error" in parts[0]:
        return parts[0]
    rows = sorted(row for part in parts for row in part["rows"])
    counts = [sum(part["counts"][place] for part in parts) for place in (0, 1)]
    return {"rows": rows, "counts": counts, "fields": parts[0]["fields"]}


def _all_pages(send: Any, operation: str, parameters: Body) -> Body:
    """Return the rows of all pages in an order of their own, the counts, or the error.

    Of a query of an index, also return the sort keys in their order: only ties have none.
    """
    rows: list[str] = []
    counts = [0, 0]
    fields: set[str] = set()
    scores: list[Any] = []
    for _ in range(PAGES_MAX):
        answer = outcome(send, operation, parameters)
        if "error" in answer:
            return answer
        rows += [msgspec.json.encode(_ordered(item)).decode() for item in answer.get("Items", ())]
        if parameters.get("IndexName") == "by-kind" and operation == "Query":
            scores += [item.get("score") for item in answer.get("Items", ())]
        counts = [counts[0] + answer["Count"], counts[1] + answer["ScannedCount"]]
        fields.update(answer)
        if "LastEvaluatedKey" not in answer:
            fields.discard("LastEvaluatedKey")
            return {"rows": sorted(rows), "counts": counts, "fields": fields, "scores": scores}
        parameters = {**parameters, "ExclusiveStartKey": answer["LastEvaluatedKey"]}
    raise AssertionError("the pages do not end")


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _ordered(value[name]) for name in sorted(value)}
    return value


def comparable(answer: Body) -> Body:
    """Return an answer without its costs, which differ, and with batches in one order."""
    shown = {name: value for name, value in answer.items() if name != "ConsumedCapacity"}
    if "error" in shown:  # an item may be wrong for several indexes: either is named
        shown = msgspec.json.decode(
            INDEX.sub("IndexName: any", msgspec.json.encode(shown).decode())
        )
    if "ConsumedCapacity" in answer:
        used = answer["ConsumedCapacity"]
        parts = used if isinstance(used, list) else [used]
        shown["consumed"] = [sorted(one.keys() - {"Partition"}) for one in parts]
    if isinstance(shown.get("Responses"), dict):
        shown["Responses"] = {
            name: sorted(msgspec.json.encode(_ordered(item)) for item in items)
            for name, items in shown["Responses"].items()
        }
    return shown
