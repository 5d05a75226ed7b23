"""The core: DynamoDB's operations on declared tables, without I/O.

`begin` starts an operation, given in wire form. It returns None if the request can go upstream as
it is, and so can its answer. Otherwise it returns the operation's steps: a generator that asks for
upstream calls and returns the answer for the application (see `protocol.py`).

    steps = core.begin("GetItem", {"TableName": "chat", "Key": {…}})
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from heatsink.registry.decisions import View
from heatsink.stores.dynamodb.wire.errors import EngineError

from .declaration import SpreadTable
from .items import TARGETS, check_append_only, get_item, write_item
from .places import Places
from .protocol import Body, Steps, of_engine, refusal

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
PARTIQL = ("ExecuteStatement", "BatchExecuteStatement", "ExecuteTransaction")


class Heat(Protocol):
    """Counts reads and writes of keys, by their names in the registry."""

    def record(self, key: str, writes: int = 1, written_bytes: int = 0) -> None: ...

    def record_read(self, key: str, reads: int = 1) -> None: ...


class Core:
    """Operations on declared tables. One core serves all threads of a process."""

    def __init__(self, tables: Iterable[SpreadTable], view: View, seed: bytes, heat: Heat) -> None:
        self.places = {table.name: Places(table, view, seed) for table in tables}
        self._heat = heat

    def begin(self, operation: str, parameters: Body, size: int = 0) -> Steps | None:
        """Start an operation; None if the request can pass upstream untouched.

        `size` is the approximate size of the request in bytes, which counts as heat.
        """
        name = parameters.get("TableName")
        places = self.places.get(table_of(name)) if isinstance(name, str) else None
        if places is None:
            return self._begin_many(operation, parameters)
        if operation in ADMINISTRATION:
            return None
        start = OPERATIONS.get(operation)
        if start is None:
            return guarded(_refused(operation, places.table.name))
        return start(self, places, parameters, size)

    def _begin_many(self, operation: str, parameters: Body) -> Steps | None:
        """Start an operation that names no table, or several."""
        named = [name for name in self.places if _is_named(name, operation, parameters)]
        if not named or operation in ADMINISTRATION:
            return None
        return guarded(_refused(operation, named[0]))

    def get_item(self, places: Places, parameters: Body, _: int) -> Steps | None:
        keys = places.keys_of(parameters.get("Key"), exactly=True)
        if keys is None:
            return None
        if label := places.label(keys.key):
            self._heat.record_read(label)
        if places.is_bare(keys):
            return None
        return guarded(get_item(places, parameters, keys))

    def write(self, operation: str, places: Places, parameters: Body, size: int) -> Steps | None:
        exactly = operation != "PutItem"
        keys = places.keys_of(parameters.get("Key" if exactly else "Item"), exactly=exactly)
        if keys is None:
            return None
        if places.table.append_only:
            check_append_only(places.table.name, operation, parameters)
        if label := places.label(keys.key):
            self._heat.record(label, 1, size)
        if places.is_bare(keys):
            return None
        return guarded(write_item(places, operation, parameters, keys))


def _writing(operation: str) -> Start:
    return lambda core, *given: core.write(operation, *given)


Start = Callable[[Core, Places, Body, int], "Steps | None"]
OPERATIONS: dict[str, Start] = {
    "GetItem": Core.get_item,
    **{name: _writing(name) for name in TARGETS},
}


def guarded(steps: Steps) -> Steps:
    """Return the same steps, with errors of the shared evaluator as error responses."""
    try:
        return (yield from steps)
    except EngineError as error:
        raise of_engine(error) from None


def table_of(name: str) -> str:
    """Return the name of a table that is given by its name or by its ARN."""
    return name.rpartition("/")[2] if name.startswith("arn:") else name


def _refused(operation: str, table: str) -> Steps:
    why = "use PutItem, GetItem, UpdateItem, DeleteItem, Query or Scan instead of PartiQL"
    cure = why if operation in PARTIQL else "use another operation, or a client without Heatsink"
    raise refusal(f"{operation} is not possible on the spread table {table}: {cure}")
    yield []  # makes this a generator


def _is_named(table: str, operation: str, parameters: Body) -> bool:
    """Return whether an operation on several tables names this one."""
    if operation in PARTIQL:
        return table in str(parameters)
    items: Any = parameters.get("RequestItems")
    if isinstance(items, dict):
        return any(table_of(name) == table for name in items)
    actions = parameters.get("TransactItems")
    for action in actions if isinstance(actions, list) else ():
        for one in action.values() if isinstance(action, dict) else ():
            if isinstance(one, dict) and table_of(str(one.get("TableName"))) == table:
                return True
    return False
