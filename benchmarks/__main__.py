"""`python -m benchmarks [--quick] [--list] [NAME …]`: a table, and JSON in artifacts/bench.json."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import signal
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from .clients import ARTIFACTS
from .harness import Bench, Result, Scale, changes, table

NAMES = (
    "record",
    "routing",
    "append",
    "pages",
    "hot_key",
    "counters",
    "tracker_memory",
    "view",
    "start",
    "imports",
    "activation",
    "engine",
    "adaptive",
    "dynamodb",
    "dynamodb_client",
    "door",
    "registry_reads",
    "fleet",
    "many_hot",
    "jump",
    "partitions",
    "queue_store",
    "queue",
    "queue_cases",
    "jobs",
    "claims",
    "limit_keys",
    "head_of_line",
    "scaling",
    "failover",
    "rates",
    "http",
    "dashboard",
    "celebrity",
    "plan",
    "cluster",
    "reads",
)
RECORDED = Path(__file__).with_name("recorded.json")
Measure = Callable[[Bench, Scale], Awaitable[None]]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; all if none is named")
    parser.add_argument("--quick", action="store_true", help="a look in less than a minute")
    parser.add_argument("--peers", default="", help="of the queue, with commas: Huey,SAQ")
    words = "write the figures to benchmarks/recorded.json, from which docs/comparison.md is made"
    parser.add_argument("--record", action="store_true", help=words)
    words = "print the recorded figures beside those of FILE, an artifacts/bench.json or a "
    words += "recorded.json of another commit, and measure nothing"
    parser.add_argument("--before", type=Path, metavar="FILE", help=words)
    parser.add_argument("--list", action="store_true", help="what there is")
    chosen = parser.parse_args()
    for name in chosen.names:
        if name not in NAMES:
            parser.error(f"there is no benchmark {name!r}: choose from {', '.join(NAMES)}")
    return chosen


def describe() -> None:
    width = max(map(len, NAMES))
    for name in NAMES:
        summary = (import_module(f"{__package__}.{name}").__doc__ or "").partition("\n")[0]
        print(f"{name:{width}}  {summary}")


def measure(name: str, scale: Scale) -> list[Result]:
    run: Measure = import_module(f"{__package__}.{name}").run
    bench = Bench(name)
    started_s = perf_counter()
    print(f"{name} …", end="", file=sys.stderr, flush=True)
    asyncio.run(_run(run, bench, scale))
    print(f" {perf_counter() - started_s:.1f} s", file=sys.stderr)
    return bench.results


async def _run(run: Measure, bench: Bench, scale: Scale) -> None:
    await run(bench, scale)


def circumstances(scale: Scale) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "processors": os.cpu_count(),
        "load": os.getloadavg()[0],
        "quick": scale.quick,
    }


def write(results: list[Result], scale: Scale) -> None:
    ARTIFACTS.mkdir(exist_ok=True)
    save(ARTIFACTS / "bench.json", {**circumstances(scale), "results": results})


def record(results: list[Result], scale: Scale) -> None:
    """Replace what was recorded of these benchmarks, and keep the others."""
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    for name in dict.fromkeys(result.name for result in results):
        own = [result for result in results if result.name == name]
        recorded[name] = {**circumstances(scale), "results": own}
    save(RECORDED, dict(sorted(recorded.items())))


def read(file: Path) -> list[Result]:
    """The figures in an `artifacts/bench.json` or a `recorded.json`."""
    found = json.loads(file.read_text())
    runs = [found] if "results" in found else found.values()
    return [msgspec.convert(each, Result) for run in runs for each in run["results"]]


def save(file: Path, report: dict[str, Any]) -> None:
    file.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def report(results: list[Result]) -> None:
    print(table(results))
    judged = [result.met for result in results if result.met is not None]
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
    print(f"\n{sum(judged)} of {len(judged)} targets met, {load}. Details: artifacts/bench.json")


INTERRUPTED = 130


def main() -> int:
    chosen = options()
    if chosen.list:
        describe()
        return 0
    if chosen.before:
        print(changes(read(chosen.before), read(RECORDED)))
        return 0
    scale = Scale(chosen.quick, tuple(filter(None, chosen.peers.split(","))))
    results: list[Result] = []
    try:
        for name in chosen.names or NAMES:
            results += measure(name, scale)
        if chosen.record:
            record(results, scale)
    finally:  # what was measured before something failed took minutes
        if results:
            write(results, scale)
            report(results)
    return 0


def interrupt(*_: object) -> None:
    """End at once. By itself, asyncio waits until the code that runs gives way."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGINT, interrupt)
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
