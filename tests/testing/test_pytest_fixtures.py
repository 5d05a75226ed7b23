"""The fixtures of the pytest plugin for batches, used as an application's tests use them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import heatsink
from heatsink.bulk import Actions, Context
from heatsink.client.blocking import BlockingHeatsink
from heatsink.testing.redis import RedisServer

pytestmark = pytest.mark.server("the fixtures of the plugin start a Redis")
StartWorker = Callable[[Actions], None]


def noting(noted: list[Any]) -> Actions:
    actions = Actions()

    @actions.action("note")
    def note(item: Any, context: Context) -> None:  # noqa: ARG001
        noted.append(item)

    return actions


def test_a_worker_runs_what_the_client_submits(
    heatsink_client: BlockingHeatsink, heatsink_worker: StartWorker
) -> None:
    noted: list[int] = []
    heatsink_worker(noting(noted))
    batch = heatsink_client.bulk.submit("note", range(3))
    assert heatsink_client.bulk.wait(batch.id, timeout_s=60).done == 3
    assert sorted(noted) == [0, 1, 2]


def test_each_test_begins_with_an_empty_queue_and_no_worker(
    heatsink_redis: RedisServer, heatsink_client: BlockingHeatsink
) -> None:
    assert heatsink_redis.command("DBSIZE").strip() == "0"
    assert not heatsink_client.bulk.list()
    assert "heatsink-worker" not in [thread.name for thread in threading.enumerate()]


async def test_an_asynchronous_client_uses_the_same_queue(
    heatsink_redis: RedisServer, heatsink_worker: StartWorker
) -> None:
    noted: list[str] = []
    heatsink_worker(noting(noted))
    async with heatsink.connect("memory://", queue=heatsink_redis.url) as hs:
        batch = await hs.bulk.submit("note", ["a"])
        assert (await hs.bulk.wait(batch.id, timeout_s=60)).done == 1
    assert noted == ["a"]
