"""The control loop for near reads: which keys every process keeps near."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from heatsink.errors import Retryable
from heatsink.primitives.clock import Clock
from heatsink.reads.near_cache import REPEAT_S, NearKeys
from heatsink.reads.policy import NearPolicy, ReadObservation
from heatsink.registry.decisions import Decision, SoftDecision, SoftStore

from .keys import KeyWatch
from .loops import Leader

REPEATS_MAX = 50


@dataclass(frozen=True)
class NearDecisions:
    """The decisions on near keys that this process has received, and the store for new ones."""

    keys: NearKeys
    soft: SoftStore


class NearWatch:
    """Decides which keys every process caches.

    It decides once for each complete window that `KeyWatch` has observed.
    """

    def __init__(
        self,
        watch: KeyWatch,
        policy: NearPolicy,
        leader: Leader,
        near: NearDecisions,
        clock: Clock,
    ) -> None:
        self._watch = watch
        self._policy = policy
        self._leader = leader
        self._soft = near.soft
        self._near_keys = near.keys
        self._clock = clock
        self._seen = -1
        self._said_s: dict[str, float] = {}

    async def run_once(self) -> list[Decision]:
        window = self._watch.latest
        if window is None or window.window == self._seen:
            return []
        self._seen = window.window
        in_force = self._near_keys.in_force()
        decisions = self._policy.decide(ReadObservation(window, self._watch.servers, in_force))
        repeats = self._repeats(in_force, {decision.key for decision in decisions})
        with suppress(Retryable):  # what is not said is decided again at the next window
            await self._say([*decisions, *repeats])
        return decisions

    def _repeats(self, in_force: dict[str, Decision], changed: set[str]) -> list[Decision]:
        """Return some decisions in force to publish again, for processes that missed them.

        The decisions on the keys in `changed` are published now anyway, so they are left out.
        """
        due_s = self._clock.monotonic_s() - REPEAT_S
        self._said_s = {key: self._said_s.get(key, float("-inf")) for key in in_force}
        due = (
            key for key, said_s in self._said_s.items() if said_s <= due_s and key not in changed
        )
        return [in_force[key] for key in islice(due, REPEATS_MAX)]

    async def _say(self, decisions: list[Decision]) -> None:
        term = self._leader.term
        if decisions and term is not None:
            await self._soft.publish(decisions, term)
            self._near_keys.apply(SoftDecision(term, decision) for decision in decisions)
            self._said_s.update((each.key, self._clock.monotonic_s()) for each in decisions)
