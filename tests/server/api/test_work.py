"""Remote workers: claims, leases and reports over HTTP, as docs/how-to/remote-workers.md says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

import heatsink
from heatsink import Heatsink
from heatsink.bulk import Actions, Limit
from heatsink.primitives.clock import SystemClock
from heatsink.server.api.requests import parse_token
from heatsink.server.process import ServeSettings, running_app
from heatsink.server.workforce import Workforce
from tests.waiting import soon

from .conftest import Asker

SHORT_S = 1.0  # the shortest lease
LONG_S = 60.0


class Remote:
    """A remote worker, call by call."""

    def __init__(self, api: httpx.AsyncClient, **actions: dict[str, Any]) -> None:
        self.api = api
        self.actions = actions or {"resize": {}}

    async def call(self, name: str, **body: Any) -> httpx.Response:
        return await self.api.post(f"/v1/work/{name}", json=body)

    async def claim(
        self, most: int = 100, wait_s: float = 10.0, lease_s: float = LONG_S
    ) -> list[dict[str, Any]]:
        asked = {"actions": self.actions, "most": most, "wait_s": wait_s, "lease_s": lease_s}
        answer = await self.call("claim", **asked)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["items"]
        return found

    async def gather(self, count: int, lease_s: float = LONG_S) -> list[dict[str, Any]]:
        """Claim until there are so many items."""
        items: list[dict[str, Any]] = []
        while len(items) < count:
            items += await self.claim(min(count - len(items), 100), lease_s=lease_s)
        return items

    async def report(
        self, *items: dict[str, Any], outcome: str = "done", **more: Any
    ) -> httpx.Response:
        told = [{"token": item["token"], "outcome": outcome, **more} for item in items]
        return await self.call("report", items=told)

    async def renew(self, *items: dict[str, Any]) -> httpx.Response:
        return await self.call("renew", tokens=[item["token"] for item in items])


@pytest.fixture
def worker(api: httpx.AsyncClient) -> Remote:
    return Remote(api)


@asynccontextmanager
async def serving(hs: Heatsink, folder: Path) -> AsyncIterator[Remote]:
    """Yields a worker at a server of its own."""
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(
            running_app(hs, ServeSettings(data=folder), SystemClock())
        )
        transport = httpx.ASGITransport(app)
        client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        yield Remote(await stack.enter_async_context(client))


async def test_items_run_with_their_context_and_results_are_kept(
    hs: Heatsink, worker: Remote
) -> None:
    batch = await hs.bulk.submit(
        "resize", [{"n": n} for n in range(30)], tenant="ada", results="keep"
    )
    items = await worker.gather(30)
    assert sorted(item["index"] for item in items) == list(range(30))
    first = min(items, key=lambda item: item["index"])
    del first["submitted"]
    assert first == {
        "token": first["token"],
        "action": "resize",
        "item": {"n": 0},
        "batch": batch.id,
        "index": 0,
        "tenant": "ada",
        "attempt": 1,
        "idempotency_key": f"{batch.id}:0",
    }
    assert (await hs.bulk.status(batch.id)).running == 30
    for item in items:
        answer = await worker.report(item, result=item["item"]["n"] * 2)
        assert answer.json() == {"accepted": 1, "stale": []}
    assert (await hs.bulk.wait(batch.id)).done == 30
    assert [each.value async for each in hs.bulk.results(batch.id)] == list(range(0, 60, 2))
    metrics = (await worker.api.get("/metrics")).text
    labels = 'action="resize",outcome="done",tenant="ada"'
    assert f"heatsink_worker_items_total{{{labels}}} 30.0" in metrics


async def test_an_empty_claim_waits_and_then_gets_new_items(hs: Heatsink, worker: Remote) -> None:
    assert await worker.claim(wait_s=0.0) == []
    waiting = asyncio.ensure_future(worker.claim(wait_s=20.0))
    await hs.bulk.submit("resize", [1])
    assert [item["item"] for item in await waiting] == [1]


async def test_a_stale_token_is_refused_and_the_item_runs_again(
    hs: Heatsink, worker: Remote
) -> None:
    batch = await hs.bulk.submit("resize", [1, 2])
    items = await worker.gather(2, lease_s=SHORT_S)
    again = await worker.gather(2)
    refused = await worker.report(*items)
    assert refused.status_code == 409
    assert "drop the item" in refused.json()["detail"]
    assert (await worker.renew(*items)).status_code == 409
    partly = (await worker.report(items[0], again[0])).json()
    assert partly == {"accepted": 1, "stale": [items[0]["token"]]}
    assert (await worker.report(again[1])).status_code == 200
    done = await hs.bulk.wait(batch.id)
    assert (done.done, done.failed) == (2, 0)


async def test_an_outcome_is_recorded_once(hs: Heatsink, worker: Remote) -> None:
    batch = await hs.bulk.submit("resize", [1], results="keep")
    [item] = await worker.gather(1)
    assert (await worker.report(item, result="first")).status_code == 200
    assert (await worker.report(item, result="second")).status_code == 409
    assert [each.value async for each in hs.bulk.results(batch.id)] == ["first"]


async def test_any_server_renews_and_records_also_after_a_restart(
    hs: Heatsink, tmp_path: Path
) -> None:
    batch = await hs.bulk.submit("resize", range(20))
    async with serving(hs, tmp_path) as first:
        items = await first.gather(20, lease_s=SHORT_S)
    async with serving(hs, tmp_path) as second:
        clock = SystemClock()
        until_s = clock.monotonic_s() + 2 * SHORT_S

        async def is_renewed_for_long() -> bool:
            assert (await second.renew(*items)).json() == {"accepted": 20, "stale": []}
            return clock.monotonic_s() > until_s

        await soon(is_renewed_for_long)
        assert (await second.report(*items)).json() == {"accepted": 20, "stale": []}
    assert (await hs.bulk.wait(batch.id)).done == 20


async def test_attempts_end_as_for_handlers_in_python(hs: Heatsink, api: httpx.AsyncClient) -> None:
    worker = Remote(api, resize={"max_attempts": 2, "backoff_s": 0})
    batch = await hs.bulk.submit("resize", ["again", "never", "started", "right"])
    items = {item["item"]: item for item in await worker.gather(4)}
    await worker.report(items["again"], outcome="retry", reason="first")
    await worker.report(items["never"], outcome="fail", reason="no such picture")
    await worker.report(items["started"], outcome="back")
    await worker.report(items["right"])
    second = {item["item"]: item for item in await worker.gather(2)}
    attempts = {name: item["attempt"] for name, item in second.items()}
    assert attempts == {"again": 2, "started": 1}
    await worker.report(second["again"], outcome="retry", reason="second")
    await worker.report(second["started"])
    done = await hs.bulk.wait(batch.id)
    assert (done.done, done.failed) == (2, 2)
    failures = {
        each.item: (each.reason, each.attempts) async for each in hs.bulk.failures(batch.id)
    }
    assert failures == {"again": ("second", 2), "never": ("no such picture", 1)}


async def test_a_service_that_is_rate_limited_slows_its_items_down(
    hs: Heatsink, worker: Remote
) -> None:
    batch = await hs.bulk.submit("resize", [1])
    [item] = await worker.gather(1)
    assert (await worker.report(item, outcome="rate_limited", after_s=60)).status_code == 200
    waiting = await hs.bulk.status(batch.id)
    assert (waiting.running, waiting.waiting, waiting.failed) == (0, 1, 0)
    limits = hs.parts.queue.queue.stores.limits
    assert await limits.rate_of("resize/default") is not None


async def test_a_result_that_is_too_large_fails_its_item(hs: Heatsink, worker: Remote) -> None:
    batch = await hs.bulk.submit("resize", [1], results="keep", result_bytes=10)
    [item] = await worker.gather(1)
    assert (await worker.report(item, result="x" * 100)).status_code == 200
    await hs.bulk.wait(batch.id)
    [failure] = [each async for each in hs.bulk.failures(batch.id)]
    assert "more than 10" in failure.reason


async def test_an_item_that_takes_too_long_is_taken_away_and_the_attempt_counts(
    hs: Heatsink, api: httpx.AsyncClient
) -> None:
    worker = Remote(api, resize={"timeout_s": 0.1, "max_attempts": 1})
    batch = await hs.bulk.submit("resize", [1])
    [item] = await worker.gather(1)

    async def is_stale() -> bool:
        return (await worker.renew(item)).status_code == 409

    await soon(is_stale)
    assert (await hs.bulk.wait(batch.id)).failed == 1
    [failure] = [each async for each in hs.bulk.failures(batch.id)]
    assert failure.reason == "the worker took longer than timeout_s=0.1"


async def test_claims_take_turns(hs: Heatsink, api: httpx.AsyncClient) -> None:
    claims = [asyncio.ensure_future(Remote(api).claim(5, wait_s=20.0)) for _ in range(3)]
    await hs.bulk.submit("resize", range(15))
    assert all(await asyncio.gather(*claims))


async def test_a_server_that_ends_answers_claims_and_keeps_no_items(
    hs: Heatsink, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        worker = await stack.enter_async_context(serving(hs, tmp_path))
        await hs.bulk.submit("resize", range(100))
        await worker.claim(1)
    batch = (await hs.bulk.list(1))[0]
    assert (await hs.bulk.status(batch.id)).running == 1


async def test_a_limit_holds_over_servers_and_python_workers(
    hs: Heatsink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 3 running; one server hands items over, and another renews their places."""
    monkeypatch.setattr("heatsink.server.workforce.IDLE_S", 0.5)
    limits = [{"name": "disk", "running": 3}]
    actions, running, most = Actions(), 0, 0

    @actions.action("resize", limits=[Limit("disk", running=3)])
    async def resize(item: int, context: Any) -> None:  # noqa: ARG001
        nonlocal running, most
        running += 1
        most = max(most, running + len(held))
        await asyncio.sleep(0.01)
        running -= 1

    held: list[dict[str, Any]] = []
    async with serving(hs, tmp_path) as first, serving(hs, tmp_path) as second:
        first.actions = second.actions = {"resize": {"limits": limits}}
        assert await first.claim(wait_s=0.0) == []

        async def is_announced() -> bool:
            return "disk" in {use.limit.name for use in await hs.bulk.limits()}

        await soon(is_announced)
        batch = await hs.bulk.submit("resize", range(60))
        held += await first.gather(3, lease_s=SHORT_S)
        most = 3
        assert await first.claim(wait_s=0.1) == []
        python = hs.worker(actions, member_s=1.0, lease_s=SHORT_S)
        working = asyncio.ensure_future(python.run())
        clock = SystemClock()
        until_s = clock.monotonic_s() + 2 * SHORT_S

        async def is_renewed_for_long() -> bool:
            assert (await second.renew(*held)).status_code == 200
            return clock.monotonic_s() > until_s

        await soon(is_renewed_for_long)
        assert running == 0  # all places are held
        while (await hs.bulk.status(batch.id)).state != "done":
            if held:
                assert (await second.report(held.pop())).status_code == 200
            else:
                held += await second.claim(2, wait_s=0.2)
                most = max(most, running + len(held))
        python.stop()
        await working
    assert most == 3


