"""`./dev soak --fleet MINUTES`: the fleet of real processes, round after round of trouble."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from .test_fleet import compare, make_trouble, running_fleet


def main(minutes: float) -> None:
    until_s = monotonic() + 60 * minutes
    rounds = 0
    with TemporaryDirectory() as folder, running_fleet(Path(folder)) as fleet:
        while rounds == 0 or monotonic() < until_s:
            make_trouble(fleet, rounds)
            rounds += 1
            print(f"round {rounds}", flush=True)
        acknowledged = asyncio.run(compare(fleet))
    print(f"{rounds} rounds, {acknowledged:,} acknowledged appends, each found once")


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
