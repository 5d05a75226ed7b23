"""What `Router.place` costs for a cold and a hot key, beside pasting `id % N` to the key.

The alternative has the integer id at hand and neither looks a layout up nor escapes the key nor
hashes: it is what the router replaces, not what it could be. Ids are minted beforehand.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter

from heatsink.registry.layouts import Layout
from heatsink.registry.registry import Registry
from heatsink.spread.routing import Router

from .clients import a_router
from .harness import Bench, Scale, at_most, interleave

BUCKETS = 8
Ids = list[tuple[bytes, int]]


async def placed(router: Router, key: str, ids: Ids) -> float:
    place = router.place
    started_s = perf_counter()
    for raw, time_ms in ids:
        place(key, raw, time_ms)
    return (perf_counter() - started_s) / len(ids)


async def pasted(key: str, numbers: list[int]) -> float:
    started_s = perf_counter()
    for number in numbers:
        _ = key + "#" + str(number % BUCKETS)
    return (perf_counter() - started_s) / len(numbers)


async def minted_and_placed(router: Router, registry: Registry, calls: int) -> float:
    await registry.keep_ahead(leads=True)
    fresh = router.fresh
    started_s = perf_counter()
    for _ in range(calls):
        fresh("hot")
    return (perf_counter() - started_s) / calls


async def run(bench: Bench, scale: Scale) -> None:
    rounds, calls = scale(7, 31), scale(20_000, 100_000)
    async with a_router() as (router, registry):
        registry.view.layouts["hot"] = Layout.of([(1, BUCKETS)])
        ids = [router.fresh("hot")[:2] for _ in range(calls)]
        numbers = [int.from_bytes(raw, "big") for raw, _ in ids]
        cold, hot, plain, minted = await interleave(
            rounds,
            partial(placed, router, "cold", ids),
            partial(placed, router, "hot", ids),
            partial(pasted, "hot", numbers),
            partial(minted_and_placed, router, registry, calls),
        )
    pasting = ("id % 8 pasted", plain)
    bench.add("place, cold key", "µs", cold, at_most(1.0), pasting)
    bench.add("place, 8 buckets", "µs", hot, None, pasting)
    bench.add("mint and place, 8 buckets", "µs", minted, None, pasting)
