"""The interfaces that a queue store implements for bulk actions, and their records.

A batch has a *part* in each queue partition that holds some of its items. A part keeps its items in
*chunks*, and a claim hands out *slices* of chunks under a lease. All calls are atomic, and a call
whose answer was lost may be repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import msgspec

from heatsink.registry.decisions import SoftStore

from .batch import Batch, Gap, PartEnd, PartPlace, Rate
from .controls import NO_CONTROLS, Controls, ControlStore
from .limits import Offer, PlaceStore
from .plan import MoveStore, PlaceMarks, QueuePlan

Verb = Literal["release", "drop", "pause", "resume", "cancel", "retry", "limit"]
PartState = Literal["staged", "ready", "paused", "cancelled", "finished"]
RUNNING, DONE, RETRY, FAILED, BACK = ".", "d", "r", "f", "b"
ANNOUNCED_MS = 86_400_000  # how long an action stays known after its last worker left
BOOKED_MS_MAX = 1_000.0  # how far ahead starts are booked
RESULTS_PAGE_BYTES = 1 << 20
LATE_MS = 20.0  # how late a booked start may be used


class Part(msgspec.Struct, frozen=True):
    """A batch's items in one partition. Items of a `limited` part need booked start times.

    No item starts before `start_ms`, by the partition's time. If `result_bytes` is not 0, the
    results of done items are kept. `keeps_items` says whether done items are kept, too. After its
    end the part is kept for `keep_ms`; 0 means the default.
    """

    id: str
    batch: str
    tenant: str
    action: str
    submitted_ms: int
    lane: str
    limited: bool = False
    weight: float = 1.0
    priority: int = 0
    start_ms: int = 0
    result_bytes: int = 0
    keeps_items: bool = False
    keep_ms: int = 0


class Chunk(msgspec.Struct, frozen=True):
    """Items stored together. Chunks are numbered from 0 in the part; `body` is opaque."""

    number: int
    count: int
    body: bytes


class Single(msgspec.Struct, frozen=True):
    """A batch of one item: its complete record, its only part, and the part's only chunk."""

    record: Batch
    part: Part
    chunk: Chunk


class ClaimRequest(msgspec.Struct, frozen=True):
    """A claim of up to `want` items without a rate limit, and of rate-limited items.

    `grants` says how many items of each rate-limited lane to claim. `attempt` names the claim: it
    is random, unguessable and used only once. `unanswered` are the names of earlier claims of this
    owner whose answers never arrived. The items of these claims do not run, so the store takes the
    items back. A partition that has lost its controls, for example in a fail-over, hands out
    nothing: compare `Claimed.controlled`. A slice has at most `each_max` items, if this is not 0. A
    partition without items to hand out keeps a claim with a `bell` as its *standing claim*, until
    the next claim of its owner: see `Handover`.
    """

    owner: str
    attempt: str
    want: int
    lease_ms: int
    grants: dict[str, int] = msgspec.field(default_factory=dict)
    unanswered: list[str] = msgspec.field(default_factory=list)
    controls: Controls = NO_CONTROLS
    each_max: int = 0
    bell: str = ""


class Slice(msgspec.Struct, frozen=True):
    """`count` items of a chunk, from offset `start` on, under the lease `attempt`.

    `body` is the whole chunk. `tries` is the number of earlier attempts that count. If
    `result_bytes` is not 0, the worker reports what handlers return, up to this size per item.
    """

    attempt: str
    part: str
    batch: str
    tenant: str
    action: str
    lane: str
    limited: bool
    submitted_ms: int
    start: int
    count: int
    tries: int
    body: bytes
    result_bytes: int = 0


class LaneDepth(msgspec.Struct, frozen=True):
    """A rate-limited lane, and how many of its items wait for grants."""

    lane: str
    waiting: int


