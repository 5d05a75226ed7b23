"""What time it is, for a process that trusts no clock at once.

The closed time follows the clock and never comes back. So a clock is believed only as long as the
**store's time** agrees with it within 5 s; a process whose clock does not goes by the store's. What
the store's time is depends on the store:

- DynamoDB has a clock of its own and tells it with every answer.
- A file has none. META holds **evidence** instead: at which reading of the machine's boot clock it
  was what time. The boot clock counts on while the machine sleeps and cannot be set, so within one
  boot it carries the evidence on. Whoever advances the closed time, and agrees, renews it.
- In memory nobody else is there: the process's own clock is the store's too.

Either clock may jump, and a machine may start anew. What contradicts the store's time is believed

- at once if the kernel says that its clock is synchronised (NTP);
- else after it has lasted 10 s, in which nobody who agrees with the evidence has renewed it.

Until then writes go on by the store's time. After another boot that is the time of the evidence and
what has passed since this process first saw it: it is later than that, and nobody knows how much.
A new store has no evidence, and believes whoever founds it.
"""

from __future__ import annotations

from heatsink.clock import Clock, Witness, now_ms

from .decision import Evidence, Verdict

SKEW_MS_MAX = 5_000  # a clock further off than this is not believed
BELIEVE_S = 10.0
RENEW_S = BELIEVE_S / 4  # evidence that is older is renewed, so that a wrong clock is contradicted


def evidence_of(witness: Witness, time_ms: int) -> Evidence:
    """Evidence that it is this time now."""
    return Evidence(witness.boot_id(), int(witness.boot_s() * 1000), time_ms)


class StoreTime:
    """The time of a store without a clock, as one process finds it."""

    def __init__(self, clock: Clock, witness: Witness) -> None:
        self._clock = clock
        self._witness = witness
        self._known: Evidence | None = None
        self._known_s = 0.0  # since then nobody has renewed it
        self._offset_ms = 0
        self._steady_s = 0.0  # since then our clock has been so far from the boot clock

    def judge(self, known: Evidence | None) -> Verdict:
        """The time, given the evidence in META. To be asked often: it sees what changes."""
        boot_s, synchronised_s = self._witness.boot_s(), self._witness.synchronised_s()
        boot_ms, wall_ms = int(boot_s * 1000), now_ms(self._clock)
        if synchronised_s is not None:
            wall_ms = int(synchronised_s * 1000)
        self._note(known, wall_ms - boot_ms, boot_s)
        mine = Evidence(self._witness.boot_id(), boot_ms, wall_ms)
        if known is None:
            return Verdict(wall_ms, mine, is_due=True)
        carried_ms = self._carried_ms(known, mine)
        agrees = abs(wall_ms - carried_ms) <= SKEW_MS_MAX
        lasted = boot_s - max(self._known_s, self._steady_s) >= BELIEVE_S
        if agrees or synchronised_s is not None or lasted:
            is_old = known.boot != mine.boot or boot_ms - known.boot_ms >= RENEW_S * 1000
            return Verdict(wall_ms, mine, is_due=is_old or not agrees)
        return Verdict(carried_ms, doubt=_doubt(wall_ms - carried_ms))

    def _note(self, known: Evidence | None, offset_ms: int, boot_s: float) -> None:
        if known != self._known:
            self._known, self._known_s = known, boot_s
        if abs(offset_ms - self._offset_ms) > SKEW_MS_MAX:
            self._offset_ms, self._steady_s = offset_ms, boot_s

    def _carried_ms(self, known: Evidence, mine: Evidence) -> int:
        if mine.boot and known.boot == mine.boot and known.boot_ms <= mine.boot_ms:
            return known.time_ms + mine.boot_ms - known.boot_ms
        return known.time_ms + mine.boot_ms - int(self._known_s * 1000)


def _doubt(off_ms: int) -> str:
    side = "ahead of" if off_ms > 0 else "behind"
    return (
        f"the clock of this machine is {abs(off_ms) / 1000:,.0f} s {side} the store's time: it is "
        f"believed when it is synchronised (NTP), or unopposed for {BELIEVE_S:.0f} s; retry"
    )


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
        self.doubt = ""
        self._store_began_ms = 0
        self._observed = (0, 0.0)
        self._ours = SteadyTime()
        self._stores = SteadyTime()

    def store_ms(self, monotonic_s: float) -> int:
        """The store's time by now, going by what it last said itself, jumps included."""
        return self._store_began_ms + int(monotonic_s * 1000)

    def observe(
        self, wall_ms: int, store_ms: int, monotonic_s: float, verdict: Verdict | None = None
    ) -> None:
        """A store's time that is a verdict on evidence has had its trial: no jump is doubted."""
        self._store_began_ms = store_ms - int(monotonic_s * 1000)
        ours_ms = self._ours.read(wall_ms, monotonic_s)
        stores_ms = store_ms if verdict else self._stores.read(store_ms, monotonic_s)
        wrong = abs(stores_ms - ours_ms) > SKEW_MS_MAX
        self.correction_ms = (stores_ms if wrong else ours_ms) - wall_ms
        self.offset_ms = stores_ms - wall_ms
        self.doubt = verdict.doubt if verdict else ""
        self._observed = (wall_ms + self.correction_ms, monotonic_s)

    def steady_ms(self, monotonic_s: float) -> int:
        """Now, whatever our clock has done since we looked: for what cannot be taken back."""
        time_ms, observed_s = self._observed
        return time_ms + int(1000 * (monotonic_s - observed_s))
