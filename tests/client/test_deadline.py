"""`deadline_s` is a deadline: of the whole call, whatever hangs, and of closing too."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from heatsink import Heatsink, Retries, Settings, connect
from heatsink.errors import HeatsinkError, Overloaded, Unavailable
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.ids import Minter, Uuid7
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.dynamodb.client import TIMEOUT_S
from heatsink.stores.embedded import free_port
from heatsink.stores.memory import memory_stores
from heatsink.testing import Faults, Link, SkewedClock, linked_stores, run_on_virtual_time
from heatsink.testing.clocks import BEGINNING_S

DEADLINE_S = 1.0
TRIED_AGAIN_S = 15.0  # twenty calls that each wait for a second take longer
IMPATIENT = Retries(deadline_s=DEADLINE_S)
Call = Callable[[Heatsink], Awaitable[Any]]


def an_id(ahead_s: float) -> Any:
    time_ms = int((BEGINNING_S + ahead_s) * 1000)
    return Uuid7().value(Minter(Uuid7(), Random(1)).mint(time_ms, time_ms + 1)[0])


async def buffered(hs: Heatsink) -> None:
    async with hs.counters.buffered(flush_s=0.001) as counts:
        await counts.add("views")


CALLS: dict[str, Call] = {
    "append": lambda hs: hs.log.append("conv", b"hello"),
    "append with an id": lambda hs: hs.log.append("conv", b"hello", id=an_id(-1)),
    "append ahead of the horizon": lambda hs: hs.log.append("conv", b"hello", id=an_id(1)),
    "page": lambda hs: hs.log.page("conv"),
    "get": lambda hs: hs.log.get("conv", an_id(-1)),
    "get ahead of the horizon": lambda hs: hs.log.get("conv", an_id(1)),
    "delete": lambda hs: hs.log.delete("conv", an_id(-1)),
    "add": lambda hs: hs.counters.add("views"),
    "value": lambda hs: hs.counters.value("views"),
    "fold": lambda hs: hs.counters.fold("views"),
    "explain": lambda hs: hs.explain("conv"),
    "decisions": lambda hs: hs.decisions(),
    "pin": lambda hs: hs.pin("conv", buckets=2, reason="test"),
}


async def on_a_store_that_hangs(call: Call, hung_for_s: float) -> None:
    clock, faults = SkewedClock(), Faults(timeout_s=60.0)
    stores = linked_stores(memory_stores(clock), Link(clock, faults, Random(1)))
    hs = Heatsink(stores, Settings(retries=IMPATIENT), clock, Random(1))
    async with hs:
        await hs.pin("other", buckets=1, reason="so that there is a decision")
        await clock.sleep(0.5)
        faults.cut = True
        await clock.sleep(hung_for_s)
        started_s = clock.monotonic_s()
        with pytest.raises(Overloaded, match=r"tried .* within 1 s: .*not answered") as raised:
            await call(hs)
        assert clock.monotonic_s() - started_s == pytest.approx(DEADLINE_S, abs=0.01)
        assert isinstance(raised.value.__cause__, Unavailable)
        started_s = clock.monotonic_s()
    assert clock.monotonic_s() - started_s <= DEADLINE_S + 0.01


@pytest.mark.parametrize("hung_for_s", [0.0, 5.0], ids=["just now", "for a while"])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_to_a_store_that_hangs_ends_at_its_deadline(name: str, hung_for_s: float) -> None:
    """After a while the horizon is used up too: then a call has to renew the view first."""
    run_on_virtual_time(on_a_store_that_hangs(CALLS[name], hung_for_s))


def test_a_buffered_add_ends_one_flush_later() -> None:
    async def scenario() -> None:
        clock, faults = SkewedClock(), Faults(timeout_s=60.0)
        stores = linked_stores(memory_stores(clock), Link(clock, faults, Random(1)))
        async with Heatsink(stores, Settings(retries=IMPATIENT), clock, Random(1)) as hs:
            faults.cut = True
            started_s = clock.monotonic_s()
            with pytest.raises(Overloaded):
                await buffered(hs)
            assert clock.monotonic_s() - started_s <= 2 * DEADLINE_S + 0.1

    run_on_virtual_time(scenario())


def test_a_call_that_is_cut_is_repeated_safely() -> None:
    """What was sent lands later; the same id is the same append."""

    async def scenario() -> None:
        clock, faults = SkewedClock(), Faults(timeout_s=60.0)
        stores = linked_stores(memory_stores(clock), Link(clock, faults, Random(1)))
        async with Heatsink(stores, Settings(retries=IMPATIENT), clock, Random(1)) as hs:
            faults.deaf = True
            with pytest.raises(Overloaded):
                await hs.log.append("conv", b"hello", id=an_id(-1))
            faults.heal()
            await clock.sleep(1)
            await hs.log.append("conv", b"hello", id=an_id(-1))
            assert [entry.body for entry in (await hs.log.page("conv")).entries] == [b"hello"]

    run_on_virtual_time(scenario())


@pytest.fixture
def engine() -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    port = free_port()
    command = [sys.executable, "-m", "heatsink", "dynamo", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.kill()
        process.wait()


async def test_an_engine_that_is_frozen_delays_nobody_beyond_the_deadline(
    engine: tuple[str, subprocess.Popen[bytes]],
) -> None:
    endpoint, process = engine
    while True:
        try:
            await make_table(parse("messages", {"endpoint": endpoint}), SystemClock())
            break
        except HeatsinkError:
            await asyncio.sleep(0.1)
    async with connect(f"dynamodb://messages?endpoint={endpoint}", retries=IMPATIENT) as hs:
        await until_appended(hs)
        process.send_signal(signal.SIGSTOP)
        for name in ("append", "page", "add", "value"):
            started_s = monotonic()
            with pytest.raises(Overloaded):
                await CALLS[name](hs)
            assert monotonic() - started_s < TIMEOUT_S, "a single attempt would take that long"
        started_s = monotonic()
    assert monotonic() - started_s < TIMEOUT_S


async def until_appended(hs: Heatsink) -> None:
    """A busy machine may not be done with it before the deadline."""
    while True:
        with suppress(Overloaded):
            await hs.log.append("conv", b"hello")
            return


async def test_a_file_that_is_locked_delays_nobody_beyond_the_deadline(tmp_path: Path) -> None:
    """Nor is what was given up tried again, each for a second, before the client is closed."""
    retries = Retries(deadline_s=0.3)
    async with connect(f"sqlite:///{tmp_path}/chat.db", retries=retries) as hs:
        await until_appended(hs)
        other = sqlite3.connect(tmp_path / "chat.db", isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        started_s = monotonic()
        appends = [hs.log.append("conv", b"hello") for _ in range(20)]
        errors = await asyncio.gather(*appends, return_exceptions=True)
        assert {type(error) for error in errors} == {Overloaded}
        assert monotonic() - started_s < TRIED_AGAIN_S
        started_s = monotonic()
    assert monotonic() - started_s < TRIED_AGAIN_S
    other.close()
