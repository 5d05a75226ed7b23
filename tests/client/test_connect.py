from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

import heatsink
from heatsink import BucketRules, Heatsink, PartitionLimit, Retries
from heatsink.client.queue import connect_queue
from heatsink.errors import (
    Closed,
    HeatsinkError,
    InvalidBody,
    InvalidCursor,
    InvalidId,
    InvalidKey,
    InvalidSetting,
    Overloaded,
    Throttled,
    Unavailable,
)
from heatsink.primitives.ids import Minter, Uuid7
from heatsink.registry.decisions import Meta, Reading
from heatsink.stores.memory.data import MemoryRegistry


def id_at(clock_s: float) -> Any:
    raw, _ = Minter(Uuid7(), Random(1)).mint(int(clock_s * 1000), 2**47)
    return Uuid7().value(raw)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("", "names no store"),
        ("redis://x", "names no store: .*; a Redis carries news and bulk actions: news="),
        ("sqlite:chat.db", "write sqlite:///chat.db"),
        ("sqlite:/chat.db", r"write sqlite:////chat\.db .*or sqlite:///chat\.db"),
        ("sqlite://chat.db", "write sqlite:///chat.db"),
        ("sqlite://folder/chat.db", "write sqlite:///folder/chat.db"),
        ("sqlite:", "name a file"),
        ("memory:", "write memory://"),
        ("memory:/", "write memory://"),
        ("dynamodb:messages", "write dynamodb://messages"),
        ("dynamodb:/messages", "write dynamodb://messages"),
        ("dynamodb:///messages", "write dynamodb://messages"),
        ("sqlite://", "name a file"),
        ("sqlite:///", "name a file"),
        ("sqlite:///no/such/folder/x.db", "no folder"),
        ("sqlite:///x.db?mode=ro", "a host, \\? or #, which this store does not take"),
        ("memory://host", "a host, \\? or #, which this store does not take"),
        ("memory:///path", "takes no path"),
        ("sqlite://[", "cannot be read"),
        ("sqlite:///:memory:", "name a file"),
        ("sqlite:///" + "x" * 300, "no usable file"),
        ("dynamodb://messages/old?region=eu-west-1", "only options after the table's name.*/old"),
        ("dynamodb://messages?region=eu-west-1#old", "only options after the table's name.*old"),
        ("dynamodb://messages?region=a&region=b", "'region' more than once"),
        (
            "dynamodb://messages?endpoint=http://127.0.0.1:99999",
            "endpoint must be http://host:port",
        ),
        ("dynamodb://messages?endpoint=http://127.0.0.1:x", "endpoint must be http://host:port"),
        ("dynamodb://messages?endpoint=http://127.0.0.1:0", "endpoint must be http://host:port"),
        ("dynamodb://messages?endpoint=http://[::1", "endpoint must be http://host:port"),
        ("dynamodb://messages?endpoint=http://", "endpoint must be http://host:port"),
        ("dynamodb://messages?endpoint=http://localhost/x", "endpoint must be http://host:port"),
        (
            "dynamodb://messages?endpoint=http://me:pw@localhost",
            "endpoint must be http://host:port",
        ),
        (5, "url must be a str"),
    ],
)
def test_a_bad_url_is_refused_with_examples(url: Any, complaint: str) -> None:
    with pytest.raises(InvalidSetting, match=complaint):
        heatsink.connect(url)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("embedded:queue", "write embedded:///queue"),
        ("embedded:/queue", "write embedded:////queue .*or embedded:///queue"),
        ("embedded://queue", "write embedded:///queue"),
        ("embedded:///", "queue must name a folder"),
        ("embedded:///queue?partitions=3", "embedded:///folder, without"),
        ("embedded:///queue#3", "embedded:///folder, without"),
        ("memory:", "write memory://"),
        ("memory://host", "queue must be just memory://"),
        ("memory:///path", "queue must be just memory://"),
        ("redis:host", "two slashes: use redis://host"),
        ("redis:/host", "two slashes: use redis://host"),
        ("redis:me:secret@host:6379", "two slashes: use redis://host"),
        ("rediss:host", "two slashes: use redis://host"),
        ("redis+cluster:a,b", "two slashes: use redis://host"),
        ("redis:///0", "names no host"),
        ("file:///queue", "must be a URL like"),
        ("amqp://x", "must be a URL like"),
    ],
)
def test_a_bad_url_of_a_queue_is_refused_before_anything_is_made(
    url: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSetting, match=complaint) as refusal:
        connect_queue(url)
    with pytest.raises(InvalidSetting, match=complaint) as same:
        heatsink.connect("memory://", queue=url)
    assert "secret" not in f"{refusal.value} {same.value}"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["redis:host", "redis:/host", "redis:me:secret@host"])