class Claimed(msgspec.Struct, frozen=True):
    """The answer to a claim. `owned` is False if another consumer owns the partition.

    `more` says that further items could be claimed now. `wake_ms` is the time until the next
    delayed item is due; None if no item is delayed. `controlled` is False if the partition has lost
    its controls: the consumer must call `control` before it gets items. If this is the standing
    claim now, `kept_ms` is the partition's time; else 0.
    """

    owned: bool
    slices: list[Slice]
    lanes: list[LaneDepth]
    more: bool
    wake_ms: int | None
    controlled: bool = True
    kept_ms: float = 0.0


class Handover(msgspec.Struct, frozen=True):
    """A single that the partition's standing claim got at `now_ms`, under the lease `claim:part`.

    If nothing else waits, the call that accepts a single carries the standing claim out. This
    message may be lost, so the next claim names a standing claim that was not answered.
    """

    partition: int
    now_ms: float
    slice: Slice


class Setback(msgspec.Struct, frozen=True):
    """Why one item of a slice is not done. If it is retried, it first waits for `delay_ms`.

    If `counted` is false, the attempt does not count for `max_attempts`.
    """

    offset: int
    reason: str = ""
    delay_ms: int = 0
    counted: bool = True


class Outcome(msgspec.Struct, frozen=True):
    """The state of a slice: for each item one character (a *mark*) of `.drfb`.

    `.` means that the item still runs, `d` done, `r` retry later, `f` failed for good, `b` given
    back without being started. The store counts each mark once; `used_us` is the time spent on the
    newly marked items. `results` are encoded results of items marked `d`, by offset. The store
    records a result in the same call that first marks its item, or never.
    """

    attempt: str
    marks: str
    used_us: int
    setbacks: list[Setback] = msgspec.field(default_factory=list)
    results: list[tuple[int, bytes]] = msgspec.field(default_factory=list)


class PartCounts(msgspec.Struct, frozen=True):
    """The counts of a part in its partition.

    `lost` counts items that were missing when somebody claimed them. `digest` is the sum of the
    checksums of the `chunks` that were staged. `recorded` is the version of the part's copy of the
    record.
    """

    state: PartState
    size: int
    done: int
    failed: int
    cancelled: int
    running: int
    delayed: int
    lost: int = 0
    lap: int = 0
    digest: int = 0
    chunks: int = 0
    recorded: int = 0
    backing_off: int = 0
    """Delayed items that are not due yet. The last of these items is due in `backoff_ms`."""
    backoff_ms: int = 0
    held: Literal["", "tenant", "action"] = ""
    """Which of the two is paused, if the part is held back."""

    @property
    def waiting(self) -> int:
        ended = self.done + self.failed + self.cancelled + self.lost
        return self.size - ended - self.running


class LivePart(msgspec.Struct, frozen=True):
    """A part that was released and has not ended, and its batch."""

    id: str
    batch: str


class FailedItem(msgspec.Struct, frozen=True):
    """A failed item: number `offset` in the chunk `body`. An empty `body` means a lost chunk.

    Failures are listed in pages: pass the `place` of a page's last item as `after` to get the next.
    """

    place: str
    offset: int
    tries: int
    reason: str
    body: bytes


class KeptChunk(msgspec.Struct, frozen=True):
    """The kept results of a chunk: `(offset in the chunk, lap, result)` for each item that is done.

    `body` is the chunk. It is empty if the caller did not ask for it, or if the chunk is gone.
    """

    number: int
    results: list[tuple[int, int, bytes]]
    body: bytes = b""


class Chores(msgspec.Struct, frozen=True):
    """What a partition's owner has to do: report these ends of parts, check these stale parts."""

    ends: list[PartEnd]
    stale: list[tuple[str, str, int]]
    """(part, batch, stamp) of parts that were staged long ago, and neither released nor dropped."""


