"""Hot reads, put together: the caches of one process, and what a coordinator decides about them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from random import Random

from heatsink.absorb.blocking import BlockingReads
from heatsink.absorb.invalidation import Invalidation
from heatsink.absorb.near_keys import REPEAT_S, NearKeys
from heatsink.absorb.pages import NearPages
from heatsink.absorb.policy import NearPolicy, Observation
from heatsink.absorb.reads import Reads
from heatsink.absorb.settings import ReadStats
from heatsink.clock import Clock
from heatsink.control.coordinator import Coordinator
from heatsink.detect.tracker import Tracker
from heatsink.errors import HeatsinkError, Retryable
from heatsink.owner import Owner
from heatsink.registry.decision import Decision
from heatsink.registry.soft import SoftDecision, SoftStore
from heatsink.stores.memory.soft import MemorySoft
from heatsink.stores.stores import Stores

from .instruments import NONE, Instruments
from .key_watch import Coordination, KeyWatch
from .settings import Settings

FOLLOW_S = 1.0
REPEATS_MAX = 50


class ReadSide:
    """Without a Redis for news, nobody else hears what this process forgets or decides."""

    def __init__(
        self,
        stores: Stores,
        settings: Settings,
        tracker: Tracker,
        clock: Clock,
        rng: Random,
        instruments: Instruments = NONE,
        owner: Owner | None = None,
    ) -> None:
        self.near_keys = NearKeys(clock)
        self.soft = stores.soft or MemorySoft([])
        self.note = tracker.record_read
        self.near_s = self.near_keys.near_s
        self.reads = Reads(settings.reads, clock=clock, rng=rng, heat=self, owner=owner)
        instruments.reads(self.reads)
        self._page_reads = Reads(settings.reads, clock=clock, rng=rng, owner=owner)
        self.pages = NearPages(self._page_reads, self, settings.reads.capacity)
        self.invalidation = Invalidation(stores.wire, clock, rng) if stores.wire else None
        if self.invalidation is not None:
            self.invalidation.tie(self.reads)
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._instruments = instruments
        self._owner = owner

    def page_stats(self) -> ReadStats:
        """What became of the pages that were asked for with `fresh_for`."""
        return self._page_reads.stats()

    def blocking(self, soon: Callable[[Callable[[str], None], str], object]) -> BlockingReads:
        """Reads for threads. `soon` calls a function in the thread of the event loop."""
        reads = BlockingReads(
            self._settings.reads,
            clock=self._clock,
            rng=self._rng,
            heat=self,
            owner=self._owner,
        )
        self._instruments.reads(reads)
        if self.invalidation is not None:
            post = self.invalidation.post
            self.invalidation.tie(reads, on_forget=lambda key: soon(post, key))
        return reads

    def coordinate(self, coordination: Coordination) -> NearWatch:
        """The loop that decides which keys are kept near, for a coordinator to turn."""
        policy = NearPolicy(self._settings.near)
        coordinator, watch = coordination.coordinator, coordination.watch
        return NearWatch(watch, policy, coordinator, self.soft, self.near_keys, self._clock)

    async def follow(self) -> None:
        """Hear what the leader decides, for ever."""
        while True:
            with suppress(HeatsinkError):  # without news, keys are refreshed as their readers say
                self.near_keys.apply(await self.soft.read())
            await self._clock.sleep(FOLLOW_S)

    def close(self) -> None:
        self.reads.close()
        self._page_reads.close()


class NearWatch:
    """Looks at each complete window that the watch for hot keys has observed."""

    def __init__(
        self,
        watch: KeyWatch,
        policy: NearPolicy,
        coordinator: Coordinator,
        soft: SoftStore,
        near_keys: NearKeys,
        clock: Clock,
    ) -> None:
        self._watch = watch
        self._policy = policy
        self._coordinator = coordinator
        self._soft = soft
        self._near_keys = near_keys
        self._clock = clock
        self._seen = -1
        self._said_s: dict[str, float] = {}

    async def run_once(self) -> list[Decision]:
        window = self._watch.latest
        if window is None or window.window == self._seen:
            return []
        self._seen = window.window
        in_force = self._near_keys.in_force()
        decisions = self._policy.decide(Observation(window, self._watch.servers, in_force))
        repeats = self._repeats(in_force, {decision.key for decision in decisions})
        with suppress(Retryable):  # what is not said is decided again at the next window
            await self._say([*decisions, *repeats])
        return decisions

    def _repeats(self, in_force: dict[str, Decision], changed: set[str]) -> list[Decision]:
        """What holds is said again now and then, a little of it at each window."""
        due_s = self._clock.monotonic_s() - REPEAT_S
        self._said_s = {key: self._said_s.get(key, float("-inf")) for key in in_force}
        due = (
            key for key, said_s in self._said_s.items() if said_s <= due_s and key not in changed
        )
        return [in_force[key] for key in islice(due, REPEATS_MAX)]

    async def _say(self, decisions: list[Decision]) -> None:
        term = self._coordinator.term
        if decisions and term is not None:
            await self._soft.publish(decisions, term)
            self._near_keys.apply(SoftDecision(term, decision) for decision in decisions)
            self._said_s.update((each.key, self._clock.monotonic_s()) for each in decisions)
