"""Which keys the fleet keeps near, as far as this process has heard."""

from __future__ import annotations

from collections.abc import Iterable

from heatsink.clock import Clock
from heatsink.registry.decision import Decision
from heatsink.registry.soft import SoftDecision, Targets

from .policy import NEAR

REPEAT_S = 30.0
FORGET_S = 4 * REPEAT_S


class NearKeys:
    """Leaders repeat what holds: what was not heard for long was taken back, and that was lost."""

    def __init__(self, clock: Clock) -> None:
        self._now = clock.monotonic_s
        self._targets = Targets()
        self._heard_s: dict[str, float] = {}

    def apply(self, news: Iterable[SoftDecision]) -> None:
        news = [soft for soft in news if soft.decision.setting == NEAR]
        self._targets.apply(news)
        now_s = self._now()
        for soft in news:
            if self.decision(soft.decision.key) == soft.decision:
                self._heard_s[soft.decision.key] = now_s
        for key, heard_s in list(self._heard_s.items()) if news else ():
            if now_s - heard_s > FORGET_S or self.decision(key) is None:
                del self._heard_s[key]
                self._targets.forget(f"key:{key}", NEAR)

    def decision(self, key: str) -> Decision | None:
        return self._targets.get(f"key:{key}", NEAR)

    def in_force(self) -> dict[str, Decision]:
        now_s = self._now()
        held = {k: self.decision(k) for k, s in self._heard_s.items() if now_s - s <= FORGET_S}
        return {key: decision for key, decision in held.items() if decision is not None}

    def near_s(self, key: str) -> float:
        heard_s = self._heard_s.get(key)
        if heard_s is None or self._now() - heard_s > FORGET_S:
            return 0.0
        decision = self.decision(key)
        return 0.0 if decision is None or decision.value is None else decision.value / 1_000
