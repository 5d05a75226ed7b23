"""What a write really cost is heat, and whose limit it met is told apart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import patch

from heatsink import Heatsink, Retries, connect
from heatsink.clock import SystemClock
from heatsink.dynamo.server import running_engine
from heatsink.dynamo.settings import EngineSettings
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse


@asynccontextmanager
async def client(units: int | None = None, **limits: float) -> AsyncIterator[Heatsink]:
    clock = SystemClock()
    async with running_engine(EngineSettings(port=0, **limits), clock) as endpoint:  # type: ignore[arg-type]
        await make_table(parse("messages", {"endpoint": endpoint}), clock, units)
        url, patient = f"dynamodb://messages?endpoint={endpoint}", Retries(deadline_s=30)
        async with connect(url, retries=patient, coordinate=False) as hs:
            yield hs


async def test_what_weighs_beside_the_body_is_counted() -> None:
    surplus: dict[str, int] = {}
    async with client() as hs:
        hs._stores.meter.report = surplus.__setitem__
        await hs.log.append("small", b"x" * 100)
        await hs.log.append("just under a kilobyte", b"x" * 1_020)
    assert surplus == {"just under a kilobyte": 1}


async def test_a_throttled_partition_is_heat() -> None:
    throttled: list[str] = []
    async with client(write_limit=5.0, burst_s=1.0) as hs:
        with patch.object(hs._tracker, "record_throttle", throttled.append):
            for n in range(12):
                await hs.log.append("hot", b"%d" % n)
        assert set(throttled) == {"hot"}
        assert (await hs.explain("hot")).table_refusal is None


async def test_a_throttled_table_is_not_and_explain_says_so() -> None:
    throttled: list[str] = []
    async with client(units=10, write_limit=1e6, burst_s=1.0) as hs:
        with patch.object(hs._tracker, "record_throttle", throttled.append):
            for n in range(30):
                await hs.log.append(f"key {n}", b"")
        explained = await hs.explain("key 1")
    assert throttled == []
    assert "more buckets do not help" in str(explained)
