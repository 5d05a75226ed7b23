"""A chat room that gets hot and is spread. Run it: ./dev run python examples/chat.py"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import heatsink


async def main(folder: Path) -> None:
    rules = heatsink.BucketRules(bucket_units_s=200)
    limit = heatsink.PartitionLimit(writes_s=250)
    async with heatsink.connect(f"sqlite:///{folder}/chat.db", rules=rules, limit=limit) as hs:
        for second in range(6):
            await asyncio.gather(*(hs.log.append("lobby", b"hello") for _ in range(100 * second)))
            await asyncio.sleep(0.7)
        print(await hs.explain("lobby"))
        entries, cursor = 0, None
        while True:
            page = await hs.log.page("lobby", limit=500, cursor=cursor)
            entries, cursor = entries + len(page.entries), page.cursor
            if cursor is None:
                break
        print(f"{entries} messages read back")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        asyncio.run(main(Path(temporary)))
