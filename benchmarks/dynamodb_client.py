"""CPU time of a PutItem: our DynamoDB client, a bare protocol, and the clients of others.

Every client is a process of its own with the same driver (`drivers/dynamodb.py`): it puts items of
200 bytes into our engine, a process with limits out of reach, and measures itself with getrusage,
all its threads included. They take turns. On a busy machine, CPU time says more than the rate.

The bare client is an `asyncio.Protocol` of ten lines with our signer: no timeouts, no TLS, no
errors. It is the least that a put costs in Python. pydynox runs AWS's SDK for Rust on its own
threads. To compare with an earlier commit, check it out: `git worktree add --detach .tools/before
COMMIT`.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import LOCAL_REGION, parse

from .clients import CLOCK
from .dynamodb import IN_FLIGHT, TABLE, running_engine
from .environments import TOOLS, python_of
from .harness import Bench, Samples, Scale, Target, interleave, ratio_at_most

HERE = Path(__file__).parent
DRIVER = HERE / "drivers" / "dynamodb.py"
BEFORE = TOOLS / "before" / "src"
NUMBERS_A_TURN = 100_000
TARGETS = {
    "a bare protocol": ratio_at_most(1.5),
    "aiobotocore": ratio_at_most(0.1),
    "aiodynamo": ratio_at_most(1.0),
    "pydynox": ratio_at_most(1.0),
    "the commit before": ratio_at_most(1.0),
}
numbers = count()


class Client:
    """One client's process. A turn returns the CPU seconds of a put; `rates` are puts a second."""

    def __init__(self, process: subprocess.Popen[str], puts: int) -> None:
        self._process = process
        self._puts = puts
        self.rates: Samples = []

    async def __call__(self) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{next(numbers) * NUMBERS_A_TURN} {self._puts}\n")
        self._process.stdin.flush()
        answer = json.loads(await asyncio.to_thread(self._process.stdout.readline))
        self.rates.append(self._puts / answer["seconds"])
        return float(answer["cpu_s"]) / self._puts


@contextmanager
def started(name: str, python: Path, url: str, *paths: Path) -> Iterator[subprocess.Popen[str]]:
    command = [str(python), str(DRIVER), name, url, LOCAL_REGION, TABLE, str(IN_FLIGHT)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    with subprocess.Popen(  # noqa: S603  the program is our driver
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process  # the end of its input ends it


def clients(stack: ExitStack, url: str, scale: Scale) -> dict[str, Client]:
    """The clients that can be had here, by their names. Ours is the first."""
    us, puts, fewer = Path(sys.executable), scale(1_280, 3_200), scale(320, 640)

    def start(name: str, python: Path, puts: int, *paths: Path) -> Client:
        return Client(stack.enter_context(started(name, python, url, *paths)), puts)

    found = {"ours": start("heatsink", us, puts), "a bare protocol": start("bare", us, puts)}
    for name in ("aiobotocore", "aiodynamo", "pydynox"):
        python = python_of(HERE / f"{name}.txt")
        if python is not None:
            found[name] = start(name, python, fewer)
            if name == "aiodynamo" and BEFORE.exists():  # aiohttp is in its environment
                ours = Path(sysconfig.get_path("purelib"))
                found["the commit before"] = start("heatsink", python, puts, BEFORE, ours)
    return found


async def run(bench: Bench, scale: Scale) -> None:
    async with running_engine() as url:
        await make_table(parse(TABLE, {"endpoint": url}), CLOCK)
        with ExitStack() as stack:
            contest = clients(stack, url, scale)
            cpu = dict(zip(contest, await interleave(scale(3, 15), *contest.values()), strict=True))
            rates = {name: client.rates[1:] for name, client in contest.items()}
    ours = cpu.pop("ours")
    what = f"CPU of a PutItem, {IN_FLIGHT} in flight"
    for name, samples in cpu.items():
        target: Target = TARGETS[name]
        bench.add(what, "µs", ours, target, (name, samples))
        bench.add(f"PutItem, {IN_FLIGHT} in flight", "/s", rates["ours"], None, (name, rates[name]))
