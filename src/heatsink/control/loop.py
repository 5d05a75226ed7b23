"""observe → decide → publish: the same loop for hot keys and for queue workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from heatsink.registry.decision import Decision

from .policy import Policy

Observation = TypeVar("Observation")
Observe = Callable[[], Awaitable[Observation]]
Publish = Callable[[list[Decision]], Awaitable[list[Decision]]]


class ControlLoop(Generic[Observation]):
    """Nobody is told anything: whoever acts on a decision reads it in its own view."""

    def __init__(
        self, observe: Observe[Observation], policy: Policy[Observation], publish: Publish
    ) -> None:
        self._observe = observe
        self._policy = policy
        self._publish = publish

    async def run_once(self) -> list[Decision]:
        """One turn. Returns what was decided and was news."""
        decisions = self._policy.decide(await self._observe())
        return await self._publish(decisions) if decisions else []
