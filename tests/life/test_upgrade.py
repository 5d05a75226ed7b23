"""Old and new processes on one registry: what an older reader ignores, and what it refuses."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from heatsink import connect
from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.errors import Misconfigured, WrongIncarnation
from heatsink.primitives.clock import SystemClock
from heatsink.registry.decisions import FORMAT, Snapshot
from heatsink.server.commands.fsck import run_fsck
from heatsink.stores.dynamodb import make_table, open_table
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.dynamodb.table import binary, key, keys_shard, log_shard, number
from tests.spread.test_log import spread

CLOCK = SystemClock()
PAST_MS = 1_763_200_000_000
REASON = "4,000 write units/s at 800 a bucket"

# What the first release writes, field by field. Once it is out, never change these: they are in
# people's files.
DECISION_0_1 = {"subject": ["key", "conv"], "setting": "buckets", "value": 4, "reason": REASON}
ENTRY_0_1 = {
    "version": 1,
    "decided_ms": PAST_MS,
    "start_ms": PAST_MS + 500,
    "decisions": [DECISION_0_1],
}
META_0_1 = {
    "closed_ms": PAST_MS + 500,
    "version": 1,
    "term": 3,
    "beat": 41,
    "leader": "host:1:0badcafe",
    "incarnation": "00112233445566778899aabbccddeeff",
    "seed": b"0123456789abcdef",
    "id_scheme": "uuid7",
    "servers": 2,
    "format": 1,
    "min_reader": 1,
    "secret": b"0123456789abcdef0123456789abcdef",
}

# The same from a newer minor release, which knows more.
NEW_DECISION = {**DECISION_0_1, "decided_by": "forecast", "confidence": 0.9}
NEW_ENTRY = {**ENTRY_0_1, "decisions": [NEW_DECISION], "trace": {"span": "abc"}}
NEW_META = {**META_0_1, "format": 2, "min_reader": 1, "regions": ["here", "there"]}

Json = dict[str, Any]
Write = Callable[[Json, Json], Awaitable[str]]


def write_sqlite(file: Path, meta: Json, entry: Json) -> None:
    """As a SQLite deployment holds it. `log` has the entry, `epochs` what it added up to."""
    encode, decision = msgspec.msgpack.encode, entry["decisions"][0]
    epochs = [(entry["start_ms"], decision["value"])]
    with sqlite3.connect(file) as database:
        database.execute("INSERT OR REPLACE INTO meta VALUES (1, ?)", (encode(meta),))
        database.execute("INSERT INTO log VALUES (?, ?)", (entry["version"], encode(entry)))
        values = ("conv", encode(epochs), encode(decision))
        database.execute("INSERT INTO epochs VALUES (?, ?, ?)", values)
    database.close()


def dynamodb_items(meta: Json, entry: Json) -> list[Json]:
    text, decision = {"S": msgspec.json.encode(entry).decode()}, entry["decisions"][0]
    start, value = entry["start_ms"], decision["value"]
    decided = {"decision": {"S": msgspec.json.encode(decision).decode()}}
    epochs = {"epochs": {"L": [{"L": [number(start), number(value)]}]}, "last": number(start)}
    names = {"closed_ms": "c", "version": "v", "id_scheme": "ids"}
    fields = {names.get(name, name): _attribute(value) for name, value in meta.items()}
    return [
        {**key("%meta", b"\0"), **fields},
        {**key(log_shard(entry["version"]), entry["version"].to_bytes(8, "big")), "entry": text},
        {**key("conv", b"\x20"), **epochs, **decided},
        {**key(keys_shard("conv"), b"conv"), "copy": {"S": f"{start}:{value}"}, **decided},
    ]


def _attribute(value: Any) -> Json:
    if isinstance(value, int):
        return number(value)
    if isinstance(value, bytes):
        return binary(value)
    return {"S": value} if isinstance(value, str) else {"L": [{"S": each} for each in value]}


@pytest.fixture(params=["sqlite", "dynamodb"])
async def write(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Write]:
    """Makes a store that holds such a registry, and says at which URL."""
    if request.param == "sqlite":

        async def to_file(meta: Json, entry: Json) -> str:
            url = f"sqlite:///{tmp_path}/old.db"
            async with connect(url, coordinate=False):
                pass
            write_sqlite(tmp_path / "old.db", meta, entry)
            return url

        yield to_file
        return
    async with running_engine(EngineSettings(port=0), CLOCK) as endpoint:

        async def to_table(meta: Json, entry: Json) -> str:
            address = parse("messages", {"endpoint": endpoint})
            await make_table(address, CLOCK)
            table, client = open_table(address, CLOCK)
            for item in dynamodb_items(meta, entry):
                await table.call("PutItem", {"Item": item})
            await client.close()
            return f"dynamodb://messages?endpoint={endpoint}"

        yield to_table


async def expect_readable(url: str) -> None:
    async with connect(url, coordinate=False) as hs:
        explained = await hs.explain("conv")
        assert (explained.buckets, explained.reason) == (4, REASON)
        (entry,) = await hs.parts.stores.registry.log(0, 1)
        assert entry.bucket_decisions[0].value == 4
        receipt = await hs.log.append("conv", b"hello")
        found = await hs.log.get("conv", receipt.id)
        assert found is not None
        await hs.pin("conv", buckets=6, reason="the old and the new write one log")
        assert hs.parts.registry.view.version == 2


async def test_what_0_1_wrote_is_readable(write: Write) -> None:
    await expect_readable(await write(META_0_1, ENTRY_0_1))


async def test_fields_of_a_newer_minor_release_are_ignored(write: Write) -> None:
    await expect_readable(await write(NEW_META, NEW_ENTRY))


async def meta_at(url: str) -> Json:
    """META as it is stored, whoever wrote it."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
            (found,) = database.execute("SELECT meta FROM meta").fetchone()
        database.close()
        whole: Json = msgspec.msgpack.decode(found)
        return whole
    table, client = open_table(parse("messages", {"endpoint": url.partition("=")[2]}), CLOCK)
    item = await table.get(key("%meta", b"\0"), consistent=True)
    await client.close()
    assert item is not None
    return item


