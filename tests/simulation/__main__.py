"""`./dev soak`: the simulations on as many seeds as you have time for."""

from __future__ import annotations

import argparse
import signal
import sys
from collections import Counter
from collections.abc import Callable
from functools import partial
from multiprocessing import Pool
from os import cpu_count
from typing import NamedTuple

from tests.bulk.simulation.flows import simulate as simulate_flows
from tests.bulk.simulation.world import simulate as simulate_bulk
from tests.cluster.simulation import simulate as simulate_cluster
from tests.emulator.simulation.followed import simulate_followed
from tests.emulator.simulation.world import simulate as simulate_engine
from tests.heat import faulty_fleets, fleets
from tests.reads import world as reads
from tests.registry import leading
from tests.timelines import simulation as timelines

from .history import Violation
from .machine import simulate_cure, simulate_cure_of_a_fleet, simulate_machine
from .world import simulate, simulate_dynamodb

RUNS: dict[str, Callable[[int], object]] = {
    "log": simulate,
    "bulk": simulate_bulk,
    "flows": simulate_flows,
    "cluster": simulate_cluster,
    "reads": reads.simulate,
    "timelines": timelines.simulate,
    "engine": simulate_engine,
    "indexes": simulate_followed,
    "dynamodb": simulate_dynamodb,
    "machine": simulate_machine,
    "cure": simulate_cure,
    "cured-fleet": simulate_cure_of_a_fleet,
    "fleets": fleets.simulate,
    "faulty-fleets": faulty_fleets.simulate,
    "leading": leading.simulate,
}
REPORTED = 20  # seeds
INTERRUPTED = 130
VIOLATIONS = (Violation, reads.Violation, timelines.Violation, fleets.Violation, leading.Violation)


class Played(NamedTuple):
    """The first violation on a seed, the events that happened on the way, and what was counted."""

    failure: str | None
    happened: set[str]
    totals: Counter[str]


def play(seed: int, names: list[str]) -> Played:
    happened: set[str] = set()
    totals: Counter[str] = Counter()
    for name in names:
        try:
            history = RUNS[name](seed)
        except VIOLATIONS as violation:
            replay = f"./dev soak --of {name} --first {seed} --seeds 1"
            totals += getattr(violation, "totals", Counter())
            return Played(f"seed {seed}: {name}: {violation}\n  replay: {replay}", happened, totals)
        totals += getattr(history, "totals", Counter())
        events = getattr(history, "events", None)
        if isinstance(events, Counter):
            happened |= {f"{name}: {event}" for event, times in events.items() if times}
    return Played(None, happened, totals)


def ignore_interrupts() -> None:
    """A terminal sends Ctrl-C to all processes: only the first one shall act on it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first seed: replays a failure")
    parser.add_argument("--of", choices=RUNS, help="one of the simulations; else all")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    play_seed = partial(play, names=[options.of] if options.of else list(RUNS))
    failures = 0
    seeds_with: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    with Pool(cpu_count(), ignore_interrupts) as pool:  # its processes end with the block
        results = pool.imap(play_seed, seeds, chunksize=4)
        for done, played in enumerate(results, start=1):
            seeds_with.update(played.happened)
            totals += played.totals
            if played.failure:
                failures += 1
                print(played.failure)
            if done % REPORTED == 0:
                print(f"{done} of {len(seeds)} seeds, {failures} with a violation", flush=True)
    for event, number in seeds_with.most_common():
        print(f"{number:6} seeds with {event}")
    for what, number in sorted(totals.items()):
        print(f"{number:10,} {what}")
    print(f"{len(seeds)} seeds, {failures} with a violation")
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
