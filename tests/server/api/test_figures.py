"""Figures that the dashboard draws: the last minutes, calls, reads, authors, writes by bucket."""

from __future__ import annotations

from typing import Any

from httpx import AsyncClient

from heatsink import Heatsink
from heatsink.primitives.clock import SystemClock
from heatsink.server.api.requests import RequestCounts
from tests.waiting import PATIENCE_S, soon


async def test_the_last_minutes_are_there_for_who_comes_late(
    api: AsyncClient,
) -> None:
    await api.post("/v1/conversations/chat/messages", json={"body": "hey"})
    answer = (await api.get("/v1/recent")).json()
    assert answer["samples"]
    assert answer["now"] >= answer["samples"][-1]["time"]
    assert [kind["kind"] for kind in answer["samples"][-1]["requests"]["kinds"]] == [
        "writes",
        "reads",
    ]


def test_calls_for_data_are_told_apart_and_operators_do_not_count() -> None:
    counts = RequestCounts()
    counts.count("POST /v1/conversations/{key}/messages", 201, 0.002)
    counts.count("POST /v1/counters/{key}", 503, 0.2)
    counts.count("GET /v1/counters/{key}", 500, 20.0)
    counts.count("GET /v1/heat", 200, 0.001)
    writes, reads = counts.totals().kinds
    assert (writes.answered, writes.refused, writes.failed) == (2, 1, 0)
    assert (reads.answered, reads.refused, reads.failed) == (1, 0, 1)
    assert sum(writes.times) == 2
    assert reads.times[-1] == 1


async def test_authors_are_listed_with_the_reason_for_their_mode(
    api: AsyncClient, hs: Heatsink
) -> None:
    assert (await api.get("/v1/timelines")).json() == {"authors": []}
    await hs.timelines.pin("grace", "pull", reason="a celebrity")
    authors: list[dict[str, Any]] = []

    async def is_pulled() -> bool:
        authors[:] = (await api.get("/v1/timelines")).json()["authors"]
        return bool(authors) and authors[0]["mode"] == "pull"

    await soon(is_pulled)
    assert [(one["author"], one["mode"], one["reason"]) for one in authors] == [
        ("grace", "pull", "pinned: a celebrity")
    ]
    assert hs.status().spread_keys == hs.status().pinned_keys == 0


async def test_writes_are_counted_by_bucket(api: AsyncClient, hs: Heatsink) -> None:
    await hs.pin("chat", buckets=2, reason="a test")
    await hs.parts.registry.reach_buckets("chat", 2, SystemClock().monotonic_s() + PATIENCE_S)
    for _ in range(20):
        await api.post("/v1/conversations/chat/messages", json={"body": "x" * 3_000})
    found = (await api.get("/v1/keys/chat")).json()["bucket_units"]
    assert len(found) == 2
    assert sum(found) == 60


async def test_reads_say_what_was_answered_near(api: AsyncClient, hs: Heatsink) -> None:
    async def load() -> int:
        return 1

    for _ in range(3):
        await hs.reads.get("page", load, fresh_for=5)
    answer = (await api.get("/v1/reads")).json()
    assert (answer["values"]["hits"], answer["values"]["loads"]) == (2, 1)
    assert answer["pages"]["hits"] == 0
