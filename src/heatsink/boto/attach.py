"""`attach`: existing code on boto3, aiobotocore or PynamoDB uses spread tables without a change.

botocore emits `before-send.dynamodb.*` with each signed request in wire form. The requests of all
clients pass through this event: boto3's clients, resources, paginators and waiters, aiobotocore,
aioboto3 and PynamoDB. A request that the core does not adapt goes on unchanged. For any other
request, the core makes upstream calls through the same client, without this hook. Then the hook
returns the core's answer in place of DynamoDB's.

If the hook's answer is an error, botocore repeats the application's request, as after an error of
DynamoDB. This repeats all upstream calls of the request. So if only one of them is throttled, the
hook itself first sends this call again a few times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from inspect import iscoroutinefunction
from random import Random
from typing import Any, Unpack
from weakref import WeakKeyDictionary

import msgspec

from heatsink.client.settings import ConnectOptions
from heatsink.coordinator.explainer import Explanation
from heatsink.door.core import ADMINISTRATION, Core, tables_named
from heatsink.door.declaration import SpreadTable, check_sample, described, no_table, sampling
from heatsink.door.drivers import AsyncDriver, BlockingDriver, is_thawed, of_heatsink
from heatsink.door.keys import check_partition_value, subject_in
from heatsink.door.places import adopting
from heatsink.door.protocol import THROTTLES, Body, UpstreamCall, WireError, is_of_index, refusal
from heatsink.door.recent import FEW
from heatsink.door.records import look_for_rows, record_of
from heatsink.door.streams import shown_records
from heatsink.errors import Closed, HeatsinkError, InvalidSetting
from heatsink.primitives.checks import shown
from heatsink.primitives.clock import Clock, SystemClock
from heatsink.primitives.subjects import Subject
from heatsink.registry.declarations import agrees, check
from heatsink.registry.layouts import Layout

from .background import Background

BEFORE_SEND = "before-send.dynamodb"
RECORDS_READ = "after-call.dynamodb-streams.GetRecords"
CREATING = ("creating-client-class.dynamodb", "creating-client-class.dynamodb-streams")
SERVICES = ("dynamodb", "dynamodbstreams")
OK = 200
PARALLEL_CALLS = 16
ATTEMPTS = 5
FIRST_PAUSE_S = 0.025
decode = msgspec.json.Decoder(dict[str, Any]).decode
encode = msgspec.json.encode
_hooks: WeakKeyDictionary[Any, list[_Hook]] = WeakKeyDictionary()
"""The hooks of each client, open and closed."""
_sessions: WeakKeyDictionary[Any, list[Attachment]] = WeakKeyDictionary()
"""The open attachments of each session, by the events of the session."""


def attach(
    target: Any,
    *,
    tables: Iterable[SpreadTable],
    registry: str,
    **settings: Unpack[ConnectOptions],
) -> Attachment:
    """Let existing code use spread tables. From now on, its DynamoDB calls go through Heatsink.

    `target` is a client, a resource or a Table of boto3, a client of aiobotocore or aioboto3, a
    session of any of them, or a model or connection of PynamoDB. If `target` is a session, Heatsink
    is attached to all DynamoDB clients that the session makes later. You can also attach a client
    of DynamoDB Streams: then its records contain your keys. `tables` declares the spread tables.
    Calls on all other tables stay as they are. `registry` is the URL of a store for Heatsink's
    registry, `settings` are those of `heatsink.connect`. Call `close` on the result at the end.
    Raises `InvalidSetting` for a table that cannot be spread as declared, and for one that another
    open attachment of `target` declares::

        attachment = attach(boto3.client("dynamodb"), tables=[chat], registry="dynamodb://registry")
    """
    attachment = Attachment(tables, registry, settings)
    try:
        attachment.add(target)
    except BaseException:
        attachment.close(detach=True)
        raise
    return attachment


class Attachment:
    """What `attach` returns: explains and pins keys, and detaches. Any thread may use it.

    A table that is not declared raises `InvalidSetting`, and a call after `close` raises `Closed`::

        with attach(client, tables=[chat], registry="dynamodb://registry") as attachment:
            print(attachment.explain("chat", "room-7"))
    """

    def __init__(
        self, tables: Iterable[SpreadTable], registry: str, settings: ConnectOptions
    ) -> None:
        self._tables = {table.name: table for table in _declared(tables)}
        self._registry = registry
        self.is_closed = False
        self._clock: Clock = settings.get("clock") or SystemClock()
        self._background = Background(registry, settings)
        self._pool = ThreadPoolExecutor(PARALLEL_CALLS, "heatsink-call")
        self._hooks: list[_Hook] = []
        self._stream_clients: list[Any] = []
        self._sessions: list[Any] = []

    def add(self, target: Any) -> None:
        """Attach another client, resource or session, as `attach` does.

        Raises `InvalidSetting` for anything else, and for a target that is attached already::

            attachment.add(another_client)
        """
        if hasattr(target, "_get_connection"):  # a model of PynamoDB
            target = target._get_connection()
        target = getattr(target, "connection", target)
        if hasattr(target, "create_client") or (
            hasattr(target, "client") and callable(target.client)
        ):
            self._add_session(target)
            return
        client: Any = target if hasattr(target, "_endpoint") else None
        client = client or getattr(getattr(target, "meta", None), "client", None)
        client = client or getattr(target, "client", None)
        is_client = hasattr(client, "_endpoint")
        if not is_client or client.meta.service_model.service_name not in SERVICES:
            raise InvalidSetting(
                "target must be a DynamoDB client, resource or Table of boto3 or aiobotocore, a "
                f"session, or a model of PynamoDB, not {shown(target)}",
                field="target",
            )
        hook = self._add_client(client)
        if isinstance(hook, _BlockingHook):
            hook.describe()

    def _add_session(self, session: Any) -> None:
        """Attach every DynamoDB client that a session makes from now on."""
        inner = getattr(session, "_session", session)
        events = inner.get_component("event_emitter")
        self._check_free(_sessions.get(events, []), "session")
        _sessions.setdefault(events, []).append(self)
        for creating in CREATING:
            events.register(creating, self._extend)
        self._sessions.append(events)

    def _extend(self, base_classes: list[type], **_: Any) -> None:
        add = self._add_client

        class Attached:
            def __init__(self, *arguments: Any, **named: Any) -> None:
                super().__init__(*arguments, **named)
                add(self)

        base_classes.insert(0, Attached)

    def _add_client(self, client: Any) -> _Hook | None:
        """Attach a client. The first request for an item reads the descriptions of its tables.

        A client of DynamoDB Streams is only changed so that its records contain your keys.
        """
        if client.meta.service_model.service_name == "dynamodbstreams":
            client.meta.events.register(RECORDS_READ, self._show_records)
            self._stream_clients.append(client)
            return None
        self._check_free([hook._attachment for hook in _hooks.get(client, [])], "client")
        is_async = iscoroutinefunction(client._make_api_call)
        hook = (_AsyncHook if is_async else _BlockingHook)(client, self)
        for old in [one for one in _hooks.get(client, []) if one.is_closed]:
            old.detach()
        client.meta.events.register(BEFORE_SEND, hook)
        _hooks.setdefault(client, []).append(hook)
        self._hooks.append(hook)
        return hook

    def _check_free(self, attachments: Iterable[Attachment], target: str) -> None:
        """Raise `InvalidSetting` if an open attachment declares a table that this one declares."""
        for other in attachments:
            tables = self._tables.keys() & other._tables.keys()
            if tables and not other.is_closed:
                raise InvalidSetting(
                    f"table {min(tables)} is attached to this {target} already: use that "
                    "attachment, or close it first",
                    field="target",
                )

    def _show_records(self, parsed: Any, **_: Any) -> None:
        if "Records" in parsed:
            parsed.update(shown_records(parsed, self._tables.values()))

    def explain(self, table: str, key: str) -> Explanation:
        """Return a key's buckets, epochs and heat, the reason for them, and what a read costs.

        Raises `InvalidSetting` for a table that is not declared::

            print(attachment.explain("chat", "room-7"))
        """
        found = self._background.client.explain(self._subject(table, key))
        cores = [hook._core for hook in self._hooks if hook._core is not None]
        words = (core.places[table].recent.words(FEW) for core in cores)
        command = f"{adopting(self._registry, table)} --complete"
        said = next(filter(None, words), None)
        return msgspec.structs.replace(found, unspread=said, completing=command)

    def pin(self, table: str, key: str, *, buckets: int, reason: str) -> None:
        """Give a key a fixed number of buckets until `unpin`, whatever its heat.

        Raises the errors of `explain`, and also raises if the table's adoption is not complete::

            attachment.pin("chat", "room-7", buckets=8, reason="launch at noon")
        """
        subject = self._subject(table, key)
        if not self._background.may_spread(subject):
            raise InvalidSetting(
                f"the adoption of table {table} is not complete, so no key of it gets a second "
                "bucket. Once every program that writes to the table does so through Heatsink, run "
                f"{adopting(self._registry, table)} --complete",
                field="table",
            )
        self._background.client.pin(subject, buckets=buckets, reason=reason)

    def unpin(self, table: str, key: str) -> bool:
        """Remove a key's pin, so that the policy sets its buckets again.

        Returns False if there was no pin to remove. Raises the errors of `explain`::

            attachment.unpin("chat", "room-7")
        """
        return self._background.client.unpin(self._subject(table, key))

    def _subject(self, table: str, key: str) -> Subject:
        self._background.check_open()
        if table not in self._tables:
            raise InvalidSetting(f"table {shown(table)} is not declared", field="table")
        return subject_in(table, check_partition_value(key))

    def flush(self) -> None:
        """Send the heat that was counted so far, before this process is frozen or ends.

        Call it at the end of a Lambda handler: `attachment.flush()`
        """
        self._background.check_open()
        self._background.flush()

    def close(self, *, detach: bool = False) -> None:
        """Close Heatsink's client. From then on, requests on the declared tables are refused.

        So a thread that still writes cannot write past Heatsink. Requests on other tables pass.
        With `detach`, requests on the declared tables pass unchanged, too: then items in buckets
        are not found, and the application must not write to these tables::

            attachment.close()
        """
        self.is_closed = True
        for events in self._sessions:
            for creating in CREATING:
                events.unregister(creating, self._extend)
            _sessions[events].remove(self)
        self._sessions.clear()
        if detach:
            for hook in self._hooks:
                hook.detach()
            for client in self._stream_clients:
                client.meta.events.unregister(RECORDS_READ, self._show_records)
        self._background.refuse_calls()
        self._pool.shutdown()
        self._background.close()

    def __enter__(self) -> Attachment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Hook:
    """Adapts the requests of one client."""

    def __init__(self, client: Any, attachment: Attachment) -> None:
        self.client = client
        self._endpoint = client._endpoint
        self._background = attachment._background
        self._clock = attachment._clock
        self._rng = Random()
        self._core: Core | None = None
        self._declared = attachment._tables
        self._attachment = attachment

    @property
    def is_closed(self) -> bool:
        return self._attachment.is_closed

    def detach(self) -> None:
        """Stop to see the client's requests."""
        self.client.meta.events.unregister(BEFORE_SEND, self)
        if self in (attached := _hooks.get(self.client, [])):
            attached.remove(self)

    def _check_closed(self, operation: str, parameters: Body) -> None:
        """Raise `Closed` for a request on a table that no other attachment declares."""
        named = tables_named(operation, parameters, self._declared)
        for other in _hooks.get(self.client, []):
            if not other.is_closed:
                named -= other._declared.keys()
        if named:
            raise Closed(
                f"the attachment of table {min(named)} is closed, so this request would go past "
                "Heatsink: attach it again, or use close(detach=True) to use the table without it"
            )

    def declare(self, tables: list[SpreadTable]) -> Core:
        background = self._background
        seed = background.registry.meta.seed
        url = self._attachment._registry
        counts = background.counts
        self._core = Core(tables, background.view, seed, background.tracker, url, counts)
        return self._core

    def _no_table(self, table: SpreadTable, error: WireError) -> HeatsinkError:
        if error.code != "ResourceNotFoundException":
            return error
        meta = self.client.meta
        return no_table(table.name, f"{meta.region_name} ({meta.endpoint_url})")

    def _is_recorded(self, table: SpreadTable) -> bool:
        """Return whether the registry has this declaration. Raises `InvalidSetting` if it differs.

        A declaration that is not final may differ.
        """
        record = record_of(table)
        check(self._background.view, table.name, record)
        return agrees(self._background.view, table.name, record)

    def _record(self, tables: list[SpreadTable]) -> None:
        """Record the declarations. Raises `InvalidSetting` if the registry has others."""
        for table in tables:
            self._background.declare(table.name, record_of(table))
            if table.append_only:
                self._background.declare_append_only(table.name)

    def _request(self, call: UpstreamCall) -> tuple[Any, dict[str, Any]]:
        """Return the operation's model and the request of an upstream call, not signed yet."""
        meta = self.client.meta
        model = meta.service_model.operation_model(call.operation)
        headers = {
            "X-Amz-Target": f"{meta.service_model.metadata['targetPrefix']}.{call.operation}",
            "Content-Type": "application/x-amz-json-1.0",
            "User-Agent": getattr(self.client, "_user_agent", None) or "heatsink",
        }
        context = {
            "client_region": meta.region_name,
            "client_config": meta.config,
            "has_streaming_input": False,
            "auth_type": model.auth_type,
        }
        return model, {
            "method": "POST",
            "url": f"{meta.endpoint_url.rstrip('/')}/",
            "headers": headers,
            "body": encode(call.parameters),
            "context": context,
        }

    def _pause_s(self, error: WireError, call: UpstreamCall, attempt: int) -> float | None:
        """Return how long to wait before a throttled call is sent again; None if it is not."""
        if error.code not in THROTTLES:
            return None
        if is_of_index(error.body):
            for value in call.values:
                self._background.tracker.record_throttle(value)
        elif call.label:
            self._background.note_throttle(call.label, call.bucket)
        if attempt == ATTEMPTS - 1:
            return None
        return float(FIRST_PAUSE_S * 2**attempt * (0.5 + self._rng.random()))