class PartitionLoad(msgspec.Struct, frozen=True):
    """The load of a partition at the moment of the call.

    The fields from `claimed` to `expired`, and `used_us`, are running totals. `service_us` is the
    expected time per waiting item; `used_us` is the time spent on items so far.
    """

    runnable: int = 0
    limited: int = 0
    delayed: int = 0
    in_flight: int = 0
    tenants: int = 0
    service_us: float = 0.0
    oldest_ms: int = 0
    claimed: int = 0
    done: int = 0
    failed: int = 0
    retried: int = 0
    fenced: int = 0
    expired: int = 0
    workers: int = 0
    used_us: int = 0


class LoadStore(Protocol):
    """How much work a partition has."""

    async def load(self, partition: int) -> PartitionLoad: ...

    async def is_idle(self, partition: int) -> bool:
        """Return whether the partition has no work: no part to run, to report or to clear.

        A place that gave the partition away is idle.
        """


class QueueStore(LoadStore, ControlStore, Protocol):
    """The partitions: parts, claims and outcomes."""

    async def stage(self, partition: int, part: Part, chunks: Sequence[Chunk]) -> PartitionLoad:
        """Store chunks of a part that does not run yet. Chunks that exist stay as they are.

        Every call also renews the part's stamp, so that the part does not count as stale. Returns
        the partition's load.
        """

    async def steer(
        self,
        partition: int,
        part: str,
        verb: Verb,
        lap: int = 0,
        since: int = 0,
        record: Batch | str | None = None,
    ) -> bool:
        """Apply the command `verb` to a part. Returns False if there is no such part.

        Repeating a command changes nothing. `since` is the version of the batch's record that
        contains the command. If the part has received a command with a higher version, an older
        command changes nothing. For `drop`, `since` is the stamp that the part must have, or 0. The
        part keeps `record` as its copy of the batch's record, which `record_of` returns. A `record`
        may also be the id of another part of the batch in this partition: they share its copy.
        """

    async def claim(self, partition: int, request: ClaimRequest) -> Claimed: ...

    async def settle(
        self, partition: int, outcomes: Sequence[Outcome], beats: Sequence[str], lease_ms: int
    ) -> list[str]:
        """Record outcomes, and renew the leases of the attempts in `beats` for `lease_ms`.

        Returns the attempts whose lease had ended before.
        """

    async def chores(self, partition: int, reported: Sequence[PartEnd]) -> Chores:
        """Drop the ends that the owner has `reported`, and return what it still has to do."""

    async def part(self, partition: int, part: str) -> PartCounts | None: ...

    async def failures(
        self, partition: int, part: str, after: str, limit: int
    ) -> list[FailedItem]: ...

    async def results(
        self, partition: int, part: str, chunks: Sequence[tuple[int, int]], with_items: bool
    ) -> list[KeptChunk]:
        """Return the kept results of some chunks of a part.

        `chunks` has a pair for each chunk: its number, and the number of its items. The answer ends
        with the chunk that brings it to `RESULTS_PAGE_BYTES`, so it may be shorter than `chunks`.
        It is empty if there is no such part.
        """


class SingleStore(Protocol):
    """Batches of one item. Each is accepted as a whole by one atomic call.

    When a worker reports the item as done, the partition also ends the batch's record, in the same
    call (`changes.concluded`), and forgets the part. If the part has the item's result, the
    partition keeps the part as long as the record.
    """

    async def accept(self, partition: int, singles: Sequence[Single]) -> list[bool]:
        """Store each record, and release its part. Return when all of this is durable.

        If a batch's lane has a rate limit, its part is limited. Returns for each batch whether it
        was accepted. A batch is not accepted in three cases: another record has its id, its lane is
        not limited to the batch's rate, or its partition is not on the record's server. The caller
        then submits the batch in the general way. A repeated call returns the same answers.
        """


