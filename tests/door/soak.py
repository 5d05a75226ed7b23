"""`./dev soak --door 20000`: random requests through the core, compared with a plain table.

Then the simulation, on as many seeds as there were thousands of requests.
"""

from __future__ import annotations

import argparse
import sys
from time import perf_counter

from .differential import Differential
from .test_simulation import simulate

REQUESTS = 500  # of one seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev soak --door", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=20_000, help="how many requests")
    parser.add_argument("--first", type=int, default=0, help="the first seed: replays a failure")
    given = parser.parse_args()
    began_s, done, spread, errors, seed = perf_counter(), 0, 0, 0, given.first
    while done < given.count:
        run = Differential(seed)
        try:
            run.run(REQUESTS)
        except AssertionError:
            print(f"replay: ./dev soak --door 1 --first {seed}", file=sys.stderr)
            raise
        done, spread, errors = done + run.count, spread + run.spread, errors + run.errors
        seed += 1
    print(
        f"{done:,} requests of {seed - given.first} seeds got the same answers, "
        f"{spread / done:.0%} touched a key with several buckets, {errors / done:.0%} were refused "
        f"({perf_counter() - began_s:,.0f} s)"
    )
    seeds = max(given.count // 1_000, 1)
    for number in range(given.first, given.first + seeds):
        simulate(number)
    print(f"{seeds} seeds of the simulation held")
    return 0


if __name__ == "__main__":
    sys.exit(main())
