"""The leader's loop that submits the batches of schedules.

The leader submits a batch, and then records this start in the registry under its term. If the
leader dies in between, the next leader submits the batch again under the same id, which changes
nothing. The registry refuses the record of a leader that has lost its lease.

A leader may be suspended for days. It must not submit a batch again after the queue has deleted the
batch's record. So a leader submits only within `FRESH_S` after it has read the registry.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from heatsink.bulk.bulk import Bulk
from heatsink.bulk.schedules import (
    Due,
    LastStart,
    Schedule,
    due,
    last_start_in,
    order_of,
    schedules_in,
    start_decision,
    utc,
)
from heatsink.errors import HeatsinkError
from heatsink.primitives.clock import Clock
from heatsink.primitives.hooks import NO_HOOKS, Hooks
from heatsink.registry.decisions import Decision
from heatsink.registry.registry import Registry

from .loops import Leader

TURN_S = 0.5
FRESH_S = 60.0


class ScheduleWatch:
    """Starts the batches of schedules while this process leads."""

    def __init__(
        self,
        registry: Registry,
        bulk: Callable[[], Bulk],
        leader: Leader,
        clock: Clock,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        """`bulk` returns the queue. It is called when the first start is due."""
        self._registry = registry
        self._bulk = bulk
        self._leader = leader
        self._clock = clock
        self._hooks = hooks
        self._turned_s = float("-inf")
        self._known: tuple[int, list[tuple[Schedule, int]]] = (-1, [])
        self._told: set[tuple[str, int]] = set()

    async def run_once(self) -> list[Decision]:
        """Start what is due."""
        if not self.due():
            return []
        await self._registry.renew()
        looked_s = self._clock.monotonic_s()
        published: list[Decision] = []
        for schedule, found in self.due():
            if not self._leader.leads or self._clock.monotonic_s() - looked_s > FRESH_S:
                break
            published += await self._start(schedule, found)
        return published

    @property
    def is_time(self) -> bool:
        """Whether to take a turn: a batch is due, and the last check was at least `TURN_S` ago."""
        now_s = self._clock.monotonic_s()
        if now_s - self._turned_s < TURN_S:
            return False
        self._turned_s = now_s
        return bool(self.due())

    def due(self) -> list[tuple[Schedule, Due]]:
        """Return the starts that are due, according to this process's view of the registry."""
        now_ms = int(self._registry.fleet_now_s() * 1000)
        found = ((schedule, due(schedule, last_ms, now_ms)) for schedule, last_ms in self._all())
        return [(schedule, one) for schedule, one in found if one is not None]

    def _all(self) -> list[tuple[Schedule, int]]:
        """Return all schedules with their last starts."""
        view = self._registry.view
        if self._known[0] != view.version:
            found = []
            for name, schedule in sorted(schedules_in(view).items()):
                last = last_start_in(view, name)
                found.append((schedule, last.time_ms if last else 0))
            self._known = view.version, found
        return self._known[1]

    async def _start(self, schedule: Schedule, found: Due) -> list[Decision]:
        batch = ""
        if found.starts:
            action, items, options = order_of(schedule, found.time_ms)
            try:
                batch = (await self._bulk().submit(action, items, **options)).id
            except HeatsinkError as error:
                self._tell(schedule, found, error)
                return []
        record = start_decision(schedule.name, LastStart(found.time_ms, batch))
        return await self._leader.publish([record])

    def _tell(self, schedule: Schedule, found: Due, error: HeatsinkError) -> None:
        """Report a failed start once. The next turns try again, until the time counts as missed."""
        if (schedule.name, found.time_ms) in self._told:
            return
        self._told = {one for one in self._told if one[0] != schedule.name}
        self._told.add((schedule.name, found.time_ms))
        message = f"schedule {schedule.name} cannot start for {utc(found.time_ms)}: {error}"
        self._hooks.event("schedule.failed", message, logging.WARNING)