class LossStore(Protocol):
    """Queries that find what a partition's server has lost."""

    async def gaps(self, partition: int, part: str, chunks: int) -> list[Gap]:
        """Return where items are missing in a part that was staged with `chunks` chunks."""

    async def live_parts(self, partition: int, after: str, limit: int) -> list[LivePart]:
        """Return up to `limit` live parts with ids greater than `after`, ordered by id."""

    async def record_of(self, partition: int, part: str) -> Batch | None:
        """Return the copy of the batch's record that this part carries; None if there is none."""


class BatchStore(Protocol):
    """The records of batches. Each record is in a home slot that depends on the batch's id."""

    async def open(self, batch: Batch) -> Batch:
        """Create a record, unless there is a record with this id. Returns the stored record.

        Until the record is sealed, it expires `KEEP_MS` after its last change.
        """

    async def update(self, batch: Batch) -> Batch | None:
        """Store `batch` with the next version, and return the stored record.

        If the stored record has another version or tag than `batch`, change nothing and return
        None. A sealed record no longer expires after an update.
        """

    async def restore(self, batch: Batch) -> Batch:
        """Store `batch` unless the stored record is as new or newer.

        Returns the record that is then stored.
        """

    async def get(self, id: str) -> Batch | None: ...

    async def list(self, limit: int, tenant: str = "") -> list[Batch]:
        """Return up to `limit` batches, newest first. `tenant` selects batches of one tenant."""

    async def browse(self, start: int, limit: int) -> Sequence[Batch]:
        """Return up to `limit` batches of all tenants, newest first, without the first `start`."""

    async def forget(self, id: str, after_ms: int) -> None:
        """Let the record expire in `after_ms`."""


class Grants(msgspec.Struct, frozen=True):
    """Booked start times of a lane: one grant, of `size` items, for each number in `wait_ms`.

    `wait_ms` are durations after the request: the items of a grant may start when its duration has
    passed. A start time that is not used soon expires. `now_ms` is a time: the slot time of the
    limit's home at the request. `then_ms` is a duration, too: after it comes the next start time
    that nobody has booked.

    A lane without a rate needs no start times: its items may start at any time within `free_ms`
    after the request. If a rate is declared in that period, its first start time comes after the
    period.
    """

    size: int
    wait_ms: list[float]
    now_ms: float
    then_ms: float
    free_ms: float = 0.0


class LimitStore(Protocol):
    """Rate limits. Each is kept in one home slot, so that all partitions and workers share it."""

    async def declare(self, lane: str, rate: Rate | None) -> None:
        """Set the rate that a lane was submitted with; None removes it.

        If a rate was found by probing, after a downstream service refused items (`refused`), it
        stays.
        """

    async def reserve(
        self, lane: str, starts: int, ahead_ms: int, late_ms: float = LATE_MS
    ) -> Grants:
        """Book start times for `starts` items, or for as many as may start within `ahead_ms`.

        The caller starts the items at most `late_ms` after these times, by the home slot's clock.
        If this is more than `LATE_MS`, the store leaves more time before later start times. With
        `starts=0` the call books nothing. It returns only the time in the limit's home slot and the
        next start time that is not booked yet.
        """

    async def refused(self, lane: str, started_per_s: float, retry_after_ms: int) -> None:
        """Record that a downstream service refused items, and probe for a rate that it accepts.

        Items were started at the rate `started_per_s`.
        """

    async def rate_of(self, lane: str) -> float | None:
        """Return the lane's current limit in items per second; None without a limit."""


class PlanStore(Protocol):
    """The queue's plan."""

    async def plan(self, default: QueuePlan, keep: bool = True) -> QueuePlan:
        """Return the stored plan, or `default` if there is none. With `keep`, store `default`."""

    async def change(self, plan: QueuePlan) -> QueuePlan:
        """Store `plan` if its version is higher than the stored one. Returns the stored plan."""

    async def durable(self) -> int:
        """Return the newest version of the plan that is known to be durable; -1 if none is."""

    async def made_durable(self, version: int) -> None:
        """Note that this version of the plan is durable."""