def test_a_url_for_news_without_its_slashes_is_refused(url: str) -> None:
    with pytest.raises(InvalidSetting, match="news needs two slashes: use redis://host") as refusal:
        heatsink.connect("memory://", news=url)
    assert "secret" not in str(refusal.value)


def test_a_setting_that_does_not_exist_is_named() -> None:
    with pytest.raises(InvalidSetting, match=r"'zyx'.*rules"):
        heatsink.connect("memory://", zyx="blue")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", 5),
        ("rng", 5),
        ("name", 5),
        ("name", "\ud800"),
        ("rules", "fast"),
        ("retries", None),
        ("ids", "uuid7"),
        ("coordinate", "yes"),
        ("window_s", "1"),
        ("lease_s", 0),
        ("token_ttl_s", float("nan")),
    ],
)
def test_a_wrong_setting_is_named_before_anything_is_opened(name: str, value: Any) -> None:
    with pytest.raises(InvalidSetting, match=name):
        heatsink.connect("memory://", **{name: value})


async def test_a_client_is_opened_once(url: str) -> None:
    client = heatsink.connect(url)
    async with client:
        with pytest.raises(Closed, match="once"):
            await client.__aenter__()
    with pytest.raises(Closed, match="once"):
        await client.__aenter__()


async def test_calls_that_wait_while_it_closes_are_told(tmp_path: Path) -> None:
    """Not cancelled: nobody cancelled them."""
    client = heatsink.connect(f"sqlite:///{tmp_path}/x.db", coordinate=False)
    await client.__aenter__()
    client.parts.registry.view.horizon_ms = 0
    client.parts.registry._renewed_s = float("-inf")
    with patch.object(client.parts.registry, "keep_ahead", lambda **_: asyncio.sleep(60)):
        append = asyncio.ensure_future(client.log.append("k", b""))
        await asyncio.sleep(0.05)
        await client.close()
    with pytest.raises(
        Closed, match=r"during the call\. A write may have been applied: repeat it with"
    ):
        await append


def test_a_client_of_another_loop_says_so(tmp_path: Path) -> None:
    client = heatsink.connect(f"sqlite:///{tmp_path}/x.db")
    loop = asyncio.new_event_loop()
    loop.run_until_complete(client.__aenter__())
    with pytest.raises(Closed, match="another event loop"):
        asyncio.run(client.log.append("k", b""))
    loop.run_until_complete(client.close())
    loop.close()


async def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("Dear Ada, " * 500)
    with pytest.raises(HeatsinkError, match=r"cannot open .*letter.txt"):
        async with heatsink.connect(f"sqlite:///{file}"):
            pass
    assert file.read_text().startswith("Dear Ada")


async def test_another_applications_database_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "theirs.db"
    with sqlite3.connect(file) as theirs:
        theirs.execute("CREATE TABLE log (message TEXT)")
    theirs.close()
    with pytest.raises(HeatsinkError, match="another application's database"):
        async with heatsink.connect(f"sqlite:///{file}"):
            pass
    with sqlite3.connect(file) as theirs:
        assert theirs.execute("SELECT name FROM sqlite_master").fetchall() == [("log",)]
    theirs.close()


async def test_outside_its_block_a_client_is_closed(url: str) -> None:
    client = heatsink.connect(url)
    with pytest.raises(Closed, match="async with"):
        await client.log.append("k", b"")
    async with client as hs:
        log = hs.log
        await log.append("k", b"")
    for attempt in (
        lambda: client.log.append("k", b""),
        lambda: client.counters.add("k"),
        lambda: client.explain("k"),
        lambda: client.pin("k", buckets=2, reason="late"),
    ):
        with pytest.raises(Closed):
            await attempt()


