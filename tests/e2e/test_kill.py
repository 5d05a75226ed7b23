"""kill -9 at any moment: what was acknowledged is there, once."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import termios
from pathlib import Path
from random import Random
from time import sleep as pause
from uuid import UUID

import pytest

from heatsink import connect
from heatsink.primitives.ids import Uuid7
from heatsink.spread.fsck import check
from tests.spread.test_log import everything
from tests.waiting import until

SAID = 4_000  # bytes: over 70 lines
WRITER = """
import asyncio, sys
import heatsink

async def main(url, name):
    rules = heatsink.BucketRules(bucket_units_s=50, cool_down_s=1.0)
    async with heatsink.connect(url, rules=rules, lease_s=0.5) as hs:
        async def write(worker):
            n = 0
            while True:
                body = f"{name} {worker} {n}"
                receipt = await hs.log.append("conv", body.encode())
                sys.stdout.write(f"{receipt.id} {body}\\n")
                sys.stdout.flush()
                await hs.counters.add("count", 1, token=receipt.id)
                n += 1
        await asyncio.gather(*(write(worker) for worker in range(8)))

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


def start_writer(url: str, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WRITER, url, name], stdout=subprocess.PIPE)


def kill(writer: subprocess.Popen[bytes]) -> dict[bytes, UUID]:
    """What the writer had said when it died. A line cut off in the middle was not said."""
    writer.send_signal(signal.SIGKILL)
    output, _ = writer.communicate()
    lines = [line for line in output.splitlines(keepends=True) if line.endswith(b"\n")]
    return {line[37:-1]: UUID(line[:36].decode()) for line in lines}


def unread(writer: subprocess.Popen[bytes]) -> int:
    """How many bytes the writer has said."""
    assert writer.stdout is not None
    waiting = fcntl.ioctl(writer.stdout, termios.FIONREAD, bytes(4))
    return int.from_bytes(waiting, sys.byteorder)


def write_and_kill(url: str, lives: int) -> dict[bytes, UUID]:
    """Two processes share a file; now one is killed and replaced, now the other."""
    rng = Random(5)
    acknowledged: dict[bytes, UUID] = {}
    writers = [start_writer(url, f"first-{n}") for n in range(2)]
    for life in range(lives):
        until(lambda: unread(writers[0]) > SAID, "the writer writes")
        pause(rng.random() * 0.6)
        acknowledged.update(kill(writers.pop(0)))
        writers.append(start_writer(url, f"life-{life}"))
    for writer in writers:
        acknowledged.update(kill(writer))
    return acknowledged


@pytest.mark.sleeps("writers write for a while between the kills")
@pytest.mark.timeout(120)
async def test_killed_writers_lose_nothing_they_acknowledged(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    acknowledged = write_and_kill(url, lives=10)
    assert len(acknowledged) > 500
    async with connect(url) as hs:
        entries = await everything(hs, "conv", limit=1_000)
        stored = {entry.body: entry.id for entry in entries}
        assert len(stored) == len(entries)
        assert acknowledged.items() <= stored.items()
        assert len(hs.parts.registry.view.layout("conv").epochs) > 1
        assert (
            await check(
                hs.parts.stores.log, hs.parts.stores.counters, hs.parts.stores.registry, Uuid7()
            )
        ).clean
        counted = await hs.counters.value("count")
        assert len(acknowledged) - 8 * 12 <= counted <= len(stored)
