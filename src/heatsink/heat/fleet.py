"""Sum the servers' reports into the heat of the fleet, window by window."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
from msgspec.structs import replace

from .heat import NOWHERE, Heat, KeyHeat, PartitionHeat, Report, WindowHeat
from .plain import UNITS_S_MAX

WINDOWS_KEPT = 5
GRACE_S = 0.3
EARLIEST_S = 0.25  # a shorter burst is averaged over this time: its window may stay calm
STEP_S = 0.08  # the shortest time between two reports of a key that gives a rate
LASTS_S = 5.0
NAMELESS = "plain:"
PARTIAL_KEYS_MAX = 4_096
SENDERS_MAX = 100_000


@dataclass(slots=True)
class _Seen:
    """One server's counts of one key so far.

    `recent_s` is the key's write rate on that server between the last two reports.
    """

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
    is_partial: bool = False

    def take(self, report: Report) -> None:
        for key, heat in report.keys.items():
            self.keys[key] = self._seen(key, heat, report)
        self.elapsed_s = report.elapsed_s
        if report.final:
            self.final = True
            self.unreported_s = report.unreported / max(report.elapsed_s, EARLIEST_S)

    def take_partial(self, report: Report) -> None:
        """Take in the rates that a program without this library reports.

        The new rate of a sender with a name replaces its old rate. Senders without a name share one
        account, so their rates add up. One account can add at most `UNITS_S_MAX` to a key's rate.
        """
        self.is_partial = True
        adds_up = report.server == NAMELESS
        for key, heat in report.keys.items():
            before = self.keys.get(key)
            if before is None and len(self.keys) >= PARTIAL_KEYS_MAX:
                continue
            units = heat.write_units
            if before is not None and adds_up:
                units += before.heat.write_units
            units = min(units, UNITS_S_MAX)
            self.keys[key] = _Seen(replace(heat, writes=units, write_units=units), 1.0)

    def _seen(self, key: str, heat: Heat, report: Report) -> _Seen:
        seen, before = _Seen(heat, report.elapsed_s), self.keys.get(key)
        if before is not None and not report.final:
            step_s = report.elapsed_s - before.elapsed_s
            if step_s >= STEP_S:
                seen.recent_s = (heat.write_units - before.heat.write_units) / step_s
        return seen


class Aggregator:
    """Sums the reports of all servers per window. Repeated and reordered reports do no harm.

    `servers` is the number of servers that sent reports for the last complete window.
    """

    def __init__(self, window_s: float) -> None:
        self.servers = 1
        self._window_s = window_s
        self._windows: dict[int, dict[str, _Account]] = {}
        self._finished = -1
        self._reporters: deque[set[str]] = deque(maxlen=WINDOWS_KEPT)
        """For each of the last windows, the servers that reported in time or too late."""

    def adopt(self, window_s: float, now_s: float) -> None:
        """Count in windows of this length from now on; the window that runs now is the first.

        A server that still counts in windows of the old length numbers them differently. Its
        reports look very old or from the future, so they are ignored until it follows.
        """
        if window_s != self._window_s:
            self._window_s = window_s
            self._windows.clear()
            self._reporters.clear()
            self._finished = int(now_s / window_s) - 1

    def add(self, report: Report, now_s: float) -> bool:
        """Add a report.

        Returns False, and ignores the report, if it is too old, from the future, or not newer than
        the last report of its server.
        """
        current = int(now_s / self._window_s)
        self._notice_jump_back(current)
        if report.partial:
            return self._add_partial(report, current)
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

    def _add_partial(self, report: Report, current: int) -> bool:
        window = int(report.window / self._window_s) if report.window else current
        if not max(self._finished, current - WINDOWS_KEPT) < window <= current + 1:
            return False
        servers = self._windows.setdefault(window, {})
        if report.server not in servers and len(servers) >= SENDERS_MAX:
            return False
        servers.setdefault(report.server, _Account()).take_partial(report)
        return True

    def _notice_jump_back(self, current: int) -> None:
        if current < self._finished - WINDOWS_KEPT:
            self._finished = current - WINDOWS_KEPT
            self._windows = {w: seen for w, seen in self._windows.items() if w <= current + 1}

    def take(self, now_s: float) -> list[WindowHeat]:
        """The windows that became complete since the last call, and the windows that still run.

        They are sorted, the oldest first.
        """
        self._notice_jump_back(int(now_s / self._window_s))
        taken = []
        for window in sorted(self._windows):
            complete = now_s >= (window + 1) * self._window_s + GRACE_S
            accounts = self._windows.pop(window) if complete else self._windows[window]
            is_bounded = complete and self._is_bounded(accounts)
            taken.append(self._sum(window, list(accounts.values()), complete, is_bounded))
            if complete:
                ours = {name for name, account in accounts.items() if not account.is_partial}
                self._reporters.append(ours)
                self._finished = window
                self.servers = max(len(ours), 1)
        return self._with_silence(taken, now_s)

    def _is_bounded(self, accounts: dict[str, _Account]) -> bool:
        """Whether every server that reported recently has sent its final report of this window."""
        final = {server for server, account in accounts.items() if account.final}
        ours = {server for server, account in accounts.items() if not account.is_partial}
        expected = ours.union(*self._reporters)
        return bool(expected) and expected <= final

    def _with_silence(self, taken: list[WindowHeat], now_s: float) -> list[WindowHeat]:
        """The windows in `taken` and, if no server reported in the last window, an empty window.

        The empty window lets keys cool down while no server reports.
        """
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
    """Sum the heat of one key over all servers. `seen` holds the counts of each server.

    In a window that still runs, a rising key counts with its latest rate. `silent_s` is an upper
    bound on the key's cost on servers that did not list the key. It is None if there is no bound.
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
        """How long after the start of its window this heat counts as recent, in seconds."""
        return 2 * self.window_s + LASTS_S

    def is_recent(self, now_s: float) -> bool:
        """Whether this heat counts as recent at `now_s`, which is in the store's time."""
        return now_s - self.window.start_s <= self.lasts_s

    def hottest(self, limit: int) -> FleetHeat:
        """A copy with only the `limit` hottest keys and partitions."""
        return replace(self, window=self.window.hottest(limit), partitions=self.partitions[:limit])

    def partition(self, number: int | None) -> PartitionHeat | None:
        return next((each for each in self.partitions if each.partition == number), None)


class HeatBoard(Protocol):
    """Where the leader publishes the fleet's heat for display.

    The value may be old or missing, and no decision depends on it.
    """

    async def show(self, heat: FleetHeat) -> None: ...

    async def look(self) -> FleetHeat | None: ...
