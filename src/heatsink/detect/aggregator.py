"""Sums the servers' reports into the fleet's heat, window by window."""

from __future__ import annotations

from .heat import Heat, KeyHeat, Report, WindowHeat

WINDOWS_KEPT = 5
GRACE_S = 0.3
EARLIEST_S = 0.25  # a burst shorter than this says nothing about the rest of its window


class Aggregator:
    """Counts each (server, window) once, however often and in whatever order its reports come.

    `servers` is how many of them reported in the last complete window.
    """

    def __init__(self, window_s: float) -> None:
        self.servers = 1
        self._window_s = window_s
        self._windows: dict[int, dict[str, Report]] = {}
        self._finished = -1

    def add(self, report: Report, now_s: float) -> bool:
        """Take a report in. False if it is too old, from the future, or no news."""
        current = int(now_s / self._window_s)
        if not max(self._finished, current - WINDOWS_KEPT) < report.window <= current + 1:
            return False
        servers = self._windows.setdefault(report.window, {})
        known = servers.get(report.server)
        if known is not None and known.elapsed_s >= report.elapsed_s:
            return False
        servers[report.server] = report
        return True

    def take(self, now_s: float) -> list[WindowHeat]:
        """Windows that became complete since the last call, oldest first, and the one that runs."""
        taken = []
        for window in sorted(self._windows):
            complete = now_s >= (window + 1) * self._window_s + GRACE_S
            reports = self._windows.pop(window) if complete else self._windows[window]
            taken.append(self._sum(window, list(reports.values()), complete))
            if complete:
                self._finished = window
                self.servers = max(len(reports), 1)
        return self._with_silence(taken, now_s)

    def _with_silence(self, taken: list[WindowHeat], now_s: float) -> list[WindowHeat]:
        """A window in which nobody reported anything is complete too: that is how keys cool."""
        ended = int((now_s - GRACE_S) / self._window_s) - 1
        if ended > self._finished and not any(heat.window == ended for heat in taken):
            self._finished = ended
            taken.append(self._sum(ended, [], complete=True))
        return sorted(taken, key=lambda heat: heat.window)

    def _sum(self, window: int, reports: list[Report], complete: bool) -> WindowHeat:
        unreported_s = sum(report.unreported / self._window_s for report in reports)
        keys: dict[str, KeyHeat] = {}
        for key in {key: None for report in reports for key in report.keys}:
            keys[key] = self._sum_key([r for r in reports if key in r.keys], key, unreported_s)
        return WindowHeat(window, window * self._window_s, complete, keys, unreported_s)

    def _sum_key(self, reports: list[Report], key: str, unreported_s: float) -> KeyHeat:
        rates = [(r.keys[key], 1 / max(r.elapsed_s, EARLIEST_S)) for r in reports]
        listed_s = sum(r.unreported / self._window_s for r in reports)
        return KeyHeat(
            write_units_s=sum(heat.write_units * per_s for heat, per_s in rates),
            writes_s=sum(heat.writes * per_s for heat, per_s in rates),
            reads_s=sum(heat.reads * per_s for heat, per_s in rates),
            throttles_s=sum(heat.throttles * per_s for heat, per_s in rates),
            bound_s=_error_s(rates) + unreported_s - listed_s,
        )


def _error_s(rates: list[tuple[Heat, float]]) -> float:
    return sum(heat.error * per_s for heat, per_s in rates)
