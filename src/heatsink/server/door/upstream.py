"""Answers requests: the core handles declared tables, all other requests are passed on.

A request that is passed on keeps its bytes, except for a new signature. Its answer is unchanged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec

from heatsink.client.heatsink import Heatsink
from heatsink.door.core import OPERATIONS, Core
from heatsink.door.declaration import SpreadTable, check_sample, described, no_table, sampling
from heatsink.door.drivers import AsyncDriver, OwnRegistry, Thawing, is_thawed, of_heatsink
from heatsink.door.forms import PARTIQL
from heatsink.door.keys import subject_in, table_of
from heatsink.door.places import adopting
from heatsink.door.protocol import THROTTLES, Body, UpstreamCall, WireError, is_of_index
from heatsink.door.records import look_for_rows, record_of
from heatsink.door.streams import GET_RECORDS, shown_records
from heatsink.errors import HeatsinkError, InvalidSetting, NoTable
from heatsink.primitives.clock import Clock
from heatsink.registry.adoption import Adoptions, append_only
from heatsink.registry.declarations import agrees, declare
from heatsink.stores.dynamodb.client import DynamoClient, DynamoFailure
from heatsink.stores.dynamodb.connections import WireAnswer
from heatsink.stores.dynamodb.wire.signing import STREAMS_API

from .access import tables_in

OK, BAD_REQUEST = 200, 400
ATTEMPTS = 5
SMALL = 4_096  # bytes of a body that is cheap to decode
SEVERAL = "RequestItems", "TransactItems"  # fields that name further tables
FIRST_PAUSE_S = 0.025
encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(dict[str, Any]).decode
_failure = msgspec.json.Decoder(DynamoFailure).decode
UNKNOWN = ("UnknownOperationException", "UnknownOperation", "NotImplemented")
NO_TABLE = "heatsink-door-probe"
PROBES: dict[str, Body] = {
    "TransactGetItems": {
        "TransactItems": [{"Get": {"TableName": NO_TABLE, "Key": {"p": {"S": "p"}}}}]
    },
    "TransactWriteItems": {
        "TransactItems": [{"Delete": {"TableName": NO_TABLE, "Key": {"p": {"S": "p"}}}}]
    },
}
"""Requests on a table that does not exist. An endpoint that knows the operation says so."""


class Given(msgspec.Struct, frozen=True, gc=False):
    """The answer to a request. `way` says whether Heatsink "passed" it on or "adapted" it.

    `request_id` is DynamoDB's, or empty.
    """

    status: int
    body: bytes
    way: str
    request_id: bytes = b""


class Upstream:
    """DynamoDB, or a compatible endpoint, behind the door."""

    def __init__(self, client: DynamoClient, spread: Spreading | None = None) -> None:
        self._client = client
        self._streams = client.of_streams()
        self._spread = spread

    def answer(self, operation: str, body: bytes) -> Awaitable[Given]:
        """Answer a request in wire form. Raises `HeatsinkError` if there is no answer."""
        if operation.startswith(STREAMS_API):
            return self._of_stream(operation.removeprefix(STREAMS_API), body)
        if self._spread is not None:
            return self._spread.answer(operation, body)
        return self._pass(operation, body)

    async def _pass(self, operation: str, body: bytes) -> Given:
        return passed(await self._client.forward(operation, body))

    async def _of_stream(self, operation: str, body: bytes) -> Given:
        """Answer a request of DynamoDB Streams. Records show the application's keys."""
        answer = await self._streams.forward(operation, body)
        if operation != GET_RECORDS or self._spread is None or answer.status != OK:
            return passed(answer)
        return Given(OK, encode(shown_records(decode(answer.body), self._spread.tables)), "adapted")

    async def close(self) -> None:
        await self._streams.close()


def decoded_if_small(operation: str, body: bytes) -> Body | None:
    """Return the parameters of a small request on one table.

    Returns None for other requests, and if the body cannot be decoded. A small body costs as little
    to decode as to search for table names, so the door reads it only once.
    """
    if len(body) > SMALL or operation not in OPERATIONS:
        return None
    try:
        return decode(body)
    except (ValueError, RecursionError):
        return None


def concerns(
    declared: Collection[str], operation: str, body: bytes, parameters: Body | None
) -> bool:
    """Return whether a request may concern a declared table.

    `parameters` are those in the body, or None if it is not decoded yet.
    """
    if parameters is not None:
        name = parameters.get("TableName")
        if type(name) is str and parameters.keys().isdisjoint(SEVERAL):
            return table_of(name) in declared
    return operation in PARTIQL or any(name in declared for name in tables_in(body))


def passed(answer: WireAnswer) -> Given:
    return Given(answer.status, answer.body, "passed", answer.request_id)


def refused(error: HeatsinkError) -> Given:
    failure = of_heatsink(error)
    return Given(failure.status, encode(failure.body), "adapted")


