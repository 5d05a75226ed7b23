"""Report this server's hot keys once a window, and sooner if a key is rising.

The number of keys that a server reports depends on the server's heat. It does not depend on how
many keys or servers there are: see `count`. The leader tells all servers how to sample
(`Sampling`): the taus, and the keys to watch. It sends this *notice* with the news of the registry.
For each watched key, servers then use a smaller tau, so that the leader knows the key's rate
precisely. Servers report at different times of a window, so that the leader gets an even stream of
reports.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress
from typing import Annotated, Protocol

import msgspec

from heatsink.errors import HeatsinkError
from heatsink.primitives.checks import check_number, check_whole
from heatsink.primitives.clock import Clock

from .count import NO_KEYS, TopKeys, Tracker, mark_of, thinned
from .heat import Report

LOOK_S = 0.1
KEYS_MAX = 256  # in one report
UNHEARD_KEYS_MAX = 64  # in one report of a large fleet that hears no leader
LARGE_FLEET = 100  # servers
SHORTEST_S = 0.001
LONGEST_S = 3_600.0
SAMPLES = 5  # of a key with the load that the fleet may leave unreported
WATCHED_MAX = 4_096
_MARK = struct.Struct("<IB")


class HeatBus(Protocol):
    """Carries heat reports from servers to the leader. It may lose, delay or repeat reports."""

    async def send(self, report: Report) -> None: ...

    async def receive(self) -> list[Report]:
        """Return the reports that arrived since the last call."""


class ReportSettings(msgspec.Struct, frozen=True):
    """Which keys a server reports while it has no notice from a leader.

    A key whose load on all servers together is `floor_share` of a bucket's limit gets five samples
    on average. A server reports about one key for every tau units, and at most `KEYS_MAX` keys.
    """

    window_s: float = 1.0
    bucket_units_s: int = 800
    floor_share: float = 0.1
    hot_reads_s: float = 1_000.0

    def __post_init__(self) -> None:
        check_number("window_s", self.window_s, 0.1, 60)
        check_whole("bucket_units_s", self.bucket_units_s, 1, 10**9)
        check_number("floor_share", self.floor_share, 0.001, 1)

    @property
    def sampling(self) -> Sampling:
        share = self.window_s * self.floor_share / SAMPLES
        units, reads = self.bucket_units_s * share, self.hot_reads_s * share
        return Sampling(max(int(units), 1), max(int(reads), 1))


Tau = Annotated[int, msgspec.Meta(ge=1, le=10**12)]


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """The leader's notice: how servers sample, and which keys they watch.

    One sample stands for `tau` write units or `tau_reads` reads. `marks` holds 5 bytes for each key
    to watch: its mark (see `mark_of`), and the binary logarithm of its own tau.
    """

    tau: Tau
    tau_reads: Tau
    marks: Annotated[bytes, msgspec.Meta(max_length=_MARK.size * WATCHED_MAX)] = b""

    def watching(self, keys: Mapping[str, int]) -> Sampling:
        """Return a copy with these keys to watch and their taus."""
        marks = sorted((mark_of(key), tau.bit_length() - 1) for key, tau in keys.items())
        packed = b"".join(_MARK.pack(*mark) for mark in marks[:WATCHED_MAX])
        return Sampling(self.tau, self.tau_reads, packed)

    @property
    def watched(self) -> dict[int, int]:
        """The marks of the keys to watch, and their taus."""
        whole = self.marks[: len(self.marks) // _MARK.size * _MARK.size]
        return {mark: 1 << min(power, 40) for mark, power in _MARK.iter_unpack(whole)}

    def encoded(self) -> bytes:
        return msgspec.msgpack.encode(self)


_SAMPLING = msgspec.msgpack.Decoder(Sampling)


class Fleet(Protocol):
    """What a reporter needs from the fleet.

    This is the common time, the number of servers, and the leader's notice, which says how to
    sample.
    """

    def fleet_now_s(self) -> float: ...

    @property
    def servers(self) -> int: ...

    @property
    def notice(self) -> bytes:
        """The last notice of the leader; empty if there is none, or if it is long ago."""


class Reporter:
    """Sends this server's heat reports.

    All windows have the same length. A server's name decides when its windows begin.
    """

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
        self._rng = tracker.rng
        self._notice = b""
        self._sampling = settings.sampling
        self._watched: Mapping[int, int] = NO_KEYS
        self._sample()
        self._window = self._window_now()
        self._flushed = -1  # the running window, if it was reported before its end
        self._since_s = clock.monotonic_s()
        self._last: tuple[int, float, TopKeys] | None = None  # the last window: number, time, keys

    def adopt(self, settings: ReportSettings) -> None:
        """Report by these settings from now on.

        If the length of windows changes, the current window ends early and is not reported: a
        leader that has adopted the new length would understand the window's number as another time.
        """
        has_new_length = settings.window_s != self._settings.window_s
        self._settings = settings
        if not self._notice:
            self._sampling = settings.sampling
            self._sample()
        if has_new_length:
            self._tracker.roll()
            self._window, self._since_s = self._window_now(), self._clock.monotonic_s()
            self._last = None

    def _sample(self) -> None:
        sampling = self._sampling
        self._tracker.sample(sampling.tau, sampling.tau_reads, self._watched)

    @property
    def _phase(self) -> float:
        """By which fraction of a window this server's windows begin later than others.

        So the reports of the fleet do not come all at once. The fraction follows from the last part
        of the server's name. This part is random, but in a simulation it is the same in every
        replay.
        """
        return mark_of(self._server.rpartition(":")[2]) / 2**32

    def _window_now(self) -> int:
        return int(self._fleet.fleet_now_s() / self._settings.window_s - self._phase)

    async def run_once(self) -> None:
        """Report the window if it has ended. Otherwise report the keys that are rising."""
        new = self._take_notice()
        window = self._window_now()
        if window != self._window and self._window == self._flushed:
            self._window = window  # counts since the flush belong to the window that begins
        elif window != self._window:
            await self._report_window(window)
        else:
            await self._amend(new)
            await self._report_alarms()

    async def flush(self) -> None:
        """Report what was counted so far, before this process is frozen or ends.

        The report counts for a whole window, since nothing follows in this window. There is at most
        one report a window: what is counted after the first flush goes with the next one.
        """
        self._take_notice()
        window = self._window_now()
        if window == self._flushed:
            return
        if self._window == self._flushed:
            self._window = window
        is_running = window == self._window
        await self._report_window(window, self._settings.window_s if is_running else SHORTEST_S)
        if is_running:
            self._flushed = window

    def _take_notice(self) -> Mapping[int, int]:
        """Follow the leader's latest notice. Returns the keys that are new to watch."""
        notice = self._fleet.notice
        if notice == self._notice:
            return NO_KEYS
        before, self._notice = self._watched, notice
        self._sampling, self._watched = self._settings.sampling, NO_KEYS
        if notice:
            with suppress(msgspec.MsgspecError):  # of another release: as if there were none
                self._sampling = _SAMPLING.decode(notice)
                self._watched = self._sampling.watched
        self._sample()
        new = {mark: tau for mark, tau in self._watched.items() if mark not in before}
        if new:
            self._tracker.watch(new, self._elapsed_s())
        return new

    async def _report_window(self, window: int, least_s: float = SHORTEST_S) -> None:
        """Send the final report of the window, with the time over which its keys were counted.

        Without this time, a window that ended late would look hotter than it was. `least_s` is the
        shortest time that the report may state.
        """
        ended, self._window = self._window, window
        elapsed_s, counted = max(self._elapsed_s(), least_s), self._tracker.roll()
        self._since_s = self._clock.monotonic_s()
        self._last = ended, elapsed_s, counted
        listed = counted.listed(self._watched, self._rng, elapsed_s)
        keys, tau = thinned(listed, self._keys_max, self._rng)
        report = Report(
            *(self._server, ended, elapsed_s, True, max(counted.tau, tau), keys),
            units=self._tracker.units,
            reads=self._tracker.reads,
        )
        await self._bus.send(report)

    @property
    def _keys_max(self) -> int:
        """How many keys to report.

        In a large fleet these are fewer while no leader sends a notice.
        """
        is_lost = not self._notice and self._fleet.servers > LARGE_FLEET
        return UNHEARD_KEYS_MAX if is_lost else KEYS_MAX

    async def _amend(self, new: Mapping[int, int]) -> None:
        """For the window that ended last, report the keys in `new` once more, precisely.

        The leader has just begun to watch these keys. With this report it need not wait for the end
        of the present window.
        """
        if not new or self._last is None:
            return
        window, elapsed_s, counted = self._last
        keys = counted.listed(new, self._rng, elapsed_s)
        keys = {key: heat for key, heat in keys.items() if mark_of(key) in new}
        if keys:
            report = Report(self._server, window, elapsed_s, False, 1, keys, amends=True)
            await self._bus.send(report)

    async def _report_alarms(self) -> None:
        keys = self._tracker.alarms()
        if keys:
            report = Report(self._server, self._window, self._elapsed_s(), False, 1, keys)
            await self._bus.send(report)

    def _elapsed_s(self) -> float:
        elapsed_s = self._clock.monotonic_s() - self._since_s
        return min(max(elapsed_s, SHORTEST_S), LONGEST_S)

    async def run(self) -> None:
        while True:
            with suppress(HeatsinkError):  # a window's telemetry is lost; the next one comes soon
                await self.run_once()
            window_s = self._settings.window_s
            left_s = window_s - (self._fleet.fleet_now_s() - self._phase * window_s) % window_s
            await self._clock.sleep(min(LOOK_S, left_s + SHORTEST_S))
