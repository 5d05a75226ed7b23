"""The push itself: an action of the queue, whose items are a post and a group of followers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from .store import HomeEntry, HomeStore

FAN_OUT = "heatsink.fanout"
PRIORITY = -10  # an author's pushes come after their own other batches


def push_handler(homes: HomeStore) -> Callable[[Any, Any], Awaitable[None]]:
    async def push(item: Any, _: Any) -> None:
        author, raw, users = item
        await homes.push(users, HomeEntry(raw, author))

    return push
