"""The core: DynamoDB's operations on declared tables, without I/O.

`begin` starts an operation, given in wire form. It returns None if the request and its answer can
pass unchanged. Otherwise it returns the operation's *steps*: a generator that asks for upstream
calls and returns the answer for the application (see `protocol.py`).

    steps = core.begin("GetItem", {"TableName": "chat", "Key": {…}})
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from heatsink.registry.decisions import View
from heatsink.stores.dynamodb.wire.errors import EngineError

from .computed import computing
from .declaration import SpreadTable
from .forms import PARTIQL, as_read, checked_form, tables_in_statements
from .index_pages import query_index, scan_index, uses_new
from .items import TARGETS, check_append_only, get_item, write_item
from .keys import TAG, table_of
from .many import batch_get, batch_write, transact_get, transact_write
from .places import ItemPlaces
from .protocol import OURS, Body, Reach, Steps, UpstreamCall, WireError, checked, of_engine, refusal
from .queries import key_of, query
from .scans import page_of_index, scan
from .spread_indexes import SUFFIX
from .tagging import values_in

_ADMINISTRATION = """
    CreateTable DescribeTable UpdateTable DeleteTable ListTables UpdateTimeToLive
    DescribeTimeToLive TagResource UntagResource ListTagsOfResource DescribeLimits
    DescribeEndpoints DescribeContinuousBackups UpdateContinuousBackups CreateBackup
    DescribeBackup DeleteBackup ListBackups DescribeContributorInsights
    UpdateContributorInsights ListContributorInsights DescribeKinesisStreamingDestination
    EnableKinesisStreamingDestination DisableKinesisStreamingDestination
    UpdateKinesisStreamingDestination PutResourcePolicy GetResourcePolicy DeleteResourcePolicy
    DescribeTableReplicaAutoScaling UpdateTableReplicaAutoScaling ListGlobalTables
    DescribeGlobalTable DescribeGlobalTableSettings
