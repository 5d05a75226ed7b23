"""What time it is, for a process that trusts no clock at once.

Ours may be wrong from the start: then the store's is the better one. Either may jump: a jump is
believed after it has lasted a while, since the closed time follows the clock and never comes back.
"""

from __future__ import annotations

SKEW_MS_MAX = 5_000  # a clock further off than this is not believed
BELIEVE_S = 10.0


class SteadyTime:
    """One clock, held against the monotonic one."""

    def __init__(self) -> None:
        self._offset_ms: int | None = None
        self._jumped_s: float | None = None

    def read(self, wall_ms: int, monotonic_s: float) -> int:
        """The time, without a jump that may yet be taken back."""
        passed_ms = int(monotonic_s * 1000)
        offset_ms = wall_ms - passed_ms
        if self._offset_ms is None or abs(offset_ms - self._offset_ms) <= SKEW_MS_MAX:
            self._offset_ms, self._jumped_s = offset_ms, None
        elif self._jumped_s is None:
            self._jumped_s = monotonic_s
        elif monotonic_s - self._jumped_s >= BELIEVE_S:
            self._offset_ms, self._jumped_s = offset_ms, None
        return passed_ms + self._offset_ms


class Timekeeper:
    """`correction_ms` makes our clock one to go by; `offset_ms` makes it the store's."""

    def __init__(self) -> None:
        self.correction_ms = 0
        self.offset_ms = 0
        self._store_began_ms = 0
        self._ours = SteadyTime()
        self._stores = SteadyTime()

    def store_ms(self, monotonic_s: float) -> int:
        """The store's time by now, going by what it last said itself, jumps included."""
        return self._store_began_ms + int(monotonic_s * 1000)

    def observe(self, wall_ms: int, store_ms: int, monotonic_s: float) -> None:
        self._store_began_ms = store_ms - int(monotonic_s * 1000)
        ours_ms = self._ours.read(wall_ms, monotonic_s)
        stores_ms = self._stores.read(store_ms, monotonic_s)
        wrong = abs(stores_ms - ours_ms) > SKEW_MS_MAX
        self.correction_ms = (stores_ms if wrong else ours_ms) - wall_ms
        self.offset_ms = stores_ms - wall_ms
