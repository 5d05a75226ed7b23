"""A product page that everybody looks at, with and without Heatsink.

Run it: ./dev run python examples/product_page.py
"""

from __future__ import annotations

import asyncio

import heatsink

VISITORS, VIEWS = 200, 25


class Shop:
    """A database that counts what is asked of it; a query takes 5 ms."""

    def __init__(self) -> None:
        self.price = 100
        self.queries = 0

    async def product(self, id: int) -> str:
        self.queries += 1
        await asyncio.sleep(0.005)
        return f"product {id} for {self.price}"


async def main() -> None:
    async with heatsink.connect("memory://") as hs:
        plain, shop = Shop(), Shop()

        @hs.reads.cached(key="product:{id}", fresh_for=0.5, stale_for=5.0)
        async def product(id: int) -> str:
            return await shop.product(id)

        async def visit() -> None:
            for _ in range(VIEWS):
                await plain.product(42)
                await product(42)

        await asyncio.gather(*(visit() for _ in range(VISITORS)))
        views = VISITORS * VIEWS
        print(f"{views:,} views: {plain.queries:,} queries without, {shop.queries} with Heatsink")
        print(f"{1 - shop.queries / views:.2%} of the loads saved; {hs.reads.stats()}")

        shop.price = 80
        hs.reads.forget(product.key(42))  # here at once; with news="redis://…" everywhere
        print(await product(42))


if __name__ == "__main__":
    asyncio.run(main())