"""
ADMINISTRATION = frozenset(_ADMINISTRATION.split())
"""Operations that concern no item: they pass as they are."""
OURS_ONLY = "it is one of Heatsink's own: use the index that it replaces"
UNUSED = "it is declared in unused_indexes; remove it from there, or use another index"


class KeyMeter(Protocol):
    """Counts reads and writes of keys, by their names in the registry."""

    def record(self, key: str, writes: int = 1, written_bytes: int = 0) -> None: ...

    def record_read(self, key: str, reads: int = 1) -> None: ...


class Core:
    """Operations on declared tables. One core serves all threads of a process."""

    def __init__(
        self,
        tables: Iterable[SpreadTable],
        view: View,
        seed: bytes,
        heat: KeyMeter,
        registry: str = "REGISTRY_URL",
        counts: Counter[str] | None = None,
    ) -> None:
        """`registry` is the registry's URL, which messages name.

        `counts` counts under "waits" how often requests waited for the horizon, and under
        "refusals" the requests that Heatsink refused.
        """
        self.tables = tuple(tables)
        self.places = {table.name: ItemPlaces(table, view, seed, registry) for table in self.tables}
        self.counts = Counter[str]() if counts is None else counts
        self._view = view
        self._heat = heat

    def begin(self, operation: str, parameters: Body, size: int = 0) -> Steps | None:
        """Start an operation and return its steps; None if the request can pass unchanged.

        `size` is the approximate size of the request in bytes, which counts as heat. Raises
        `WireError` if the request is refused.
        """
        try:
            steps = self._begin(operation, parameters, size)
        except WireError as error:
            raise self._refusal(error) from None
        return None if steps is None else self._observed(steps)

    def _begin(self, operation: str, parameters: Body, size: int = 0) -> Steps | None:
        name = parameters.get("TableName")
        places = self.places.get(name) if isinstance(name, str) else None
        if places is None and isinstance(name, str):
            places = self.places.get(table_of(name))
        if places is None:
            return self._begin_many(operation, parameters, size)
        start = OPERATIONS.get(operation)
        if start is None and operation in ADMINISTRATION:
            return None
        known = places.known()
        if known.refused:
            raise refusal(known.refused)
        if start is None:
            raise _refused(operation, places.table.name)
        if known.indexes:
            changed = places.with_keys(parameters)
            parameters = (
                parameters if str(parameters.get("IndexName")) in places.indexes else changed
            )
        return start(self, places, parameters, size)

    def _adapted(self, operation: str, parameters: Body, make: Callable[[], Steps]) -> Steps | None:
        """Return the steps that `make` returns, or those of the corrected request.

        DynamoDB accepts some fields of a wrong type and corrects them. This function corrects them,
        too. Raises `WireError` if DynamoDB refuses the request's form.
        """
        try:
            read = checked_form(operation, parameters)
        except EngineError as error:
            raise of_engine(error) from None
        if read is not parameters:
            return self._begin(operation, read)
        return self._as_read(operation, parameters, make())

    def _as_read(self, operation: str, parameters: Body, steps: Steps) -> Steps:
        """Run the steps of a request.

        If they find a wrong type, correct the request and begin again.

        DynamoDB corrects some wrong types. Only this second attempt looks for wrong types inside
        attribute values, since this is slow. The second attempt is safe, since the first one has
        written nothing.
        """
        try:
            return (yield from steps)
        except EngineError:
            read = as_read(operation, parameters)
            if read == parameters:
                raise
        again = self._begin(operation, read)
        if again is not None:
            return (yield from again)
        [answer] = checked((yield [UpstreamCall(operation, read)]))
        return dict(answer)

    def _reread(self, operation: str, parameters: Body, size: int) -> Steps | None:
        """Begin a request again whose key was not understood, with types corrected.

        Returns None if there is nothing to correct: then DynamoDB itself refuses the request.
        Raises `WireError` if the form of the request is wrong.
        """
        try:
            read = as_read(operation, parameters)
        except EngineError as error:
            raise of_engine(error) from None
        return None if read == parameters else self._begin(operation, read, size)

    def _observed(self, steps: Steps) -> Steps:
        """Run steps, count their waits and refusals, and convert their errors to error responses.

        The parsers of expressions raise `EngineError`.
        """
        try:
            needs = next(steps)
            while True:
                self.counts["waits"] += isinstance(needs[0], Reach)
                needs = steps.send((yield needs))
        except StopIteration as end:
            return dict(end.value)
        except EngineError as error:
            raise of_engine(error) from None
        except WireError as error:
            raise self._refusal(error) from None

    def _refusal(self, error: WireError) -> WireError:
        """Count an error if it is Heatsink's own.

        Return it with the application's names of spread indexes.
        """
        self.counts["refusals"] += error.message.startswith(OURS)
        for places in self.places.values():
            for index in places.indexes.values():
                error = index.error(error)
        return error

    def _begin_many(self, operation: str, parameters: Body, size: int) -> Steps | None:
        """Start an operation that names no table, or several."""
        named = self._named(operation, parameters)
        if not named or operation in ADMINISTRATION:
            return None
        for places in named.values():
            places.check_usable()
        start = MANY.get(operation)
        if start is None:
            raise _refused(operation, next(iter(named.values())).table.name)
        try:
            read = checked_form(operation, parameters)
            if read is parameters and not self._count(operation, named, read, size):
                read = as_read(operation, read)
        except EngineError as error:
            raise of_engine(error) from None
        if read is not parameters and read != parameters:
            return self._begin(operation, read)  # it may name fewer tables
        steps = start(named, read)
        return self._as_read(operation, read, steps)

    def _named(self, operation: str, parameters: Body) -> dict[str, ItemPlaces]:
        """Return the declared tables in a request, by the names or ARNs that it uses."""
        if operation in PARTIQL:
            found = tables_in_statements(parameters, self.places)
            return {name: self.places[name] for name in sorted(found)}
        tables = ((name, self.places.get(table_of(name))) for name in names_in(parameters))
        return {name: places for name, places in tables if places is not None}

    def _count(
        self, operation: str, named: dict[str, ItemPlaces], parameters: Body, size: int
    ) -> bool:
        """Count the heat of a batch or a transaction. Each item counts an equal share of its size.

        Returns whether the keys of all items were understood.
        """
        found, understood = list(_targets(named, parameters)), 0
        for places, given in found:
            item = given.get("Item") or given.get("Key")
            if "Get" not in operation:
                self._count_values(places, given, size // len(found))
            keys = places.keys_of(item, exactly=False)
            label = places.label(keys.key) if keys is not None else ""
            understood += keys is not None
            if not label:
                continue
            if "Get" in operation:
                self._heat.record_read(label)
            else:
                self._heat.record(label, 1, size // len(found))
                if keys is not None and len(item) > len(keys):  # an item, not a key
                    places.note_put(keys)
        return understood == len(found)

    def _count_values(self, places: ItemPlaces, given: Body, size: int) -> None:
        """Count a write of `size` bytes as heat of the values that it writes in spread indexes."""
        for index in places.indexes.values():
            for value in values_in(index, given):
                if label := index.label(value):
                    self._heat.record(label, 1, size)

    def query(self, places: ItemPlaces, parameters: Body, _: int) -> Steps | None:
        table, name = places.table, parameters.get("IndexName")
        if isinstance(name, str) and name in table.unused_indexes:
            raise _refused_index(table.name, name, UNUSED)
        if name is not None and table.append_only:
            why = "the table is declared append_only, so rows may be in two places"
            raise _refused_index(table.name, str(name), why)
        if isinstance(name, str) and (
            found := self._on_spread(places, name, parameters, query=True)
        ):
            return found
        index = table.indexes.get(name) if isinstance(name, str) else None
        if index is not None and table.partition_key not in index.partition_keys:
            return self._adapted(
                "Query", parameters, lambda: page_of_index(places, parameters, index)
            )
        key = key_of(parameters, table.partition_key)
        label = places.label(key) if key is not None else ""
        if label:
            self._heat.record_read(label)
        is_cold = places.is_cold(label) and parameters.get("ConsistentRead") is not True
        if is_cold and name is None and key is not None and TAG not in key:
            return None
        return self._adapted("Query", parameters, lambda: query(places, parameters, self._view))

    def scan(self, places: ItemPlaces, parameters: Body, _: int) -> Steps | None:
        name = parameters.get("IndexName")
        if isinstance(name, str) and name in places.table.unused_indexes:
            raise _refused_index(places.table.name, name, UNUSED)
        if isinstance(name, str) and (
            found := self._on_spread(places, name, parameters, query=False)
        ):
            return found
        return self._adapted("Scan", parameters, lambda: scan(places, parameters))

    def _on_spread(
        self, places: ItemPlaces, name: object, parameters: Body, *, query: bool
    ) -> Steps | None:
        """Return the steps that read a page of a spread index; None if the index is not spread."""
        if not isinstance(name, str) or not places.indexes:
            return None
        index = places.indexes.get(name)
        if index is None:
            if places.indexes.get(name.removesuffix(SUFFIX)) is None:
                return None
            raise _refused_index(places.table.name, name, OURS_ONLY)
        if query:
            value = key_of(parameters, index.attribute)
            if value is not None and (label := index.label(value)):
                self._heat.record_read(label)
        name, start = ("Query", query_index) if query else ("Scan", scan_index)
        if uses_new(index, parameters):
            return self._adapted(name, parameters, lambda: start(places, index, parameters))
        page = page_of_index if query else scan
        return self._adapted(name, parameters, lambda: page(places, parameters, index.index))

    def get_item(self, places: ItemPlaces, parameters: Body, size: int) -> Steps | None:
        keys = places.keys_of(parameters.get("Key"), exactly=True)
        if keys is None:
            return self._reread("GetItem", parameters, size)
        if label := places.label(keys.key):
            self._heat.record_read(label)
        if places.may_pass(keys):
            return None
        return self._adapted("GetItem", parameters, lambda: get_item(places, parameters, keys))

    def write(
        self, operation: str, places: ItemPlaces, parameters: Body, size: int
    ) -> Steps | None:
        exactly = operation != "PutItem"
        keys = places.keys_of(parameters.get("Key" if exactly else "Item"), exactly=exactly)
        if keys is None:
            return self._reread(operation, parameters, size)
        if places.table.append_only:
            check_append_only(places.table.name, operation, parameters)
        if label := places.label(keys.key):
            self._heat.record(label, 1, size)
            if not exactly:
                places.note_put(keys)
        if places.indexes:
            self._count_values(places, parameters, size)
        if places.may_pass(keys):
            return None
        return self._adapted(
            operation,
            parameters,
            lambda: computing(
                places, parameters, keys, write_item(places, operation, parameters, keys)
            ),
        )


def _writing(operation: str) -> Start:
    return lambda core, *given: core.write(operation, *given)


Start = Callable[[Core, ItemPlaces, Body, int], "Steps | None"]
OPERATIONS: dict[str, Start] = {
    "GetItem": Core.get_item,
    "Query": Core.query,
    "Scan": Core.scan,
    **{name: _writing(name) for name in TARGETS},
}

MANY: dict[str, Callable[[dict[str, ItemPlaces], Body], Steps]] = {
    "BatchGetItem": batch_get,
    "BatchWriteItem": batch_write,
    "TransactGetItems": transact_get,
    "TransactWriteItems": transact_write,
}


def names_in(parameters: Body) -> list[str]:
    """Return the tables that a request names, for any operation. The request may be malformed."""
    items, actions = parameters.get("RequestItems"), parameters.get("TransactItems")
    names: list[Any] = [parameters.get("TableName")]
    names += items if isinstance(items, dict) else ()
    for action in actions if isinstance(actions, list) else ():
        given = action.values() if isinstance(action, dict) else ()
        names += [one.get("TableName") for one in given if isinstance(one, dict)]
    return [name for name in names if isinstance(name, str)]


def tables_named(operation: str, parameters: Body, declared: Iterable[str]) -> set[str]:
    """Return which of the declared tables a request concerns."""
    if operation in PARTIQL:
        return tables_in_statements(parameters, declared)
    return {table_of(one) for one in names_in(parameters)} & set(declared)


def _refused(operation: str, table: str) -> WireError:
    why = "use PutItem, GetItem, UpdateItem, DeleteItem, Query or Scan instead of PartiQL"
    cure = why if operation in PARTIQL else "use another operation, or a client without Heatsink"
    return refusal(f"{operation} is not possible on the spread table {table}: {cure}")


def _refused_index(table: str, index: str, why: str) -> WireError:
    return refusal(f"index {index} of table {table} cannot be used: {why}")


def _targets(named: dict[str, ItemPlaces], parameters: Body) -> Iterator[tuple[ItemPlaces, Any]]:
    """Yield the items and keys of a batch or a transaction, with their tables."""
    for name, given in (parameters.get("RequestItems") or {}).items():
        if name in named and isinstance(given, dict):
            yield from ((named[name], {"Key": key}) for key in given.get("Keys") or ())
        elif name in named and isinstance(given, list):
            for one in given:
                for write in one.values() if isinstance(one, dict) else ():
                    if isinstance(write, dict):
                        yield named[name], write
    for action in parameters.get("TransactItems") or ():
        for one in action.values() if isinstance(action, dict) else ():
            if isinstance(one, dict) and one.get("TableName") in named:
                yield named[one["TableName"]], one
