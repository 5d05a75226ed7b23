"""The fleet's heat as a coordinator sees it, on the time of the trace.

The production tracker, reports and aggregator, with their timing: counts are looked at ten times a
window, keys on the rise are reported early, and a window is complete a little after its end.
"""

from __future__ import annotations

from heatsink.detect.aggregator import Aggregator
from heatsink.detect.heat import Report, WindowHeat
from heatsink.detect.reporter import LOOK_S, ReportSettings
from heatsink.detect.tracker import Tracker

SERVER = "all"


class Watch:
    """One tracker for all app servers: what they would report adds up to the same.

    `early` reports of keys on the rise need every request: a few of a sample say nothing.
    """

    def __init__(self, window_s: float, bucket_units_s: int, early: bool, now_s: float) -> None:
        self.tracker = Tracker(alarm_units=max(int(bucket_units_s * window_s / 2), 1))
        self.next_look_s = now_s
        self._settings = ReportSettings(window_s=window_s, bucket_units_s=bucket_units_s)
        self._aggregator = Aggregator(window_s)
        self._early = early
        self._look_s = LOOK_S * window_s
        self._window = int(now_s / window_s)
        self._since_s = now_s

    def look(self) -> list[WindowHeat]:
        """What the coordinator learns at the next look; time goes on to it."""
        now_s = self.next_look_s
        self.next_look_s += self._look_s
        report = self._report(now_s)
        if report is not None:
            self._aggregator.add(report, now_s)
        return self._aggregator.take(now_s)

    def _report(self, now_s: float) -> Report | None:
        window, elapsed_s = int(now_s / self._settings.window_s), now_s - self._since_s
        if window == self._window:
            rising = self.tracker.alarms() if self._early else {}
            return Report(SERVER, window, elapsed_s, False, 0, rising) if rising else None
        ended, self._window, self._since_s = self._window, window, now_s
        keys, unreported = self.tracker.roll().hottest(
            self._settings.keys_max, self._settings.floor(servers=1)
        )
        return Report(SERVER, ended, elapsed_s, True, unreported, keys)
