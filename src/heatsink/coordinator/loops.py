"""The coordinator: any number may run, one leads, and only the leader turns its control loops.

Every loop is observe, decide, publish. A loop decides from the state that it observes, not from
events, so a missed turn costs time and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from heatsink.errors import Deposed, HeatsinkError
from heatsink.primitives.clock import Clock
from heatsink.primitives.subjects import Subject
from heatsink.registry.decisions import Decision
from heatsink.registry.registry import Registry

from .lease import Lease

TURN_S = 0.1
Observation_contra = TypeVar("Observation_contra", contravariant=True)
Observation = TypeVar("Observation")
Observe = Callable[[], Awaitable[Observation]]
Publish = Callable[[list[Decision]], Awaitable[list[Decision]]]
TURNS_MAX = 10


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


class Policy(Protocol[Observation_contra]):
    """Deterministic: the same observations in the same order give the same decisions.

    Time comes in with the observation; a policy has no clock, does no I/O and takes no chances.
    """

    def decide(self, observation: Observation_contra) -> list[Decision]: ...


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
        self._wanted: dict[tuple[Subject, str], tuple[Decision, int]] = {}

    def wanted(self, subject: Subject, setting: str) -> Decision | None:
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


class Beside:
    """A queue that is away is waited for; hot keys and the lease must not wait along with it."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._running: asyncio.Task[list[Decision]] | None = None

    async def run_once(self) -> list[Decision]:
        """Start a turn if none is under way. Returns, or raises, what came of the last one."""
        last = self._running
        if last is not None and not last.done():
            return []
        self._running = asyncio.ensure_future(self._turn.run_once())
        self._running.add_done_callback(_take_error)
        return [] if last is None else last.result()

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)


def _take_error(turn: asyncio.Task[list[Decision]]) -> None:
    """Who loses the lease never asks what came of its last turn: asyncio would complain."""
    if not turn.cancelled():
        turn.exception()
