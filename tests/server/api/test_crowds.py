"""Thousands of connections that say nothing, and strangers who take their time."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.planted import usually
from tests.processes import serving
from tests.raw_http import Line, hang_up, open_line

CROWD = usually(2_000, full=10_000)
FILES_BESIDES = 500
EACH_KB_MAX = 40
MESSAGES = "/v1/conversations/conv/messages"


@contextmanager
def many_files() -> Iterator[int]:
    """As many connections as this machine lets one process have, at most a crowd."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = CROWD + FILES_BESIDES if hard == resource.RLIM_INFINITY else hard
    wanted = max(soft, min(CROWD + FILES_BESIDES, most))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    yield min(CROWD, wanted - FILES_BESIDES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def rss_kb(pid: int) -> int:
    return int(Path(f"/proc/{pid}/status").read_text().partition("VmRSS:")[2].split()[0])


async def ask(line: Line) -> int:
    return (await line.ask("GET", "/healthz")).status


async def crowd_of(port: int, size: int) -> list[Line]:
    """Each has asked once and idles since, the first for the longest."""
    lines: list[Line] = []
    while len(lines) < size:
        some = min(200, size - len(lines))
        lines += await asyncio.gather(*(open_line(port) for _ in range(some)))
        assert set(await asyncio.gather(*map(ask, lines[-some:]))) == {200}
    return lines


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
@pytest.mark.timeout(180)
def test_a_crowd_of_idle_connections_costs_little_and_keeps_nobody_out(tmp_path: Path) -> None:
    async def play(port: int, pid: int, size: int) -> None:
        before_kb = rss_kb(pid)
        lines = await crowd_of(port, size)
        assert rss_kb(pid) - before_kb < EACH_KB_MAX * size
        newcomer = await open_line(port)
        lines.append(newcomer)
        assert (await newcomer.ask("POST", MESSAGES, b'{"body": "hey"}')).status == 201
        with pytest.raises(asyncio.IncompleteReadError):
            await ask(lines[0])  # for which there was no room any more
        assert await ask(lines[-2]) == 200
        await hang_up(*lines)

    with many_files() as size:
        flags = ("--store", "memory://", "--limit", "idle_s=120", "--limit", f"connections={size}")
        with serving(tmp_path, *flags) as served:
            asyncio.run(play(served.port, served.process.pid, size))


def test_readers_of_events_who_never_read_hold_up_nobody(tmp_path: Path) -> None:
    async def play(port: int) -> None:
        deaf = [await open_line(port) for _ in range(20)]
        for line in deaf:
            line.writer.write(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        hearing = await open_line(port)
        hearing.writer.write(b"GET /v1/events HTTP/1.1\r\nhost: localhost\r\n\r\n")
        other = await open_line(port)
        await hearing.reader.readuntil(b"event: requests")
        assert (await other.ask("POST", MESSAGES, b'{"body": "hey"}')).status == 201
        await hearing.reader.readuntil(b"event: requests")  # it hears of the append
        await hang_up(*deaf, hearing, other)

    with serving(tmp_path, "--store", "memory://") as served:
        asyncio.run(play(served.port))