async def test_what_a_newer_release_keeps_in_meta_outlives_an_older_one(write: Write) -> None:
    """It leads, beats, advances the closed time, publishes and even rebuilds."""
    url = await write({**NEW_META, "leader": ""}, NEW_ENTRY)
    before = await meta_at(url)
    async with connect(url) as hs:
        await spread(hs, "conv", 6)
        assert hs.status().leads
    await run_fsck(url, True, CLOCK)
    after = await meta_at(url)
    assert after["regions"] == before["regions"]
    assert after["format"] == before["format"]
    assert after["incarnation"] != before["incarnation"]


async def test_a_view_follows_a_newer_writers_log(write: Write) -> None:
    """Not only at the start: entries that come while it runs are applied one by one."""
    url = await write(NEW_META, NEW_ENTRY)
    async with connect(url, coordinate=False) as hs:
        hs.parts.registry.view.load(Snapshot(0, {}, {}, {}))
        await hs.parts.registry.renew()
        assert hs.parts.registry.view.layout("conv").buckets == 4


async def test_a_registry_without_a_secret_names_the_cure_and_the_cure_helps(write: Write) -> None:
    """As of before news was signed."""
    url = await write({k: v for k, v in META_0_1.items() if k != "secret"}, ENTRY_0_1)
    with pytest.raises(Misconfigured, match="fsck URL --rebuild"):
        async with connect(url):
            pass
    await run_fsck(url, True, CLOCK)
    async with connect(url) as hs:
        assert (await hs.explain("conv")).buckets == 4


async def test_a_newer_format_asks_for_an_upgrade(write: Write) -> None:
    url = await write({**META_0_1, "format": 9, "min_reader": FORMAT + 1}, ENTRY_0_1)
    with pytest.raises(WrongIncarnation, match="format 9, which needs a newer release"):
        async with connect(url):
            pass