BAD_KEYS = ["", "x" * 10_000_000, "a\0b", "\ud83d", 7, None, b"k"]


@pytest.mark.parametrize("key", BAD_KEYS, ids=lambda key: repr(key)[:12])
async def test_a_bad_key_is_refused_by_every_call(hs: Heatsink, key: Any) -> None:
    some_id = id_at(1_800_000_000)
    for attempt in (
        lambda: hs.log.append(key, b""),
        lambda: hs.log.page(key),
        lambda: hs.log.get(key, some_id),
        lambda: hs.log.delete(key, some_id),
        lambda: hs.log.erase(key),
        lambda: hs.counters.add(key),
        lambda: hs.counters.value(key),
        lambda: hs.explain(key),
        lambda: hs.pin(key, buckets=2, reason="why"),
        lambda: hs.unpin(key),
    ):
        with pytest.raises(InvalidKey, match="key"):
            await attempt()


@pytest.mark.parametrize("limit", [0, -1, 10**9, 10**5000, 1.5, "5", None, True], ids=type)
async def test_a_bad_limit_names_its_range(hs: Heatsink, limit: Any) -> None:
    with pytest.raises(InvalidSetting, match="limit must be an int from 1 to 1,000"):
        await hs.log.page("k", limit=limit)


async def test_bad_bodies_ids_orders_bounds_and_ttls(hs: Heatsink) -> None:
    for body in ("text", None, 5):
        with pytest.raises(InvalidBody, match="must be bytes"):
            await hs.log.append("k", body)  # type: ignore[arg-type]
    with pytest.raises(InvalidBody, match="350,001 bytes"):
        await hs.log.append("k", b"x" * 350_001)
    with pytest.raises(InvalidId, match="version 7"):
        await hs.log.append("k", b"", id="not an id")
    with pytest.raises(InvalidSetting, match="order"):
        await hs.log.page("k", order="sideways")  # type: ignore[arg-type]
    with pytest.raises(InvalidId):
        await hs.log.page("k", after="yesterday")
    for key, writes in (("\ud800", 1), ("k", -1), ("k", "1")):
        with pytest.raises((InvalidKey, InvalidSetting)):
            hs.record(key, writes)  # type: ignore[arg-type]
    for ttl in (0, -1, "5", float("nan"), 1e12):
        with pytest.raises(InvalidSetting, match="ttl"):
            await hs.log.append("k", b"", ttl=ttl)  # type: ignore[arg-type]
    assert (await hs.log.page("k")).entries == []


async def test_an_id_from_next_year_is_refused(hs: Heatsink) -> None:
    from datetime import UTC, datetime

    next_year = datetime.now(UTC).timestamp() + 365 * 86_400
    with pytest.raises(InvalidId, match="from the future"):
        await hs.log.append("k", b"", id=id_at(next_year))
    assert await hs.log.get("k", id_at(next_year)) is None
    assert (await hs.log.page("k")).entries == []


