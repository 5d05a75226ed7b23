"""`heatsink worker --processes`, and what a worker tells the cluster on its port."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import httpx
import msgspec
import pytest

from heatsink.bulk import BulkSettings
from heatsink.client.queue import connect_queue
from heatsink.testing.redis import RedisServer
from tests.processes import Served, serving
from tests.servers import real
from tests.waiting import soon, until

pytestmark = [pytest.mark.server("it starts processes"), pytest.mark.timeout(120)]
SETTINGS = BulkSettings(partitions=4, durability="relaxed")
APP = """
import asyncio
import os
from pathlib import Path
from heatsink.bulk import Actions, Limit

actions = Actions()


@actions.action("quick")
async def quick(item, context):
    pass


@actions.action("limited", limits=[Limit("one", running=1)])
async def limited(item, context):
    with open("limited", "a") as journal:
        journal.write(f"{os.getpid()} ")
    while not Path("go").exists():
        await asyncio.sleep(0.01)


@actions.action("long")
async def long(item, context):
    with open("journal", "a") as journal:
        journal.write("began ")
    while not Path("go").exists():
        await asyncio.sleep(0.01)
    with open("journal", "a") as journal:
        journal.write("ended ")
"""


SHORT_LIVED = """
from heatsink.primitives.clock import SystemClock
from heatsink.server.running import set_up
from heatsink.server.supervisor import Supervisor

set_up(False)
Supervisor(1, lambda number, ready: ready(0), SystemClock(), "thing").run(lambda: None)
"""


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with real(RedisServer) as server:
        yield server


def a_worker(
    folder: Path, redis: RedisServer, *flags: str, lease_s: int = 3
) -> AbstractContextManager[Served]:
    (folder / "myapp.py").write_text(APP)
    queue = ("--queue", redis.url, "--relaxed", "--partitions", "4", "--lease", str(lease_s))
    return serving(folder, "myapp:actions", *queue, *flags, command="worker")


def children(worker: Served) -> set[int]:
    text = Path(f"/proc/{worker.process.pid}/task/{worker.process.pid}/children").read_text()
    return set(map(int, text.split()))


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def ports(worker: Served) -> list[int]:
    return [event["port"] for event in worker.events if event["event"] == "process.started"]


def answer(port: int, path: str, token: str = "") -> httpx.Response:
    fields = {"authorization": f"Bearer {token}"} if token else {}
    return httpx.get(f"http://127.0.0.1:{port}{path}", headers=fields, timeout=30.0)


def is_ready(port: int) -> bool:
    return answer(port, "/readyz").status_code == 200


async def test_processes_are_restarted_replaced_and_ended(
    tmp_path: Path, redis: RedisServer
) -> None:
    with a_worker(tmp_path, redis, "--processes", "2", "--concurrency", "3") as worker:
        first = children(worker)
        assert len(first) == 2
        for port in ports(worker):
            assert answer(port, "/healthz").text == "ok\n"
            until(partial(is_ready, port))
            assert "heatsink_worker_workers" in answer(port, "/metrics").text
        os.kill(min(first), signal.SIGKILL)
        until(lambda: len(ports(worker)) == 3 and len(children(worker)) == 2)
        second = children(worker)
        assert min(first) not in second
        worker.process.send_signal(signal.SIGHUP)
        until(lambda: len(ports(worker)) == 5 and len(children(worker)) == 2)
        third = children(worker)
        assert not third & (first | second)
        async with connect_queue(redis.url, SETTINGS) as queue:
            batch = await queue.bulk.submit("quick", range(50))
            assert (await queue.bulk.wait(batch.id, 60.0)).done == 50
        worker.ask_to_stop()
        assert worker.wait() == 0
        assert not any(map(is_alive, third))


async def test_what_a_dead_process_had_is_free_at_once(tmp_path: Path, redis: RedisServer) -> None:
    """Its place at a limit and its item, under leases of 30 s."""
    journal = tmp_path / "limited"
    settings = msgspec.structs.replace(SETTINGS, stage="free")
    flags = ("--processes", "2", "--stage", "free")

    def begun() -> list[int]:
        return [int(word) for word in journal.read_text().split()] if journal.exists() else []

    with a_worker(tmp_path, redis, *flags, lease_s=30) as worker:
        async with connect_queue(redis.url, settings) as queue:
            await soon(lambda: len(ports(worker)) == 2)
            batches = [await queue.bulk.submit("limited", [n]) for n in range(12)]
            await soon(lambda: len(begun()) == 1)
            os.kill(begun()[0], signal.SIGKILL)
            died_s = time.monotonic()
            await soon(lambda: len(begun()) == 2)
            assert begun()[0] != begun()[1]
            assert time.monotonic() - died_s < 15.0
            (tmp_path / "go").touch()
            for batch in batches:
                assert (await queue.bulk.wait(batch.id, 60.0)).done == 1
            assert time.monotonic() - died_s < 25.0
            assert len(begun()) == 13  # the item of the dead process ran twice


async def test_a_signal_to_the_whole_group_lets_running_items_finish(
    tmp_path: Path, redis: RedisServer
) -> None:
    """Ctrl-C and systemd signal the parent and the processes; then the parent signals them, too."""
    journal = tmp_path / "journal"
    with a_worker(tmp_path, redis, "--processes", "2", lease_s=30) as worker:
        async with connect_queue(redis.url, SETTINGS) as queue:
            await queue.bulk.submit("long", [1])
            await soon(journal.exists)
            everybody = children(worker)
            for process in everybody:
                os.kill(process, signal.SIGINT)
            worker.process.send_signal(signal.SIGINT)
            await soon(lambda: len(children(worker)) < 2)  # the other one had nothing to do
            (tmp_path / "go").touch()
            assert worker.wait() == 130
    assert journal.read_text().split() == ["began", "ended"]


def test_processes_end_with_their_parent(tmp_path: Path, redis: RedisServer) -> None:
    with a_worker(tmp_path, redis, "--processes", "2") as worker:
        orphans = children(worker)
        worker.process.kill()
        until(lambda: not any(map(is_alive, orphans)))


def test_a_worker_is_ready_while_its_queue_answers_and_guards_its_metrics(tmp_path: Path) -> None:
    with real(RedisServer) as own, a_worker(tmp_path, own, "--token", "secret") as worker:
        until(partial(is_ready, worker.port))
        assert answer(worker.port, "/metrics").status_code == 401
        assert "heatsink_worker" in answer(worker.port, "/metrics", "secret").text
        own.kill()
        until(lambda: answer(worker.port, "/readyz").json()["ready"] is False)
        assert answer(worker.port, "/readyz").status_code == 503
        assert answer(worker.port, "/healthz").status_code == 200


def test_a_process_that_dies_again_and_again_is_restarted_less_and_less_often() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", SHORT_LIVED], stderr=subprocess.PIPE, text=True
    )
    try:
        assert parent.stderr is not None
        for pause_s in (1, 2):
            line = parent.stderr.readline()
            assert f"thing 0 died (0): restarting it in {pause_s} s" in line
        parent.send_signal(signal.SIGTERM)
        assert parent.wait(60) == 0
    finally:
        parent.kill()
        parent.communicate()
