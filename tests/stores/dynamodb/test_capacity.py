"""What a write really cost is heat, and whose limit it met is told apart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count, islice
from random import Random
from unittest.mock import call, patch

import pytest

from heatsink import BucketRules, Heatsink, Retries, connect
from heatsink.client.settings import Settings
from heatsink.coordinator.explainer import Explanation
from heatsink.emulator.capacity.table import SPACE
from heatsink.emulator.engine import API, Engine
from heatsink.emulator.rows import token_of
from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.errors import Overloaded
from heatsink.primitives.clock import SystemClock
from heatsink.spread.store import Running
from heatsink.stores.dynamodb import make_table, stores_over
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.dynamodb.table import DynamoTable
from heatsink.testing import SkewedClock, run_on_virtual_time
from tests.simulation.backends import WiredClient


@asynccontextmanager
async def client(units: int | None = None, **limits: float) -> AsyncIterator[Heatsink]:
    clock = SystemClock()
    async with running_engine(EngineSettings(port=0, **limits), clock) as endpoint:  # type: ignore[arg-type]
        await make_table(parse("messages", {"endpoint": endpoint}), clock, units)
        url, patient = f"dynamodb://messages?endpoint={endpoint}", Retries(deadline_s=30)
        async with connect(url, retries=patient, coordinate=False) as hs:
            yield hs


async def test_what_weighs_beside_the_body_is_counted() -> None:
    async with client() as hs:
        with patch.object(hs.parts.tracker, "record_units") as surplus:
            await hs.log.append("small", b"x" * 100)
            await hs.log.append("just under a kilobyte", b"x" * 1_020)
            hs.parts.tracker.alarms()
    assert surplus.call_args_list == [call("just under a kilobyte", 1)]


async def test_an_add_is_counted_as_the_transaction_that_it_is() -> None:
    """Four units: else a counter's buckets would be filled to four times what a partition takes."""
    async with client() as hs:
        with patch.object(hs.parts.tracker, "record_units") as surplus:
            await hs.counters.add("likes", 1)
            hs.parts.tracker.alarms()
    assert surplus.call_args_list == [call("likes", 3)]


async def test_an_add_is_heat_of_the_partition_that_it_was_in() -> None:
    async with client() as hs:
        with patch.object(hs.parts.tracker, "record") as heat:
            await hs.counters.add("likes", 1)
            hs.parts.tracker.alarms()
    placed = [args for args, _ in heat.call_args_list if args[0].startswith("\0partition:")]
    assert [units for _, units in placed] == [4]


