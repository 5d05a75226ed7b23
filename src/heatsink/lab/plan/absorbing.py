"""The remedy for hot reads: each app server keeps what it read near for a moment."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random

from heatsink.absorb.near_cache import NearCache
from heatsink.absorb.policy import NearPolicy, Observation
from heatsink.absorb.settings import ReadSettings
from heatsink.detect.heat import WindowHeat
from heatsink.registry.decision import Decision

from .settings import PlanSettings


class Absorbing:
    """The production caches and policy. A load takes no time here, so nobody waits for another's.

    A write is forgotten where it came in, as pages of a log are: readers see their own writes at
    once and others' after `fresh_for`. In a trace that is a sample a key is read `weight` times
    more seldom than in truth, so its copies age as much more slowly.
    """

    def __init__(self, settings: PlanSettings, weight: int, rng: Random) -> None:
        self.near: dict[str, Decision] = {}
        self.absorbed = 0
        self._settings = settings
        self._policy = NearPolicy(settings.near)
        self._caches = [NearCache(ReadSettings().capacity) for _ in range(settings.servers)]
        self._jitter_s = ReadSettings().jitter * settings.fresh_for * weight
        self._weight = weight
        self._chance = rng.random

    def decide(self, windows: list[WindowHeat]) -> None:
        for window in windows:
            if window.complete:
                seen = Observation(window, self._settings.servers, self.near)
                for decision in self._policy.decide(seen):
                    self._apply(decision)

    def _apply(self, decision: Decision) -> None:
        if decision.value is None:
            self.near.pop(decision.key, None)
        else:
            self.near[decision.key] = decision

    def read(self, key: str, now_s: float, load: Callable[[], bool]) -> bool:
        """Whether the reader gets a value: one that is kept, or what is loaded now.

        Beyond `fresh_for` a value is still served, up to `stale_for`, while it is loaded anew.
        """
        cache = self._cache()
        entry = cache.entries.get(key)
        age_s = inf if entry is None else (now_s - entry.aged_from_s) / self._weight
        if entry is not None and age_s < self._settings.stale_for:
            entry.hits += 1
            if age_s < self._kept_s(key) or now_s < entry.rests_until_s:
                self.absorbed += 1
            elif load():
                self._keep(cache, key, now_s)
            else:
                entry.rests_until_s = now_s + self._settings.fresh_for * self._weight
            return True
        if not load():
            return False
        self._keep(cache, key, now_s)
        return True

    def _cache(self) -> NearCache:
        return self._caches[int(self._chance() * len(self._caches))]

    def _keep(self, cache: NearCache, key: str, now_s: float) -> None:
        cache.put(key, True, now_s - self._jitter_s * self._chance(), key in self.near)

    def _kept_s(self, key: str) -> float:
        """For how long nobody loads it anew: longer if the fleet keeps the key near."""
        decision = self.near.get(key)
        if decision is None or decision.value is None:
            return self._settings.fresh_for
        return max(self._settings.fresh_for, decision.value / 1_000)

    def wrote(self, key: str) -> None:
        cache = self._cache()
        if key in cache.entries:
            cache.forget(key)