class _BlockingHook(_Hook):
    def __init__(self, client: Any, attachment: Attachment) -> None:
        super().__init__(client, attachment)
        self._driver = BlockingDriver(self._send, self._background, attachment._pool)

    def __call__(self, request: Any, event_name: str, **_: Any) -> Any:
        operation = event_name.rpartition(".")[2]
        if operation in ADMINISTRATION:
            return None
        try:
            parameters = decode(request.body)
            if self._attachment.is_closed:
                return self._check_closed(operation, parameters)
            self._background.make_ready()
            core = self._core or self.describe()
            steps = core.begin(operation, parameters, len(request.body))
            if steps is None:
                return None
            return _response(request.url, OK, self._driver.run(steps))
        except HeatsinkError as error:
            refused = _refused(error)
            return _response(request.url, refused.status, refused.body)

    def describe(self) -> Core:
        """Check the declarations against the tables. Raises `InvalidSetting` or `WireError`."""
        tables = []
        for table in self._declared.values():
            try:
                found = self._send(_describing(table))
            except WireError as error:
                raise self._no_table(table, error) from None
            tables.append(described(table, found["Table"]))
            is_recorded = self._is_recorded(table)
            check_sample(tables[-1], self._send(_sampling(table))["Items"])
            if not is_recorded:
                self._driver.run(look_for_rows(table))
        self._record(tables)
        return self.declare(tables)

    def _send(self, call: UpstreamCall) -> Body:
        for attempt in range(ATTEMPTS):
            model, request = self._request(call)
            prepared = self._endpoint.create_request(request, model)
            answer = self._endpoint.http_session.send(prepared)
            try:
                return _body(answer.status_code, answer.content)
            except WireError as error:
                pause_s = self._pause_s(error, call, attempt)
                if pause_s is None:
                    raise
                self._background.sleep(pause_s)
        raise AssertionError


