"""The control endpoint of the emulator: faults on demand, for tests of applications.

A test sends JSON to a path below /control, in any language:

    POST /control/fail      {"operation": "PutItem", "count": 3, "error": "InternalServerError"}
    POST /control/throttle  {"table": "orders", "key": "hot", "seconds": 5}
    POST /control/split     {"table": "orders", "key": "hot"}
    POST /control/reset     {}
    GET  /control           the faults that are left
"""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from math import inf
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from heatsink.primitives.clock import Clock
from heatsink.primitives.validation import what_is_wrong
from heatsink.primitives.words import did_you_mean
from heatsink.stores.dynamodb.wire.errors import SERVICE, THROTTLING, EngineError, ValidationFailed
from heatsink.stores.dynamodb.wire.values import admit, kind_of, native

from .adaptation import Adaptation
from .capacity.policy import Isolate, Split
from .engine import OPERATIONS, REFUSED, Engine
from .rows import token_of
from .units import Throughput

CONTROL = "/control"
FORCED = "a test asked for it"
Answer = tuple[int, bytes]
ErrorName = Literal[
    "InternalServerError",
    "ServiceUnavailable",
    "ThrottlingException",
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "LimitExceededException",
    "ItemCollectionSizeLimitExceededException",
    "Disconnect",
]
STATUS = {"InternalServerError": 500, "ServiceUnavailable": 503}
Positive = Annotated[float, Meta(gt=0)]
_encode = msgspec.json.Encoder().encode


class FailNext(msgspec.Struct, forbid_unknown_fields=True):
    """Answer the next `count` requests with an error.

    With `operation` or `table`, only requests for these are counted and fail. With `applied`, the
    emulator first carries the request out. So the application sees an error although the write was
    applied. The error `Disconnect` closes the connection without an answer.
    """

    count: Annotated[int, Meta(ge=1)] = 1
    error: ErrorName = "InternalServerError"
    operation: str | None = None
    table: str | None = None
    applied: bool = False


class Throttle(msgspec.Struct, forbid_unknown_fields=True):
    """Throttle all requests for one partition key, for some seconds or until the next reset.

    `key` is an attribute value, or text in place of `{"S": text}`. With `index`, it is a key of
    that global index.
    """

    table: str
    key: dict[str, Any] | str
    seconds: Positive | None = None
    index: str | None = None


class Divide(msgspec.Struct, forbid_unknown_fields=True):
    """Split a partition in the middle, or isolate `key` in a partition of its own."""

    table: str
    partition: int | None = None
    key: dict[str, Any] | str | None = None
    index: str | None = None


class Reset(msgspec.Struct, forbid_unknown_fields=True):
    """Delete all tables and faults. With `tables=False`, delete faults only."""

    tables: bool = True