async def test_a_rate_holds_for_remote_workers(hs: Heatsink, worker: Remote) -> None:
    batch = await hs.bulk.submit("resize", range(15), rate="20/s")
    loop = asyncio.get_running_loop()
    starts: list[float] = []
    while len(starts) < 15:
        items = await worker.claim(4)
        starts += [loop.time()] * len(items)
        await worker.report(*items)
    assert (await hs.bulk.wait(batch.id)).done == 15
    assert all(later - sooner > 0.02 for sooner, later in pairwise(starts))


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        ("claim", {"actions": {}}, "actions"),
        ("claim", {"actions": {"no name": {}}}, "actions"),
        ("claim", {"actions": {"a": {}}, "most": 101}, "most"),
        ("claim", {"actions": {"a": {}}, "wait_s": 21}, "wait_s"),
        ("claim", {"actions": {"a": {}}, "lease_s": 0.5}, "lease_s"),
        ("claim", {"actions": {"a": {"max_attempts": 0}}}, "actions[...].max_attempts"),
        ("claim", {"actions": {"a": {"limits": [{"name": "x"}]}}}, "actions"),
        ("renew", {"tokens": ["made-up"]}, "tokens"),
        ("report", {"items": [{"token": "made-up", "outcome": "done"}]}, "items"),
        ("report", {"items": [{"token": "x", "outcome": "lost"}]}, "items[0].outcome"),
        (
            "report",
            {"items": [{"token": "x", "outcome": "retry", "after_s": -1}]},
            "items[0].after_s",
        ),
    ],
)
async def test_bad_input_is_refused_with_its_field(
    worker: Remote, name: str, body: dict[str, Any], field: str
) -> None:
    refused = await worker.call(name, **body)
    assert refused.status_code == 400
    assert refused.json()["field"] == field, refused.text


