"""Whether somebody's next posts are pushed or pulled: looked at whenever they post."""

from __future__ import annotations

from collections.abc import Callable

from .cost import CostMeter
from .graph import Graph
from .modes import PINNED, Modes
from .policy import PUSHED, Author, Cost, Limits, wanted_mode
from .settings import TimelineSettings


class Choice:
    def __init__(
        self,
        graph: Graph,
        modes: Modes,
        meter: CostMeter,
        settings: TimelineSettings,
        now_ms: Callable[[], int],
    ) -> None:
        self._graph = graph
        self._modes = modes
        self._meter = meter
        self._settings = settings
        self._now_ms = now_ms

    async def renew(self, author: str) -> None:
        if self._modes.reason(author).startswith(PINNED):
            return
        limits, followers = self._limits(), await self._graph.follower_count(author)
        cost = Cost(0.0, followers)
        if followers < limits.threshold:  # else the number alone decides
            cost = await self._meter.cost(author, followers, limits.costly_writes_s)
        if change := wanted_mode(self._author(author, cost), limits):
            await self._modes.change(author, *change)

    async def explain(self, author: str) -> str:
        cost = await self._meter.cost(author, await self._graph.follower_count(author))
        return f"{self._modes.now(author)}: {self._modes.reason(author)} (now {cost})"

    def _author(self, name: str, cost: Cost) -> Author:
        modes = self._modes
        held_s = (self._now_ms() - modes.since_ms(name)) / 1000
        return Author(modes.wanted(name) or PUSHED, modes.reason(name), held_s, cost)

    def _limits(self) -> Limits:
        settings = self._settings
        threshold = self._modes.threshold(settings.threshold)
        return Limits(threshold, settings.costly_writes_s, settings.costly_ratio)
