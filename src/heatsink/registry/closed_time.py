"""The closed time: why every process places an id in the same bucket, at any time.

An id's bucket depends on the epoch that holds the id's time. Processes agree on the bucket only if
each process that places an id of time t knows every epoch that starts at or before t. The **closed
time** C guarantees that: no epoch may start before C, now or later. C only grows. The data store
holds C in one record (META), together with the version of the log and the leader's term:

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

1. *Stability.* A view that was read when the closed time was c holds every epoch with T < c, since
   every later append has T ≥ C ≥ c. So for ids below its horizon the view gives the same bucket as
   the store, now and after any number of changes.
2. *One row per id.* All processes that may place an id compute the same bucket, however long they
   pause before the row is stored. A retry through any server, at any later time, finds the row of
   the first attempt.
3. *No acknowledged row is missed.* The process that placed the row knew its epoch, so the epoch was
   committed before the acknowledgement. A reader that starts later reads EPOCHS(key) with a
   consistent read, sees this epoch and queries its buckets. A range that ends below the reader's
   horizon needs no such read, by 1.
4. *No fork.* An append is one transaction, conditional on the leader's term and on the version
   before it. A deposed leader's append fails, and two appends cannot share a version.
5. *Below a key's last epoch.* A key's epochs are appended in order. So a process that knows an
   epoch starting at T knows all earlier epochs of the key. It may place ids of that key below T,
   even if T is past the horizon.

Only `fsck --reset-closed-time` lowers C. This command needs a store that no other process has open,
and starts a new incarnation. A key may then hold rows that are later than the new C. Such a key
gets an epoch with an unchanged number of buckets that starts after its newest row. By 5, its rows
stay in their buckets.

Redis is optional and carries news: log entries, and pairs (C, version) that META held. The leader
writes each pair as one value, after the commit. A process reads missing entries from the store and
keeps the three steps in order. Redis is not trusted. Every pair and entry has a MAC, keyed by a
secret in META; each incarnation has a new secret (`news`). A process ignores news that is forged or
damaged, or that belongs to another deployment or incarnation. It also ignores a signed closed time
that is too far ahead of the store's time. In all these cases the process reads the store instead.

A genuine pair may be replayed, for example by a replica that lagged. By 1 that is harmless: META
once held (c, v), so every epoch with T < c is in a version ≤ v, then and later. A view that adopts
c has applied the log up to v at least, and neither its version nor its horizon ever decreases. A
replayed entry is harmless too: by 4 each version has one entry, and a view applies each entry once,
in order. Nor does old news make a view look fresh: a view counts as renewed only if news moved its
horizon.

The proof uses no clock. Clocks only decide how soon a change takes effect. But C cannot be lowered,
so a wrong clock must not raise it too far. The rest of this file ensures that.

**Which clock a process uses.** A process compares its clock with the **store's time**. If they
differ by more than 5 s, the process uses the store's time. Each kind of store has its own source:

- DynamoDB returns its own clock with every response.
- A SQLite file has no clock. META holds **evidence** instead: a reading of the machine's boot clock
  and the wall-clock time at that moment. The boot clock continues while the machine sleeps, and
  nobody can set it. So during the same boot, a process adds the time elapsed on the boot clock to
  the evidence. A process that advances the closed time, and whose clock agrees, renews the
  evidence.
- A store in memory has one process, whose clock is also the store's time.

Any of these clocks may jump, and a machine may reboot. A clock that contradicts the store's time is
accepted

- immediately, if the kernel reports that the clock is synchronised (NTP);
- otherwise after 10 s, if no process renewed the evidence during that time.

Until then writes use the store's time. After a reboot, the store's time is the time in the evidence
plus the time since this process first read it. The true time is later, by an unknown amount. A new
store has no evidence and accepts the clock of the process that creates it.
"""

from __future__ import annotations

from collections.abc import Mapping

from heatsink.errors import Deposed, Outdated
from heatsink.primitives.clock import BELIEVE_S, SKEW_MS_MAX, Clock, SteadyTime, Witness, now_ms

from .decisions import Evidence, LogEntry, Meta, Reading, Verdict
from .layouts import COLD, Layout

RENEW_S = BELIEVE_S / 4  # older evidence is renewed, so that wrong clocks elsewhere stay rejected
HORIZON_MS = 500  # how far ahead of now the closed time is kept
HORIZON_MS_MAX = 5_000  # the same, for a store that responds slowly
AHEAD_MS_MAX = 5_000  # how far past the closed time an epoch may start
FAR_AHEAD_MS = 60_000  # a closed time further ahead of the store's time than this is a fault


def evidence_of(witness: Witness, time_ms: int) -> Evidence:
    """Read the boot clock, and return the reading as evidence that the time is now `time_ms`."""
    return Evidence(witness.boot_id(), int(witness.boot_s() * 1000), time_ms)


class StoreTime:
    """For a store without a clock: derives the store's time from the evidence in META."""

    def __init__(self, clock: Clock, witness: Witness) -> None:
        self._clock = clock
        self._witness = witness
        self._known: Evidence | None = None
        self._known_s = 0.0  # when this process first read `_known`, on the boot clock
        self._offset_ms = 0  # the wall clock minus the boot clock
        self._steady_s = 0.0  # when `_offset_ms` last jumped, on the boot clock

    def judge(self, known: Evidence | None) -> Verdict:
        """Derive the store's time from the evidence in META (`known`) and this machine's clocks.

        Call `judge` often: it notices a jump of a clock or new evidence only when it is called.
        """
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
        f"the clock of this machine is {abs(off_ms) / 1000:,.0f} s {side} the store's time. "
        "Heatsink accepts this clock when NTP synchronises it, or after "
        f"{BELIEVE_S:.0f} s in which no other process contradicts it: retry"
    )


