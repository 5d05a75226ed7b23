"""What the served worker of these tests does with items."""

from __future__ import annotations

import asyncio
from typing import Any

from heatsink.bulk import Actions, Fail

actions = Actions()


@actions.action("mail", max_attempts=1)
async def mail(item: Any, _: Any) -> None:
    await asyncio.sleep(0.05)
    if item["to"] % 50 == 7:
        raise Fail(f"no mailbox {item['to']}")


@actions.action("resize", max_attempts=1)
async def resize(_item: Any, _: Any) -> None:
    await asyncio.sleep(2.0)