async def test_another_declaration_of_a_limit_is_refused(worker: Remote) -> None:
    worker.actions = {"resize": {"limits": [{"name": "disk", "running": 3}]}}
    await worker.claim(wait_s=0.0)
    worker.actions = {"other": {"limits": [{"name": "disk", "running": 4}]}}
    refused = await worker.call("claim", actions=worker.actions)
    assert refused.status_code == 409
    assert "declare it equally everywhere" in refused.json()["detail"]


async def test_another_declaration_than_that_of_a_python_worker_is_refused(
    hs: Heatsink, worker: Remote
) -> None:
    actions = Actions()

    @actions.action("resize", limits=[Limit("disk", running=3)])
    async def resize(item: int, context: Any) -> None: ...

    python = hs.worker(actions)
    working = asyncio.ensure_future(python.run())

    async def is_announced() -> bool:
        return bool(await hs.bulk.limits())

    await soon(is_announced)
    worker.actions = {"resize": {"limits": [{"name": "disk", "running": 4}]}}

    async def is_refused() -> bool:
        claimed = await worker.call("claim", actions=worker.actions, wait_s=0)
        return claimed.status_code == 409 and "stop the others first" in claimed.text

    await soon(is_refused)
    python.stop()
    await working


async def test_further_claims_than_a_server_can_hold_are_refused(
    worker: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heatsink.server.workforce.CLAIMS_MAX", 0)
    refused = await worker.call("claim", actions=worker.actions)
    assert refused.status_code == 503
    assert refused.headers["retry-after"]


async def test_the_scope_work_allows_only_the_calls_of_workers(asking: Asker) -> None:
    tokens = (parse_token("work:work-secret"), parse_token("read:read-secret"))
    async with asking(tokens=tokens) as api:

        async def status(method: str, path: str, token: str) -> int:
            headers = {"authorization": f"Bearer {token}"}
            body = {"actions": {"resize": {}}, "wait_s": 0} if method == "POST" else None
            return (await api.request(method, path, headers=headers, json=body)).status_code

        assert await status("POST", "/v1/work/claim", "work-secret") == 200
        assert await status("POST", "/v1/work/claim", "read-secret") == 403
        assert await status("GET", "/v1/bulk", "work-secret") == 403
        assert await status("POST", "/v1/bulk/resize", "work-secret") == 403


async def test_a_server_with_actions_of_its_own_refuses_remote_workers(
    hs: Heatsink, tmp_path: Path
) -> None:
    workforce = Workforce(hs, SystemClock(), has_actions=True)
    settings = ServeSettings(data=tmp_path)
    async with (
        running_app(hs, settings, SystemClock(), workforce) as app,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as api,
    ):
        refused = await Remote(api).call("claim", actions={"resize": {}})
    assert refused.status_code == 409
    assert "--actions" in refused.json()["detail"]


async def test_the_own_worker_returns_when_remote_workers_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heatsink.server.workforce.IDLE_S", 0.2)
    async with heatsink.connect("memory://") as hs:
        workforce = Workforce(hs, SystemClock(), lambda: hs.worker(Actions()))
        workforce.start()
        settings = ServeSettings(data=tmp_path)
        async with (
            running_app(hs, settings, SystemClock(), workforce) as app,
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://localhost"
            ) as api,
        ):
            fleet = hs.parts.queue.queue.stores.fleet
            await soon(lambda: workforce.workers)
            assert await Remote(api).claim(wait_s=0.0) == []

            async def is_offered() -> bool:
                return "resize" in await fleet.offered() and bool(workforce.workers)

            async def is_gone() -> bool:
                return "resize" not in await fleet.offered() and bool(workforce.workers)

            await soon(is_offered)
            await soon(is_gone)
        await workforce.close()