class _AsyncHook(_Hook):
    def __init__(self, client: Any, attachment: Attachment) -> None:
        super().__init__(client, attachment)
        self._driver = AsyncDriver(self._send, _ThreadedRegistry(self._background))
        self._describing = asyncio.Lock()

    async def __call__(self, request: Any, event_name: str, **_: Any) -> Any:
        operation = event_name.rpartition(".")[2]
        if operation in ADMINISTRATION:
            return None
        try:
            parameters = decode(request.body)
            if self.is_closed:
                return self._check_closed(operation, parameters)
            self._background.check_open()
            if is_thawed(self._background.registry):
                await asyncio.to_thread(self._background.thaw)
            core = self._core or await self._describe()
            steps = core.begin(operation, parameters, len(request.body))
            if steps is None:
                return None
            return _async_response(request.url, OK, await self._driver.run(steps))
        except HeatsinkError as error:
            refused = _refused(error)
            return _async_response(request.url, refused.status, refused.body)

    async def _describe(self) -> Core:
        """Check the declarations against the tables. Raises `InvalidSetting` or `WireError`."""
        async with self._describing:
            if self._core is None:
                tables = []
                for table in self._declared.values():
                    try:
                        found = await self._send(_describing(table))
                    except WireError as error:
                        raise self._no_table(table, error) from None
                    tables.append(described(table, found["Table"]))
                    is_recorded = self._is_recorded(table)
                    check_sample(tables[-1], (await self._send(_sampling(table)))["Items"])
                    if not is_recorded:
                        await self._driver.run(look_for_rows(table))
                await asyncio.to_thread(self._record, tables)
                return self.declare(tables)
        return self._core

    async def _send(self, call: UpstreamCall) -> Body:
        for attempt in range(ATTEMPTS):
            model, request = self._request(call)
            prepared = await self._endpoint.create_request(request, model)
            answer = await self._endpoint.http_session.send(prepared)
            try:
                return _body(answer.status_code, await answer.content)
            except WireError as error:
                pause_s = self._pause_s(error, call, attempt)
                if pause_s is None:
                    raise
                await self._clock.sleep(pause_s)
        raise AssertionError


