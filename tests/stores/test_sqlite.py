"""What only the SQLite store has to show: shared commits, and several connections to one file."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import heatsink
from heatsink.errors import Closed, InvalidSetting, Unavailable, WrongIncarnation
from heatsink.primitives.clock import SystemClock
from heatsink.spread.store import Ask, Row
from heatsink.stores.sqlite import engine, sqlite_stores, stores_over
from heatsink.stores.sqlite import log as log_module
from heatsink.stores.sqlite.engine import SCHEMA, SqliteDatabase, WriteJob, _check_owner, open_file
from heatsink.stores.stores import Stores


def row(n: int, body: bytes = b"") -> Row:
    return Row(n.to_bytes(16, "big"), body, 0, 1)


def open_stores(tmp_path: Path) -> Stores:
    return sqlite_stores(tmp_path / "x.db", SystemClock())


FULL = 2


async def test_the_connection_that_writes_waits_for_the_disk(tmp_path: Path) -> None:
    """In WAL mode only FULL syncs each commit: with NORMAL a power cut takes the last ones."""
    database = SqliteDatabase(tmp_path / "x.db", log_module.run_batch)

    def pragmas(connection: sqlite3.Connection) -> list[object]:
        names = ("journal_mode", "synchronous")
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]

    assert await database.write(pragmas) == ["wal", FULL]
    await database.close()


APPENDS = """
import asyncio, sys, heatsink
async def main():
    async with heatsink.connect(sys.argv[1]) as hs:
        for number in range(int(sys.argv[2])):
            await hs.log.append("k", b"x")
            await hs.counters.add("k")
