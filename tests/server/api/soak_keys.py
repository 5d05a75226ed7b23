"""`./dev soak --keys 1000000`: random keys through the codec, and through a real server.

A key is written and read back over HTTP; so many different keys are also a flood, during which the
server's memory is watched.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import perf_counter

from tests.processes import Served, serving

from .keys import check_codec, random_key, write_and_read

SLICE = 20_000
ARTIFACTS = Path(__file__).parents[3] / "artifacts"


def rss_mb(served: Served) -> float:
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def try_codec(count: int, seed: int) -> None:
    rng, started_s = Random(seed), perf_counter()
    for _ in range(count):
        check_codec(random_key(rng), rng.choice((None, 0, 7, 63)))
    print(f"{count:,} keys through the codec and a path in {perf_counter() - started_s:,.0f} s")


def try_server(count: int, seed: int) -> None:
    statuses: Counter[int] = Counter()
    rng, done = Random(seed), 0
    ARTIFACTS.mkdir(exist_ok=True)
    with (
        TemporaryDirectory(dir=ARTIFACTS) as folder,
        serving(Path(folder), "--data", "data") as served,
    ):
        started_s = perf_counter()
        while done < count:
            keys = [f"{random_key(rng)}:{done + n}" for n in range(min(SLICE, count - done))]
            statuses += asyncio.run(write_and_read(served.port, keys))
            done += len(keys)
            rate = done / (perf_counter() - started_s)
            counts = dict(statuses)
            print(f"{done:,} keys, {rate:,.0f}/s, {counts}, {rss_mb(served):,.0f} MB", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev soak --keys", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1_000_000, help="how many keys")
    parser.add_argument("--http", type=int, help="so many of them through a server; else all")
    parser.add_argument("--seed", type=int, default=0, help="replays a failure")
    options = parser.parse_args()
    try_codec(options.count, options.seed)
    try_server(options.count if options.http is None else options.http, options.seed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