class Spreading:
    """Answers requests on declared tables with the core."""

    def __init__(
        self,
        tables: Sequence[SpreadTable],
        hs: Heatsink,
        client: DynamoClient,
        clock: Clock,
        rng: Random,
        url: str,
    ) -> None:
        """`url` is the registry's, which messages name."""
        parts = hs.parts
        self._clock = clock
        self._rng = rng
        self._client = client
        self._registry = parts.registry
        self._tracker = parts.tracker
        self._backoff = parts.backoff
        self._thawing = Thawing(self._registry.renew_shared, parts.backoff, clock)
        seed, counts = self._registry.meta.seed, parts.table_counts
        self._core = Core(tables, self._registry.view, seed, parts.tracker, url, counts)
        self._url = url
        self._driver = AsyncDriver(self._send, OwnRegistry(self._registry, parts.backoff))
        self._declared = frozenset(table.name for table in tables)
        self.tables = tuple(tables)

    async def answer(self, operation: str, body: bytes) -> Given:
        """Answer a request. Raises `HeatsinkError` if there is no answer."""
        parameters = decoded_if_small(operation, body)
        name = None if parameters is None else parameters.get("TableName")
        is_declared = type(name) is str and name in self._declared  # most often: a quick answer
        if not is_declared and not concerns(self._declared, operation, body, parameters):
            return passed(await self._client.forward(operation, body))
        self._registry.check()
        if is_thawed(self._registry):
            await self._thawing.renew()
        if parameters is None:
            try:
                parameters = decode(body)
            except ValueError:  # DynamoDB words the error
                return passed(await self._client.forward(operation, body))
        steps = self._core.begin(operation, parameters, len(body))
        if steps is None:
            answer = await self._client.forward(operation, body)
            if answer.status == BAD_REQUEST:
                self._note(self._label_of(parameters), None, answer.body)
            return passed(answer)
        return Given(OK, encode(await self._driver.run(steps)), "adapted")

    async def open(self) -> None:
        """Record the declarations, and that append-only tables may be spread.

        Raises `InvalidSetting` if the registry has another declaration of a table.
        """
        for table in self._core.tables:
            record = record_of(table)
            if not agrees(self._registry.view, table.name, record):
                await self._driver.run(look_for_rows(table))
            recording = partial(declare, self._registry, table.name, record, self._clock)
            await self._backoff.call(recording, "", self._backoff.deadline_s())
        notes = [append_only(table.name) for table in self._core.tables if table.append_only]
        missing = [note for note in notes if note.key not in self._registry.view.pins]
        if missing:
            await self._registry.publish(missing, None)

    def dry_runs(self) -> list[tuple[str, str]]:
        """Return the tables of which no key is spread yet, each with the command that allows it."""
        allow = Adoptions(self._registry.view).allow
        return [
            (table.name, f"{adopting(self._url, table.name)} --complete")
            for table in self.tables
            if not allow(subject_in(table.name, ""))
        ]

    async def _send(self, call: UpstreamCall) -> Body:
        """Send a call. A throttled call was not done, so it is sent again a few times."""
        attempt = 0
        while True:
            try:
                return await self._send_once(call)
            except WireError as error:
                attempt += 1
                if error.code not in THROTTLES or attempt == ATTEMPTS:
                    raise
            pause_s = FIRST_PAUSE_S * 2**attempt * (0.5 + self._rng.random())
            await self._clock.sleep(pause_s)

    async def _send_once(self, call: UpstreamCall) -> Body:
        answer = await self._client.forward(call.operation, encode(call.parameters))
        try:
            body = decode(answer.body)
        except ValueError:
            raise self._client.not_dynamodb() from None
        if answer.status == OK:
            return body
        if answer.status == BAD_REQUEST:
            if is_of_index(body):
                for value in call.values:
                    self._tracker.record_throttle(value)
            else:
                self._note(call.label, call.bucket, answer.body)
        raise WireError(answer.status, body)

    def _label_of(self, parameters: Body) -> str:
        """Return the name, in the registry, of the one partition key that a request concerns."""
        places = self._core.places.get(str(parameters.get("TableName")))
        item = parameters.get("Key") or parameters.get("Item")
        keys = places.keys_of(item, exactly=False) if places and item else None
        return places.label(keys.key) if places and keys else ""

    def _note(self, label: str, bucket: int | None, body: bytes) -> None:
        """Count throttling as heat of the key `label`, if new items go to this bucket."""
        failure = _failure(body)
        if not label or failure.code not in THROTTLES:
            return
        reasons = failure.ThrottlingReasons + failure.throttlingReasons
        names = [str(one.get("reason")) for one in reasons]
        of_keys = [one for one in names if "KeyRange" in one and not one.startswith("Index")]
        if reasons and not of_keys:
            return  # the table or an index is over its limit: more buckets would not help
        if self._registry.view.layout(label).epochs[-1].uses(bucket):
            self._tracker.record_throttle(label)


async def look_at(
    tables: Sequence[SpreadTable], client: DynamoClient, where: str
) -> list[SpreadTable]:
    """Check declared tables against their descriptions. Raises `InvalidSetting`.

    `where` is DynamoDB's address, which messages name.
    """
    found = []
    for table in tables:
        try:
            answer = await client.call("DescribeTable", {"TableName": table.name})
        except NoTable:
            raise no_table(table.name, where) from None
        try:
            found.append(described(table, answer.body["Table"]))
            sample = await client.call("Scan", sampling(table))
            check_sample(found[-1], sample.body["Items"])
        except InvalidSetting as error:
            raise InvalidSetting(f"table {table.name!r}: {error}", field="tables") from None
    return found


async def missing_at(client: DynamoClient) -> list[str]:
    """Return the operations that the endpoint does not have, such as transactions.

    The probes change nothing: they name a table that does not exist.
    """
    missing = []
    for operation, parameters in PROBES.items():
        answer = await client.forward(operation, encode(parameters))
        try:
            failure = _failure(answer.body)
        except (msgspec.MsgspecError, ValueError):
            failure = DynamoFailure()
        if answer.status == OK:
            continue
        unknown = failure.code in UNKNOWN or "nsupported operation" in failure.text
        if unknown or answer.status >= 500 or not failure.code:
            missing.append(operation)
    return missing
