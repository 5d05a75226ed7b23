"""`./dev soak --plan [SECONDS]`: published loads on a real engine in real time, and their plans."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from heatsink.primitives.clock import SystemClock

from .driving import Case, driver, in_real_time
from .test_agreement import WITHIN


def compare(case: Case) -> bool:
    command = [sys.executable, "-m", "heatsink", "dynamo", "--port", "0", *_flags(case)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        url = next(word for word in process.stdout.readline().split() if "://" in word)
        return asyncio.run(_compare_at(url, case))
    finally:
        process.terminate()
        process.wait()


def _flags(case: Case) -> list[str]:
    engine = case.engine
    flags = {
        "--write-limit": engine.write_limit,
        "--read-limit": engine.read_limit,
        "--partitions": engine.partitions,
        "--split-after": engine.split_after_s,
        "--cool-down": engine.cool_down_s,
    }
    return [word for flag, value in flags.items() for word in (flag, str(value))]


async def _compare_at(url: str, case: Case) -> bool:
    clock, requests = SystemClock(), case.requests()
    async with driver(url, clock) as made:
        await made.fill(requests, clock.sleep)
        sent = await in_real_time(made, requests)
    planned = case.planned(requests)
    apart = abs(made.throttled - planned) / max(planned, 1)
    late_s = max(one.time_s - other.time_s for one, other in zip(sent, requests, strict=True))
    print(
        f"{case.shape} at 1/{case.down:g}, {case.seconds:g} s: {len(requests):,} requests, "
        f"{planned:,} throttled by plan, {made.throttled:,} by the engine ({apart:.1%} apart); "
        f"the latest was sent {late_s * 1000:.0f} ms late",
        flush=True,
    )
    return apart <= WITHIN


def main(seconds: float = 30.0) -> int:
    cases = [
        Case("twitter-52", down=100, seconds=seconds),
        Case("twitter-52", down=100, seconds=seconds, split_after_s=seconds / 3),
        Case("twitter-8", down=20, seconds=seconds),
        Case("twitter-49", down=10, seconds=seconds),
    ]
    agreed = [compare(case) for case in cases]
    return 0 if all(agreed) else 1


if __name__ == "__main__":
    sys.exit(main(*map(float, sys.argv[1:])))
