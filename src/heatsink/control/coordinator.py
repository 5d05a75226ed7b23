"""The process that observes, decides and publishes; any number may run, one leads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from heatsink.clock import Clock
from heatsink.errors import Deposed, HeatsinkError
from heatsink.registry.decision import Decision
from heatsink.registry.registry import Registry

from .lease import Lease

TURN_S = 0.1


class Turn(Protocol):
    async def run_once(self) -> list[Decision]: ...


class Coordinator:
    """Keeps the closed time ahead of now and turns its control loops while it leads."""

    def __init__(
        self,
        registry: Registry,
        lease: Lease,
        clock: Clock,
        on_turn: Callable[[HeatsinkError | None, int | None], None] = lambda _error, _term: None,
    ) -> None:
        self.loops: list[Turn] = []
        self._registry = registry
        self._lease = lease
        self._clock = clock
        self._on_turn = on_turn

    @property
    def leads(self) -> bool:
        return self._lease.term is not None

    @property
    def term(self) -> int | None:
        """Under which decisions are published; None while another leads."""
        return self._lease.term

    async def publish(self, decisions: list[Decision]) -> list[Decision]:
        """Publish under the present term; losing it ends the reign."""
        try:
            published = await self._registry.publish(decisions, self._lease.term)
        except Deposed:
            self._lease.term = None
            return []
        await self._registry.tell()
        return published

    async def run_once(self) -> None:
        leads = await self._lease.hold()
        if leads or not self._registry.has_news:
            await self._registry.keep_ahead(leads)
        if not leads:
            return
        await self._registry.tell()
        for loop in self.loops:
            await loop.run_once()

    async def run(self) -> None:
        while True:
            self._on_turn(await self._failure_of(self.run_once), self.term)
            await self._clock.sleep(TURN_S if self.leads else self._registry.standby_s(TURN_S))

    async def _failure_of(self, turn: Callable[[], Awaitable[None]]) -> HeatsinkError | None:
        try:
            await turn()
        except HeatsinkError as error:
            return error
        return None

    async def close(self) -> None:
        await self._failure_of(self._lease.resign)
