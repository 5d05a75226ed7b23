"""A wrong clock on one machine: it must not move the closed time, which never comes back."""

from __future__ import annotations

import asyncio
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import CliRunner, Result

from heatsink import Heatsink, Retries, connect
from heatsink.cli import main
from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.errors import Overloaded, WrongIncarnation
from heatsink.primitives.clock import SystemClock, now_ms
from heatsink.primitives.ids import Minter, Uuid7
from heatsink.registry import closed_time as timekeeper
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.sqlite import sqlite_stores
from tests.adoption import complete_adoption
from tests.spread.test_log import everything, spread

TWO_DAYS_S = 2 * 86_400.0
IN_FORCE_S = 20.0


class AheadClock(SystemClock):
    """This machine's, with a wall clock that is two days ahead."""

    def now_s(self) -> float:
        return SystemClock.now_s() + TWO_DAYS_S


def ahead_s(hs: Heatsink) -> float:
    return hs.parts.registry.meta.closed_ms / 1000 - SystemClock.now_s()


async def test_half_a_second_two_days_ahead_leaves_the_closed_time_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with connect(url) as hs:
        first = await hs.log.append("conv", b"first")
    async with connect(url, clock=AheadClock()) as wrong:
        second = await wrong.log.append("conv", b"second")
        await asyncio.sleep(0.5)
        third = await wrong.log.append("conv", b"third")
    async with connect(url) as hs:
        assert ahead_s(hs) < 10
        async with asyncio.timeout(IN_FORCE_S):
            await spread(hs, "conv", 3)
        page = await hs.log.page("conv")
        assert [entry.id for entry in page.entries] == [third.id, second.id, first.id]


async def test_a_clock_that_stays_ahead_beside_a_right_one_is_never_believed(
    tmp_path: Path,
) -> None:
    """The one with the wrong clock leads, so the right one need not advance the closed time."""
    url = f"sqlite:///{tmp_path}/chat.db"
    async with connect(url) as hs:
        await hs.log.append("conv", b"first")
    with patch.object(timekeeper, "BELIEVE_S", 3.0), patch.object(timekeeper, "RENEW_S", 0.25):
        async with connect(url, clock=AheadClock()) as wrong, connect(url, coordinate=False) as hs:
            await contradicted(wrong, seconds=6.0)
            assert ahead_s(hs) < 10
        async with connect(url, clock=AheadClock()) as alone:
            while ahead_s(alone) < TWO_DAYS_S - 60:
                await asyncio.sleep(0.02)


async def contradicted(hs: Heatsink, seconds: float) -> None:
    """Until others have renewed the evidence for so long."""
    first = last = (await hs.parts.stores.registry.meta()).meta.evidence
    assert first is not None
    assert last is not None
    while last.boot_ms < first.boot_ms + 1000 * seconds:
        reading = await hs.parts.stores.registry.meta()
        assert reading.verdict is not None
        assert "ahead of the store's time" in reading.verdict.doubt
        assert reading.meta.evidence is not None
        last = reading.meta.evidence
        await asyncio.sleep(0.05)


async def test_an_id_by_a_clock_that_is_not_believed_yet_may_be_sent_again(
    tmp_path: Path,
) -> None:
    url, clock = f"sqlite:///{tmp_path}/chat.db", AheadClock()
    async with connect(url) as hs:
        await hs.log.append("conv", b"first")
    raw, _ = Minter(Uuid7(), Random(1)).mint(now_ms(clock), now_ms(clock) + 1)
    hasty = Retries(deadline_s=1.5)
    async with connect(url, clock=clock, retries=hasty) as wrong:
        with pytest.raises(Overloaded, match=r"172,8\d\d s ahead of the store's time.*retry"):
            await wrong.log.append("conv", b"second", id=Uuid7().value(raw))
        assert await wrong.log.append("conv", b"second")


# -- the cure --------------------------------------------------------------------------------


def run(*arguments: str) -> Result:
    """In a thread: commands have an event loop of their own."""
    with ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(CliRunner().invoke, main, arguments).result()


async def moved_ahead(url: str) -> dict[str, Any]:
    """A store that a clock two days ahead has founded, written and counted in, and laid out."""
    async with connect(url, clock=AheadClock()) as wrong:
        await spread(wrong, "conv", 3)
        rows = [(await wrong.log.append("conv", b"%d" % n)).id for n in range(20)]
        await wrong.log.delete("conv", rows[7])
        token = Uuid7().value(Minter(Uuid7(), Random(1)).mint(now_ms(AheadClock()), 2**47)[0])
        await wrong.counters.add("likes", 5, token=token)
        async with wrong.counters.buffered() as counts:
            await counts.add("views", 7)
        assert await wrong.counters.value("likes") == 5  # this seals it, a day from now
    with patch.object(timekeeper, "BELIEVE_S", 0.3):
        async with connect(url) as hs:
            while hs.parts.registry.now_ms() / 1000 > SystemClock.now_s() + 5:
                await asyncio.sleep(0.02)
            await hs.log.append("calm", b"by a right clock")
    return {"rows": rows, "token": token}


