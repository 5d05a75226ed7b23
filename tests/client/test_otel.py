"""Spans, as the SDK's own exporter in memory gets them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from heatsink import Heatsink, connect, connect_sync
from heatsink.bulk import Actions, Fail
from heatsink.client.otel import Tracing
from heatsink.client.queue import connect_queue
from heatsink.errors import Conflict, InvalidSetting
from heatsink.primitives.clock import SystemClock
from heatsink.server.process import ServeSettings, running_app
from heatsink.server.traced_app import TracedApp
from heatsink.server.tracing import tracing_hooks
from heatsink.spread.counters import Counters
from heatsink.spread.log import Log

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    """Where a provider of this test's own sends them."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def all(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.all(name)
        return span


def about(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def span_id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
async def hs(spans: Spans) -> AsyncIterator[Heatsink]:
    async with connect("memory://", hooks=[Tracing(spans.provider)]) as client:
        yield client


@asynccontextmanager
async def working(hs: Heatsink, actions: Actions) -> AsyncIterator[None]:
    worker = hs.worker(actions)
    running = asyncio.ensure_future(worker.run())
    yield
    worker.stop()
    await running


async def test_calls_of_logs_and_counters_are_spans_with_their_key(
    hs: Heatsink, spans: Spans
) -> None:
    receipt = await hs.log.append("chat", b"hey")
    await hs.log.append(key="chat", body=b"hey", id=receipt.id)
    await hs.log.page("chat", limit=1)
    await hs.counters.add("likes", 2)
    assert await hs.counters.value("likes") == 2
    assert len(spans.all("heatsink.log.append")) == 2
    assert about(spans.one("heatsink.log.page")) == {"heatsink.key": "chat"}
    assert about(spans.one("heatsink.counters.add")) == {"heatsink.key": "likes"}
    spans.one("heatsink.counters.value")


async def test_an_error_is_on_the_span_and_reaches_the_caller(hs: Heatsink, spans: Spans) -> None:
    receipt = await hs.log.append("chat", b"hey")
    with pytest.raises(Conflict):
        await hs.log.append("chat", b"something else", id=receipt.id)
    good, bad = spans.all("heatsink.log.append")
    assert good.status.status_code is StatusCode.UNSET
    assert bad.status.status_code is StatusCode.ERROR
    assert [event.name for event in bad.events] == ["exception"]


async def test_of_reads_only_the_loads_are_spans(hs: Heatsink, spans: Spans) -> None:
    async def load() -> str:
        return "value"

    for _ in range(3):
        assert await hs.reads.get("product:1", load, fresh_for=60, stale_for=60) == "value"
    assert about(spans.one("heatsink.reads.load")) == {"heatsink.key": "product:1"}


def test_blocking_calls_and_loads_are_spans_below_the_callers(spans: Spans) -> None:
    tracer = spans.provider.get_tracer("app")
    tracing = Tracing(spans.provider)
    with connect_sync("memory://", hooks=[tracing]) as hs, tracer.start_as_current_span("app"):
        hs.log.append("chat", b"hey")
        assert hs.reads.get("product:1", lambda: 1) == 1
    for name in ("heatsink.log.append", "heatsink.reads.load"):
        assert trace_of(spans.one(name)) == trace_of(spans.one("app"))


async def test_a_run_of_an_item_is_linked_to_where_it_was_submitted(
    hs: Heatsink, spans: Spans
) -> None:
    actions = Actions()

    @actions.action("tag", max_attempts=1)
    async def tag(item: int, _: Any) -> None:
        await hs.log.append("tags", str(item).encode())
        if item == 1:
            raise Fail("never")

    app = spans.provider.get_tracer("app").start_as_current_span("what the worker is started in")
    with app:
        async with working(hs, actions):
            batch = await hs.bulk.submit("tag", [0, 1], tenant="shop")
            await hs.bulk.wait(batch.id)
    submitted = spans.one("heatsink.bulk.submit")
    assert (submitted.kind, about(submitted)["heatsink.items"]) == (SpanKind.PRODUCER, 2)
    first, second = sorted(
        spans.all("heatsink.bulk.run"), key=lambda span: int(about(span)["heatsink.item"])
    )
    for run in (first, second):
        assert about(run)["heatsink.batch"] == batch.id
        assert (run.parent, run.kind) == (None, SpanKind.CONSUMER)
        assert [link.context.span_id for link in run.links] == [span_id_of(submitted)]
    assert second.status.status_code is StatusCode.ERROR
    written = {trace_of(span) for span in spans.all("heatsink.log.append")}
    assert written == {trace_of(first), trace_of(second)}, "what a handler does is below its run"


async def test_plain_functions_and_batches_of_items_are_run_as_before(
    hs: Heatsink, spans: Spans
) -> None:
    actions, seen = Actions(), []

    @actions.action("plain")
    def plain(item: Any, _: Any) -> None:
        seen.append(item)

    @actions.action("many", together=10)
    async def many(items: Any, _: Any) -> None:
        seen.extend(items)

    async with working(hs, actions):
        for action in ("plain", "many"):
            batch = await hs.bulk.submit(action, [action] * 3)
            assert (await hs.bulk.wait(batch.id)).state == "done"
    assert sorted(seen) == ["many"] * 3 + ["plain"] * 3
    of_many = [s for s in spans.all("heatsink.bulk.run") if about(s)["heatsink.action"] == "many"]
    assert sum(about(span)["heatsink.items"] for span in of_many) == 3


async def test_who_submits_without_tracing_leaves_no_link(hs: Heatsink, spans: Spans) -> None:
    actions = Actions()

    @actions.action("tag")
    async def tag(*_: Any) -> None: ...

    with patch.object(Tracing, "trace", lambda _: ""):
        batch = await hs.bulk.submit("tag", [1])
    async with working(hs, actions):
        await hs.bulk.wait(batch.id)
    assert list(spans.one("heatsink.bulk.run").links) == []


async def test_a_queue_alone_is_traced_too(spans: Spans) -> None:
    async with connect_queue("memory://", hooks=[Tracing(spans.provider)]) as queue:
        await queue.bulk.submit("tag", [1, 2, 3])
    assert about(spans.one("heatsink.bulk.submit"))["heatsink.items"] == 3


async def test_a_request_is_a_span_below_its_callers(
    hs: Heatsink, spans: Spans, tmp_path: Path
) -> None:
    settings = ServeSettings(data=tmp_path)
    async with running_app(hs, settings, SystemClock()) as app:
        transport = httpx.ASGITransport(TracedApp(app, spans.provider))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as api:
            sent = await api.post(
                "/v1/conversations/a%2Fb/messages",
                json={"body": "hey"},
                headers={"traceparent": CALLER},
            )
            assert sent.status_code == 201
            assert (await api.get("/nowhere")).status_code == 404
    request = spans.one("POST /v1/conversations/{key}/messages")
    assert about(request)["http.route"] == "/v1/conversations/{key}/messages"
    assert about(request)["http.response.status_code"] == 201
    assert format(trace_of(request), "032x") == CALLER.split("-")[1]
    append = spans.one("heatsink.log.append")
    assert append.parent == request.context
    assert "http.route" not in about(spans.one("GET"))


async def test_without_hooks_nothing_is_wrapped() -> None:
    async with connect("memory://") as hs:
        assert (type(hs.log), type(hs.counters)) == (Log, Counters)
        assert await hs.bulk.trace_of((await hs.bulk.submit("tag", [1])).id) == ""


def test_the_flag_says_which_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(InvalidSetting, match=r"\[otel\]"):
        tracing_hooks(True)
