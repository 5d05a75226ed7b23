"""Timelines on a real Redis: flips and a crash of the fan-out, every post once and in order."""

from __future__ import annotations

import asyncio

import heatsink
from heatsink import Heatsink
from heatsink.bulk import Actions, BulkSettings
from heatsink.bulk.work.consumer import Consumer
from heatsink.testing.redis import RedisServer
from heatsink.timelines.policy import PULLED, PUSHED
from tests.servers import real

FANS, POSTS = 300, 24
LEASE_S = 1.0


def start(hs: Heatsink) -> tuple[Consumer, asyncio.Task[None]]:
    consumer = hs.worker(Actions(), workers=2, lease_s=LEASE_S, member_s=LEASE_S)
    return consumer, asyncio.ensure_future(consumer.run())


async def crash(consumer: Consumer, running: asyncio.Task[None]) -> None:
    """As after kill -9: nothing is flushed, nothing is given back."""

    async def nothing() -> None:
        pass

    consumer._close = nothing  # type: ignore[method-assign]
    for task in [*consumer._tasks.values(), running]:
        task.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def seen(hs: Heatsink, user: str) -> list[bytes]:
    found, cursor = [], None
    while True:
        page = await hs.timelines.home(user, limit=10, cursor=cursor)
        found += [post.body for post in page.posts]
        cursor = page.cursor
        if cursor is None:
            return found


async def test_every_fan_sees_every_post_once_whatever_happens_meanwhile() -> None:
    with real(RedisServer) as server:
        settings = BulkSettings(partitions=2, durability="relaxed")
        async with heatsink.connect("memory://", queue=server.url, bulk=settings) as hs:
            first = start(hs)
            for number in range(FANS):
                await hs.timelines.follow(f"fan-{number}", "star")
            batches, sent = [], []
            for number in range(POSTS):
                if number in (8, 16):
                    mode = PULLED if number == 8 else PUSHED
                    await hs.timelines.pin("star", mode, reason="a flip")
                post = await hs.timelines.post("star", b"%d" % number)
                sent.append(post.body)
                batches += [post.batch] if post.batch else []
                await asyncio.sleep(0.1)
                if number == 3:
                    await crash(*first)
                    second = start(hs)
            for batch in batches:
                progress = await hs.bulk.wait(batch, 30.0)
                assert progress.state == "done"
            for number in (0, 7, FANS - 1):
                assert await seen(hs, f"fan-{number}") == sent[::-1]
            second[0].stop()
            await second[1]
