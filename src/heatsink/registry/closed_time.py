"""The closed time: why everybody who places an id places it in the same bucket, for ever.

An id's place depends on the epoch that holds its time. That is a pure function only if whoever
places an id of time t knows every epoch that starts at or before t. The **closed time** C gives
exactly that: no epoch may ever again start before C. C only grows. It lives in the data store, in
one record (META) with the version of the log and the leader's term:

    time ────────────●───────────────────●──────────────────●──────────────▶
                     now                 C                  T (a new epoch)
    ids ◀── may be placed by a view whose copy of C is here ─┤ not yet: renew first
            every epoch that starts down here is known      │
                                                            └ T ≥ C, in the same transaction

    leader                    META {C, version, term}              an app server's view
    ──────                    ───────────────────────              ────────────────────
    append(T, N) ──if term is mine, C ≤ T ≤ C + 5 s──▶ version + 1
                              LOG(version + 1), EPOCHS(key) + (T, N)
    advance ───────────── C = max(C, now + 0.5 s), more on a slow store
                              (C, version) ────────────────────▶  1. take the pair
                              LOG(… version) ──────────────────▶  2. apply it, without a gap
                                                                  3. only then adopt C: the horizon

1. *Stability.* A copy taken when the closed time was c already holds every epoch with T < c, since
   every later append has T ≥ C ≥ c. So for ids below its horizon a copy answers as the truth does,
   now and after any number of changes.
2. *One row per id.* All processes that agree to place an id compute the same bucket, however long
   they pause between computing it and the put's landing. A retry, through any server, at any later
   time, meets the first attempt's row.
3. *Nothing acknowledged is missed.* An acknowledged row was placed by a process that knew its
   epoch, so the epoch was committed before the acknowledgement; a reader that begins later and
   reads EPOCHS(key) strongly sees it and asks that bucket. A range that ends below the
   reader's horizon needs no such read, by 1.
4. *No fork.* An append is one transaction, conditional on the leader's term and on the version
   before it. A deposed leader's append fails; two appends cannot share a version.
5. *Below a key's last epoch.* A key's epochs are appended in order. So whoever knows that one
   starts at T knows all that start before it: ids of that key below T may be placed, also where T
   is past the horizon.

`fsck --reset-closed-time` alone takes C back: in a store that nobody else has open, and under a new
incarnation. A key that holds rows from beyond the new C gets an epoch behind the newest of them
that changes nothing: by 5, no row of its moves.

Redis, where there is one, carries news: pairs (C, version) that META held, each written as one
value after the commit, and log entries. A gap in the entries is filled from the store; the three
steps keep their order. Redis is not trusted. Every pair and entry has a MAC, keyed by a secret that
lives in META and is made anew with every incarnation (`news`): what somebody else wrote, what was
damaged, and what is of another deployment or incarnation is ignored. A bound comes second: a closed
time that the store's time cannot justify is ignored too, whoever signed it. Whatever is ignored,
the process follows the store.

A genuine pair may come back at any time, say from a replica that lagged. That does no harm, by 1:
META held (c, v) at one moment, so every epoch with T < c is in a version ≤ v, then and for ever. A
view that adopts c has applied the log up to v at least; versions are never taken back, and neither
is a horizon. An entry may come back likewise: by 4 there is one of each version, and a view applies
each once, in order. News is also never older than what it is believed for: only news that moves the
horizon makes a view count as renewed.

No clock appears in the argument. Clocks decide only how soon a change takes effect, and C never
comes back: so a process whose clock differs from the store's time by more than 5 s goes by the
store's, and nothing that contradicts the store's time is believed at once (`Timekeeper`).

What time it is, for a process that trusts no clock at once.

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

from collections.abc import Mapping

from heatsink.errors import Deposed, Outdated
from heatsink.primitives.clock import BELIEVE_S, SKEW_MS_MAX, Clock, SteadyTime, Witness, now_ms

from .decisions import Evidence, LogEntry, Meta, Reading, Verdict
from .layouts import COLD, Layout

RENEW_S = BELIEVE_S / 4  # evidence that is older is renewed, so that a wrong clock is contradicted
HORIZON_MS = 500  # how far ahead of now the closed time is kept
HORIZON_MS_MAX = 5_000  # for a store that is slow to answer
AHEAD_MS_MAX = 5_000  # how far past the closed time an epoch may start
FAR_AHEAD_MS = 60_000  # further ahead of the store's time the closed time is never meant to be


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


def check_append(
    entry: LogEntry, term: int | None, meta: Meta, layouts: Mapping[str, Layout]
) -> None:
    """The condition of the append transaction. Every store enforces exactly this.

    `layouts` holds the present layout of each key whose buckets the entry changes. A `term` of
    None may append anything but epochs: an operator's pin needs no leader.
    """
    needs_leader = term is not None or bool(entry.bucket_decisions)
    if needs_leader and term != meta.term:
        raise Deposed(f"term {term} is over: {meta.leader or 'nobody'} leads term {meta.term}")
    if entry.version != meta.version + 1:
        raise Outdated(f"version {entry.version} cannot follow {meta.version}")
    for decision in entry.bucket_decisions:
        _check_epoch(entry.start_ms, meta.closed_ms, layouts.get(decision.key, COLD))


def _check_epoch(start_ms: int, closed_ms: int, layout: Layout) -> None:
    if not closed_ms <= start_ms <= closed_ms + AHEAD_MS_MAX:
        raise Outdated(
            f"an epoch at {start_ms} is not within 5 s after the closed time {closed_ms}"
        )
    if start_ms <= layout.epochs[-1].start_ms:
        raise Outdated(f"an epoch at {start_ms} is not after {layout.epochs[-1].start_ms}")


def start_of_epochs(meta: Meta, now_ms: int, layouts: list[Layout]) -> int:
    """The earliest start that the append's condition allows, but not before now."""
    now_or_soonest = max(meta.closed_ms, min(now_ms, meta.closed_ms + AHEAD_MS_MAX))
    return max([now_or_soonest, *(layout.epochs[-1].start_ms + 1 for layout in layouts)])


def horizon_for(latency_s: float) -> int:
    """How far ahead of now the closed time must be kept so that views do not use it up.

    A view that leaves it alone, since half is left, comes back after a pause (0.1 s), and then
    reads META and the log and advances it: three answers later. So half of it must last longer.
    """
    return min(max(HORIZON_MS, 200 + int(7_000 * latency_s)), HORIZON_MS_MAX)


def thin_ms(latency_s: float) -> int:
    """With less than this left, any process advances the closed time."""
    return horizon_for(latency_s) // 2


def furthest_closed_time(closed_ms: int, store_ms: int, horizon_ms: int) -> int:
    """No closed time beyond this is justified, given what META held and what time its store has.

    Whoever advances it goes by a clock that is at most `SKEW_MS_MAX` ahead of the store's; our
    idea of the store's time may lag by as much.
    """
    return max(closed_ms, store_ms + 2 * SKEW_MS_MAX + horizon_ms)


def new_closed_time(
    reading: Reading, now_ms: int, enough_ms: int, horizon_ms: int = HORIZON_MS
) -> int | None:
    """What this process should advance the closed time to, or None while enough is left."""
    due = reading.meta.closed_ms - now_ms < enough_ms
    return now_ms + horizon_ms if due else None
