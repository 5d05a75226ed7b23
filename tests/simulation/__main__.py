"""`./dev soak`: the simulations on as many seeds as you have time for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from os import cpu_count

from tests.absorb import world as reads
from tests.bulk.simulation.world import simulate as simulate_bulk
from tests.dynamo.simulation.world import simulate as simulate_engine
from tests.isolate import simulation as timelines

from .history import Violation
from .machine import simulate_cure, simulate_machine
from .world import simulate, simulate_dynamodb

RUNS: dict[str, Callable[[int], object]] = {
    "log": simulate,
    "bulk": simulate_bulk,
    "reads": reads.simulate,
    "timelines": timelines.simulate,
    "engine": simulate_engine,
    "dynamodb": simulate_dynamodb,
    "machine": simulate_machine,
    "cure": simulate_cure,
}
VIOLATIONS = (Violation, reads.Violation, timelines.Violation)


def failure_of(seed: int, names: list[str]) -> str | None:
    for name in names:
        try:
            RUNS[name](seed)
        except VIOLATIONS as violation:
            replay = f"./dev soak --of {name} --first {seed} --seeds 1"
            return f"seed {seed}: {name}: {violation}\n  replay: {replay}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed: replays a failure")
    parser.add_argument("--of", choices=RUNS, help="one of the simulations; else all")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    play = partial(failure_of, names=[options.of] if options.of else list(RUNS))
    failures = 0
    with ProcessPoolExecutor(cpu_count()) as pool:
        for done, failure in enumerate(pool.map(play, seeds, chunksize=4), start=1):
            if failure:
                failures += 1
                print(failure)
            if done % 100 == 0:
                print(f"{done} of {len(seeds)} seeds, {failures} with a violation", flush=True)
    print(f"{len(seeds)} seeds, {failures} with a violation")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
