"""The log and the layouts lie in shards, so that no partition takes all of their writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator

import pytest

from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.primitives.clock import SystemClock
from heatsink.registry.decisions import BUCKETS, PIN, LogEntry, for_key
from heatsink.stores.dynamodb import dynamodb_stores, make_table
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.dynamodb.registry import DynamoRegistry
from heatsink.stores.dynamodb.table import KEYS, LOG, keys_shard, log_shard
from tests.stores.test_registry_conformance import META

CLOCK = SystemClock()


@pytest.fixture
async def registry() -> AsyncIterator[DynamoRegistry]:
    limits = EngineSettings(port=0, write_limit=1e9, read_limit=1e9)
    async with running_engine(limits, CLOCK) as endpoint:
        address = parse("messages", {"endpoint": endpoint})
        await make_table(address, CLOCK)
        stores = dynamodb_stores(address, CLOCK)
        assert isinstance(stores.registry, DynamoRegistry)
        await stores.registry.found(META)
        yield stores.registry
        await stores.close()


async def publish(registry: DynamoRegistry, versions: range) -> None:
    for version in versions:
        await registry.append(LogEntry(version, 5, 0, (for_key("k", PIN, 6, "launch"),)), None)


async def shards_of(registry: DynamoRegistry, partitions: tuple[str, ...]) -> Counter[str]:
    low, high = {"B": "AA=="}, {"B": "////////"}
    items = await registry._table.everything(partitions, low, high)
    return Counter(item["p"]["S"] for item in items)


def test_keys_spread_evenly_over_the_shards() -> None:
    found = Counter(keys_shard(f"conversation-{n}") for n in range(16_000))
    assert set(found) == set(KEYS)
    assert max(found.values()) < 1_200


async def test_a_version_of_many_keys_is_in_many_shards(registry: DynamoRegistry) -> None:
    decisions = tuple(for_key(f"k{n}", BUCKETS, 2, "hot") for n in range(45))
    await registry.append(LogEntry(1, 5, 2_000, decisions), term=0)
    assert await shards_of(registry, KEYS) == Counter(keys_shard(f"k{n}") for n in range(45))
    assert len((await registry.snapshot()).layouts) == 45


async def test_a_trim_leaves_nothing_in_any_shard(registry: DynamoRegistry) -> None:
    await publish(registry, range(1, 21))
    assert set(await shards_of(registry, LOG)) == set(LOG)
    await registry.trim(20)
    assert await shards_of(registry, LOG) == {log_shard(20): 1}


async def test_a_log_that_is_half_trimmed_is_read_without_a_gap(registry: DynamoRegistry) -> None:
    """As while a trim runs: the reader then loads a snapshot, which has what is missing."""
    await publish(registry, range(1, 21))
    lost = {"p": {"S": log_shard(7)}, "s": {"B": "AAAAAAAAAAc="}}
    await registry._table.delete_all([lost])
    assert [entry.version for entry in await registry.log(0, 20)] == list(range(8, 21))
    assert [entry.version for entry in await registry.log(2, 6)] == [3, 4, 5, 6]
