"""Sum the servers' reports into the heat of the fleet.

The sums roll: each server counts with its latest report. So a sum is the fleet's heat over the last
stretch of time that is as long as a window. When a server's next report comes, the old report is
subtracted and the new one added, in one pass over the keys of these two reports. No pass over all
keys of all servers is ever needed. A server that does not report in time is left out of the sums.

Servers report cold keys by samples (see `count`), so a sum is an estimate. `interval` bounds the
true rate with a confidence of 99.9 %.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, sqrt
from typing import Protocol

import msgspec
from msgspec.structs import replace

from .heat import NOWHERE, Heat, KeyHeat, PartitionHeat, Report, WindowHeat
from .plain import UNITS_S_MAX

WINDOWS_KEPT = 5
GRACE_S = 0.3
LATE_S = 0.25  # a server counts no longer if its next report is later than this
PARTIAL_LATE_S = 0.8  # the same, for programs without this library, which know no windows
EARLIEST_S = 0.25  # a shorter burst is averaged over this time: its window may stay calm
STEP_S = 0.08  # the shortest time between two reports of a key that gives a rate
LASTS_S = 5.0
NAMELESS = "plain:"
PARTIAL_KEYS_MAX = 4_096
SENDERS_MAX = 100_000
UNITS, WRITES, READS, THROTTLES, ERROR, UNREPORTED, SAMPLED, VARIANCE, LISTERS, PLACE = range(10)
Rates = list[float]  # of one key on all servers: see the constants above
Z = 3.29  # standard deviations of the normal distribution that hold 99.9 %


@dataclass(slots=True)
class _Account:
    """What one server's reports have added to the sums, so that newer reports can replace it.

    `final` is the window of the server's latest final report. The window began at `since_s`, and
    the report listed `keys`. The counts of these keys times `per_s` are rates per second. While a
    window runs, the server may report rising keys early: `early` has (units so far, seconds so far,
    latest units per second) of each.
    """

    heard_s: float
    since_s: float = inf
    final: int = -1
    window: int = -1
    elapsed_s: float = 0.0
    unreported_s: float = 0.0
    tau_s: float = 0.0
    units_s: float = 0.0
    reads_s: float = 0.0
    is_partial: bool = False
    per_s: float = 1.0
    keys: dict[str, Heat] = field(default_factory=dict)
    early: dict[str, tuple[int, float, float]] = field(default_factory=dict)

    def accepts(self, report: Report) -> bool:
        """Whether a report is newer than all reports of this server so far."""
        if report.window <= self.final or report.window < self.window:
            return False
        return report.window > self.window or report.elapsed_s > self.elapsed_s


def interval(rate: float, tau: float) -> tuple[float, float]:
    """Return two rates: the true rate of a sampled key is between them, with 99.9 % confidence.

    `rate` is an estimate from samples that stand for `tau` units each. The number of samples has a
    Poisson distribution. The function computes the exact interval of this distribution (Garwood
    1936), with the approximation of its quantiles by Wilson and Hilferty (1931). The interval of a
    normal distribution would be wrong for few samples: with one sample on average, it would hold
    with a probability of only 99.1 %.
    """
    samples = max(rate, 0.0) / tau
    least = 0.0
    if samples:
        least = samples * max(1 - 1 / (9 * samples) - Z / (3 * sqrt(samples)), 0.0) ** 3
    above = samples + 1
    most = above * (1 - 1 / (9 * above) + Z / (3 * sqrt(above))) ** 3
    return least * tau, most * tau


class Aggregator:
    """Sums the latest reports of all servers. Repeated and reordered reports do no harm.

    `servers` is the number of servers whose reports count in the last complete window.
    """

    def __init__(self, window_s: float, listed_s: float = 0.0, notable_s: float = 0.0) -> None:
        """`window_s` is the length of windows.

        A complete window lists keys that cost `listed_s` a second.

        While a window runs, only keys with new reports are listed, and only if their writes cost
        `notable_s` or more a second.
        """
        self.servers = 1
        self.units_s = self.reads_s = 0.0
        """The rates of all keys together in the last complete window."""
        self.watched: dict[str, int] = {}
        """The keys that servers watch, with their own taus."""
        self._tau_s = 0.0
        self._window_s = window_s
        self._listed_s = listed_s
        self._notable_s = notable_s
        self._finished = -1
        self._latest_s = float("-inf")
        self._clear()

    def _clear(self) -> None:
        self._accounts: dict[str, _Account] = {}  # in the order of their last report
        self._missing: dict[str, float] = {}
        """Servers whose reports are overdue, and when they last reported."""
        self._sums: dict[str, Rates] = {}
        self._unreported_s = 0.0
        self._rising: dict[str, set[str]] = {}  # by key, the servers with early reports of it
        self._news: dict[str, None] = {}  # notable keys with new reports, in a stable order

    def leave_out(self, listed_s: float, notable_s: float) -> None:
        """Change the least cost of keys that windows list: see the constructor."""
        self._listed_s, self._notable_s = listed_s, notable_s

    def adopt(self, window_s: float, now_s: float) -> None:
        """Count in windows of this length from now on, beginning with the current window.

        A server that still counts in windows of the old length numbers its windows differently. Its
        reports look very old or from the future, so they are ignored until the server uses the new
        length.
        """
        if window_s != self._window_s:
            self._window_s = window_s
            self._clear()
            self._finished = int(now_s / window_s) - 1

    def add(self, report: Report, now_s: float) -> bool:
        """Add a report.

        A report is ignored if it is too old, from the future, or not newer than the last report of
        its server. Returns False for an ignored report.
        """
        self._notice_jump_back(now_s)
        current = int(now_s / self._window_s)
        if report.partial:
            return self._add_partial(report, now_s, current)
        if not current - WINDOWS_KEPT < report.window <= current + 1:
            return False
        account = self._accounts.get(report.server)
        if account is None:
            account = self._accounts[report.server] = _Account(now_s)
            self._missing.pop(report.server, None)
        if report.amends:
            return self._amend(report, account)
        if not account.accepts(report):
            return False
        if report.window > account.window:
            self._end_early(report.server, account)
        account.window, account.elapsed_s = report.window, report.elapsed_s
        if report.final:
            self._take_final(report, account, now_s)
        else:
            self._take_early(report, account)
        return True

    def _take_final(self, report: Report, account: _Account, now_s: float) -> None:
        self._end_early(report.server, account)
        self._withdraw(account)
        account.final, account.heard_s = report.window, now_s
        account.since_s = now_s - min(report.elapsed_s, 2 * self._window_s)
        del self._accounts[report.server]
        self._accounts[report.server] = account  # the order of the last report
        account.per_s = per_s = 1 / max(report.elapsed_s, EARLIEST_S)
        account.units_s, account.reads_s = report.units * per_s, report.reads * per_s
        account.tau_s = report.tau * per_s
        account.unreported_s = (report.tau - 1) * per_s
        self._unreported_s += account.unreported_s
        self._count(report.keys, account)

    def _amend(self, report: Report, account: _Account) -> bool:
        """Replace the counts in the server's last final report for the keys of this report.

        The leader has asked for precise counts of these keys.
        """
        if account.final != report.window:
            return False
        kept = account.keys
        replaced = {key: kept[key] for key in report.keys if key in kept}
        self._subtract(replaced, account)
        account.keys = {key: heat for key, heat in kept.items() if key not in replaced}
        self._count(report.keys, account)
        return True

    def _count(self, keys: dict[str, Heat], account: _Account) -> None:
        """Add the counts of `keys` to the sums and to the account, which has none of these keys
        yet.

        This and `_subtract` run for each key in each report, so they are written for speed.
        """
        account.keys = {**account.keys, **keys} if account.keys else keys
        sums, news, notable_s = self._sums, self._news, self._notable_s
        per_s, unreported_s = account.per_s, account.unreported_s
        for key, heat in keys.items():
            total = sums.get(key)
            if total is None:
                sums[key] = total = NO_RATES.copy()
            units_s = heat.write_units * per_s
            total[UNITS] += units_s
            total[WRITES] += heat.writes * per_s
            total[UNREPORTED] += unreported_s
            total[LISTERS] += 1
            if heat.tau:
                total[SAMPLED] += units_s
                total[VARIANCE] += units_s * heat.tau * per_s
            if heat.reads or heat.throttles or heat.error:
                total[READS] += heat.reads * per_s
                total[THROTTLES] += heat.throttles * per_s
                total[ERROR] += heat.error * per_s
            if heat.place > total[PLACE]:
                total[PLACE] = heat.place
            if total[UNITS] + total[THROTTLES] >= notable_s:
                news[key] = None

    def _withdraw(self, account: _Account) -> None:
        """Subtract everything that the account has added to the sums."""
        keys, account.keys = account.keys, {}
        self._subtract(keys, account)
        self._unreported_s -= account.unreported_s
        account.unreported_s = 0.0

    def _subtract(self, keys: dict[str, Heat], account: _Account) -> None:
        sums, per_s, unreported_s = self._sums, account.per_s, account.unreported_s
        for key, heat in keys.items():
            total = sums[key]
            if total[LISTERS] <= 1:
                del sums[key]
                continue
            units_s = heat.write_units * per_s
            total[UNITS] -= units_s
            total[WRITES] -= heat.writes * per_s
            total[UNREPORTED] -= unreported_s
            total[LISTERS] -= 1
            if heat.tau:
                total[SAMPLED] -= units_s
                total[VARIANCE] -= units_s * heat.tau * per_s
            if heat.reads or heat.throttles or heat.error:
                total[READS] -= heat.reads * per_s
                total[THROTTLES] -= heat.throttles * per_s
                total[ERROR] -= heat.error * per_s

    def _take_early(self, report: Report, account: _Account) -> None:
        for key, heat in report.keys.items():
            rate = heat.write_units / max(report.elapsed_s, EARLIEST_S)
            before = account.early.get(key)
            if before is not None:
                step_s = report.elapsed_s - before[1]
                if step_s >= STEP_S:
                    rate = max(rate, (heat.write_units - before[0]) / step_s)
            account.early[key] = heat.write_units, report.elapsed_s, rate
            self._rising.setdefault(key, set()).add(report.server)
            self._news[key] = None

    def _end_early(self, server: str, account: _Account) -> None:
        for key in account.early:
            servers = self._rising[key]
            servers.discard(server)
            if not servers:
                del self._rising[key]
        account.early = {}

    def _add_partial(self, report: Report, now_s: float, current: int) -> bool:
        """Add the rates that a program without this library reports.

        The new rate of a sender with a name replaces its old rate. Senders without a name share one
        account, so their rates in one window add up. One account can add at most `UNITS_S_MAX` to a
        key's rate.
        """
        window = int(report.window / self._window_s) if report.window else current
        if not current - WINDOWS_KEPT < window <= current + 1:
            return False
        account = self._accounts.pop(report.server, None)
        if account is None:
            if len(self._accounts) >= SENDERS_MAX:
                return False
            account = _Account(now_s, is_partial=True)
        self._accounts[report.server] = account
        account.heard_s = now_s
        if window > account.window:
            self._withdraw(account)
            account.window = window
        adds_up, kept = report.server == NAMELESS, account.keys
        self._withdraw(account)
        for key, heat in report.keys.items():
            before = kept.get(key)
            if before is None and len(kept) >= PARTIAL_KEYS_MAX:
                continue
            units = heat.write_units + (before.write_units if before and adds_up else 0)
            units = int(min(units, UNITS_S_MAX))
            kept[key] = replace(heat, writes=units, write_units=units)
        self._count(kept, account)
        return True

    def _notice_jump_back(self, now_s: float) -> None:
        """Start again if the fleet's time was set back."""
        if now_s < self._latest_s - WINDOWS_KEPT * self._window_s:
            self._clear()
            self._finished = int(now_s / self._window_s) - WINDOWS_KEPT
            self._latest_s = now_s
        self._latest_s = max(self._latest_s, now_s)

    def take(self, now_s: float) -> list[WindowHeat]:
        """Return the window completed since the previous call, if any, and the current window.

        The current window lists only keys that the leader follows and that servers have reported
        since the previous call. If no server reported, a complete window is empty, so that keys
        cool down.
        """
        self._notice_jump_back(now_s)
        self._let_go(now_s)
        taken = []
        ended = int((now_s - GRACE_S) / self._window_s) - 1
        if ended > self._finished:
            self._finished = ended
            taken.append(self._complete(ended))
        news, self._news = self._news, {}
        keys = {key: self._rising_heat(key) for key in news if self._is_known(key)}
        if keys:
            window = int(now_s / self._window_s)
            taken.append(WindowHeat(window, window * self._window_s, False, keys, None))
        return taken

    def _let_go(self, now_s: float) -> None:
        """Stop counting servers whose report is overdue."""
        due_s, overdue = now_s - self._window_s - LATE_S, []
        for server, account in self._accounts.items():
            if account.heard_s >= due_s:
                break
            if not account.is_partial or account.heard_s < due_s + LATE_S - PARTIAL_LATE_S:
                overdue.append(server)
        for server in overdue:
            account = self._accounts.pop(server)
            self._end_early(server, account)
            self._withdraw(account)
            if not account.is_partial:
                self._missing[server] = account.heard_s
        gone_s = now_s - (WINDOWS_KEPT + 1) * self._window_s - GRACE_S
        for server in [each for each, heard_s in self._missing.items() if heard_s < gone_s]:
            del self._missing[server]

    def _complete(self, window: int) -> WindowHeat:
        ours = [account for account in self._accounts.values() if not account.is_partial]
        self.servers = max(len(ours), 1)
        self.units_s = sum(each.units_s for each in ours)
        self.reads_s = sum(each.reads_s for each in ours)
        self._tau_s = max((each.tau_s for each in ours), default=0.0)
        is_bounded = bool(ours) and not self._missing and all(each.final >= 0 for each in ours)
        keys, coldest_s = dict[str, KeyHeat](), 0.0
        for key, rates in self._sums.items():
            cost_s = rates[UNITS] + rates[READS] + rates[THROTTLES]
            if cost_s >= self._listed_s:
                keys[key] = self._heat(key, rates, is_bounded)
            elif cost_s > coldest_s:
                coldest_s = cost_s
        unreported_s = None
        if is_bounded:
            coldest_most_s = interval(coldest_s, self._tau_s)[1] if self._tau_s else coldest_s
            unreported_s = min(coldest_s + max(self._unreported_s, 0.0), coldest_most_s)
        start_s = window * self._window_s
        since_s = min([start_s, *(each.since_s for each in ours)])
        return WindowHeat(window, start_s, True, keys, unreported_s, since_s)

    def _heat(self, key: str, rates: Rates, is_bounded: bool) -> KeyHeat:
        """Return a key's heat, with the interval that contains its true rate.

        `rates` are the sums of all reports. On a server that did not list the key, the key cost
        less than the server's tau. For many such servers together, a better bound is known: if the
        key had cost more, some of them would have sampled it. With `is_bounded`, all servers have
        reported, so there is an upper bound.
        """
        units, writes, reads, throttles, error, unreported, sampled, variance, _, place = rates
        tau_s = variance / sampled if sampled > 0 and variance > 0 else 0.0
        below_s = sampled - interval(sampled, tau_s)[0] if tau_s else 0.0
        bound_s = None
        if is_bounded:
            own = self.watched.get(key)
            tau_s = max(tau_s, self._tau_s if own is None else own / self._window_s)
            known_s = max(sampled, 0.0)
            above_s = interval(known_s, tau_s)[1] - known_s if tau_s else 0.0
            bound_s = error + min(above_s, max(self._unreported_s - unreported, 0.0))
        partition = None if place == NOWHERE else int(place)
        return KeyHeat(
            units, writes, reads, throttles, bound_s, partition, below_s=min(below_s, units)
        )

    def _is_known(self, key: str) -> bool:
        return key in self._sums or key in self._rising

    def _rising_heat(self, key: str) -> KeyHeat:
        """Return a key's heat while the window runs.

        Where a server has reported the key early, the latest rate counts, if it is higher.
        """
        heat = self._heat(key, self._sums.get(key, NO_RATES), is_bounded=False)
        rise_s = 0.0
        for server in self._rising.get(key, ()):
            account = self._accounts[server]
            known = account.keys.get(key, NO_HEAT).write_units * account.per_s
            rise_s += max(account.early[key][2] - known, 0.0)
        if not rise_s:
            return heat
        return replace(
            heat, write_units_s=heat.write_units_s + rise_s, writes_s=heat.writes_s + rise_s
        )


NO_HEAT = Heat()
NO_RATES: Rates = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, NOWHERE]


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
        """Return whether this heat counts as recent at `now_s`, which is in the store's time."""
        return now_s - self.window.start_s <= self.lasts_s

    def hottest(self, limit: int) -> FleetHeat:
        """Return a copy with only the `limit` hottest keys and partitions."""
        return replace(self, window=self.window.hottest(limit), partitions=self.partitions[:limit])

    def partition(self, number: int | None) -> PartitionHeat | None:
        return next((each for each in self.partitions if each.partition == number), None)


class HeatBoard(Protocol):
    """Where the leader publishes the fleet's heat for display.

    The value may be old or missing, and no decision depends on it.
    """

    async def show(self, heat: FleetHeat) -> None: ...

    async def look(self) -> FleetHeat | None: ...
