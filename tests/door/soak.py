"""`./dev soak --door 20000`: random requests on a spread table, compared with a plain table.

Most requests go through the core alone; a tenth as many go through an attached client, and another
tenth through a door. Then the simulation, on as many seeds as there were thousands of requests.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from .differential import Differential, Pair
from .live import attached, behind_a_door
from .test_simulation import simulate
from .world import World

REQUESTS = 500  # of one seed
LIVE_SHARE = 10


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev soak --door", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=20_000, help="how many requests")
    parser.add_argument("--first", type=int, default=0, help="the first seed: replays a failure")
    given = parser.parse_args()
    done, seed = 0, given.first
    began_s, runs = perf_counter(), list[Differential]()
    while done < given.count:
        runs.append(_compared(seed, World(processes=3, spread_index=True), REQUESTS))
        done, seed = done + REQUESTS, seed + 1
    _tell("the core", runs, perf_counter() - began_s)
    for opened in (attached, behind_a_door):
        with TemporaryDirectory() as folder, opened(Path(folder)) as world:
            began_s = perf_counter()
            run = _compared(given.first, world, max(given.count // LIVE_SHARE, 1))
            _tell(opened.__name__, [run], perf_counter() - began_s)
    seeds = max(given.count // 1_000, 1)
    for number in range(given.first, given.first + seeds):
        simulate(number)
    print(f"{seeds} seeds of the simulation held")
    return 0


def _compared(seed: int, world: Pair, requests: int) -> Differential:
    run = Differential(seed, world)
    try:
        run.run(requests)
    except AssertionError:
        print(f"replay: ./dev soak --door {requests} --first {seed}", file=sys.stderr)
        raise
    return run


def _tell(way: str, runs: list[Differential], took_s: float) -> None:
    count = sum(run.count for run in runs)
    spread, errors = (sum(getattr(run, what) for run in runs) for what in ("spread", "errors"))
    print(
        f"{way}: {count:,} requests of {len(runs)} seeds got the same answers, "
        f"{spread / count:.0%} touched a key with several buckets, {errors / count:.0%} were "
        f"refused ({took_s:,.0f} s)"
    )


if __name__ == "__main__":
    sys.exit(main())
