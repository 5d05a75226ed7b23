"""OpenTelemetry spans; needs opentelemetry-api only.

    async with heatsink.connect("sqlite:///chat.db", instruments=Tracing()) as hs: ...

A client's parts are wrapped once, when they are made; without `Tracing` there is no overhead. The
application sets up the tracer provider, which decides where spans go.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial, wraps
from typing import Any

from opentelemetry.context import Context as Surroundings
from opentelemetry.trace import Link, SpanKind, TracerProvider, get_current_span, get_tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from heatsink import __version__
from heatsink.bulk.actions import Action, Actions, Context
from heatsink.bulk.batch import Batch
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.work.pool import call_handler
from heatsink.errors import HeatsinkError
from heatsink.reads.blocking import BlockingReads
from heatsink.reads.reads import Reads
from heatsink.spread.counters import Counters
from heatsink.spread.log import Log

KEY, BATCH, ACTION = "heatsink.key", "heatsink.batch", "heatsink.action"
TENANT, ITEMS, ATTEMPT = "heatsink.tenant", "heatsink.items", "heatsink.attempt"
LOG = ("append", "page", "get", "delete", "erase")
COUNTERS = ("add", "value")
BATCHES_MAX = 1_000
HEADER = "traceparent"
_w3c = TraceContextTextMapPropagator()


class Tracing:
    """Spans for appends, pages, counters, loads, submissions and runs of items.

    `heatsink.connect(url, instruments=Tracing())`; `provider` defaults to the global one.
    """

    def __init__(self, provider: TracerProvider | None = None) -> None:
        tracer = get_tracer("heatsink", __version__, provider)
        self._span = tracer.start_as_current_span

    def log(self, log: Log) -> None:
        self._watch_keyed(log, "heatsink.log", LOG)

    def counters(self, counters: Counters) -> None:
        self._watch_keyed(counters, "heatsink.counters", COUNTERS)

    def _watch_keyed(self, part: object, prefix: str, names: Iterable[str]) -> None:
        for name in names:
            setattr(part, name, self._keyed(f"{prefix}.{name}", getattr(part, name)))

    def _keyed(self, name: str, call: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
        @wraps(call)
        async def spanned(key: str, *arguments: Any, **named: Any) -> Any:
            with self._span(name, attributes={KEY: key}):
                return await call(key, *arguments, **named)

        return spanned

    def reads(self, reads: Reads | BlockingReads) -> None:
        """Trace loads only: a cache hit makes no span."""
        reads.around_load = self._load if isinstance(reads, BlockingReads) else self._async_load

    def _load(self, key: str, load: Callable[[], Any]) -> Callable[[], Any]:
        def spanned() -> Any:
            with self._span("heatsink.reads.load", attributes={KEY: key}):
                return load()

        return spanned

    def _async_load(
        self, key: str, load: Callable[[], Awaitable[Any]]
    ) -> Callable[[], Awaitable[Any]]:
        async def spanned() -> Any:
            with self._span("heatsink.reads.load", attributes={KEY: key}):
                return await load()

        return spanned

    def bulk(self, bulk: Bulk) -> None:
        bulk.trace_now = _trace_now
        bulk.submit = wraps(bulk.submit)(partial(self._submit, bulk.submit))  # type: ignore[method-assign]

    async def _submit(
        self, submit: Callable[..., Awaitable[Batch]], action: str, items: Any, **options: Any
    ) -> Batch:
        with self._span(
            "heatsink.bulk.submit", kind=SpanKind.PRODUCER, attributes={ACTION: action}
        ) as span:
            batch = await submit(action, items, **options)
            span.set_attributes({BATCH: batch.id, TENANT: batch.tenant, ITEMS: batch.items})
            return batch

    def actions(self, actions: Actions, bulk: Bulk) -> Actions:
        return actions.wrapped(partial(self._action, _Origins(bulk)))

    def _action(self, origins: _Origins, action: Action) -> Action:
        """Trace each run in a trace of its own, with a link to the submitter's.

        A single trace of a million items would be of no use.
        """

        async def run(items: Any, contexts: Any) -> Any:
            all_of_them: list[Context] = [contexts] if action.together == 1 else contexts
            links = await origins.links({context.batch for context in all_of_them})
            with self._span(
                "heatsink.bulk.run",
                context=Surroundings(),
                kind=SpanKind.CONSUMER,
                links=links,
                attributes=_about(all_of_them),
            ):
                return await call_handler(action, items, contexts)

        return replace(action, handler=run, is_async=True)


def _about(contexts: list[Context]) -> dict[str, str | int]:
    first = contexts[0]
    return {
        BATCH: first.batch,
        ACTION: first.action,
        TENANT: first.tenant,
        ATTEMPT: first.attempt,
        ITEMS: len(contexts),
        "heatsink.item": first.index,
    }


def _trace_now() -> str:
    carrier: dict[str, str] = {}
    _w3c.inject(carrier)
    return carrier.get(HEADER, "")


class _Origins:
    """The traces in which batches were submitted, each looked up once."""

    def __init__(self, bulk: Bulk) -> None:
        self._bulk = bulk
        self._known: dict[str, Link | None] = {}

    async def links(self, batches: set[str]) -> list[Link]:
        found = [await self._link(batch) for batch in sorted(batches)]
        return [link for link in found if link is not None]

    async def _link(self, batch: str) -> Link | None:
        if batch not in self._known:
            while len(self._known) >= BATCHES_MAX:
                self._known.pop(next(iter(self._known)))
            self._known[batch] = await self._find(batch)
        return self._known.get(batch)

    async def _find(self, batch: str) -> Link | None:
        trace = ""
        with suppress(HeatsinkError):  # the item runs without the link
            trace = await self._bulk.trace_of(batch)
        if not trace:
            return None
        submitter = get_current_span(_w3c.extract({HEADER: trace})).get_span_context()
        return Link(submitter) if submitter.is_valid else None
