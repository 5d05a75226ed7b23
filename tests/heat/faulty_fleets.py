"""Random fleets whose reports and notices are lost, late, repeated and out of order.

Each seed plays one fleet of `fleets` with one kind of fault. The guarantee is about what arrives:

- A lost report counts as a window in which its server wrote nothing. If more than a tenth of a
  key's reports of a window are lost, the leader may find the key a window later. The estimate is
  too low by what is lost.
- Late reports and notices delay the decision by as much.
- Repeated and reordered reports change nothing, nor do servers that join.

Cold keys must be left alone in all these cases.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from random import Random

from heatsink.heat import report as reports
from heatsink.heat.count import Tracker
from heatsink.heat.heat import Report
from heatsink.testing import ManualClock

from . import fleets
from .fleets import FOUND_IN_S, LIMIT, TICK_S, Bus, Fleet, Key, Outcome, Registry

LOST_MAX = 0.1  # of a key's reports of a window: the rest are still enough
AGAIN_S = 2.5  # a report is repeated within this time, so after later ones
RECENT_S = 2.5


@dataclass(frozen=True)
class Faults:
    lost: float = 0.0
    late_s: float = 0.0
    repeated: float = 0.0
    notice_late_s: float = 0.0
    joining: float = 0.0
    """Probabilities for each report, delays at most, and servers that join in a second, as a share
    of all servers."""


KINDS = {
    "lost reports": Faults(lost=0.05),
    "late reports": Faults(late_s=0.2),
    "repeated reports": Faults(repeated=0.3),
    "late notices": Faults(notice_late_s=1.0),
    "servers that join": Faults(joining=0.05),
    "all of these": Faults(0.02, 0.1, 0.1, 0.5, 0.02),
}


class FaultyBus(Bus):
    def __init__(self, clock: ManualClock, faults: Faults, rng: Random) -> None:
        super().__init__()
        self.lost: list[tuple[float, str]] = []
        """When a report of which server was lost."""
        self._clock = clock
        self._faults = faults
        self._rng = rng
        self._sent = 0
        self._under_way: list[tuple[float, int, Report]] = []

    async def send(self, report: Report) -> None:
        now_s, faults, rng = self._clock.now_s(), self._faults, self._rng
        if rng.random() < faults.lost:
            self.lost.append((now_s, report.server))
            return
        self._arrive(report, now_s + faults.late_s * rng.random())
        if rng.random() < faults.repeated:
            self._arrive(report, now_s + AGAIN_S * rng.random())

    def _arrive(self, report: Report, at_s: float) -> None:
        self._sent += 1
        heappush(self._under_way, (at_s, self._sent, report))

    async def receive(self) -> list[Report]:
        now_s, received = self._clock.now_s(), []
        while self._under_way and self._under_way[0][0] <= now_s:
            received.append(heappop(self._under_way)[2])
        return received


class Hearing:
    """What one server hears of the fleet: each notice a while later."""

    def __init__(self, registry: Registry, clock: ManualClock, late_s: float) -> None:
        self._registry = registry
        self._clock = clock
        self._late_s = late_s
        self._known = self._notice = b""
        self._under_way: deque[tuple[float, bytes]] = deque()

    def fleet_now_s(self) -> float:
        return self._clock.now_s()

    @property
    def servers(self) -> int:
        return self._registry.servers

    @property
    def notice(self) -> bytes:
        now_s = self._clock.now_s()
        if self._registry.notice != self._known:
            self._known = self._registry.notice
            self._under_way.append((now_s + self._late_s, self._known))
        while self._under_way and self._under_way[0][0] <= now_s:
            self._notice = self._under_way.popleft()[1]
        return self._notice


class FaultyFleet(Fleet):
    found = "hot keys found in time"

    def __init__(self, seed: int) -> None:
        number = seed % len(KINDS)
        self.kind = list(KINDS)[number]
        self.faults, self.luck = KINDS[self.kind], Random(f"faults {seed}")
        super().__init__(seed // len(KINDS))
        self.outcome.where += f", {self.kind}"

    def _make_bus(self) -> Bus:
        self.faulty_bus = FaultyBus(self.clock, self.faults, self.luck)
        return self.faulty_bus

    def _heard_by(self, _server: int) -> reports.Fleet:
        late_s = self.faults.notice_late_s * self.luck.random()
        return Hearing(self.registry, self.clock, late_s)

    def _write(self, now_s: float) -> None:
        for _ in range(
            fleets._poisson(self.faults.joining * TICK_S * len(self.trackers), self.luck)
        ):
            self._join()
        super()._write(now_s)

    def _join(self) -> None:
        """A new server takes its share of the writes of keys that all servers see."""
        number = len(self.trackers)
        tracker = Tracker(self.capacity, LIMIT // 2, rng=Random(self.luck.random()))
        self.trackers.append(tracker)
        self.reporters.append(self._make_reporter(number, tracker))
        self.everywhere.append(number)
        self.outcome.events["joined"] += 1

    def _allowed_s(self, key: Key) -> float:
        late_s = 2 * self.faults.late_s + self.faults.notice_late_s
        lossy = [share for share in self._lost(key).values() if share > LOST_MAX]
        return FOUND_IN_S + late_s + len(lossy)

    def _is_whole(self, key: Key, now_s: float) -> bool:
        window = int(now_s - key.hot_at_s)
        lost = self._lost(key)
        return all(lost[each] <= LOST_MAX for each in range(window - int(RECENT_S), window + 1))

    def _lost(self, key: Key) -> defaultdict[int, float]:
        """By the second after the key got hot, the share of its reports that was lost."""
        seeing = {f"s{number}-{self.seed}" for number in key.servers}
        lost: defaultdict[int, float] = defaultdict(float)
        for at_s, server in self.faulty_bus.lost:
            if server in seeing and at_s - self.start_s >= key.hot_at_s:
                lost[int(at_s - self.start_s - key.hot_at_s)] += 1 / len(seeing)
        return lost


play = partial(fleets.play, make=FaultyFleet)


def simulate(seed: int) -> Outcome:
    """Run one fleet with faults. Raises `Violation` if anything was not right."""
    return fleets.simulate(seed, FaultyFleet)
