"""`./dev soak --power [ROUNDS] [--seed S] [--first R]`: the queue's Redis loses its power.

In each round the server is killed while batches are being staged, often in the middle of a rewrite
of its log, and its files are cut back to what it had fsynced (`disk`). Blocks of five rounds have
one server and two (`places`) in turn; then one of them fails, or both. Submitters and workers live
on. In the end every acknowledged batch must have a result for each item or name what it lost
(`audit`). The seed decides sizes and moments; how the processes interleave, it does not.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from random import Random, SystemRandom
from tempfile import TemporaryDirectory

from heatsink.bulk import BulkSettings

from .disk import MortalServer, NoCompiler, ObservedServer, compiled
from .losses import DEADLINE_S, PATIENCE_S, Counts, Hit, Round, opened, report

ROUNDS = 50
BLOCK = 5
PARTITIONS = 8
AWAY_S = (0.05, 0.6)
STAGED_LOSS_SHARE = 0.3  # of the rounds, at least: else the soak aims badly


async def power_failure(one: Round, servers: Sequence[MortalServer], rewrites: bool) -> Hit:
    """Of one server or several at once, while a batch is half staged."""
    rng = one.rng
    victims = rng.choice([[server] for server in servers] + [list(servers)])
    await one.aim(rng.uniform(0.1, 0.6))
    for server in victims:
        await asyncio.to_thread(server.mark)
    if rewrites and rng.random() < 0.6:
        delay_us = rng.choice((0, 50, 500))
        for server in victims:
            await asyncio.to_thread(_rewrite, server, delay_us)
        await asyncio.sleep(rng.uniform(0.0, 0.25))
    else:
        await one.aim(0.1, more=1_000)
    one.strike()
    cuts = [await asyncio.to_thread(server.fail_power) for server in victims]
    await asyncio.sleep(rng.uniform(*AWAY_S))
    for server in victims:
        if isinstance(server, ObservedServer):
            server.slow_ms = rng.choice((0, 0, 5, 40))
        await asyncio.to_thread(server.start)
    return Hit(
        items=frozenset().union(*(cut.items for cut in cuts)),
        is_rewriting=any(cut.is_rewriting for cut in cuts),
        is_undone=any(cut.is_undone for cut in cuts),
    )


def _rewrite(server: MortalServer, delay_us: int) -> None:
    """A rewrite that takes so much longer for each key."""
    server.command("CONFIG", "SET", "rdb-key-save-delay", str(delay_us))
    server.command("BGREWRITEAOF")


async def play(
    servers: Sequence[MortalServer],
    numbers: Sequence[int],
    seed: int,
    counts: Counts,
    patience_s: float = PATIENCE_S,
    rewrites: bool = True,
) -> None:
    """Rounds on these servers, the first of which is the home."""
    places = {p: servers[1].url for p in range(1, PARTITIONS, 2)} if len(servers) > 1 else {}
    settings = BulkSettings(partitions=PARTITIONS, places=places, deadline_s=DEADLINE_S)
    async with opened(servers[0].url, settings, patience_s) as world:
        for number in numbers:
            one = Round(world, number, Random(f"{seed}/{number}"))
            await world.play(one, lambda one: power_failure(one, servers, rewrites), counts)
            report("power", seed, one)


def blocks(first: int, rounds: int) -> list[tuple[int, list[int]]]:
    """How many servers, and the numbers of the rounds that are played on them."""
    numbers = range(first, first + rounds)
    found = sorted({number // BLOCK for number in numbers})
    return [(1 + block % 2, [n for n in numbers if n // BLOCK == block]) for block in found]


def main(rounds: int, seed: int, first: int, patience_s: float) -> int:
    counts = Counts()
    with TemporaryDirectory(prefix="heatsink-disk-") as folder:
        try:
            library = compiled(Path(folder))
        except NoCompiler as error:
            print(f"./dev soak --power needs to observe fsync: {error}", file=sys.stderr)
            return 2
        print(f"seed {seed}", flush=True)
        for servers, numbers in blocks(first, rounds):
            run_block(lambda: ObservedServer(library), servers, numbers, seed, counts, patience_s)
    print(counts)
    if counts.rounds_with_staged_loss < STAGED_LOSS_SHARE * rounds:
        print(f"too few rounds lost staged items: {STAGED_LOSS_SHARE:.0%} are needed")
        return 1
    return 1 if counts.violations else 0


def run_block(
    make: Callable[[], MortalServer],
    servers: int,
    numbers: Sequence[int],
    seed: int,
    counts: Counts,
    patience_s: float = PATIENCE_S,
) -> None:
    with ExitStack() as stack:
        started = [make() for _ in range(servers)]
        for server in started:
            stack.enter_context(server)
        asyncio.run(play(started, numbers, seed, counts, patience_s))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="./dev soak --power", description=__doc__)
    parser.add_argument("rounds", type=int, nargs="?", default=ROUNDS)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(1_000_000))
    parser.add_argument("--first", type=int, default=0, metavar="R", help="the first round")
    parser.add_argument("--patience", type=float, default=PATIENCE_S, metavar="S",
                        help="how long nothing may change before a batch is said to hang")
    chosen = parser.parse_args()
    try:
        sys.exit(main(chosen.rounds, chosen.seed, chosen.first, chosen.patience))
    except KeyboardInterrupt:
        sys.exit(130)