class Control:
    """Carries out the requests of tests."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._throttled: list[Throughput] = []
        self.faults: list[FailNext] = []
        self._commands: dict[str, tuple[type, Callable[[Any], Any]]] = {
            "/fail": (FailNext, self.fail),
            "/throttle": (Throttle, self.throttle),
            "/split": (Divide, self.split),
            "/reset": (Reset, self.reset),
        }

    def answer(self, method: str, path: str, body: bytes) -> Answer | None:
        """Answer a request below /control. Returns None if there is no such path."""
        if path == CONTROL and method == "GET":
            return HTTPStatus.OK, _encode({"faults": self.faults})
        command = self._commands.get(path.removeprefix(CONTROL))
        if command is None or method != "POST":
            return None
        kind, carry_out = command
        try:
            found = carry_out(msgspec.json.decode(body or b"{}", type=kind))
        except msgspec.ValidationError as error:
            return _refused(what_is_wrong(error, kind)[1])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return _refused(str(error))
        except EngineError as error:
            return _refused(error.message)
        return HTTPStatus.OK, _encode(found or {})

    def fail(self, wanted: FailNext) -> None:
        name = wanted.operation
        if name is not None and name not in FAILING:
            raise ValidationFailed(f"there is no operation {name!r}: {did_you_mean(name, FAILING)}")
        self.faults.append(wanted)

    def throttle(self, wanted: Throttle) -> dict[str, Any]:
        throughput, _ = self._place(wanted.table, wanted.index)
        token = self._token(wanted.table, wanted.index, wanted.key)
        until_s = inf
        if wanted.seconds is not None:
            until_s = self._clock.monotonic_s() + wanted.seconds
        throughput.forced[token] = until_s
        self._throttled.append(throughput)
        return {"partition": throughput.adaptive.map.find(token).number}

    def split(self, wanted: Divide) -> dict[str, Any]:
        throughput, adaptation = self._place(wanted.table, wanted.index)
        adaptive = throughput.adaptive
        change: Split | Isolate
        if wanted.key is not None:
            token = self._token(wanted.table, wanted.index, wanted.key)
            partition = adaptive.map.find(token)
            change = Isolate(partition.number, token, FORCED)
        else:
            partition = _numbered(adaptive.map, wanted.partition)
            change = Split(partition.number, (partition.start + partition.end) // 2, FORCED)
        if partition.changing or partition.is_one_key:
            raise ValidationFailed(f"partition {partition.number} cannot be split now")
        partition.changing = True
        adaptation.begin(change)
        return {"partition": partition.number}

    def reset(self, wanted: Reset) -> None:
        self.faults.clear()
        for throughput in self._throttled:
            throughput.forced.clear()
        self._throttled.clear()
        if wanted.tables:
            self._engine.reset()

    def fault(self, target: str, body: bytes) -> FailNext | None:
        """Return the fault that this request must show, and count it."""
        operation = _name_of(target)
        for fault in self.faults:
            if fault.operation not in (None, operation) or not _concerns(fault.table, body):
                continue
            fault.count -= 1
            if not fault.count:
                self.faults.remove(fault)
            return fault
        return None

    def _place(self, table: str, index: str | None) -> tuple[Throughput, Adaptation]:
        found = self._engine.table(table)
        if index is None:
            return found.throughput, found.adaptation
        for one in found.global_indexes():
            if one.spec.name == index:
                return one.throughput, one.adaptation
        raise ValidationFailed(f"table {table!r} has no global index {index!r}")

    def _token(self, table: str, index: str | None, key: dict[str, Any] | str) -> int:
        """Return the hash of a partition key, which may be text in place of `{"S": text}`.

        With `index`, it is a key of this global index.
        """
        found = self._engine.table(table)
        part = found.schema.hash if index is None else found.indexes[index].schema.hash_parts[0]
        value = {"S": key} if isinstance(key, str) else key
        admit(value)
        if kind_of(value) != part.kind:
            raise ValidationFailed(
                f"key must have type {part.kind}, as the key attribute {part.name} has, "
                f"not {kind_of(value)}"
            )
        return token_of(native(value))


def _name_of(target: str) -> str:
    """Return an operation's name from the header X-Amz-Target: PutItem from …_20120810.PutItem."""
    return target.rpartition(".")[2]


FAILING = sorted({*map(_name_of, OPERATIONS), *REFUSED})
"""The operations that can be made to fail: also those that the emulator does not support."""


def _numbered(partitions: Any, number: int | None) -> Any:
    for partition in partitions:
        if number in (None, partition.number):
            return partition
    raise ValidationFailed(f"there is no partition {number}")


def _concerns(table: str | None, body: bytes) -> bool:
    """Return whether the request is about the table; None means any table.

    In a body, the name of the table is always in quotes.
    """
    return table is None or b'"%b"' % table.encode() in body


def _refused(message: str) -> Answer:
    return HTTPStatus.BAD_REQUEST, _encode({"message": message})


def error_of(fault: FailNext) -> Answer:
    """Return the status and the body of the error that a fault shows."""
    throttling = fault.error == "ThrottlingException"
    kind = THROTTLING if throttling else SERVICE + fault.error
    return STATUS.get(fault.error, 400), _encode(EngineError(kind, FORCED).body())
