"""Partitions on several servers: all processes follow the plan that is stored in the queue."""

from __future__ import annotations

import asyncio
import logging
import subprocess
from pathlib import Path
from random import Random

import pytest

from heatsink.bulk import Bulk, BulkSettings
from heatsink.bulk.plan import Founding, Place, QueuePlan, bare, check_follows, founding, named
from heatsink.bulk.submit import hand
from heatsink.client.queue import connect_queue
from heatsink.errors import InvalidSetting, Misconfigured
from heatsink.stores.redis.queue import open_queue
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisServer
from tests.processes import PROGRAM, serving
from tests.servers import patient_url, real
from tests.waiting import soon

from .world import World, on_virtual_time

HOME = "redis://home:6379"
OTHER = "redis://other:6379"
SECRET = "hush-7"  # noqa: S105 (of a server that this test starts)
ACTIONS = """
import asyncio
import os

from heatsink.bulk import Actions
actions = Actions()

@actions.action("note")
async def note(item, context):
    with open("ran", "a") as file:
        file.write(f"{item}\\n")

@actions.action("hold")
async def hold(item, context):
    while not os.path.exists("go"):
        await asyncio.sleep(0.05)
"""


def run_command(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    whole = [*PROGRAM, *words]
    return subprocess.run(
        whole, check=False, cwd=folder, capture_output=True, text=True, timeout=60
    )


def test_a_bare_url_names_the_server_and_hides_the_login() -> None:
    assert bare("redis://me:secret@other/0?timeout_s=1") == OTHER
    assert bare("redis://:secret@other:6379") == bare("redis://other")
    assert bare("redis://other/1") != bare("redis://other/2")
    assert bare("rediss://other") != bare("redis://other")
    assert bare("redis+sentinel://:x@a,b:7/main") == "redis+sentinel://a:26379,b:7/main"
    assert bare("redis://[::1]") == "redis://[::1]:6379"
    assert (named(""), named(OTHER)) == ("home", OTHER)


def test_a_queue_is_founded_with_the_partitions_and_places_of_its_first_process() -> None:
    places = {"1": "redis://:secret@other", "2": "redis://home"}
    plan = founding(BulkSettings(partitions=4, places=places), HOME)  # type: ignore[arg-type]
    assert plan.places == {1: Place("redis://:secret@other")}
    assert plan.founded == Founding(4, {1: OTHER})
    assert founding(BulkSettings(), HOME).partitions == 16


@pytest.mark.parametrize(
    ("settings", "field", "says"),
    [
        (BulkSettings(partitions=8), "partitions", "partitions is 8, but this queue has 4 parti"),
        (BulkSettings(places={1: "redis://x"}), "places", "partition 1 at redis://x:6379, but"),
        (BulkSettings(places={2: OTHER}), "places", "it at redis://other:6379: leave places"),
    ],
)
def test_other_settings_than_the_queues_are_refused_by_name(
    settings: BulkSettings, field: str, says: str
) -> None:
    plan = founding(BulkSettings(partitions=4, places={1: "redis://:secret@other"}), HOME)
    with pytest.raises(Misconfigured, match=says) as refused:
        check_follows(settings, plan, HOME)
    assert refused.value.field == field
    assert "secret" not in str(refused.value)


def test_what_an_operator_has_changed_since_is_a_warning() -> None:
    settings = BulkSettings(partitions=4, places={1: OTHER})
    plan = founding(settings, HOME).repartitioned(8)
    (told,) = check_follows(settings, plan, HOME)
    assert "partitions is 4, but this queue has 8 partitions (founded with 4)" in told
    assert check_follows(BulkSettings(), plan, HOME) == []
    assert check_follows(BulkSettings(partitions=8), plan, HOME) == []


@on_virtual_time
async def test_a_process_with_another_number_of_partitions_is_refused() -> None:
    world = World(4)
    await world.bulk.submit("note", range(3))
    other = world.bulk_of(world.process("other"), partitions=7)
    for call in (other.open(), other.submit("note", [1]), other.plan()):
        with pytest.raises(Misconfigured, match="partitions is 7, but this queue has 4"):
            await call


@on_virtual_time
async def test_a_process_that_lags_behind_a_repartition_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    world = World(4)
    await world.bulk.repartition(6)
    late = world.bulk_of(world.process("late"), partitions=4)
    for _ in range(3):
        assert (await late.plan()).partitions == 6
    assert [r.message for r in caplog.records if r.message.startswith("partitions is 4")][1:] == []


async def test_all_processes_follow_the_places_that_were_stored(clock: ManualClock) -> None:
    with real(RedisServer) as home, real(RedisServer) as other:
        first = BulkSettings(durability="relaxed", partitions=4, places={3: other.url})
        second = BulkSettings(durability="relaxed")
        bulks = []
        for settings in (first, second):
            stores = open_queue(patient_url(home.url), clock, Random(1), settings)
            bulks.append((Bulk(stores, settings, clock, Random(2)), stores))
        plans = [await bulk.plan() for bulk, _ in bulks]
        assert plans[0] == plans[1]
        assert await bulks[1][1].fleet.own(3, "me", 60_000)
        assert "partition_3" in other.command("KEYS", "*")
        assert "partition_3" not in home.command("KEYS", "*")
        assert [each.place for each in await bulks[1][0].places()][2:] == ["home", bare(other.url)]
        wrong = BulkSettings(durability="relaxed", places={2: other.url})
        stores = open_queue(patient_url(home.url), clock, Random(1), wrong)
        with pytest.raises(InvalidSetting, match="places puts partition 2 at"):
            await Bulk(stores, wrong, clock, Random(2)).open()
        for _, opened in (*bulks, (None, stores)):
            await opened.close()


async def test_a_worker_that_knows_no_places_runs_all_items(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(ACTIONS)
    with real(RedisServer) as home, real(RedisServer) as other:
        places = dict.fromkeys((1, 3), other.url)
        settings = BulkSettings(durability="relaxed", partitions=4, places=places)
        async with connect_queue(home.url, settings) as queue:
            flags = ("app:actions", "--queue", home.url, "--relaxed")
            batches = [await queue.bulk.submit("note", range(n, n + 20)) for n in range(0, 600, 20)]
            used = {part.partition for batch in batches for part in batch.parts}
            wrong = run_command("worker", *flags, "--partitions", "16", folder=tmp_path)
            assert wrong.returncode != 0
            assert "partitions is 16, but this queue has 4 partitions" in wrong.stderr
            with serving(tmp_path, *flags, command="worker"):
                for batch in batches:
                    assert (await queue.bulk.wait(batch.id, 60.0)).done == 20
    assert used == {0, 1, 2, 3}
    ran = (tmp_path / "ran").read_text().split()
    assert sorted(map(int, ran)) == list(range(600))


def one_in(partition: int, number: int) -> str:
    """An id whose batch is in this partition if it is in one."""
    ids = (f"{number}-{n}" for n in range(1_000))
    return next(id for id in ids if hand(id, 4, spread=False) == [partition])


async def test_a_partition_moves_while_workers_and_producers_run(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(ACTIONS)
    with real(RedisServer) as home, real(RedisServer) as other:
        flags = ("--queue", home.url, "--relaxed")
        settings = BulkSettings(durability="relaxed", partitions=4)
        mover = [*PROGRAM, "bulk", "place", "1", other.url, *flags]
        async with (
            connect_queue(home.url, settings) as queue,
            connect_queue(home.url, settings) as old,
        ):
            await queue.bulk.plan()  # founds the queue
            with serving(tmp_path, "app:actions", *flags, command="worker"):
                held = await queue.bulk.submit("hold", [0, 1], id=one_in(1, 0), spread=False)
                assert (await old.bulk.status(held.id)).accepted == 2
                first = await asyncio.create_subprocess_exec(*mover, cwd=tmp_path)
                await soon(lambda: _moves(queue.bulk))
                first.kill()
                await first.wait()
                batches = [
                    await queue.bulk.submit("note", range(n, n + 20)) for n in range(0, 400, 20)
                ]
                assert 1 not in {part.partition for b in batches for part in b.parts}
                second = await asyncio.create_subprocess_exec(*mover, cwd=tmp_path)
                (tmp_path / "go").touch()
                assert await second.wait() == 0
                assert (await old.bulk.wait(held.id, 60.0)).done == 2
                ids = [one_in(1, n) for n in range(1, 11)]
                batches += [
                    await each.bulk.submit("note", range(n, n + 20), id=id, spread=False)
                    for n, (id, each) in zip(
                        range(400, 600, 20), zip(ids, [queue, old] * 5, strict=True), strict=True
                    )
                ]
                for batch in batches:
                    assert (await old.bulk.wait(batch.id, 60.0)).done == 20
            assert (await old.bulk.places())[1].place == bare(other.url)
        assert "{partition_1}/part/" in other.command("KEYS", "*")
    ran = (tmp_path / "ran").read_text().split()
    assert sorted(map(int, ran)) == list(range(600))


async def _moves(bulk: Bulk) -> bool:
    return bool((await bulk.places())[1].moves_to)


async def test_commands_show_places_and_moves_without_passwords(tmp_path: Path) -> None:
    with (
        real(lambda: RedisServer(append_only=True)) as home,
        real(lambda: RedisServer(append_only=True, password=SECRET)) as other,
    ):
        url = f"redis://:{SECRET}@{other.address}"
        settings = BulkSettings(durability="relaxed", partitions=2, places={1: url})
        async with connect_queue(home.url, settings) as queue:
            plan = await queue.bulk.plan()
            await queue.stores.fleet.change(plan.moving(0, url))
        flags = ("--queue", home.url)
        listed = run_command("bulk", "places", *flags, folder=tmp_path)
        found = run_command("doctor", "--data", str(tmp_path), *flags, folder=tmp_path)
        again = run_command("bulk", "place", "1", bare(url), *flags, "--json", folder=tmp_path)
        wrong = run_command("bulk", "place", "7", url, *flags, folder=tmp_path)
    assert [line.split() for line in listed.stdout.splitlines()] == [
        ["partition", "place"],
        ["0", "home", "moves", "to", bare(url)],
        ["1", bare(url)],
    ]
    assert "2 partitions on 2 Redis servers; to move: 0" in found.stdout
    assert f"heatsink bulk place 0 {bare(url)}" in " ".join(found.stdout.split())
    assert f'"place":"{bare(url)}"' in again.stdout, "it is there, with the login that is known"
    assert "there is no partition 7: use 0 to 1" in wrong.stderr
    for said in (listed, found, again, wrong):
        assert SECRET not in said.stdout + said.stderr


async def test_a_place_that_is_not_durable_is_refused_before_anything_moves() -> None:
    with real(lambda: RedisServer(append_only=True)) as home, real(RedisServer) as other:
        async with connect_queue(home.url, BulkSettings(partitions=2)) as queue:
            with pytest.raises(Misconfigured, match="appendonly"):
                await queue.bulk.place(1, other.url)
            assert not (await queue.bulk.plan()).moves
            with pytest.raises(InvalidSetting, match="places"):
                await queue.bulk.place(1, "http://other")
    assert SECRET not in repr(QueuePlan(2, 2).moving(1, f"redis://:{SECRET}@other"))
    assert SECRET not in repr(QueuePlan(2, 2).placed(1, f"redis://:{SECRET}@other"))
