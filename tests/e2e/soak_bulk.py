"""`./dev soak --bulk MINUTES`: bulk actions while workers and Redis are killed, again and again."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic

from heatsink.testing.servers import RedisServer

from .bulk import client, running_workers
from .test_bulk import LEASE_S, kill_redis, kill_workers, latest_rerun_s

ITEMS = 50_000
KILLS = 20


async def play(redis: RedisServer, folder: Path, number: int) -> None:
    with running_workers(redis, folder, LEASE_S) as workers:
        async with client(redis) as queue:
            apart_s = 0.0 if number % 2 else 2 * LEASE_S
            await kill_workers(workers, queue, ITEMS, KILLS, Random(number), apart_s)
            again, late_s = len(workers.rerun()), latest_rerun_s(workers)
            print(f"round {number}: {ITEMS:,} items, {KILLS} kills {apart_s:g} s apart, ", end="")
            print(f"{again} ran again at most {late_s:.2f} s after a kill", flush=True)
            assert number % 2 or late_s < 2 * LEASE_S
            for _ in range(2):
                workers.start(workers=16)
            accepted = await kill_redis(redis, workers, queue, KILLS // 2)
            print(
                f"round {number}: Redis killed {KILLS // 2} times, {accepted} batches", flush=True
            )


def main(minutes: float) -> None:
    until_s, number = monotonic() + 60 * minutes, 0
    with RedisServer(append_only=True) as redis:
        while number == 0 or monotonic() < until_s:
            with TemporaryDirectory() as folder:
                asyncio.run(play(redis, Path(folder), number))
            number += 1
    print(f"{number} rounds: nothing lost, nothing recorded twice")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
