"""Report this server's hot keys once a window, and sooner if a key is rising."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

import msgspec

from heatsink.errors import HeatsinkError
from heatsink.primitives.checks import check_number, check_whole
from heatsink.primitives.clock import Clock

from .count import Tracker
from .heat import Report

LOOK_S = 0.1
KEYS_MAX = 256  # in one report
SHORTEST_S = 0.001
LONGEST_S = 3_600.0


class HeatBus(Protocol):
    """Carries heat reports from servers to the leader. It may lose, delay or repeat reports."""

    async def send(self, report: Report) -> None: ...

    async def receive(self) -> list[Report]:
        """The reports that arrived since the last call."""


class ReportSettings(msgspec.Struct, frozen=True):
    """Which keys a server reports: at most `KEYS_MAX` keys, each with a minimum cost.

    The minimum is `floor_share` of a bucket's limit, divided by the number of servers. So for each
    key, all servers together leave less than `floor_share` of a bucket's load unreported.
    """

    window_s: float = 1.0
    bucket_units_s: int = 800
    floor_share: float = 0.1

    def __post_init__(self) -> None:
        check_number("window_s", self.window_s, 0.1, 60)
        check_whole("bucket_units_s", self.bucket_units_s, 1, 10**9)
        check_number("floor_share", self.floor_share, 0.001, 1)

    def floor(self, servers: int) -> int:
        share = self.bucket_units_s * self.window_s * self.floor_share / max(servers, 1)
        return max(1, int(share))


class Fleet(Protocol):
    """What a reporter needs to know about the fleet: the common time and the number of servers."""

    def fleet_now_s(self) -> float: ...

    @property
    def servers(self) -> int: ...


class Reporter:
    """Sends this server's heat reports. Windows start at the same time on all servers."""

    def __init__(
        self,
        server: str,
        tracker: Tracker,
        bus: HeatBus,
        fleet: Fleet,
        clock: Clock,
        settings: ReportSettings,
    ) -> None:
        self._server = server
        self._tracker = tracker
        self._bus = bus
        self._fleet = fleet
        self._clock = clock
        self._settings = settings
        self._window = self._window_now()
        self._since_s = clock.monotonic_s()

    def adopt(self, settings: ReportSettings) -> None:
        """Report by these settings from now on.

        If windows get another length, the running window is cut short and not reported: its number
        would mean another time to a leader that has adopted the new length.
        """
        has_new_length = settings.window_s != self._settings.window_s
        self._settings = settings
        if has_new_length:
            self._tracker.roll()
            self._window, self._since_s = self._window_now(), self._clock.monotonic_s()

    def _window_now(self) -> int:
        return int(self._fleet.fleet_now_s() / self._settings.window_s)

    async def run_once(self) -> None:
        """Report the window if it has ended. Otherwise report the keys that are rising."""
        window = self._window_now()
        if window != self._window:
            await self._report_window(window)
        else:
            await self._report_alarms()

    async def _report_window(self, window: int) -> None:
        """Send the final report of the window, with the time over which its keys were counted.

        Without this time, a window that ended late would look hotter than it was.
        """
        ended, self._window = self._window, window
        elapsed_s, counted = self._elapsed_s(), self._tracker.roll()
        self._since_s = self._clock.monotonic_s()
        floor = self._settings.floor(self._fleet.servers)
        keys, unreported = counted.hottest(KEYS_MAX, floor)
        await self._bus.send(Report(self._server, ended, elapsed_s, True, unreported, keys))

    async def _report_alarms(self) -> None:
        keys = self._tracker.alarms()
        if keys:
            report = Report(self._server, self._window, self._elapsed_s(), False, 0, keys)
            await self._bus.send(report)

    def _elapsed_s(self) -> float:
        elapsed_s = self._clock.monotonic_s() - self._since_s
        return min(max(elapsed_s, SHORTEST_S), LONGEST_S)

    async def run(self) -> None:
        while True:
            with suppress(HeatsinkError):  # a window's telemetry is lost; the next one comes soon
                await self.run_once()
            window_s = self._settings.window_s
            left_s = window_s - self._fleet.fleet_now_s() % window_s
            await self._clock.sleep(min(LOOK_S, left_s + SHORTEST_S))
