"""A celebrity among friends: posts are pushed to few and pulled by many.

Run it: ./dev run python examples/celebrity.py
"""

from __future__ import annotations

import asyncio

import heatsink
from heatsink.bulk import Actions
from heatsink.timelines import TimelineSettings


async def main() -> None:
    settings = TimelineSettings(threshold=100)  # 10,000 unless you say otherwise
    async with heatsink.connect("memory://", timelines=settings) as hs:
        worker = hs.worker(Actions())  # pushes are bulk batches: some worker has to run them
        running = asyncio.create_task(worker.run())
        timelines = hs.timelines

        for number in range(150):
            await timelines.follow(f"fan-{number}", "celebrity")
        await timelines.follow("fan-7", "friend")

        post = await timelines.post("friend", b"lunch?")
        await hs.bulk.wait(post.batch)
        await timelines.post("celebrity", b"the last one that is pushed")
        await asyncio.sleep(2)  # the mode changes for posts from a moment later on
        post = await timelines.post("celebrity", b"hello everybody")
        print(
            f"the celebrity's posts are now {post.mode}ed: {await timelines.explain('celebrity')}"
        )

        page = await timelines.home("fan-7")
        for post in page.posts:
            print(f"{post.author:>10} ({post.mode}): {post.body.decode()}")
        worker.stop()
        await running


if __name__ == "__main__":
    asyncio.run(main())