class Timekeeper:
    """Compares this process's wall clock with the store's time, and corrects a wrong clock.

    The wall clock plus `correction_ms` is the time to use. The wall clock plus `offset_ms` is the
    store's time. `doubt` says why this machine's clock is not accepted; it is empty if the clock is
    accepted.
    """

    def __init__(self) -> None:
        self.correction_ms = 0
        self.offset_ms = 0
        self.doubt = ""
        self._store_began_ms = 0
        self._observed = (0, 0.0)
        self._ours = SteadyTime()
        self._stores = SteadyTime()

    def store_ms(self, monotonic_s: float) -> int:
        """Return the store's time now: the time in its last response plus the time since then.

        Unlike `offset_ms`, the result follows a jump of the store's clock immediately.
        """
        return self._store_began_ms + int(monotonic_s * 1000)

    def observe(
        self, wall_ms: int, store_ms: int, monotonic_s: float, verdict: Verdict | None = None
    ) -> None:
        """Take in a response of the store: its time, and this process's clocks at that moment.

        Jumps of the wall clock and of the store's clock are ignored until they have lasted 10 s. If
        there is a `verdict`, `store_ms` is accepted immediately, since `StoreTime` has already
        waited.
        """
        self._store_began_ms = store_ms - int(monotonic_s * 1000)
        ours_ms = self._ours.read(wall_ms, monotonic_s)
        stores_ms = store_ms if verdict else self._stores.read(store_ms, monotonic_s)
        wrong = abs(stores_ms - ours_ms) > SKEW_MS_MAX
        self.correction_ms = (stores_ms if wrong else ours_ms) - wall_ms
        self.offset_ms = stores_ms - wall_ms
        self.doubt = verdict.doubt if verdict else ""
        self._observed = (wall_ms + self.correction_ms, monotonic_s)

    def steady_ms(self, monotonic_s: float) -> int:
        """Return the time now, without jumps of the wall clock since the last call of `observe`.

        Use this time for changes that cannot be undone, such as raising the closed time.
        """
        time_ms, observed_s = self._observed
        return time_ms + int(1000 * (monotonic_s - observed_s))


def check_append(
    entry: LogEntry, term: int | None, meta: Meta, layouts: Mapping[str, Layout]
) -> None:
    """Raise unless `entry` may be appended. Every store makes this check in its transaction.

    `layouts` holds the current layout of each key whose buckets the entry changes. If `term` is
    None, the caller is not the leader, and the entry must not hold epochs. It may hold an
    operator's pin, which needs no leader.
    """
    needs_leader = term is not None or bool(entry.bucket_decisions)
    if needs_leader and term != meta.term:
        raise Deposed(f"term {term} is over: {meta.leader or 'nobody'} leads term {meta.term}")
    if entry.version != meta.version + 1:
        raise Outdated(f"the next version is {meta.version + 1}, not {entry.version}")
    for decision in entry.bucket_decisions:
        _check_epoch(entry.start_ms, meta.closed_ms, layouts.get(decision.key, COLD))


def _check_epoch(start_ms: int, closed_ms: int, layout: Layout) -> None:
    if not closed_ms <= start_ms <= closed_ms + AHEAD_MS_MAX:
        raise Outdated(
            f"an epoch must start within 5 s after the closed time {closed_ms}, not at {start_ms}"
        )
    if start_ms <= layout.epochs[-1].start_ms:
        last_ms = layout.epochs[-1].start_ms
        raise Outdated(f"the key's next epoch must start after {last_ms}, not at {start_ms}")


def start_of_epochs(meta: Meta, now_ms: int, layouts: list[Layout]) -> int:
    """Return the earliest time from now on at which `check_append` allows new epochs to start.

    If now is more than `AHEAD_MS_MAX` after the closed time, the new epochs start in the past:
    `AHEAD_MS_MAX` after the closed time. They always start after the last epoch in each of
    `layouts`.
    """
    now_or_soonest = max(meta.closed_ms, min(now_ms, meta.closed_ms + AHEAD_MS_MAX))
    return max([now_or_soonest, *(layout.epochs[-1].start_ms + 1 for layout in layouts)])


def horizon_for(latency_s: float) -> int:
    """Return how many ms ahead of now to keep the closed time, given the store's response time.

    A process advances the closed time when less than half of this distance is left. The process
    checks the distance every 0.1 s. To advance the closed time, it needs three requests: read META,
    read the log, advance. So half of the distance must be longer than 0.1 s plus the time of three
    requests.
    """
    return min(max(HORIZON_MS, 200 + int(7_000 * latency_s)), HORIZON_MS_MAX)


def thin_ms(latency_s: float) -> int:
    """Return half of the distance that `horizon_for` returns, in ms.

    If the closed time is less than this far ahead of now, any process advances it.
    """
    return horizon_for(latency_s) // 2


def furthest_closed_time(closed_ms: int, store_ms: int, horizon_ms: int) -> int:
    """Return the highest closed time that this process accepts from news.

    `closed_ms` is META's closed time and `store_ms` this process's estimate of the store's time.
    The process that advanced the closed time used a clock at most `SKEW_MS_MAX` ahead of the
    store's time. The estimate may be behind the store's time by the same amount.
    """
    return max(closed_ms, store_ms + 2 * SKEW_MS_MAX + horizon_ms)


def new_closed_time(
    reading: Reading, now_ms: int, enough_ms: int, horizon_ms: int = HORIZON_MS
) -> int | None:
    """Return the value to which this process should raise the closed time.

    Returns None if no change is needed, since the closed time is at least `enough_ms` ahead of now.
    Otherwise the value is `horizon_ms` ahead of now.
    """
    due = reading.meta.closed_ms - now_ms < enough_ms
    return now_ms + horizon_ms if due else None