class Roll(NamedTuple):
    """All members of the queue, and the actions that they offer, each sorted."""

    members: list[str]
    offered: list[str]


class FleetStore(PlanStore, Protocol):
    """Membership of consumers, ownership of partitions, and the plan."""

    async def join(self, consumer: str, actions: Sequence[str], ttl_ms: int) -> Roll:
        """Make the consumer, which offers `actions`, a member for `ttl_ms`, or renew this."""

    async def leave(self, consumer: str) -> None: ...

    async def actions(self) -> list[str]:
        """Return the actions that workers announced within `ANNOUNCED_MS`, except built-ins."""

    async def offered(self) -> list[str]:
        """Return the actions that live workers offer."""

    async def own(self, partition: int, consumer: str, ttl_ms: int, workers: int = 0) -> bool:
        """Make the consumer the owner of a partition for `ttl_ms`, or renew its ownership.

        `workers` is the consumer's number of workers in this partition. Returns False if another
        consumer owns the partition.
        """

    async def disown(self, partition: int, consumer: str, mark: str = "") -> None:
        """Give the partition up, if the consumer owns it.

        With `mark`, also end the leases of all attempts whose names begin with `mark`, so that
        other workers get the items. For this the consumer must be dead.
        """


class Bell(Protocol):
    """Wakes consumers when there is work. Notifications may get lost: consumers also poll."""

    address: str  # claims that name it as their `bell` send their handovers to it

    async def wait(self, timeout_s: float) -> set[int]:
        """Wait at most `timeout_s` for parts that are released or resumed, offers and handovers.

        Returns the partitions of these parts.
        """

    def offers(self) -> list[Offer]:
        """Return the places at limits offered since the last call."""

    def handovers(self) -> list[Handover]:
        """Return the singles that were handed over since the last call."""


class ServerHealth(msgspec.Struct, frozen=True):
    """One server of the queue. `cpu_used_s` only grows; a `memory_max` of 0 means no limit."""

    place: str
    cpu_used_s: float
    memory: int
    memory_max: int
    latency_ms: float
    partitions: tuple[int, ...] = ()


class Barrier(Protocol):
    """Reads data and makes it durable, in one pipeline on one connection.

    The data that a call returns is on disk, and on as many replicas as the settings require. If
    the server was restarted or replaced meanwhile, the call raises `Unavailable`, since the data
    may be lost.
    """

    async def parts(self, places: Sequence[PartPlace]) -> list[PartCounts | None]:
        """Return the counts of the parts at these places; None for a part that does not exist."""

    async def batches(self, ids: Sequence[str]) -> list[Batch | None]:
        """Return the records of these batches; None for a record that does not exist."""

    async def plan(self) -> QueuePlan | None:
        """Return the stored plan; None if there is none."""

    async def place(self, partition: int, parts: Sequence[str] = ()) -> PlaceMarks:
        """Return what the partition's Redis remembers of moves, and how many of `parts` it has."""


async def _nothing() -> None:
    pass


async def _no_servers(_: Sequence[int]) -> list[ServerHealth]:
    return []


def _any_place(_: str) -> None:
    pass


@dataclass(frozen=True)
class QueueStores:
    """All stores of one queue."""

    queue: QueueStore
    singles: SingleStore
    losses: LossStore
    batches: BatchStore
    limits: LimitStore
    places: PlaceStore
    fleet: FleetStore
    bell: Bell
    soft: SoftStore
    barrier: Barrier
    moves: MoveStore
    health: Callable[[Sequence[int]], Awaitable[list[ServerHealth]]] = _no_servers
    """Measures the servers of these partitions."""
    home: str = "memory://"
    """The bare URL of the queue's home."""
    check_place: Callable[[str], None] = _any_place
    """Raises `InvalidSetting` if a partition cannot be at this URL."""
    open: Callable[[], Awaitable[None]] = _nothing
    close: Callable[[], Awaitable[None]] = _nothing