async def test_a_cursor_of_another_key_or_made_up_is_refused(hs: Heatsink) -> None:
    for n in range(3):
        await hs.log.append("k", b"%d" % n)
    cursor = (await hs.log.page("k", limit=1)).cursor
    assert cursor is not None
    for key, order, wrong in [
        ("other", "newest", cursor),
        ("k", "oldest", cursor),
        ("k", "newest", cursor[:-2] + "AA"),
        ("k", "newest", "made up"),
        ("k", "newest", ""),
        ("k", "newest", "é"),
        ("k", "newest", 5),
    ]:
        with pytest.raises(InvalidCursor, match="cursor"):
            await hs.log.page(key, order=order, cursor=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("buckets", [0, -1, 65, 1.5, "4", True])
async def test_a_bad_pin_is_refused(hs: Heatsink, buckets: Any) -> None:
    with pytest.raises(InvalidSetting, match="buckets must be an int from 1 to 64"):
        await hs.pin("k", buckets=buckets, reason="why")
    for reason in ("", None, "\ud800", "x" * 501):
        with pytest.raises(InvalidSetting, match="reason"):
            await hs.pin("k", buckets=2, reason=reason)  # type: ignore[arg-type]
        with pytest.raises(InvalidSetting, match="reason"):
            await hs.unpin("k", reason=reason)  # type: ignore[arg-type]


async def test_explain_tells_what_was_decided_and_why(hs: Heatsink) -> None:
    text = str(await hs.explain("k"))
    assert "1 bucket now" in text
    assert "never hot" in text
    await hs.pin("k", buckets=4, reason="launch at noon")
    while (await hs.explain("k")).buckets != 4:
        await asyncio.sleep(0.02)
    text = str(await hs.explain("k"))
    assert "pinned to 4: launch at noon" in text
    assert "newest page 4 queries, everything 5 partitions" in text


async def test_many_pins_at_once_all_hold(hs: Heatsink) -> None:
    await asyncio.gather(*(hs.pin(f"k{n}", buckets=2, reason="now") for n in range(30)))
    assert len(hs.parts.registry.view.pins) == 30


def test_a_client_made_before_a_fork_mints_its_own_ids() -> None:
    client = heatsink.connect("memory://")
    parent, child = os.pipe()
    if not (forked := os.fork()):
        os.write(child, client._plan.rng.randbytes(16))
        os._exit(0)
    os.waitpid(forked, 0)
    assert os.read(parent, 16) != client._plan.rng.randbytes(16)
    os.close(parent)
    os.close(child)


async def test_a_hot_key_is_spread_without_being_asked(url: str) -> None:
    """One whole turn of the loop, on real time with small limits."""
    rules = BucketRules(bucket_units_s=20, cool_down_s=1.0)
    limit = PartitionLimit(writes_s=25, reads_s=10_000)
    async with heatsink.connect(url, rules=rules, limit=limit) as hs:
        sent = 0
        while (await hs.explain("hot")).buckets < 3:
            await asyncio.gather(*(hs.log.append("hot", b"%d" % (sent + n)) for n in range(5)))
            sent += 5
            await asyncio.sleep(0.05)
        assert (await hs.explain("hot")).decision is not None
        while (await hs.explain("hot")).buckets > 1:
            await asyncio.sleep(0.1)
        page = await hs.log.page("hot", limit=1_000)
        assert len({entry.body for entry in page.entries}) == len(page.entries) == sent


async def test_a_partition_over_its_limit_ends_in_overloaded() -> None:
    limit, retries = PartitionLimit(writes_s=0.001), Retries(deadline_s=0.2)
    async with heatsink.connect("memory://", limit=limit, retries=retries) as hs:
        await hs.log.append("k", b"first")
        with pytest.raises(Overloaded, match="over its limit"):
            await hs.log.append("k", b"second")


async def test_two_clients_share_a_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shared.db"
    async with heatsink.connect(url) as one, heatsink.connect(url) as other:
        receipt = await one.log.append("k", b"hey")
        entry = await other.log.get("k", receipt.id)
        assert entry is not None
        await other.pin("k", buckets=4, reason="shared")
        while (await one.explain("k")).buckets != 4:
            await asyncio.sleep(0.02)
        await one.log.append("k", b"you")
        assert len((await other.log.page("k")).entries) == 2
    async with heatsink.connect(url) as again:
        assert len((await again.log.page("k")).entries) == 2


async def test_a_client_that_starts_while_the_registry_is_throttled_tries_again() -> None:
    found, refusals = MemoryRegistry.found, [Throttled("%meta")] * 3

    async def throttled(self: MemoryRegistry, founding: Meta) -> Reading:
        if refusals:
            raise refusals.pop()
        return await found(self, founding)

    with patch.object(MemoryRegistry, "found", throttled):
        async with heatsink.connect("memory://") as hs:
            await hs.log.append("conv", b"hey")
    assert not refusals


async def test_a_client_whose_store_is_not_there_is_told_at_once() -> None:
    asked = 0

    async def away(*_: object) -> None:
        nonlocal asked
        asked += 1
        raise Unavailable("nobody listens there")

    with patch.object(MemoryRegistry, "found", away), pytest.raises(Unavailable, match="nobody"):
        async with heatsink.connect("memory://"):
            pass
    assert asked == 1
