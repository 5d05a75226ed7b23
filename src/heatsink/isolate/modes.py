"""Whether an author's posts are pushed or pulled: an epoch, as buckets are.

The mode of a post is a function of its author and its id's time alone. It is kept as the layout of
a key of its own in the registry, one bucket for push and two for pull, so the closed time makes
everybody agree on it, and a flip neither loses a post nor shows it twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from heatsink.registry.decision import PIN, SETTING, for_key
from heatsink.registry.registry import Registry

from .policy import PULLED, PUSHED

PREFIX = "~mode/"
PINNED = "pinned: "
THRESHOLD = f"{SETTING}timelines.threshold"
BUCKETS = {PUSHED: 1, PULLED: 2}


class AuthorMode(NamedTuple):
    """`since_ms` is the time of the first post that it holds for."""

    author: str
    mode: str
    reason: str
    since_ms: int


class Modes:
    """`reach` renews the registry's view until it knows all epochs up to a time."""

    def __init__(self, registry: Registry, reach: Callable[[int], Awaitable[None]]) -> None:
        self._registry = registry
        self._reach = reach

    async def know(self, posts: Iterable[tuple[str, int]]) -> None:
        """Make `at` exact for posts, each given by its author and its time."""
        knows = self._registry.view.knows
        unknown = [time_ms for author, time_ms in posts if not knows(PREFIX + author, time_ms)]
        if unknown:
            await self._reach(max(unknown))

    def now(self, author: str) -> str:
        """What is in force for the newest posts, as far as this process knows."""
        return _mode(self._registry.view.layout(PREFIX + author).buckets)

    def at(self, author: str, time_ms: int) -> str:
        """The mode of a post. Exact for ids below this process's horizon."""
        return _mode(self._registry.view.layout(PREFIX + author).epoch_at(time_ms).buckets)

    def was_ever_pulled(self, author: str) -> bool:
        return self._registry.view.layout(PREFIX + author).max_buckets > 1

    def reason(self, author: str) -> str:
        pin = self._registry.view.pins.get(PREFIX + author)
        return pin.reason if pin else "few followers"

    def since_ms(self, author: str) -> int:
        """The time of the first post that the newest mode holds for; 0 if it always did."""
        return self._registry.view.layout(PREFIX + author).epochs[-1].start_ms

    def wanted(self, author: str) -> str | None:
        """What was decided last; it takes effect a moment later."""
        pin = self._registry.view.pins.get(PREFIX + author)
        return _mode(pin.value or 1) if pin else None

    def decided(self) -> list[AuthorMode]:
        """Authors about whom something was decided, the latest first; all others are pushed."""
        view = self._registry.view
        found = []
        for key, pin in view.pins.items():
            if key.startswith(PREFIX):
                epoch = view.layout(key).epochs[-1]
                author = key.removeprefix(PREFIX)
                found.append(AuthorMode(author, _mode(epoch.buckets), pin.reason, epoch.start_ms))
        return sorted(found, key=lambda one: -one.since_ms)

    def threshold(self, otherwise: int) -> int:
        """Of followers: what an operator set for the whole deployment."""
        pin = self._registry.view.pins.get(THRESHOLD)
        return pin.value if pin and pin.value else otherwise

    async def set_threshold(self, followers: int, reason: str) -> None:
        await self._registry.publish([for_key(THRESHOLD, PIN, followers, reason)], term=None)

    async def change(self, author: str, mode: str, reason: str) -> None:
        decision = for_key(PREFIX + author, PIN, BUCKETS[mode], reason)
        await self._registry.publish([decision], term=None)


def _mode(buckets: int) -> str:
    return PULLED if buckets > 1 else PUSHED
