"""What hooks of a client see."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from heatsink import Call, Event, Hook, PartitionLimit, Retries, connect, connect_sync
from heatsink.bulk import Actions, Fail
from heatsink.client.prometheus import Prometheus, WorkCollector
from heatsink.errors import Conflict, Overloaded


class Everything(Hook):
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.errors: list[tuple[str, str]] = []
        self.events: list[Event] = []
        self.opened: list[object] = []
        self.closed: list[object] = []

    @contextmanager
    def around(self, call: Call) -> Iterator[None]:
        self.calls.append(call)
        try:
            yield
        except Exception as error:
            self.errors.append((call.name, type(error).__name__))
            raise

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def on_open(self, client: object) -> None:
        self.opened.append(client)

    def on_close(self, client: object) -> None:
        self.closed.append(client)

    def trace(self) -> str:
        return "trace-1"

    def named(self, name: str) -> list[Call]:
        return [call for call in self.calls if call.name == name]


async def test_every_call_of_the_application_is_seen_with_its_error() -> None:
    hook = Everything()
    async with connect("memory://", hooks=[hook]) as hs:
        assert hook.opened == [hs]
        receipt = await hs.log.append("conv", b"hey")
        with pytest.raises(Conflict):
            await hs.log.append("conv", b"other", id=receipt.id)
        await hs.log.page("conv")
        await hs.log.get("conv", receipt.id)
        await hs.log.delete("conv", receipt.id)
        await hs.log.erase("conv")
        await hs.counters.add("likes")
        await hs.counters.value("likes")
        assert hook.closed == []
    assert hook.closed == [hs]
    assert [(call.name, call.key) for call in hook.calls] == [
        ("log.append", "conv"),
        ("log.append", "conv"),
        ("log.page", "conv"),
        ("log.get", "conv"),
        ("log.delete", "conv"),
        ("log.erase", "conv"),
        ("counters.add", "likes"),
        ("counters.value", "likes"),
    ]
    assert hook.errors == [("log.append", "Conflict")]


async def test_a_run_knows_its_batch_and_the_trace_of_its_submitter() -> None:
    hook, actions = Everything(), Actions()

    @actions.action("tag", max_attempts=1)
    async def tag(item: int, _: Any) -> None:
        if item == 2:
            raise Fail("never")

    async with connect("memory://", hooks=[hook]) as hs:
        worker = hs.worker(actions)
        running = asyncio.ensure_future(worker.run())
        batch = await hs.bulk.submit("tag", [1, 2], tenant="acme")
        await hs.bulk.wait(batch.id)
        worker.stop()
        await running
    (submit,) = hook.named("bulk.submit")
    assert submit.attributes == {
        "action": "tag",
        "batch": batch.id,
        "tenant": "acme",
        "items": 2,
    }
    runs = sorted(hook.named("bulk.run"), key=lambda call: call.attributes["item"])
    assert [run.attributes["item"] for run in runs] == [0, 1]
    assert {run.links for run in runs} == {("trace-1",)}
    assert hook.errors == [("bulk.run", "Fail")]


async def test_the_leader_and_its_decisions_and_throttled_attempts_are_events() -> None:
    hook = Everything()
    limit, retries = PartitionLimit(writes_s=5), Retries(deadline_s=0.5)
    async with connect("memory://", hooks=[hook], limit=limit, retries=retries) as hs:
        async with asyncio.timeout(20):
            while not any(event.name == "leadership.gained" for event in hook.events):
                await asyncio.sleep(0.01)
            with pytest.raises(Overloaded):
                await asyncio.gather(*(hs.log.append("conv", b"x") for _ in range(200)))
    names = {event.name for event in hook.events}
    assert "call.throttled" in names
    (throttled, *_) = (event for event in hook.events if event.name == "call.throttled")
    assert throttled.fields == {"key": "conv"}


def test_loads_of_the_blocking_client_are_calls_too() -> None:
    hook = Everything()
    with connect_sync("memory://", hooks=[hook]) as hs:
        hs.log.append("conv", b"hey")
        assert [hs.reads.get("product", lambda: 7) for _ in range(3)] == [7] * 3
    assert [call.name for call in hook.calls] == ["log.append", "reads.load"]


async def test_prometheus_counts_calls_by_outcome_and_shows_the_status() -> None:
    registry = CollectorRegistry()
    async with connect("memory://", hooks=[Prometheus(registry)]) as hs:
        receipt = await hs.log.append("conv", b"hey")
        with pytest.raises(Conflict):
            await hs.log.append("conv", b"other", id=receipt.id)
        await hs.reads.get("product", load)
        await hs.reads.get("product", load)

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(name, labels)

        assert value("heatsink_calls_total", call="log.append", outcome="ok") == 1
        assert value("heatsink_calls_total", call="log.append", outcome="Conflict") == 1
        assert value("heatsink_call_seconds_count", call="log.append") == 2
        assert value("heatsink_reads_loads_total") == 1
        assert value("heatsink_servers") == 1
        assert "conv" not in generate_latest(registry).decode(), "a key is never a label"
    assert list(registry.collect()) == []


async def load() -> int:
    return 1


def test_prometheus_counts_reads_and_calls_of_the_blocking_client_too() -> None:
    registry = CollectorRegistry()
    with connect_sync("memory://", hooks=[Prometheus(registry)]) as hs:
        hs.log.append("conv", b"hey")
        assert [hs.reads.get("product", lambda: 7) for _ in range(3)] == [7] * 3
        assert registry.get_sample_value("heatsink_reads_loads_total") == 1
        assert registry.get_sample_value("heatsink_reads_hits_total") == 2
        labels = {"call": "log.append", "outcome": "ok"}
        assert registry.get_sample_value("heatsink_calls_total", labels) == 1


async def test_a_worker_in_an_application_has_metrics_of_its_own() -> None:
    registry, actions = CollectorRegistry(), Actions()

    @actions.action("tag")
    async def tag(*_: Any) -> None: ...

    async with connect("memory://") as hs:
        worker = hs.worker(actions)
        registry.register(WorkCollector(worker))
        running = asyncio.ensure_future(worker.run())
        await hs.bulk.wait((await hs.bulk.submit("tag", [1, 2, 3])).id)
        worker.stop()
        await running
    labels = {"action": "tag", "tenant": "default", "outcome": "done"}
    assert registry.get_sample_value("heatsink_worker_items_total", labels) == 3
