"""A like button that everybody presses. Run it: ./dev run python examples/like_counter.py"""

from __future__ import annotations

import asyncio

import heatsink


async def main() -> None:
    async with heatsink.connect("memory://") as hs:
        await asyncio.gather(*(hs.counters.add("post:7:likes") for _ in range(1_000)))
        async with hs.counters.buffered() as counts:
            await asyncio.gather(*(counts.add("post:7:likes") for _ in range(20_000)))
        print(f"{await hs.counters.value('post:7:likes'):,} likes")


if __name__ == "__main__":
    asyncio.run(main())