async def test_a_store_that_was_moved_ahead_is_cured(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    known = await moved_ahead(url)
    ill = run("doctor", "--store", url, "--queue", "memory://").output
    command = f"fsck {url} --reset-closed-time"
    assert "".join(f"heatsink {command}".split()) in "".join(ill.split())
    cured = run(*command.split())
    assert cured.exit_code == 0, cured.output
    assert "every row is where its layout puts it" in cured.output
    async with connect(url) as hs:
        async with asyncio.timeout(IN_FORCE_S):
            await spread(hs, "calm", 4)
            await spread(hs, "new", 2)
        for n, id in enumerate(known["rows"]):
            entry = await hs.log.get("conv", id)
            assert entry is None if n == 7 else entry is not None and entry.body == b"%d" % n
        assert not (await hs.log.append("conv", b"3", id=known["rows"][3])).is_new
        await hs.pin("conv", buckets=8, reason="it has to wait")
        for n in range(5):
            await hs.log.append("conv", b"later %d" % n)
        assert len(await everything(hs, "conv")) == 24
        await hs.counters.add("likes", 5, token=known["token"])
        await hs.counters.add("likes", 1)
        await hs.counters.add("views", 1)
        assert (await hs.counters.value("likes"), await hs.counters.value("views")) == (6, 8)
        assert (await hs.explain("conv")).buckets == 1  # as before its epoch, two days from now
        assert "no new layout before" in str(await hs.explain("conv"))
    assert run("fsck", url).exit_code == 0
    healthy = run("doctor", "--store", url, "--queue", "memory://", "--json").output
    assert "closed time" not in healthy


async def test_the_cure_leaves_a_copy_that_opens(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    known = await moved_ahead(url)
    copy = json.loads(run("fsck", url, "--reset-closed-time", "--json").output)["copy"]
    async with connect(f"sqlite:///{copy}") as hs:
        assert (await hs.log.get("conv", known["rows"][0])) is not None
        assert ahead_s(hs) > TWO_DAYS_S - 60


async def test_the_cure_is_refused_while_anybody_has_the_store_open(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    await moved_ahead(url)
    async with connect(url, coordinate=False) as hs:
        refused = run("fsck", url, "--reset-closed-time")
        assert refused.exit_code == 1
        assert "is in use: stop every process" in refused.stderr
        assert await hs.log.page("calm")
    assert os.listdir(tmp_path) == ["chat.db"]


async def test_the_cure_is_refused_where_nothing_is_ill(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with connect(url) as hs:
        await hs.log.append("conv", b"x")
    for command, complaint in (
        (("fsck", url, "--reset-closed-time"), "no reset is needed"),
        (("fsck", url, "--reset-closed-time", "--rebuild"), "run one after the other"),
        (("fsck", "dynamodb://x", "--reset-closed-time"), "url must be a sqlite:// store"),
    ):
        refused = run(*command)
        assert refused.exit_code == 2
        assert complaint in refused.stderr


async def test_on_dynamodb_the_doctor_says_what_is_left_to_do() -> None:
    clock = SystemClock()
    async with running_engine(EngineSettings(port=0), clock) as endpoint:
        await make_table(parse("messages", {"endpoint": endpoint}), clock)
        url = f"dynamodb://messages?endpoint={endpoint}"
        async with connect(url) as hs:
            await hs.parts.stores.registry.advance(now_ms(AheadClock()))
        flags = ("--store", url, "--queue", "memory://", "--json")
        told = json.loads((await asyncio.to_thread(run, "doctor", *flags)).output)
    [ill] = [finding for finding in told if finding["what"] == "closed time"]
    assert (ill["state"], "copy the rows to a new table" in ill["cure"]) == ("wrong", True)


async def test_rows_of_tables_elsewhere_keep_the_closed_time_where_it_is(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    await moved_ahead(url)
    await asyncio.to_thread(complete_adoption, url, "chat")
    refused = run("fsck", url, "--reset-closed-time")
    assert refused.exit_code == 2
    assert "places rows of the tables chat" in refused.stderr


async def test_a_process_that_slept_through_the_cure_is_refused(tmp_path: Path) -> None:
    """Its view is of the time before: nothing that it remembers holds any more."""
    url = f"sqlite:///{tmp_path}/chat.db"
    await moved_ahead(url)
    asleep = connect(url)
    await asleep.__aenter__()
    for task in asleep.parts.tasks:
        task.cancel()
    await asleep.parts.stores.close()  # as if its files had been closed for it
    assert run("fsck", url, "--reset-closed-time").exit_code == 0
    asleep.parts.registry._store = sqlite_stores(tmp_path / "chat.db", SystemClock()).registry
    with pytest.raises(WrongIncarnation, match="reconnect"):
        await asleep.parts.registry.renew()
    await asleep.parts.registry._store._database.close()  # type: ignore[attr-defined]