class _ThreadedRegistry:
    """The registry of a background client, for an event loop of the application."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self.now_ms = background.now_ms

    async def reach(self, time_ms: int) -> None:
        await asyncio.to_thread(self._background.reach, time_ms)

    async def renew(self) -> None:
        await asyncio.to_thread(self._background.renew)

    async def layout(self, label: str) -> Layout:
        return await asyncio.to_thread(self._background.layout, label)


def _declared(tables: Iterable[SpreadTable]) -> list[SpreadTable]:
    """Return the declared tables. Raises `InvalidSetting` for anything else."""
    if isinstance(tables, SpreadTable):
        raise InvalidSetting("tables must be a list: write tables=[…]", field="tables")
    found = list(tables) if isinstance(tables, Iterable) else [tables]
    for table in found:
        if not isinstance(table, SpreadTable):
            raise InvalidSetting(
                f"tables must be a list of SpreadTable(…), not of {shown(table)}: declare each "
                "table with its keys and rules",
                field="tables",
            )
    names = [table.name for table in found]
    for name in names:
        if names.count(name) > 1:
            raise InvalidSetting(f"tables declares the table {name!r} twice", field="tables")
    return found


def _refused(error: HeatsinkError) -> WireError:
    """Return an error as an error response.

    A retry would not open a closed attachment, so SDKs must not try.
    """
    return refusal(str(error)) if isinstance(error, Closed) else of_heatsink(error)


def _describing(table: SpreadTable) -> UpstreamCall:
    return UpstreamCall("DescribeTable", {"TableName": table.name})


def _sampling(table: SpreadTable) -> UpstreamCall:
    return UpstreamCall("Scan", sampling(table))


def _body(status: int, content: bytes) -> Body:
    """Return the body of an answer. Raises `WireError` for an error response."""
    try:
        body = decode(content)
    except msgspec.DecodeError:
        body = {"__type": "InternalServerError", "message": content.decode(errors="replace")}
        status = status if status >= 300 else 500
    if status >= 300:
        raise WireError(status, body)
    return body


class _Stream:
    """The content of an answer, as botocore reads it from a connection."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, *_: object, **__: object) -> Iterable[bytes]:
        yield self._content

    def read(self, *_: object, **__: object) -> bytes:
        return self._content


def _response(url: str, status: int, body: Body) -> Any:
    from botocore.awsrequest import AWSResponse

    return AWSResponse(url, status, _headers(), _Stream(encode(body)))


def _headers() -> Any:
    from botocore.awsrequest import HeadersDict

    return HeadersDict({"Content-Type": "application/x-amz-json-1.0"})


class _AsyncStream(_Stream):
    async def read(self, *_: object, **__: object) -> bytes:  # type: ignore[override]
        return self._content


def _async_response(url: str, status: int, body: Body) -> Any:
    kind = import_module("aiobotocore.awsrequest").AioAWSResponse  # of the application
    return kind(url, status, _headers(), _AsyncStream(encode(body)))