asyncio.run(main())
"""


def syncs_of(tmp_path: Path, name: str, appends: int) -> int:
    """How often a process that made so many appends and adds, one after the other, synced."""
    trace = tmp_path / f"{name}.trace"
    calls = ["strace", "-f", "-qq", "-e", "trace=fsync,fdatasync", "-o", str(trace)]
    url = f"sqlite:///{tmp_path}/{name}.db"
    command = [*calls, sys.executable, "-c", APPENDS, url, str(appends)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"strace cannot trace here: {done.stderr[-200:]}")
    return sum("sync(" in line for line in trace.read_text().splitlines())


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.timeout(120)
def test_every_acknowledged_write_is_synced_first(tmp_path: Path) -> None:
    few, many = (syncs_of(tmp_path, f"n{number}", number) for number in (1, 101))
    assert many - few >= 200


async def test_many_at_once_share_a_commit(tmp_path: Path) -> None:
    batches: list[int] = []

    def run_batch(connection: sqlite3.Connection, batch: list[WriteJob[Any]]) -> None:
        batches.append(len(batch))
        log_module.run_batch(connection, batch)

    database = SqliteDatabase(tmp_path / "x.db", run_batch)
    puts = [database.write(log_module.Put("p", row(n))) for n in range(1_000)]
    assert await asyncio.gather(*puts) == [None] * 1_000
    assert sum(batches) == 1_000
    assert len(batches) < 100
    await database.close()


async def test_what_is_acknowledged_is_in_the_file(tmp_path: Path) -> None:
    stores = open_stores(tmp_path)
    await asyncio.gather(*(stores.log.put("p", row(n)) for n in range(50)))
    with sqlite3.connect(tmp_path / "x.db") as other:
        assert other.execute("SELECT count(*) FROM rows").fetchone() == (50,)
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    other.close()
    await stores.close()


async def test_two_connections_write_to_one_file(tmp_path: Path) -> None:
    one, other = open_stores(tmp_path), open_stores(tmp_path)
    puts = [stores.log.put("p", row(n)) for n in range(400) for stores in (one, other)]
    answers = await asyncio.gather(*puts)
    assert sum(answer is None for answer in answers) == 400
    found = await one.log.query("p", Ask(None, None, 1_000, False))
    assert len(found.rows) == 400
    await one.close()
    await other.close()


async def test_one_bad_operation_does_not_spoil_the_batch(tmp_path: Path) -> None:
    stores = open_stores(tmp_path)
    await stores.counters.add("p", b"big", 1, 2**53)
    work = [stores.counters.add("p", b"%d" % n, 1, 1) for n in range(5)]
    too_much = stores.counters.add("p", b"huge", 1, 2**63 - 1)
    *fine, refused = await asyncio.gather(*work, too_much, return_exceptions=True)
    assert fine == [None] * 5
    assert isinstance(refused, InvalidSetting)
    assert (await stores.counters.totals(["p"]))[0].value == 2**53 + 5
    await stores.close()


async def test_a_full_disk_refuses_and_loses_nothing(tmp_path: Path) -> None:
    """SQLite's page limit stands in for the disk's."""
    database = SqliteDatabase(tmp_path / "x.db", log_module.run_batch)
    await database.write(lambda connection: connection.execute("PRAGMA max_page_count=60"))
    puts = [database.write(log_module.Put("p", row(n, b"x" * 10_000))) for n in range(5)]
    await asyncio.gather(*puts)
    small = [database.write(log_module.Put("p", row(n))) for n in (20, 21)]
    large = database.write(log_module.Put("p", row(9, b"x" * 300_000)))
    assert await asyncio.gather(*small) == [None, None]
    with pytest.raises(Unavailable, match="full"):
        await large
    counted = database.read(lambda c: c.execute("SELECT count(*) FROM rows").fetchone())
    assert counted == (7,)
    await database.close()


async def test_after_closing_it_says_so(tmp_path: Path) -> None:
    stores = open_stores(tmp_path)
    await stores.log.put("p", row(1))
    await stores.close()
    await stores.close()
    with pytest.raises(Closed, match="repeat it with the same id"):
        await stores.log.put("p", row(2))
    with pytest.raises(Closed):
        await stores.log.get("p", row(1).raw)


async def test_closing_finishes_what_was_submitted(tmp_path: Path) -> None:
    stores = open_stores(tmp_path)
    puts = [stores.log.put("p", row(n)) for n in range(100)]
    await stores.close()
    assert await asyncio.gather(*puts) == [None] * 100


async def test_an_operation_that_fails_half_way_leaves_no_trace(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "x.db", log_module.run_batch)

    def half(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO shares (partition) VALUES ('half')")
        raise InvalidSetting("amount is too large")

    def whole(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO shares (partition) VALUES ('whole')")

    together = [database.write(operation) for operation in (half, whole, half)]
    refused, _, refused_too = await asyncio.gather(*together, return_exceptions=True)
    assert isinstance(refused, InvalidSetting)
    assert isinstance(refused_too, InvalidSetting)
    sql = "SELECT partition FROM shares"
    assert database.read(lambda connection: connection.execute(sql).fetchall()) == [("whole",)]
    await database.close()


async def test_a_bug_in_one_operation_spares_those_who_share_its_commit(tmp_path: Path) -> None:
    database = SqliteDatabase(tmp_path / "x.db", log_module.run_batch)

    def broken(_: sqlite3.Connection) -> None:
        raise KeyError("a bug")

    puts = [database.write(log_module.Put("p", row(n))) for n in range(20)]
    puts += [database.write(log_module.Put("\ud800", row(99)))]
    bug = database.write(broken)
    *written, unwritable = await asyncio.gather(*puts, return_exceptions=True)
    assert written == [None] * 20
    assert isinstance(unwritable, UnicodeEncodeError)
    with pytest.raises(KeyError):
        await bug
    await database.close()


def test_processes_that_start_together_on_a_new_file_all_open_it(tmp_path: Path) -> None:
    script = (
        "import asyncio, sys, heatsink\n"
        "async def main():\n"
        "    async with heatsink.connect(sys.argv[1]) as hs:\n"
        "        await hs.log.append('k', b'1')\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", script, f"sqlite:///{tmp_path}/new.db"]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(5)]
    errors = [process.communicate()[1] for process in processes]
    assert errors == [b""] * 5


@pytest.mark.parametrize("rows", [3, 500])
async def test_a_file_that_was_emptied_is_noticed_by_writes_and_reads(
    tmp_path: Path, rows: int
) -> None:
    async with heatsink.connect(f"sqlite:///{tmp_path}/x.db") as hs:
        body = b"x" * 1_000
        await asyncio.gather(*(hs.log.append("k", body) for _ in range(rows)))
        os.truncate(tmp_path / "x.db", 0)
        with pytest.raises(WrongIncarnation, match="emptied"):
            await hs.log.append("k", b"nowhere")
        await asyncio.sleep(0.5)
        with pytest.raises(WrongIncarnation, match="emptied"):
            await hs.log.page("k")


async def test_what_cannot_be_read_from_an_emptied_file_is_not_tried_for_long(
    tmp_path: Path,
) -> None:
    database = SqliteDatabase(tmp_path / "x.db", log_module.run_batch)
    await database.write(log_module.Put("p", row(1)))

    def fail(_: sqlite3.Connection) -> None:
        raise sqlite3.DatabaseError("database disk image is malformed")

    with pytest.raises(Unavailable, match="malformed"):
        database.read(fail)
    os.truncate(tmp_path / "x.db", 0)
    with pytest.raises(WrongIncarnation, match="emptied"):
        database.read(fail)
    await database.close()


async def test_an_empty_file_is_a_new_one(tmp_path: Path) -> None:
    (tmp_path / "x.db").touch()
    async with heatsink.connect(f"sqlite:///{tmp_path}/x.db") as hs:
        await hs.log.append("k", b"first")


async def test_a_file_put_in_its_place_is_noticed_before_a_write_is_lost(tmp_path: Path) -> None:
    url, file = f"sqlite:///{tmp_path}/x.db", tmp_path / "x.db"
    async with heatsink.connect(url) as hs:
        await hs.log.append("k", b"kept")
        file.rename(tmp_path / "old.db")
        async with heatsink.connect(f"sqlite:///{tmp_path}/backup.db"):
            pass
        (tmp_path / "backup.db").rename(file)
        with pytest.raises(WrongIncarnation, match="reconnect"):
            await hs.log.append("k", b"nowhere")


async def test_a_file_that_was_deleted_is_called_deleted(tmp_path: Path) -> None:
    async with heatsink.connect(f"sqlite:///{tmp_path}/x.db") as hs:
        await hs.log.append("k", b"kept")
        (tmp_path / "x.db").unlink()
        with pytest.raises(WrongIncarnation, match=r"x\.db was deleted or moved"):
            await hs.log.append("k", b"nowhere")


class Overtaken:
    """A connection whose first question is answered just before another process makes the file."""

    def __init__(self, file: Path) -> None:
        self._own, self._file = sqlite3.connect(file), file

    def execute(self, question: str) -> Any:
        answer = self._own.execute(question).fetchone()
        open_file(self._file, SCHEMA).close()
        return SimpleNamespace(fetchone=lambda: answer)


def test_a_file_that_another_process_makes_just_now_is_ours(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    _check_owner(Overtaken(file), file)  # type: ignore[arg-type]


async def test_a_put_does_not_wait_for_ever_for_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its caller has no timeout of its own, since one for each put would cost too much."""
    monkeypatch.setattr(engine, "ANSWER_S", 0.1)
    goes_on = threading.Event()

    def stuck(connection: sqlite3.Connection, batch: list[Any]) -> None:
        goes_on.wait(60)
        log_module.run_batch(connection, batch)

    stores = stores_over(SqliteDatabase(tmp_path / "x.db", stuck), SystemClock())
    slow = asyncio.ensure_future(stores.log.erase("other"))
    with pytest.raises(Unavailable, match="may still be applied: retry with the same id"):
        await stores.log.put("key", row(1))
    monkeypatch.setattr(engine, "ANSWER_S", 60.0)
    goes_on.set()
    assert await slow == 0, "only a put is given up"
    assert await stores.log.put("key", row(1)) == row(1), "it was applied"
    await stores.close()


async def test_a_put_is_given_up_at_the_fourth_look_after_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "ANSWER_S", 1e6)  # the test looks by hand
    goes_on = threading.Event()

    def stuck(connection: sqlite3.Connection, batch: list[Any]) -> None:
        goes_on.wait(60)
        log_module.run_batch(connection, batch)

    database = SqliteDatabase(tmp_path / "x.db", stuck)
    stores, look = stores_over(database, SystemClock()), database._writer._look
    goes_on.set()
    for n in range(5):  # those that are written do not count
        await stores.log.put("key", row(n))
        look()
    goes_on.clear()
    first = asyncio.ensure_future(stores.log.put("key", row(10)))
    look()
    look()
    second = asyncio.ensure_future(stores.log.put("key", row(11)))
    look()
    assert not first.done()
    look()
    with pytest.raises(Unavailable):
        await first
    assert not second.done()
    goes_on.set()
    assert await second is None
    await stores.close()
