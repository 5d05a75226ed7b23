"""A client belongs to the process and the event loop that opened it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

import heatsink
from heatsink.bulk import Actions
from heatsink.errors import Closed
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.owner import CLOSED, ELSEWHERE, FORKED, Owner
from heatsink.server.commands.fsck import create
from heatsink.testing.redis import RedisServer
from tests.processes import Served, serving
from tests.servers import patient_url, real

from .forked import awaited, calls_of, opened, outcome

ROOT = Path(__file__).parents[2]
RUN_S = 240
NEW_LOOP = pytest.mark.full("a process each; the same loop is the harder case")


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("engine"), command="dynamo") as served:
        yield served


@pytest.fixture(params=["memory", "sqlite", "dynamodb", "redis queue"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """Of a store, and of a queue where the store's own is not meant."""
    if request.param == "memory":
        yield ["memory://"]
    elif request.param == "sqlite":
        yield [f"sqlite:///{tmp_path}/heatsink.db"]
    elif request.param == "redis queue":
        with real(lambda: RedisServer(append_only=True)) as redis:
            yield ["memory://", patient_url(redis.url)]
    else:
        served = request.getfixturevalue("engine")
        url = f"dynamodb://messages-{uuid4()}?endpoint={served.url}"
        asyncio.run(create(url, None, SystemClock()))
        yield [url, "memory://"]


@pytest.mark.timeout(RUN_S + 30)
@pytest.mark.parametrize("kind", ["same-loop", pytest.param("new-loop", marks=NEW_LOOP), "sync"])
def test_a_client_in_a_forked_child_raises_at_once_and_says_the_cure(
    urls: list[str], kind: str
) -> None:
    assert len(refused_in_child(kind, *urls)) > 20


@pytest.mark.timeout(RUN_S + 30)
def test_a_spread_table_of_boto3_in_a_forked_child_raises_too() -> None:
    assert len(refused_in_child("boto", "memory://")) == 6


def refused_in_child(*arguments: str) -> dict[str, str]:
    """The calls that the child made: all were refused, and the parent's client goes on."""
    command = [sys.executable, "-m", "tests.client.forked", *arguments]
    said = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    told = dict(line.split(": ", 1) for line in said.stdout.splitlines())
    assert told.pop("parent", "") == "returned 1", said.stderr
    assert told.pop("close") == "returned None", "the child must not close what the parent uses"
    assert all(text.endswith(FORKED) for text in told.values()), told
    return told


@pytest.mark.timeout(120)
def test_another_event_loop_is_refused(urls: list[str]) -> None:
    loop = asyncio.new_event_loop()
    options = {"queue": urls[1]} if len(urls) > 1 else {}
    hs, counts = loop.run_until_complete(opened(urls[0], options))
    calls = calls_of(hs, counts)
    del calls["read that is kept"]  # it asks nobody

    calls["close"] = hs.close

    def outcomes() -> dict[str, str]:
        def run(call: Callable[[], Any]) -> str:
            return outcome(lambda: asyncio.run(awaited(call)))

        return {name: run(call) for name, call in calls.items()}

    refused = dict.fromkeys(calls, f"Closed: {ELSEWHERE}")
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(outcomes).result() == refused
    del calls["forget"], refused["forget"]  # it awaits nothing, and this is its thread
    assert outcomes() == refused
    assert len(loop.run_until_complete(hs.log.page("k")).entries) == 1
    loop.run_until_complete(counts.__aexit__())
    loop.run_until_complete(hs.close())
    loop.close()


@pytest.mark.timeout(120)
async def test_parts_kept_after_close_are_refused_with_one_error(urls: list[str]) -> None:
    options = {"queue": urls[1]} if len(urls) > 1 else {}
    hs, counts = await opened(urls[0], options)
    settings, worker = hs.settings, hs.worker(Actions())
    calls = {
        **calls_of(hs, counts),
        "set": lambda: settings.set("rules.shrink", False, reason="late"),
        "unset": lambda: settings.unset("rules.shrink"),
        "work": worker.run,
        "buffered": lambda: counts.add_soon("b"),
    }
    await counts.__aexit__()
    counts._flusher = asyncio.ensure_future(asyncio.sleep(0))  # as if it had never been left
    await hs.close()
    await hs.close()
    told = {name: await outcome_of(call) for name, call in calls.items()}
    assert told == dict.fromkeys(calls, f"Closed: {CLOSED}")


async def outcome_of(call: Callable[[], Any]) -> str:
    try:
        return f"returned {await awaited(call)!r}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


def test_a_client_may_be_made_in_one_loop_and_opened_in_another() -> None:
    async def make() -> heatsink.Heatsink:
        return heatsink.connect("memory://")

    async def use(client: heatsink.Heatsink) -> bool:
        async with client as hs:
            return (await hs.log.append("k", b"")).is_new

    assert asyncio.run(use(asyncio.run(make())))


async def test_the_loop_of_another_thread_is_refused_while_the_owning_loop_runs() -> None:
    async with heatsink.connect("memory://") as hs:
        calls: list[Callable[[], Any]] = [
            partial(hs.log.append, "k", b""),
            partial(hs.log.page, "k"),
        ]
        for call in calls:
            run = partial(asyncio.run, awaited(call))
            assert await asyncio.to_thread(outcome, run) == f"Closed: {ELSEWHERE}"
        assert (await hs.log.page("k")).entries == []


async def test_the_first_loop_that_asks_is_the_owner() -> None:
    owner = Owner()
    owner.check_thread()
    owner.check()
    assert owner.loop is asyncio.get_running_loop()
    owner.check()
    with pytest.raises(Closed, match="another event loop"):
        await asyncio.to_thread(owner.check_thread)
