"""`./dev soak --renew-bugs`: writes the seeds at which hunts for planted bugs begin.

For every bug, it plays the known seed and then all others until one finds the bug. With `--more N`
it plays N more seeds, and keeps the one that found the bug in least CPU time. That pays off where
runs take seconds, since every run of the tests plays these seeds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib import import_module
from os import cpu_count
from pathlib import Path
from typing import NamedTuple

from tests.planted import HUNTS, SEEDS_FILE, known_seeds

TESTS = Path(__file__).parent.parent
BETTER = 0.8  # a seed must be this much cheaper to replace one that still finds the bug


class Found(NamedTuple):
    seed: int
    cpu_s: float


class Renewal(NamedTuple):
    hunt: str
    bug: str
    known: int
    played: int
    found: list[Found]

    @property
    def best(self) -> Found | None:
        """The known seed, unless another is clearly cheaper; None if no seed finds the bug."""
        cheapest = min(self.found, key=lambda each: each.cpu_s, default=None)
        known = next((each for each in self.found if each.seed == self.known), None)
        if known is None or cheapest is None:
            return cheapest
        return cheapest if cheapest.cpu_s < BETTER * known.cpu_s else known

    def __str__(self) -> str:
        if (best := self.best) is None:
            return f"{self.hunt}: {self.bug}: NOT FOUND in {self.played} seeds"
        change = "unchanged" if best.seed == self.known else f"was {self.known}"
        return f"{self.hunt}: {self.bug}: seed {best.seed} ({change}), {best.cpu_s:.2f} s of CPU"


def load_hunts() -> None:
    """Import all modules of tests that make a `Hunt`, which lists itself in `HUNTS`."""
    for path in sorted(TESTS.rglob("test_*.py")):
        if " = Hunt(" in path.read_text():
            import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))


def renew(hunted: tuple[str, str], more: int) -> Renewal:
    load_hunts()
    name, bug = hunted
    hunt, found, played = HUNTS[name], list[Found](), 0
    order = hunt.order(bug)
    for seed in order:
        began_s, played = time.process_time(), played + 1
        if hunt.finds(bug, seed):
            found.append(Found(seed, time.process_time() - began_s))
        if found and (more := more - 1) < 0:
            break
    return Renewal(name, bug, order[0], played, found)


def write(renewals: Iterable[Renewal]) -> None:
    """Put the best seeds into the file, without bugs that no longer exist."""
    seeds = {name: dict.fromkeys(hunt.bugs, 0) for name, hunt in sorted(HUNTS.items())}
    for name, known in known_seeds().items():
        for bug in seeds.get(name, {}).keys() & known.keys():
            seeds[name][bug] = known[bug]
    for renewal in renewals:
        if renewal.best is not None:
            seeds[renewal.hunt][renewal.bug] = renewal.best.seed
    whole = SEEDS_FILE.with_suffix(".new")  # hunts read the file meanwhile
    whole.write_text(json.dumps(seeds, indent=2) + "\n")
    whole.replace(SEEDS_FILE)


def main() -> int:
    load_hunts()
    parser = argparse.ArgumentParser(prog="./dev soak --renew-bugs", description=__doc__)
    parser.add_argument("--of", choices=sorted(HUNTS), help="one of the hunts; else all")
    words = "after a seed that finds a bug, play this many more and keep the cheapest that finds it"
    parser.add_argument("--more", type=int, default=0, help=words)
    options = parser.parse_args()
    names = [options.of] if options.of else sorted(HUNTS)
    hunted = [(name, bug) for name in names for bug in HUNTS[name].bugs]
    renewals = []
    with ProcessPoolExecutor(cpu_count()) as pool:
        hunts = [pool.submit(renew, each, options.more) for each in hunted]
        for done in as_completed(hunts):
            renewals.append(done.result())
            write(renewals)  # now: whoever has waited long enough keeps what was found
            print(renewals[-1], flush=True)
    lost = [renewal for renewal in renewals if renewal.best is None]
    changed = sum(1 for each in renewals if each.best and each.best.seed != each.known)
    print(f"{len(renewals)} bugs, {changed} with another seed, {len(lost)} not found")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
