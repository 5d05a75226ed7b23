"""Sum the servers' reports into the heat of the fleet, window by window."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec.structs import replace

from .heat import NOWHERE, Heat, KeyHeat, PartitionHeat, Report, WindowHeat

WINDOWS_KEPT = 5
GRACE_S = 0.3
EARLIEST_S = 0.25  # a shorter burst is averaged over this time: its window may stay calm
STEP_S = 0.08  # the shortest time between two reports of a key that gives a rate
LASTS_S = 5.0


@dataclass(slots=True)
class _Seen:
    """One server's counts of one key so far, and its write rate between the last two reports."""

    heat: Heat
    elapsed_s: float
    recent_s: float = 0.0

    @property
    def per_s(self) -> float:
        return 1 / max(self.elapsed_s, EARLIEST_S)


@dataclass(slots=True)
class _Account:
    """One server's reports of one window."""

    elapsed_s: float = 0.0
    final: bool = False
    unreported_s: float = 0.0
    keys: dict[str, _Seen] = field(default_factory=dict)

    def take(self, report: Report) -> None:
        for key, heat in report.keys.items():
            self.keys[key] = self._seen(key, heat, report)
        self.elapsed_s = report.elapsed_s
        if report.final:
            self.final = True
            self.unreported_s = report.unreported / max(report.elapsed_s, EARLIEST_S)

    def _seen(self, key: str, heat: Heat, report: Report) -> _Seen:
        seen, before = _Seen(heat, report.elapsed_s), self.keys.get(key)
        if before is not None and not report.final:
            step_s = report.elapsed_s - before.elapsed_s
            if step_s >= STEP_S:
                seen.recent_s = (heat.write_units - before.heat.write_units) / step_s
        return seen


class Aggregator:
    """Sums the reports of all servers per window. Repeated and reordered reports do no harm.

    `servers` is the number of servers that reported in the last complete window.
    """

    def __init__(self, window_s: float) -> None:
        self.servers = 1
        self._window_s = window_s
        self._windows: dict[int, dict[str, _Account]] = {}
        self._finished = -1
        self._reporters: deque[set[str]] = deque(maxlen=WINDOWS_KEPT)
        """The servers that reported in each of the last windows, late reports included."""

    def add(self, report: Report, now_s: float) -> bool:
        """Add a report. False if it is too old, from the future, or not newer than the last."""
        current = int(now_s / self._window_s)
        self._notice_jump_back(current)
        if not max(self._finished, current - WINDOWS_KEPT) < report.window <= current + 1:
            if self._reporters and report.window <= self._finished:
                self._reporters[-1].add(report.server)
            return False
        servers = self._windows.setdefault(report.window, {})
        account = servers.setdefault(report.server, _Account())
        if account.final or report.elapsed_s <= account.elapsed_s:
            return False
        account.take(report)
        return True

    def _notice_jump_back(self, current: int) -> None:
        if current < self._finished - WINDOWS_KEPT:
            self._finished = current - WINDOWS_KEPT
            self._windows = {w: seen for w, seen in self._windows.items() if w <= current + 1}

    def take(self, now_s: float) -> list[WindowHeat]:
        """The windows that became complete since the last call, and those still running.

        Oldest first.
        """
        self._notice_jump_back(int(now_s / self._window_s))
        taken = []
        for window in sorted(self._windows):
            complete = now_s >= (window + 1) * self._window_s + GRACE_S
            accounts = self._windows.pop(window) if complete else self._windows[window]
            is_bounded = complete and self._is_bounded(accounts)
            taken.append(self._sum(window, list(accounts.values()), complete, is_bounded))
            if complete:
                self._reporters.append(set(accounts))
                self._finished = window
                self.servers = max(len(accounts), 1)
        return self._with_silence(taken, now_s)

    def _is_bounded(self, accounts: dict[str, _Account]) -> bool:
        """Whether every server that reported recently has sent its final report of this window."""
        final = {server for server, account in accounts.items() if account.final}
        expected = set(accounts).union(*self._reporters)
        return bool(expected) and expected <= final

    def _with_silence(self, taken: list[WindowHeat], now_s: float) -> list[WindowHeat]:
        """Add an empty window if the last one ended without any report, so that keys can cool."""
        ended = int((now_s - GRACE_S) / self._window_s) - 1
        if ended > self._finished and not any(heat.window == ended for heat in taken):
            self._finished = ended
            self._reporters.append(set())
            taken.append(self._sum(ended, [], complete=True, is_bounded=False))
        return sorted(taken, key=lambda heat: heat.window)

    def _sum(
        self, window: int, accounts: list[_Account], complete: bool, is_bounded: bool
    ) -> WindowHeat:
        unreported_s = sum(account.unreported_s for account in accounts) if is_bounded else None
        keys: dict[str, KeyHeat] = {}
        for key in {key: None for account in accounts for key in account.keys}:
            silent_s = None
            if is_bounded:
                silent_s = sum(a.unreported_s for a in accounts if key not in a.keys)
            seen = [account.keys[key] for account in accounts if key in account.keys]
            keys[key] = _sum_key(seen, silent_s, complete)
        return WindowHeat(window, window * self._window_s, complete, keys, unreported_s)


def _sum_key(seen: list[_Seen], silent_s: float | None, complete: bool) -> KeyHeat:
    """Sum one key over all servers. In a running window, a rising key counts by its latest rate.

    `silent_s` bounds the key's cost on servers that did not list it; None if there is no bound.
    """
    errors_s = sum(each.heat.error * each.per_s for each in seen)
    rates = [each.heat.write_units * each.per_s for each in seen]
    if not complete:
        rates = [max(rate, each.recent_s) for rate, each in zip(rates, seen, strict=True)]
    place = max(each.heat.place for each in seen)
    return KeyHeat(
        write_units_s=sum(rates),
        writes_s=sum(each.heat.writes * each.per_s for each in seen),
        reads_s=sum(each.heat.reads * each.per_s for each in seen),
        throttles_s=sum(each.heat.throttles * each.per_s for each in seen),
        bound_s=None if silent_s is None else errors_s + silent_s,
        partition=None if place == NOWHERE else place,
    )


class FleetHeat(msgspec.Struct, frozen=True):
    """The fleet's heat in the last complete window, as the leader publishes it.

    `partitions` are sorted, the hottest first.
    """

    leader: str
    window_s: float
    window: WindowHeat
    partitions: tuple[PartitionHeat, ...] = ()

    @property
    def lasts_s(self) -> float:
        """How long this counts as recent, from the start of the window."""
        return 2 * self.window_s + LASTS_S

    def is_recent(self, now_s: float) -> bool:
        """Whether this still shows the current heat. `now_s` is in the store's time."""
        return now_s - self.window.start_s <= self.lasts_s

    def hottest(self, limit: int) -> FleetHeat:
        """The `limit` hottest keys and partitions only."""
        return replace(self, window=self.window.hottest(limit), partitions=self.partitions[:limit])

    def partition(self, number: int | None) -> PartitionHeat | None:
        return next((each for each in self.partitions if each.partition == number), None)


class HeatBoard(Protocol):
    """Where the leader publishes the fleet's heat for display.

    The value may be old or missing, and no decision depends on it.
    """

    async def show(self, heat: FleetHeat) -> None: ...

    async def look(self) -> FleetHeat | None: ...
