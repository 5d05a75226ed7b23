"""Bulk actions, heat, keys, decisions, partitions and events over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import count
from typing import Any

import msgspec
import pytest
from httpx import AsyncClient

from heatsink import Heatsink
from heatsink.bulk import Actions, Fail
from heatsink.bulk.batch import Progress
from heatsink.bulk.bulk import Bulk
from heatsink.errors import NoAccess
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.subjects import Kind
from heatsink.server.api.calls.system import _QueueLooks, make_feed
from heatsink.server.api.feed import Feed
from heatsink.server.api.requests import RequestCounts
from heatsink.server.api.shapes import DecisionLine, Done, SubjectLine
from tests.waiting import PATIENCE_S, soon

LINES = {"content-type": "application/x-ndjson"}


@asynccontextmanager
async def working(hs: Heatsink) -> AsyncIterator[None]:
    actions = Actions()

    @actions.action("tag", max_attempts=1)
    async def tag(item: Any, _: Any) -> None:
        if item == "bad":
            raise Fail("it is bad")

    worker = hs.worker(actions)
    running = asyncio.ensure_future(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running


async def until(api: AsyncClient, id: str, state: str) -> dict[str, Any]:
    progress: dict[str, Any] = {}

    async def is_there() -> bool:
        progress.update((await api.get(f"/v1/bulk/{id}")).json())
        return bool(progress["state"] == state)

    await soon(is_there, f"a batch that is {state}")
    return progress


async def test_a_batch_runs_and_its_failures_can_be_read(api: AsyncClient, hs: Heatsink) -> None:
    async with working(hs):
        made = await api.post("/v1/bulk/tag", json=["good", "bad", {"n": 1}])
        assert made.status_code == 202
        progress = await until(api, made.json()["id"], "failed")
        assert (progress["done"], progress["failed"], progress["accepted"]) == (2, 1, 3)
        failures = await api.get(f"/v1/bulk/{made.json()['id']}/failures")
        assert failures.headers["content-type"].startswith("application/x-ndjson")
        (line,) = failures.text.splitlines()
        assert msgspec.json.decode(line)["reason"].endswith("it is bad")
        table = await api.get(failures.url.path, params={"format": "csv"})
        assert table.headers["content-type"].startswith("text/csv")
        head, row = table.text.splitlines()
        assert head == "index,attempts,reason,item"
        assert row.startswith("1,1,")
        assert row.endswith('it is bad,"""bad"""')
        batches = (await api.get("/v1/bulk")).json()["batches"]
        assert [batch["id"] for batch in batches] == [made.json()["id"]]


async def test_results_are_streamed_as_lines_and_as_csv(api: AsyncClient, hs: Heatsink) -> None:
    async with working(hs):
        order: dict[str, str | int] = {"results": "keep", "result_bytes": 100, "result_days": 1}
        made = await api.post("/v1/bulk/tag", json=["good"] * 5, params=order)
        path = f"/v1/bulk/{made.json()['id']}/results"
        await until(api, made.json()["id"], "done")
        lines = (await api.get(path, params={"after": 1, "limit": 2})).text.splitlines()
        assert [msgspec.json.decode(line)["index"] for line in lines] == [2, 3]
        table = await api.get(path, params={"format": "csv"})
        assert table.headers["content-type"].startswith("text/csv")
        assert table.text.splitlines()[0] == "index,value"
        plain = await api.post("/v1/bulk/tag", json=["good"])
        assert (await api.get(f"/v1/bulk/{plain.json()['id']}/results")).status_code == 409
        assert (await api.get("/v1/bulk/nobody/results")).status_code == 404


async def test_lines_are_streamed_in(api: AsyncClient) -> None:
    async def lines() -> AsyncIterator[bytes]:
        for number in range(1_000):
            yield b'{"n": %d}\n' % number
            if number % 3 == 0:
                yield b"\n"
        yield b'"the last, without'
        yield b' an end of line"'

    made = await api.post("/v1/bulk/tag", content=lines(), headers=LINES)
    assert made.status_code == 202, made.text
    assert made.json()["items"] == 1_001


async def test_an_idempotency_key_makes_submitting_again_safe(api: AsyncClient) -> None:
    headers = {"idempotency-key": "order-7"}
    made = [await api.post("/v1/bulk/tag", json=[1, 2], headers=headers) for _ in range(2)]
    assert [(each.status_code, each.json()["id"]) for each in made] == [(202, "order-7")] * 2


@pytest.mark.parametrize(
    ("path", "items", "told"),
    [
        ("/v1/bulk/tag", [1, 3], "other items"),
        ("/v1/bulk/tag", [2, 1], "other items"),
        ("/v1/bulk/tag", [1, 2, 3], "other items"),
        ("/v1/bulk/other", [1, 2], "with action 'tag'"),
        ("/v1/bulk/tag?tenant=ann", [1, 2], "tenant 'default'"),
        ("/v1/bulk/tag?priority=5", [1, 2], "priority none, not '5'"),
        ("/v1/bulk/tag?rate=5/s", [1, 2], "rate none, not '5/s'"),
        ("/v1/bulk/tag?on_done=tell", [1, 2], "on_done none, not 'tell'"),
    ],
)
async def test_an_idempotency_key_that_was_used_for_something_else_is_refused(
    api: AsyncClient, path: str, items: list[int], told: str
) -> None:
    headers = {"idempotency-key": "order-7"}
    await api.post("/v1/bulk/tag", json=[1, 2], headers=headers)
    other = await api.post(path, json=items, headers=headers)
    assert (other.status_code, other.json()["field"]) == (422, "Idempotency-Key")
    assert "id 'order-7' is taken" in other.json()["detail"]
    assert told in other.json()["detail"]
    assert len((await api.get("/v1/bulk")).json()["batches"]) == 1


async def test_a_line_that_is_no_json_aborts_the_batch(api: AsyncClient) -> None:
    answer = await api.post("/v1/bulk/tag", content=b'{"n":1}\n{oops\n', headers=LINES)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("line 2 is not JSON")
    (batch,) = (await api.get("/v1/bulk")).json()["batches"]
    assert batch["state"] == "aborted"


async def test_nobody_submits_heatsinks_own_actions(api: AsyncClient) -> None:
    answer = await api.post("/v1/bulk/heatsink.webhook", json=[{"url": "http://169.254.169.254"}])
    assert answer.status_code == 400


async def test_a_batch_can_be_steered(api: AsyncClient, hs: Heatsink) -> None:
    id = (await api.post("/v1/bulk/tag", json=["bad"])).json()["id"]
    assert (await api.post(f"/v1/bulk/{id}/pause")).json()["state"] == "paused"
    assert (await api.post(f"/v1/bulk/{id}/resume")).json()["state"] == "running"
    async with working(hs):
        await until(api, id, "failed")
        assert (await api.post(f"/v1/bulk/{id}/retry-failed")).status_code == 200
        await until(api, id, "failed")


async def test_what_has_ended_cannot_be_cancelled(api: AsyncClient) -> None:
    made = (await api.post("/v1/bulk/tag", json=[])).json()
    assert made["state"] == "done"
    refused = await api.post(f"/v1/bulk/{made['id']}/cancel")
    assert (refused.status_code, refused.json()["title"]) == (409, "Conflict")


@pytest.mark.parametrize("path", ["", "/failures"])
async def test_an_unknown_batch_is_not_found(api: AsyncClient, path: str) -> None:
    assert (await api.get(f"/v1/bulk/nope{path}")).status_code == 404
    assert (await api.post("/v1/bulk/nope/cancel")).status_code == 404


async def test_the_hottest_keys_come_first_with_bounds(api: AsyncClient, hs: Heatsink) -> None:
    for _ in range(1_000):
        hs.record("hot", writes=40)
        hs.record("warm", writes=10)
        await asyncio.sleep(0.03)
        heat = (await api.get("/v1/heat", params={"limit": "1"})).json()
        if heat["keys"] and heat["unreported_s"]:  # a window whose last report is late has none
            break
    assert heat["leads"] is True
    (key,) = heat["keys"]
    assert key["key"] == "hot"
    assert key["writes_s"] > 0
    assert heat["unreported_s"] > 0, "the warm key is not listed, but bounded"


async def test_a_pin_is_explained_and_decided(api: AsyncClient) -> None:
    body = {"buckets": 4, "reason": "launch"}
    pinned = await api.put("/v1/keys/big/pin", json=body)
    assert pinned.json() == {
        "subject": {"kind": "key", "name": "big"},
        "value": 4,
        "nobody_leads": None,
        "changed": True,
    }
    explained: dict[str, Any] = {}

    async def is_in_force() -> bool:
        explained.update((await api.get("/v1/keys/big")).json())
        return bool(explained["buckets"] == 4)

    await soon(is_in_force)
    assert explained["pin"] == {"value": 4, "reason": "launch"}
    assert [epoch["buckets"] for epoch in explained["epochs"]] == [1, 4]
    newest, first = (await api.get("/v1/decisions")).json()["decisions"]
    assert (first["setting"], newest["setting"], newest["value"]) == ("pin", "buckets", 4)
    assert newest["version"] == 2
    older = (await api.get("/v1/decisions", params={"before": "2"})).json()["decisions"]
    assert [line["version"] for line in older] == [1]
    assert (await api.delete("/v1/keys/big/pin")).json()["value"] is None
    assert (await api.get("/v1/keys/big")).json()["pin"] is None


async def test_workers_of_a_partition_can_be_pinned(api: AsyncClient, hs: Heatsink) -> None:
    async with working(hs):
        path = "/v1/queue-partitions/3/pin"
        assert (await api.put(path, json={"workers": 2, "reason": "calm"})).status_code == 200

        async def line() -> dict[str, Any]:
            lines = (await api.get("/v1/queue-partitions")).json()["partitions"]
            assert {(line["place"], line["moves_to"]) for line in lines} == {("home", "")}
            return dict(lines[3])

        async def has_workers(number: int) -> bool:
            return bool((await line())["workers"] == number)

        await soon(partial(has_workers, 2), "two workers")
        seen = await line()
        assert (seen["workers"], seen["target"], seen["reason"]) == (2, 2, "pinned: calm")
        assert seen["pin"] == {"value": 2, "reason": "calm"}
        assert "\0workers:3" not in hs.parts.registry.view.layouts, "a partition is no key"
        await api.put(path, json={"workers": None, "reason": "busy again"})
        await soon(partial(has_workers, 8), "eight workers")
        assert (await line())["pin"] is None


@pytest.mark.parametrize("number", ["99", "x", "-1", "1.5", "٣"])
async def test_an_unknown_partition_is_not_found(api: AsyncClient, number: str) -> None:
    path = f"/v1/queue-partitions/{number}/pin"
    assert (await api.put(path, json={"workers": 2, "reason": "x"})).status_code == 404


async def test_a_process_that_does_not_lead_says_so(api: AsyncClient, hs: Heatsink) -> None:
    for task in hs.parts.tasks:
        task.cancel()  # else it leads again before it is asked
    hs.parts.coordination.leader._lease.lose()
    heat = (await api.get("/v1/heat")).json()
    assert (heat["leads"], heat["keys"], heat["window"]) == (False, [], None)
    assert heat["unreported_s"] is None, "no bound: nothing is known"
    assert heat["leader"] == hs.status().name
    key = (await api.get("/v1/keys/cold")).json()
    assert (key["heat"], key["unreported_s"], key["leader"]) == (None, None, heat["leader"])


async def test_partitions_of_a_store_that_tells_of_them_are_listed(
    api: AsyncClient, hs: Heatsink
) -> None:
    heat: dict[str, Any] = {"partitions": []}
    while not heat["partitions"]:
        hs.parts.tracker.record("\0partition:3", 40)
        await asyncio.sleep(0.03)
        heat = (await api.get("/v1/heat")).json()
    (partition,) = heat["partitions"]
    assert partition["partition"] == 3
    assert partition["write_units_s"] > 0
    assert heat["keys"] == [], "it is no key"


async def test_a_leader_bounds_the_heat_of_a_cold_key(api: AsyncClient) -> None:
    while not (key := (await api.get("/v1/keys/cold")).json())["unreported_s"]:
        await asyncio.sleep(0.05)
    assert key["heat"] is None


# -- events ----------------------------------------------------------------------------------


async def take(feed: Feed, after: int | None, wanted: bytes) -> bytes:
    seen = b""
    async with asyncio.timeout(PATIENCE_S):
        async for chunk in feed.listen(after):
            seen += chunk
            if wanted in seen:
                return seen
    return seen


async def test_listeners_hear_what_changes(hs: Heatsink) -> None:
    feed = make_feed(hs, SystemClock(), RequestCounts())
    listening = asyncio.ensure_future(take(feed, None, b"event: decision"))
    await asyncio.sleep(0.2)
    await hs.pin("big", buckets=3, reason="soon")
    seen = await listening
    for name in (b"status", b"heat", b"reads", b"partitions", b"batches", b"progress"):
        assert b"event: " + name in seen
    assert b'"reason":"soon"' in seen
    await feed.close()


async def test_a_queue_that_is_away_does_not_hide_the_rest(
    hs: Heatsink, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(hs, "queue_partitions", hang)
    feed = make_feed(hs, SystemClock(), RequestCounts())
    seen = await take(feed, None, b"event: batches")
    assert b"event: partitions" not in seen
    await feed.close()


async def test_what_one_round_saw_comes_in_one_piece() -> None:
    numbers = count()

    async def look() -> Done:
        return Done(SubjectLine(Kind.KEY, "something new"), next(numbers))

    async def none(_: int) -> list[DecisionLine]:
        return []

    feed = Feed({"one": look, "two": look, "three": look}, lambda: 0, none, SystemClock())
    pieces = []
    async for piece in feed.listen(None):
        pieces += [piece] if b"event: " in piece else []
        if len(pieces) == 3:
            break
    assert [piece.count(b"event: ") for piece in pieces] == [3, 3, 3]
    await feed.close()


async def test_a_queue_that_refuses_the_login_is_not_taken_for_none(
    hs: Heatsink, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse() -> None:
        raise NoAccess("the login is refused")

    monkeypatch.setattr(hs, "queue_partitions", refuse)
    with pytest.raises(NoAccess):
        await _QueueLooks(hs).partitions()


async def test_batches_at_rest_are_asked_once_how_far_they_are(
    hs: Heatsink, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    status = Bulk.status

    async def counted(self: Bulk, id: str) -> Progress:
        asked.append(id)
        return await status(self, id)

    monkeypatch.setattr(Bulk, "status", counted)
    batch = await hs.bulk.submit("tag", [1, 2, 3])
    queue = _QueueLooks(hs)

    async def look() -> Progress:
        await queue.partitions()
        await queue.batches()
        return (await queue.progress()).progress[0]

    assert [(await look()).waiting for _ in range(3)] == [3, 3, 3]
    assert asked == [batch.id]
    assert (await look()).reason == "waiting: no worker runs"
    await hs.bulk._stores.fleet.join("w", ["heatsink.webhook"], 600_000)
    assert (await look()).reason == "waiting: no worker has action 'tag'"
    await hs.bulk.pause(batch.id)
    assert (await look()).state == "paused"
    asked.clear()
    other = await hs.bulk.submit("tag", [4])
    await look()
    assert sorted(asked) == sorted([batch.id, other.id]), "something came"


async def test_who_comes_back_hears_the_decisions_it_missed(hs: Heatsink) -> None:
    feed = make_feed(hs, SystemClock(), RequestCounts())
    await hs.pin("a", buckets=3, reason="first")
    version = hs.status().version
    await hs.pin("b", buckets=3, reason="second")
    seen = await take(feed, version, b"second")
    assert b"first" not in seen
    await feed.close()


async def test_nothing_is_looked_at_when_nobody_listens(hs: Heatsink) -> None:
    feed = make_feed(hs, SystemClock(), RequestCounts())
    await take(feed, None, b"event: status")
    await soon(lambda: feed._looking is not None and feed._looking.done())
    await feed.close()
