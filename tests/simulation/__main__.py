"""`./dev soak`: the simulation on as many seeds as you have time for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from os import cpu_count

from tests.absorb import world as reads

from .history import Violation
from .world import simulate


def failure_of(seed: int, of_reads: bool = False) -> str | None:
    play: Callable[[int], object] = reads.simulate if of_reads else simulate
    try:
        play(seed)
    except (Violation, reads.Violation) as violation:
        return f"seed {seed}: {violation}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed: replays a failure")
    parser.add_argument("--reads", action="store_true", help="the simulation of hot reads instead")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    failures, again = 0, " --reads" if options.reads else ""
    judge = partial(failure_of, of_reads=options.reads)
    with ProcessPoolExecutor(cpu_count()) as pool:
        for done, failure in enumerate(pool.map(judge, seeds, chunksize=4), start=1):
            if failure:
                failures += 1
                print(
                    f"{failure}\n  replay: ./dev soak{again} --first {failure.split()[1][:-1]} "
                    "--seeds 1"
                )
            if done % 100 == 0:
                print(f"{done} of {len(seeds)} seeds, {failures} with a violation", flush=True)
    print(f"{len(seeds)} seeds, {failures} with a violation")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
