"""`./dev soak --power [ROUNDS] [--seed S] [--first R]`: the queue's Redis loses its power.

In each round the server is killed while batches are being staged, often in the middle of a rewrite
of its log, and its files are cut back to what it had fsynced (`disk`). Blocks of five rounds have
one server and two (`places`) in turn; then one of them fails, or both. Submitters and workers live
on. In the end every acknowledged batch must have a result for each item or name what it lost
(`audit`). The seed decides sizes and moments; how the processes interleave, it does not.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

from msgspec.structs import replace

from .disk import MortalServer, NoCompiler, ObservedServer, compiled
from .soak_losses import PARTITIONS, Counts, Hit, Plan, Round, main, play

BLOCK = 5
AWAY_S = (0.05, 0.6)
REWRITE_S = 1.0
MOMENTS = {  # µs that each key takes longer, and the files that show how far a rewrite is
    "begins": (1_000, "*.incr.aof"),
    "runs": (3_000, "*.incr.aof"),
    "ends": (0, "*.base.rdb"),
}


async def power_failure(one: Round, servers: Sequence[MortalServer], rewrites: bool) -> Hit:
    """Of one server or several at once, while a batch is half staged."""
    rng = one.rng
    victims = rng.choice([[server] for server in servers] + [list(servers)])
    await one.aim(rng.uniform(0.1, 0.6))
    for server in victims:
        await asyncio.to_thread(server.mark)
    if rewrites and rng.random() < 0.6:
        moment = rng.choice(("begins", "runs", "ends"))
        await asyncio.gather(*(asyncio.to_thread(_rewrite, server, moment) for server in victims))
        await asyncio.sleep(rng.uniform(0.0, 0.2 if moment == "runs" else 0.02))
    else:
        await one.aim(0.1, more=1_000)
    one.strike()
    cuts = [await asyncio.to_thread(server.fail_power) for server in victims]
    await asyncio.sleep(rng.uniform(*AWAY_S))
    for server in victims:
        if isinstance(server, ObservedServer):
            server.slow_ms = rng.choice((0, 5, 40))
        await asyncio.to_thread(server.start)
    return Hit(
        items=frozenset().union(*(cut.items for cut in cuts)),
        is_rewriting=any(cut.is_rewriting for cut in cuts),
        is_undone=any(cut.is_undone for cut in cuts),
    )


def _rewrite(server: MortalServer, moment: str) -> None:
    """Until a rewrite of the log begins (a new log), runs, or ends (a new snapshot)."""
    delay_us, sign = MOMENTS[moment]
    before = set(server.files.glob(sign))
    server.command("CONFIG", "SET", "rdb-key-save-delay", str(delay_us))
    server.command("BGREWRITEAOF")
    give_up_s = monotonic() + REWRITE_S
    while set(server.files.glob(sign)) <= before and monotonic() < give_up_s:
        sleep(0.001)


def run_on(make: Callable[[], MortalServer], servers: int, plan: Plan, rewrites: bool) -> Counts:
    """Rounds on so many servers. The first one is home to all batches."""
    with ExitStack() as stack:
        started = [make() for _ in range(servers)]
        for server in started:
            stack.enter_context(server)
        places = dict.fromkeys(range(1, PARTITIONS, 2), started[-1].url)
        fault = partial(power_failure, servers=started, rewrites=rewrites)
        return asyncio.run(play(plan, started[0].url, places if servers > 1 else {}, fault))


def blocks(numbers: Sequence[int]) -> list[tuple[int, list[int]]]:
    """How many servers, and the numbers of the rounds that are played on them."""
    found = sorted({number // BLOCK for number in numbers})
    return [(1 + block % 2, [n for n in numbers if n // BLOCK == block]) for block in found]


def run(plan: Plan) -> Counts:
    counts = Counts()
    with TemporaryDirectory(prefix="heatsink-disk-") as folder:
        library = compiled(Path(folder))
        for servers, numbers in blocks(plan.numbers):
            part = replace(plan, numbers=numbers)
            counts.add(run_on(lambda: ObservedServer(library), servers, part, rewrites=True))
    return counts


if __name__ == "__main__":
    try:
        sys.exit(main("power", __doc__, run))
    except NoCompiler as error:
        sys.exit(f"./dev soak --power cannot observe what is durable: {error}")
