"""observe → decide → publish: the same loop for hot keys and for queue workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from heatsink.registry.decision import Decision

from .policy import Policy

Observation = TypeVar("Observation")
Observe = Callable[[], Awaitable[Observation]]
Publish = Callable[[list[Decision]], Awaitable[list[Decision]]]
TURNS_MAX = 10


class ControlLoop(Generic[Observation]):
    """Nobody is told anything: whoever acts on a decision reads it in its own view.

    What could not be published is tried again at the next turns, not when it is decided again: a
    hot key's epochs lie in the partition that it heats, where a write seldom gets through.
    """

    def __init__(
        self, observe: Observe[Observation], policy: Policy[Observation], publish: Publish
    ) -> None:
        self._observe = observe
        self._policy = policy
        self._publish = publish
        self._turn = 0
        self._wanted: dict[tuple[str, str], tuple[Decision, int]] = {}

    def wanted(self, subject: str, setting: str) -> Decision | None:
        """What is decided and could not be published yet."""
        decision, _ = self._wanted.get((subject, setting), (None, 0))
        return decision

    async def run_once(self) -> list[Decision]:
        """One turn. Returns what was decided and was news."""
        self._turn += 1
        for decision in self._policy.decide(await self._observe()):
            self._wanted[decision.subject, decision.setting] = decision, self._turn + TURNS_MAX
        self._wanted = {
            what: (decision, end)
            for what, (decision, end) in self._wanted.items()
            if self._turn < end
        }
        if not self._wanted:
            return []
        published = await self._publish([decision for decision, _ in self._wanted.values()])
        self._wanted.clear()
        return published
