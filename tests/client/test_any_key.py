"""Users' keys that look like what Heatsink keeps for itself are keys like any other."""

from __future__ import annotations

import asyncio

import heatsink
from heatsink import BucketRules
from heatsink.testing import SkewedClock, run_on_virtual_time
from heatsink.timelines import TimelineSettings

RULES = BucketRules(bucket_units_s=50)


def test_a_key_that_looks_like_a_partition_does_not_stop_the_coordinator() -> None:
    async def write() -> None:
        clock = SkewedClock()
        async with heatsink.connect("memory://", clock=clock, rules=RULES) as hs:
            for _ in range(4):
                for key in ("~partition/abc", "partition:abc", "chat"):
                    await asyncio.gather(*(hs.log.append(key, b"x") for _ in range(200)))
                await clock.sleep(1.0)
            for key in ("~partition/abc", "partition:abc", "chat"):
                assert (await hs.explain(key)).buckets > 1, key

    run_on_virtual_time(write())


def test_a_pin_of_a_key_sets_no_worker_target() -> None:
    async def pin() -> None:
        clock = SkewedClock()
        async with heatsink.connect("memory://", clock=clock) as hs:
            for key in ("~workers/0", "workers:0", "~setting/timelines.threshold"):
                await hs.pin(key, buckets=4, reason="launch")
            await clock.sleep(3.0)
            assert [(await hs.explain(key)).buckets for key in ("~workers/0", "workers:0")] == [
                4,
                4,
            ]
            assert (await hs.queue_partitions())[0].pin is None
            assert hs.status().pinned_keys == 3

    run_on_virtual_time(pin())


def test_rows_under_any_key_do_not_reach_a_timeline() -> None:
    async def mix() -> None:
        clock = SkewedClock()
        async with heatsink.connect("memory://", clock=clock) as hs:
            await hs.timelines.follow("bob", "ada")
            for key in ("~followers/ada", "followers:ada", "~posts/ada", "%00followers:ada"):
                await hs.log.append(key, b"mine")
                await hs.counters.add(key, 7)
            await hs.timelines.post("ada", b"hello")
            await clock.sleep(1.0)
            assert await hs.timelines.followers("ada") == 1
            assert [entry.body for entry in (await hs.log.page("~posts/ada")).entries] == [b"mine"]

    run_on_virtual_time(mix())


def test_pulled_authors_leave_the_budget_of_buckets_to_hot_keys() -> None:
    async def post() -> None:
        clock = SkewedClock()
        rules = BucketRules(bucket_units_s=50, extra_buckets_max=2)
        timelines = TimelineSettings(threshold=2)
        async with heatsink.connect(
            "memory://", clock=clock, rules=rules, timelines=timelines
        ) as hs:
            for author in ("ada", "bob", "cyd", "dan"):
                await hs.timelines.follow("eve", author)
                await hs.timelines.follow("fay", author)
                await hs.timelines.post(author, b"hello")
            await clock.sleep(2.0)
            for author in ("ada", "bob", "cyd", "dan"):
                assert "pulled" in await hs.timelines.explain(author)
            for _ in range(4):
                await asyncio.gather(*(hs.log.append("chat", b"x") for _ in range(200)))
                await clock.sleep(1.0)
            assert (await hs.explain("chat")).buckets == 3

    run_on_virtual_time(post())
