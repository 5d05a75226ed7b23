"""When it is time to give partitions a Redis of their own.

A Redis runs its commands on one core. Near the end of that core everything on it gets slower, so
the advice comes while there is room to act: well before, and only if it stays that way.
"""

from __future__ import annotations

from collections.abc import Sequence

from heatsink.bulk.store import ServerHealth
from heatsink.registry.decision import Decision

CPU_MAX = 0.6  # of one core
MEMORY_MAX = 0.75  # of maxmemory
LATENCY_MS_MAX = 10.0
READINGS = 5  # in a row
OWN_REDIS = "own_redis"


class Advisor:
    """Readings in, advice out: `redis:host:6379 · own_redis · 8 · "72 % of a core …"`."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, float]] = {}
        self._streaks: dict[str, int] = {}
        self._advised: set[str] = set()

    def advise(self, time_s: float, servers: Sequence[ServerHealth]) -> list[Decision]:
        decisions = []
        for server in servers:
            reason = self._trouble(time_s, server)
            self._streaks[server.place] = self._streaks.get(server.place, 0) + 1 if reason else 0
            decisions += self._change(server, reason)
        return decisions

    def _trouble(self, time_s: float, server: ServerHealth) -> str:
        before = self._last.get(server.place)
        self._last[server.place] = time_s, server.cpu_used_s
        if before is not None and time_s > before[0]:
            share = (server.cpu_used_s - before[1]) / (time_s - before[0])
            if share > CPU_MAX:
                return f"it uses {share:.0%} of a core"
        if server.memory_max and server.memory > MEMORY_MAX * server.memory_max:
            return f"it uses {server.memory / server.memory_max:.0%} of its maxmemory"
        if server.latency_ms > LATENCY_MS_MAX:
            return f"it takes {server.latency_ms:.0f} ms to answer"
        return ""

    def _change(self, server: ServerHealth, reason: str) -> list[Decision]:
        subject, is_advised = f"redis:{server.place}", server.place in self._advised
        if self._streaks[server.place] >= READINGS and not is_advised:
            self._advised.add(server.place)
            half = max(len(server.partitions) // 2, 1)
            text = (
                f"{reason} for {READINGS} readings: put half of its partitions elsewhere (places)"
            )
            return [Decision(subject, OWN_REDIS, half, text)]
        if not reason and is_advised:
            self._advised.discard(server.place)
            return [Decision(subject, OWN_REDIS, None, "it has room again")]
        return []
