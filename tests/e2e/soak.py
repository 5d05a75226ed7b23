"""`./dev soak --fleet [MINUTES [LATENCY_MS]]`: real processes, round after round of trouble."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from .test_fleet import FAR_AWAY_MS, compare, make_trouble, running_fleet


def main(minutes: float = 5.0, latency_ms: float = FAR_AWAY_MS) -> None:
    until_s = monotonic() + 60 * minutes
    rounds = 0
    with TemporaryDirectory() as folder, running_fleet(Path(folder), latency_ms) as fleet:
        while rounds == 0 or monotonic() < until_s:
            make_trouble(fleet, rounds)
            rounds += 1
            print(f"round {rounds}", flush=True)
        acknowledged = asyncio.run(compare(fleet))
    print(f"{rounds} rounds, {acknowledged:,} acknowledged appends, each found once")


if __name__ == "__main__":
    main(*map(float, sys.argv[1:]))
