"""A server in a folder: started by the first, shared, and gone after the last."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import msgspec
import pytest
from redis import Redis
from redis.exceptions import ResponseError

from heatsink.bulk.batch import PartPlace
from heatsink.bulk.store import Chunk, Part
from heatsink.client.queue import connect_queue
from heatsink.errors import InvalidSetting
from heatsink.stores.embedded import Membership, MissingServer, find_server, join, server
from heatsink.stores.embedded.server import Door

pytestmark = pytest.mark.server("the package starts a server for a folder")
USER = """
import sys
from pathlib import Path
from heatsink.stores.embedded import join
membership = join(Path(sys.argv[1]))
print(membership.url, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def server_is_there() -> None:
    try:
        find_server()
    except MissingServer as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))


@contextmanager
def joined(folder: Path) -> Iterator[Membership]:
    membership = join(folder)
    try:
        yield membership
    finally:
        membership.leave()


def door(folder: Path) -> Door:
    return msgspec.json.decode((folder / "door").read_bytes(), type=Door)


def test_a_folder_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b'a "b" \\c \xff\nd')
    with joined(folder) as membership, Redis.from_url(membership.url) as client:
        assert client.ping()
    assert (folder / "appendonlydir").is_dir()
    wait_until_gone(folder)


def wait_until_gone(folder: Path) -> None:
    deadline_s = monotonic() + 20
    while door(folder).answers():
        assert monotonic() < deadline_s, "the server outlives its users"
        sleep(0.05)


def server_pids(folder: Path) -> list[int]:
    """Of the server itself, not of its keeper."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            program = (process / "exe").resolve().name
            here = (process / "cwd").resolve() == folder.resolve()
        except OSError:
            continue
        if here and "python" not in program:
            found.append(int(process.name))
    return found


async def test_a_queue_in_a_folder_is_there_again_after_its_last_user_left(tmp_path: Path) -> None:
    part = Part("a", "a", "ada", "mail", 1, "mail/ada")
    stores = connect_queue(f"embedded:///{tmp_path}/queue").stores
    await stores.open()
    await stores.queue.stage(3, part, [Chunk(0, 5, b"x")])
    await stores.barrier.parts([PartPlace("a", 3, 5)])
    await stores.close()
    wait_until_gone(tmp_path / "queue")
    stores = connect_queue(f"embedded:///{tmp_path}/queue").stores
    counts = await stores.queue.part(3, "a")
    await stores.close()
    assert counts is not None
    assert counts.size == 5
    wait_until_gone(tmp_path / "queue")


OLD_SERVER = """#!/bin/sh
exec '{}' "$@" --rename-command WAITAOF ""
"""


@pytest.fixture
def old_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not know WAITAOF, as Redis 7.0 does not."""
    program = tmp_path / "redis-server"
    program.write_text(OLD_SERVER.format(find_server()))
    program.chmod(0o755)
    monkeypatch.setattr(server, "find_server", lambda: program)


@pytest.mark.usefixtures("old_server")
async def test_a_queue_in_a_folder_accepts_batches_on_a_server_that_is_older_than_7_2(
    tmp_path: Path,
) -> None:
    async with connect_queue(f"embedded:///{tmp_path}/queue") as queue:
        batch = await queue.bulk.submit("touch", [1, 2, 3])
        assert (await queue.bulk.status(batch.id)).accepted == 3
        with Redis.from_url(door(tmp_path / "queue").url) as client:
            assert client.config_get("appendfsync") == {"appendfsync": "always"}
            with pytest.raises(ResponseError, match="unknown command"):
                client.execute_command("WAITAOF", 1, 0, 1)
    wait_until_gone(tmp_path / "queue")


def test_those_who_join_at_once_share_one_server(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        members = list(pool.map(join, [tmp_path] * 4))
    assert len({member.url for member in members}) == 1
    if sys.platform == "linux":
        assert len(server_pids(tmp_path)) == 1
    for member in members:
        member.leave()
    wait_until_gone(tmp_path)


@pytest.mark.sleeps("it must still be there after a while")
def test_the_server_outlives_the_process_that_started_it_but_not_the_last(tmp_path: Path) -> None:
    first, second = (
        subprocess.Popen(
            [sys.executable, "-c", USER, str(tmp_path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(2)
    )
    with first, second:
        assert first.stdout is not None
        assert second.stdout is not None
        assert first.stdout.readline() == second.stdout.readline()
        first.kill()
        first.wait()
        sleep(2.5)
        assert door(tmp_path).answers()
        second.kill()
    wait_until_gone(tmp_path)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the process in /proc")
def test_a_server_that_crashes_comes_back_at_the_same_address(tmp_path: Path) -> None:
    with joined(tmp_path) as membership:
        (pid,) = server_pids(tmp_path)
        os.kill(pid, signal.SIGKILL)
        deadline_s = monotonic() + 20
        while server_pids(tmp_path) in ([pid], []) or not door(tmp_path).answers():
            assert monotonic() < deadline_s
            sleep(0.05)
        assert door(tmp_path).url == membership.url
    wait_until_gone(tmp_path)


def test_strangers_need_the_password_and_cannot_read_it(tmp_path: Path) -> None:
    with joined(tmp_path / "queue"):
        assert not Door(door(tmp_path / "queue").port, "guess").answers()
        for name in ("door", "server.conf"):
            assert (tmp_path / "queue" / name).stat().st_mode & 0o077 == 0
        assert (tmp_path / "queue").stat().st_mode & 0o077 == 0
    wait_until_gone(tmp_path / "queue")


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidSetting, match="must be a writable folder"):
        join(tmp_path / "file")


@pytest.mark.full("writes a log that takes a server a while to read")
def test_a_server_that_still_reads_its_log_is_waited_for(tmp_path: Path) -> None:
    with joined(tmp_path) as first, Redis.from_url(first.url) as redis:
        for _ in range(20):
            pipe = redis.pipeline(transaction=False)
            for number in range(10_000):
                pipe.rpush("list", f"{number:0100}")
            pipe.execute()
    wait_until_gone(tmp_path)
    with joined(tmp_path) as again, Redis.from_url(again.url) as redis:
        assert redis.ping()
        assert redis.llen("list") == 200_000
