"""A client belongs to the process and the event loop that opened it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

import heatsink
from heatsink.errors import Closed
from heatsink.owner import Owner
from heatsink.testing.servers import RedisServer
from tests.processes import serving
from tests.servers import patient_url, real

from .forked import awaited, calls_of, opened

ROOT = Path(__file__).parents[2]
RUN_S = 240


@pytest.fixture(params=["memory", "sqlite", "dynamodb", "redis queue"])
def urls(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """Of a store, and of a queue where the store's own is not meant."""
    with ExitStack() as stack:
        if request.param == "memory":
            yield ["memory://"]
        elif request.param == "sqlite":
            yield [f"sqlite:///{tmp_path}/heatsink.db"]
        elif request.param == "redis queue":
            redis = stack.enter_context(real(lambda: RedisServer(append_only=True)))
            yield ["memory://", patient_url(redis.url)]
        else:
            engine = stack.enter_context(serving(tmp_path, command="dynamo"))
            url = f"dynamodb://messages?endpoint={engine.url}"
            create = [sys.executable, "-m", "heatsink.service", "table", "create", url]
            subprocess.run(create, check=True, capture_output=True)
            yield [url, "memory://"]


@pytest.mark.timeout(RUN_S + 30)
@pytest.mark.parametrize("kind", ["same-loop", "new-loop", "sync"])
def test_a_client_in_a_forked_child_raises_at_once_and_says_the_cure(
    urls: list[str], kind: str
) -> None:
    command = [sys.executable, "-m", "tests.client.forked", kind, *urls]
    said = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    told = dict(line.split(": ", 1) for line in said.stdout.splitlines())
    assert told.pop("parent") == "returned 1", said.stderr
    assert told.pop("close") == "returned None", "the child must not close what the parent uses"
    assert len(told) > 20, said.stderr
    for call, outcome in told.items():
        assert outcome.startswith("Closed: this client was opened before a fork"), call
        assert "connect in the child" in outcome, call


@pytest.mark.timeout(120)
def test_another_event_loop_is_refused(urls: list[str]) -> None:
    loop = asyncio.new_event_loop()
    options = {"queue": urls[1]} if len(urls) > 1 else {}
    hs, counts = loop.run_until_complete(opened(urls[0], options))
    calls = calls_of(hs, counts)
    del calls["read that is kept"]  # it asks nobody

    def refused_here() -> None:
        for name, call in calls.items():
            with pytest.raises(Closed, match="belongs to another event loop or thread"):
                asyncio.run(awaited(call))
                pytest.fail(name)
        with pytest.raises(Closed, match="belongs to another event loop or thread"):
            asyncio.run(hs.close())

    with ThreadPoolExecutor(1) as pool:
        pool.submit(refused_here).result()
    refused_here_too = {name: call for name, call in calls.items() if name != "forget"}
    calls = refused_here_too  # it awaits nothing, and this is its thread
    refused_here()
    assert len(loop.run_until_complete(hs.log.page("k")).entries) == 1
    loop.run_until_complete(counts.__aexit__())
    loop.run_until_complete(hs.close())
    loop.close()


def test_a_client_may_be_made_in_one_loop_and_opened_in_another() -> None:
    async def make() -> heatsink.Heatsink:
        return heatsink.connect("memory://")

    async def use(client: heatsink.Heatsink) -> bool:
        async with client as hs:
            return (await hs.log.append("k", b"")).is_new

    assert asyncio.run(use(asyncio.run(make())))


async def test_the_first_loop_that_asks_is_the_owner() -> None:
    owner = Owner()
    owner.check_thread()
    owner.check()
    assert owner.loop is asyncio.get_running_loop()
    owner.check()
    with pytest.raises(Closed, match="another event loop"):
        await asyncio.to_thread(owner.check_thread)
