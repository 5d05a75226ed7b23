"""How a process knows the clocks of slots, from the times in their answers."""

from __future__ import annotations

from typing import NamedTuple

from heatsink.bulk.store import LATE_MS

LATE_S = LATE_MS / 1000
DRIFT, TICK_S = 1e-4, 0.001  # two clocks' maximum drift; slots round their time down to ms
ROUGH_S = 0.03  # a limit's clock is asked again if it is known less exactly, for ANSWERS at most
ANSWERS = 4


class HomeClock:
    """Estimates the clock of a rate limit's home slot from the times in its answers.

    The home slot read its clock at some time between the request and the answer, and tells whole
    milliseconds. So every answer gives an interval for the difference of the two clocks, and the
    intersection of many is more exact. A start within `window` is on time by the home slot's clock,
    however long the booking took. Without the estimate, starts that were booked before and after a
    slow answer could come closer together than the rate allows. If it is not exact, starts may be
    late by up to `late_s`. Each booking states this delay, and the limit then leaves more time
    before later starts. If the estimate may be wrong by less than `ROUGH_S`, such a late start
    costs less than another request. Otherwise the lane waits for up to `ANSWERS` answers.
    """

    def __init__(self) -> None:
        self._low_s, self._high_s = float("-inf"), float("inf")
        self._learned_s = 0.0
        self._answers = 0

    def learn(self, home_s: float, asked_s: float, now_s: float) -> bool:
        """Learn from an answer with `home_s`, which came at `now_s` to a request of `asked_s`.

        Returns False if it contradicts earlier answers: then somebody has set one of the clocks.
        Then the estimate starts anew, and bookings made before may have stated a shorter delay.
        """
        drift_s = DRIFT * (now_s - self._learned_s)
        low_s, high_s = asked_s - home_s - TICK_S, now_s - home_s
        agrees = self._low_s - drift_s <= high_s and low_s <= self._high_s + drift_s
        if agrees:
            low_s = max(low_s, self._low_s - drift_s)
            high_s = min(high_s, self._high_s + drift_s)
        self._answers = self._answers + 1 if agrees else 1
        self._low_s, self._high_s, self._learned_s = low_s, high_s, now_s
        return agrees

    @property
    def _is_exact(self) -> bool:
        return self._high_s - self._low_s <= LATE_S / 2

    @property
    def is_known(self) -> bool:
        return self._high_s - self._low_s <= ROUGH_S or self._answers >= ANSWERS

    def late_s(self, now_s: float) -> float:
        """Return how late a start that is booked now may be by the home slot's clock."""
        drift_s = DRIFT * (now_s - self._learned_s)
        width_s = self._high_s - self._low_s + 2 * drift_s
        return LATE_S if width_s <= LATE_S / 2 else LATE_S + width_s

    def window(self, home_s: float) -> tuple[float, float]:
        """Return the earliest and latest local time for a start that was booked for `home_s`.

        `home_s` is a time by the clock of the home slot.
        """
        latest_s = home_s + (self._low_s if self._is_exact else self._high_s) + LATE_S
        return home_s + self._high_s, latest_s


class Standing(NamedTuple):
    """A claim that its partition keeps: see `ClaimRequest`.

    It was sent at `sent_s` by this process's clock, and kept at `kept_ms` by the partition's.
    """

    attempt: str
    sent_s: float
    kept_ms: float

    def local_s(self, at_ms: float, now_s: float) -> float:
        """Return this process's time at the partition's time `at_ms`, or an earlier time."""
        return min(self.sent_s + (at_ms - self.kept_ms) / 1000, now_s)