def test_a_counter_gets_the_buckets_that_its_adds_cost() -> None:
    """50 adds a second are 200 units, four buckets of 60: without a throttle to tell so."""

    async def run() -> int:
        clock = SkewedClock()
        engine = Engine(EngineSettings(), clock, Random(1))

        async def send(operation: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
            status, answer = engine.answer(API + operation, body)
            return status, {}, answer

        client = WiredClient(send, clock)
        await DynamoTable(client, "counts").create()
        settings = Settings(rules=BucketRules(bucket_units_s=60, forecast_s=0))
        stores = stores_over(client, "counts", clock)
        async with Heatsink(stores, settings, clock, Random(1)) as hs:
            for _ in range(500):
                await hs.counters.add("likes", 1)
                await clock.sleep(0.02)
            assert await hs.counters.value("likes") == 500
            return (await hs.explain("likes")).buckets

    assert run_on_virtual_time(run()) == 4


def test_a_hot_key_is_spread_though_the_registry_shares_its_partition() -> None:
    """Sixty writers who never rest beside the requests that a decision takes."""

    async def run() -> int:
        clock = SkewedClock()
        limits = EngineSettings(write_limit=30, burst_s=1, partitions=1, adaptive=False)
        engine = Engine(limits, clock, Random(1))

        async def send(operation: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
            status, answer = engine.answer(API + operation, body)
            await clock.sleep(0.005)
            return status, {}, answer

        client = WiredClient(send, clock)
        await DynamoTable(client, "hot").create()
        settings = Settings(rules=BucketRules(bucket_units_s=25))
        async with Heatsink(stores_over(client, "hot", clock), settings, clock, Random(1)) as hs:

            async def write() -> None:
                while True:
                    with suppress(Overloaded):
                        await hs.log.append("conv", b"")

            writers = [asyncio.ensure_future(write()) for _ in range(60)]
            await clock.sleep(10)
            for writer in writers:
                writer.cancel()
            return (await hs.explain("conv")).layout.buckets

    assert run_on_virtual_time(run()) > 1


MORE = pytest.mark.full("twenty callers show it; eighty take four times the CPU")


@pytest.mark.parametrize("callers", [20, pytest.param(80, marks=MORE)])
def test_a_log_is_spread_whose_partition_takes_less_than_a_bucket_is_meant_to(callers: int) -> None:
    """Ten rows a second each on partitions that take 100, with rules that speak of 800."""

    async def run() -> tuple[str, Explanation]:
        clock, rng, told = SkewedClock(), Random(2), ""
        limits = EngineSettings(write_limit=100, burst_s=1, adaptive=False, partitions=64)
        engine = Engine(limits, clock, Random(1))

        async def send(operation: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
            status, answer = engine.answer(API + operation, body)
            return status, {}, answer

        async def write(hs: Heatsink) -> None:
            while True:
                await hs.log.append("hot", b"x")
                await clock.sleep(rng.uniform(0.0, 0.2))

        client = WiredClient(send, clock)
        await DynamoTable(client, "messages").create()
        stores = stores_over(client, "messages", clock)
        async with Heatsink(stores, Settings(), clock, Random(1)) as hs:
            writers = [asyncio.ensure_future(write(hs)) for _ in range(callers)]
            for _ in range(80):
                explained = await hs.explain("hot")
                told += str(explained) if explained.buckets == 1 else ""
                await clock.sleep(0.5)
            for writer in writers:
                writer.cancel()
            return told, await hs.explain("hot")

    told, explained = run_on_virtual_time(run())
    assert "more buckets can; a partition accepts less than" in told
    assert "throttled/s on " in explained.reason
    assert explained.heat is not None
    assert (explained.heat.throttles_s, explained.store) == (0, None)


async def test_a_share_of_many_processes_is_counted_by_its_size() -> None:
    async with client() as hs:
        with patch.object(hs.parts.tracker, "record_units") as surplus:
            for number in range(30):
                writer = number.to_bytes(16, "big")
                await hs.parts.stores.counters.raise_to("likes", writer, 1, Running(1, 0))
            hs.parts.tracker.alarms()
    assert set(map(str, surplus.call_args_list)) == {str(call("likes", 1))}
    assert surplus.call_count < 30


async def test_a_throttled_partition_is_heat() -> None:
    throttled: list[str] = []
    async with client(write_limit=5.0, burst_s=1.0) as hs:
        with patch.object(hs.parts.tracker, "record_throttle", throttled.append):
            for n in range(12):
                await hs.log.append("hot", b"%d" % n)
        assert set(throttled) == {"hot"}
        assert (await hs.explain("hot")).table_refusal is None


@pytest.mark.sleeps("a steady load for some windows")
async def test_explain_tells_a_hot_partition_from_a_hot_key() -> None:
    """Six cool keys on one partition, then one hot key: the same refusals, another cure."""
    clock, limits = SystemClock(), EngineSettings(port=0, write_limit=30, partitions=2, burst_s=1)
    hot_key, *cool_keys = islice(filter(beside_the_registry, map("key{}".format, count())), 7)
    async with running_engine(limits, clock) as endpoint:
        await make_table(parse("messages", {"endpoint": endpoint}), clock, None)
        url, rules = f"dynamodb://messages?endpoint={endpoint}", BucketRules(bucket_units_s=30)
        async with connect(url, retries=Retries(deadline_s=30), rules=rules) as hs:
            await hs.pin(hot_key, buckets=1, reason="to look at it")
            await until_explained(
                hs, cool_keys, "no single hot key: throttled because of other keys"
            )
            await until_explained(hs, cool_keys, "(also throttled: 5 other keys)")
            await until_explained(hs, cool_keys, "store   hot partition (2, ")
            assert 2 in [each.partition for each in (await hs.hottest()).partitions]
            keys = (await hs.hottest()).keys
            assert not [each for each in keys if each.key.startswith("\0")]
            await until_explained(hs, [hot_key], "store   one hot key (2, ")


def beside_the_registry(key: str) -> bool:
    """Whether a key lies in the other one of two partitions: there its heat is nobody else's."""
    return token_of(key) * 2 // SPACE != token_of("%meta") * 2 // SPACE


async def until_explained(hs: Heatsink, keys: list[str], words: str) -> None:
    """Write 50 times a second to all keys together, until that is said of the first."""

    async def load(key: str) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                group.create_task(hs.log.append(key, b"hello"))
                await asyncio.sleep(len(keys) / 50)

    writing = [asyncio.create_task(load(key)) for key in keys]
    try:
        async with asyncio.timeout(60):
            while words not in str(await hs.explain(keys[0])):
                await asyncio.sleep(0.1)
    finally:
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)


async def test_a_throttled_table_is_not_and_explain_says_so() -> None:
    throttled: list[str] = []
    async with client(units=10, write_limit=1e6, burst_s=1.0) as hs:
        with patch.object(hs.parts.tracker, "record_throttle", throttled.append):
            for n in range(30):
                await hs.log.append(f"key {n}", b"")
        explained = await hs.explain("key 1")
    assert throttled == []
    assert "more buckets do not help" in str(explained)
