"""The coordinator: any number may run, one of them leads, and only the leader runs control loops.

In every turn, a loop observes, decides and publishes. A loop decides from the state that it
observes, not from events, so a missed turn costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from heatsink.errors import Deposed, HeatsinkError
from heatsink.primitives.clock import Clock
from heatsink.primitives.hooks import NO_HOOKS, Attribute, Hooks
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.adoption import Adoptions
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


class Leader:
    """Publishes decisions under the term in which this process leads."""

    def __init__(self, registry: Registry, lease: Lease, hooks: Hooks = NO_HOOKS) -> None:
        self._registry = registry
        self._adoptions = Adoptions(registry.view)
        self._lease = lease
        self._hooks = hooks

    @property
    def leads(self) -> bool:
        return self._lease.term is not None

    @property
    def term(self) -> int | None:
        """The term in which this process leads; None while it does not lead."""
        return self._lease.term

    async def publish(self, decisions: list[Decision]) -> list[Decision]:
        """Publish decisions, and return those that changed something.

        The leader may spread the keys of a user's own table only if the registry allows it. Until
        then, decisions on such keys become trials (see `registry/adoption`). If another process has
        become leader, publish nothing and stop leading.
        """
        allowed = decisions
        of_users = (Kind.TABLE, Kind.INDEX)
        if any(decision.subject.kind in of_users for decision in decisions):
            allowed = self._adoptions.allowed(decisions)
        try:
            published = await self._registry.publish(allowed, self._lease.term)
        except Deposed:
            self._lease.lose()
            return []
        for decision in published:
            self._tell(decision)
        await self._registry.tell()
        return published

    def _tell(self, decision: Decision) -> None:
        message = f"{decision.subject.words}: {decision.words} ({decision.reason})"
        fields: dict[str, Attribute] = {
            "kind": decision.subject.kind.value,
            "name": decision.subject.name,
            "setting": decision.setting,
            "reason": decision.reason,
        }
        if decision.value is not None:
            fields["value"] = decision.value
        self._hooks.event("decision", message, logging.INFO, fields=fields)


class Coordinator:
    """Holds the lease, or watches the leader's lease, and keeps the closed time ahead of now.

    While this coordinator leads, it also publishes news and runs its control loops. There are three
    schedules: one for the lease and the closed time, one for news, one for the control loops. So
    the lease and the closed time never wait for Redis or for a control loop, however long a turn
    takes.
    """

    def __init__(
        self,
        registry: Registry,
        lease: Lease,
        clock: Clock,
        loops: Sequence[Turn],
        on_turn: Callable[[HeatsinkError | None, int | None], None] = lambda _error, _term: None,
        is_dedicated: bool = False,
    ) -> None:
        """`on_turn` is called after every beat, with the last error (or None) and the term.

        The error is that of the beat or of the last turn of the control loops. A dedicated
        coordinator checks the lease as often in a large fleet as in a small one.
        """
        self._is_dedicated = is_dedicated
        self._registry = registry
        self._lease = lease
        self._clock = clock
        self._loops = loops
        self._on_turn = on_turn
        self._failure: HeatsinkError | None = None  # of the last turn of the control loops

    async def run_once(self) -> None:
        await self.beat()
        await self.tell()
        await self.turn()

    async def beat(self) -> None:
        """Renew the lease or try to get it, and advance the closed time."""
        leads = await self._lease.hold()
        if leads or not self._registry.has_news:
            await self._registry.keep_ahead(leads)

    async def tell(self) -> None:
        """Publish the closed time and new decisions as news, if this coordinator leads."""
        if self._lease.term is not None:
            await self._registry.tell()

    async def turn(self) -> None:
        """Run every control loop once, if this coordinator leads."""
        if self._lease.term is None:
            return
        for loop in self._loops:
            await loop.run_once()

    async def run(self) -> None:
        work = (self._keep_beating, self._keep_telling, self._keep_turning)
        schedules = [asyncio.ensure_future(each()) for each in work]
        try:
            await asyncio.gather(*schedules)
        finally:
            for schedule in schedules:
                schedule.cancel()
            await asyncio.gather(*schedules, return_exceptions=True)

    async def _keep_beating(self) -> None:
        while True:
            failure = await self._failure_of(self.beat)
            term = self._lease.term
            leads = term is not None
            self._on_turn(failure or (self._failure if leads else None), term)
            is_hasty = leads or self._is_dedicated
            await self._clock.sleep(TURN_S if is_hasty else self._registry.standby_s(TURN_S))

    async def _keep_telling(self) -> None:
        while True:
            await self.tell()
            await self._clock.sleep(TURN_S)

    async def _keep_turning(self) -> None:
        while True:
            self._failure = await self._failure_of(self.turn)
            await self._clock.sleep(TURN_S)

    async def _failure_of(self, turn: Callable[[], Awaitable[None]]) -> HeatsinkError | None:
        try:
            await turn()
        except HeatsinkError as error:
            return error
        return None

    async def close(self) -> None:
        await self._failure_of(self._lease.resign)


class Policy(Protocol[Observation_contra]):
    """Decides from observations alone, without a clock, I/O or randomness.

    The same observations in the same order give the same decisions.
    """

    def decide(self, observation: Observation_contra) -> list[Decision]: ...


class ControlLoop(Generic[Observation]):
    """Observes, decides and publishes, once in each turn.

    If a decision could not be published, the loop repeats it for ten turns, even if the policy does
    not repeat it. Several attempts may be needed: a key's epochs are stored in the same partition
    as its rows. If the hot key overloads this partition, few writes succeed.
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
        """Return the decision on this setting that is not published yet; None if there is none."""
        decision, _ = self._wanted.get((subject, setting), (None, 0))
        return decision

    async def run_once(self) -> list[Decision]:
        """Take one turn: observe, decide, publish. Returns the decisions that changed something."""
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


class BackgroundLoop:
    """Runs the turns of a loop in a task, so that other loops and the lease never wait for them.

    The queue's loop needs this, since it waits while the queue's Redis does not answer.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._running: asyncio.Task[list[Decision]] | None = None
        self._failure: HeatsinkError | None = None

    async def run_once(self) -> list[Decision]:
        """Start a turn, unless the last turn is still running.

        Returns the decisions of the last turn, or raises its error. While a turn is running, there
        are no decisions to return yet. But if the turn before it failed, its error is raised again,
        since the running turn has not yet shown that the failure is over.
        """
        last = self._running
        if last is not None and not last.done():
            if self._failure is not None:
                raise self._failure.with_traceback(None)  # or it would grow at each raise
            return []
        self._failure = _failure_of(last)
        self._running = asyncio.ensure_future(self._turn.run_once())
        self._running.add_done_callback(_take_error)
        return [] if last is None else last.result()

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)


def _failure_of(turn: asyncio.Task[list[Decision]] | None) -> HeatsinkError | None:
    error = None if turn is None or turn.cancelled() else turn.exception()
    return error if isinstance(error, HeatsinkError) else None


def _take_error(turn: asyncio.Task[list[Decision]]) -> None:
    """Retrieve the error of a turn that no caller awaits, so that asyncio does not log it."""
    if not turn.cancelled():
        turn.exception()
