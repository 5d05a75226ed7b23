"""Decide which keys are read so often that every process caches them, and for how long."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from heatsink.heat.heat import WindowHeat
from heatsink.primitives.checks import CheckedStruct, check_number, check_whole
from heatsink.registry.decisions import Decision, for_key

NEAR = "near"
STEPS_MS = (100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 60_000)
COOL_SHARE = 0.5  # a hot key stays hot while its reads are above this share of `hot_reads_s`


class NearRules(CheckedStruct, frozen=True):
    """Which keys are read-hot, and how often all processes together load them.

    Each process caches a read-hot key for (number of processes ÷ `loads_s`) seconds. Values that
    are older than a reader's `stale_for` are not used.
    """

    hot_reads_s: float = 1_000.0
    """Reads per second, of all processes together, that make a key read-hot."""
    loads_s: float = 100.0
    """Maximum loads per second of a read-hot key, of all processes together."""
    cool_down_s: float = 30.0
    """A key stops being read-hot after this many seconds below half of `hot_reads_s`."""
    keys_max: int = 1_000
    """Maximum number of read-hot keys."""

    def __post_init__(self) -> None:
        check_number("hot_reads_s", self.hot_reads_s, 1, 10**12)
        check_number("loads_s", self.loads_s, 0.001, 10**9)
        check_number("cool_down_s", self.cool_down_s, 0, 10**9)
        check_whole("keys_max", self.keys_max, 0, 10**6)

    def near_ms(self, servers: int) -> int:
        """Return how many milliseconds a process caches a read-hot key.

        The time grows with the number of servers. It grows in steps, so that one more server rarely
        changes all decisions.
        """
        least_ms = 1_000 * servers / self.loads_s
        return next((step for step in STEPS_MS if step >= least_ms), STEPS_MS[-1])


class ReadObservation(msgspec.Struct, frozen=True):
    """The last complete heat window, the number of servers in it, and the decisions in force."""

    window: WindowHeat
    servers: int
    near: Mapping[str, Decision]


class NearPolicy:
    """Decides which read-hot keys every process caches.

    A key is cached as soon as it is read-hot. It is dropped only after a cool-down. A new leader
    restarts the cool-downs.
    """

    def __init__(self, rules: NearRules) -> None:
        self._rules = rules
        self._hot_at_s: dict[str, float] = {}

    def adopt(self, rules: NearRules) -> None:
        """Decide by these rules from now on."""
        self._rules = rules

    def decide(self, observation: ReadObservation) -> list[Decision]:
        window, near = observation.window, observation.near
        near_ms = self._rules.near_ms(observation.servers)
        self._hot_at_s = {key: self._hot_at_s.get(key, window.start_s) for key in near}
        decisions, room = [], self._rules.keys_max - len(near)
        for key, reads_s in self._warm(window):
            if key in near:
                self._hot_at_s[key] = window.start_s
                changed = near[key].value != near_ms
            else:
                changed = reads_s >= self._rules.hot_reads_s and room > 0
                room -= changed
            if changed:
                decisions.append(for_key(key, NEAR, near_ms, f"{reads_s:,.0f} reads/s"))
        return [*decisions, *self._let_go(window.start_s)]

    def _warm(self, window: WindowHeat) -> list[tuple[str, float]]:
        """Return the keys with at least half the reads of a read-hot key, the most read first.

        A cached key that is not among them cools down.
        """
        least = self._rules.hot_reads_s * COOL_SHARE
        warm = [(key, heat.reads_s) for key, heat in window.keys.items() if heat.reads_s >= least]
        return sorted(warm, key=lambda item: (-item[1], item[0]))

    def _let_go(self, start_s: float) -> list[Decision]:
        calm_s, limit = self._rules.cool_down_s, self._rules.hot_reads_s * COOL_SHARE
        reason = f"less than {limit:,.0f} reads/s for {calm_s:,.0f} s"
        cool = [key for key, at_s in self._hot_at_s.items() if start_s - at_s >= calm_s]
        return [for_key(key, NEAR, None, reason) for key in cool]
