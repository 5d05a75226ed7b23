"""`./dev soak --bulk [MINUTES] [--lease S] [--kills N]`: workers and Redis are killed all the time.

The lease is short, so that much happens; 10 s is what workers have by default.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic

from heatsink.testing.redis import RedisServer

from .bulk import client, running_workers
from .test_bulk import LEASE_S, kill_redis, kill_workers, latest_rerun_s

ITEMS = 50_000
KILLS = 20


async def play(redis: RedisServer, folder: Path, number: int, lease_s: float, kills: int) -> None:
    with running_workers(redis, folder, lease_s) as workers:
        async with client(redis) as queue:
            apart_s = 0.0 if number % 2 else 2 * lease_s
            await kill_workers(workers, queue, ITEMS, kills, Random(number), apart_s)
            again, late_s = len(workers.rerun()), latest_rerun_s(workers)
            print(f"round {number}: {ITEMS:,} items, {kills} kills {apart_s:g} s apart, ", end="")
            print(f"{again} ran again at most {late_s:.2f} s after a kill", flush=True)
            assert number % 2 or late_s < 2 * lease_s
            for _ in range(2):
                workers.start(workers=16)
            accepted = await kill_redis(redis, workers, queue, kills // 2)
            print(
                f"round {number}: Redis killed {kills // 2} times, {accepted} batches", flush=True
            )


def main(minutes: float, lease_s: float, kills: int) -> None:
    until_s, number = monotonic() + 60 * minutes, 0
    with RedisServer(append_only=True) as redis:
        while number == 0 or monotonic() < until_s:
            with TemporaryDirectory() as folder:
                asyncio.run(play(redis, Path(folder), number, lease_s, kills))
            number += 1
    print(f"{number} rounds: nothing lost, nothing recorded twice")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="./dev soak --bulk", description=__doc__)
    parser.add_argument("minutes", type=float, nargs="?", default=5.0)
    parser.add_argument("--lease", type=float, default=LEASE_S, metavar="S")
    parser.add_argument("--kills", type=int, default=KILLS, metavar="N", help="in each round")
    chosen = parser.parse_args()
    main(chosen.minutes, chosen.lease, chosen.kills)
