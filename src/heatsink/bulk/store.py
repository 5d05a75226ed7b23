"""The interfaces that a queue store implements for bulk actions, and their records.

A batch has a *part* in each queue partition that holds some of its items. A part keeps its items in
*chunks*, and a claim hands out *slices* of chunks under a lease. All calls are atomic, and a call
whose answer was lost may be repeated.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from heatsink.registry.decisions import SoftStore

from .batch import Batch, Gap, PartEnd, PartPlace, Rate

LEGACY = -1
"""The unpartitioned queue. It has key paths of its own, so both kinds can run side by side."""

Verb = Literal["release", "drop", "pause", "resume", "cancel", "retry", "limit"]
PartState = Literal["staged", "ready", "paused", "cancelled", "finished"]
RUNNING, DONE, RETRY, FAILED, BACK = ".", "d", "r", "f", "b"
ANNOUNCED_MS = 86_400_000  # how long an action stays known after its last worker left
BOOKED_MS_MAX = 1_000.0  # how far ahead starts are booked
LATE_MS = 20.0  # how late a booked start may be used


class Part(msgspec.Struct, frozen=True):
    """A batch's items in one partition. A `limited` part waits for its lane's grants."""

    id: str
    batch: str
    tenant: str
    action: str
    submitted_ms: int
    lane: str
    limited: bool = False
    weight: float = 1.0
    priority: int = 0


class Chunk(msgspec.Struct, frozen=True):
    """Items stored together. Chunks are numbered from 0 in the part; `body` is opaque."""

    number: int
    count: int
    body: bytes


class ClaimRequest(msgspec.Struct, frozen=True):
    """A claim of up to `want` items; `attempt` is random, unguessable and used only once.

    `grants` are the starts that each lane was granted. `unanswered` are earlier claims of this
    owner whose answers never arrived: their items do not run, so the store takes them back.
    """

    owner: str
    attempt: str
    want: int
    lease_ms: int
    grants: dict[str, int] = msgspec.field(default_factory=dict)
    unanswered: list[str] = msgspec.field(default_factory=list)


class Slice(msgspec.Struct, frozen=True):
    """Items `start … start + count` of a chunk, leased to one attempt."""

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


class LaneDepth(msgspec.Struct, frozen=True):
    """A rate-limited lane with items that wait for grants."""

    lane: str
    waiting: int


class Claimed(msgspec.Struct, frozen=True):
    """The result of a claim. `owned` is False if another consumer owns the partition.

    `more` says that items are left to claim now. `wake_ms` is the time until the next delayed item
    is due; None if there is none.
    """

    owned: bool
    slices: list[Slice]
    lanes: list[LaneDepth]
    more: bool
    wake_ms: int | None


class Setback(msgspec.Struct, frozen=True):
    """Why one item of a slice was not done; if not `counted`, the attempt does not count."""

    offset: int
    reason: str = ""
    delay_ms: int = 0
    counted: bool = True


class Outcome(msgspec.Struct, frozen=True):
    """The state of a slice: one mark of `.drfb` for each item.

    `.` still runs, `d` done, `r` retry later, `f` failed for good, `b` given back unstarted.
    A mark is counted once; `used_us` is the time spent on the newly marked items.
    """

    attempt: str
    marks: str
    used_us: int
    setbacks: list[Setback] = msgspec.field(default_factory=list)


class PartCounts(msgspec.Struct, frozen=True):
    """The counts of a part in its partition. `lost` items had no chunk any more when claimed.

    `digest` is the sum of the checksums of the `chunks` that were staged. `recorded` is the version
    of the batch's record that the part carries.
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
    """Delayed items that are not due yet; the last of them is due in `backoff_ms`."""
    backoff_ms: int = 0

    @property
    def waiting(self) -> int:
        ended = self.done + self.failed + self.cancelled + self.lost
        return self.size - ended - self.running


class LivePart(msgspec.Struct, frozen=True):
    """A part that was released and has not ended, and its batch."""

    id: str
    batch: str


class FailedItem(msgspec.Struct, frozen=True):
    """A failed item: item `offset` of the chunk `body`. `place` is the cursor for the next page."""

    place: str
    offset: int
    tries: int
    reason: str
    body: bytes


class Chores(msgspec.Struct, frozen=True):
    """Work for a partition's owner: ends to report, and stale parts to check."""

    ends: list[PartEnd]
    stale: list[tuple[str, str, int]]
    """(part, batch, stamp) of parts staged long ago and neither released nor dropped."""


class PartitionLoad(msgspec.Struct, frozen=True):
    """The load of a partition: `claimed` to `expired` and `used_us` are running totals.

    All other fields describe the moment of the call.

    `service_us` is the expected time per waiting item; `used_us` the time spent on items so far.
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


class QueueStore(Protocol):
    """The partitions: parts, claims and outcomes."""

    async def stage(self, partition: int, part: Part, chunks: Sequence[Chunk]) -> PartitionLoad:
        """Store chunks of a part that does not run yet; existing chunks stay as they are.

        Without chunks it only renews the part's stamp, so that it does not count as stale.
        """

    async def steer(
        self,
        partition: int,
        part: str,
        verb: Verb,
        lap: int = 0,
        since: int = 0,
        record: Batch | None = None,
    ) -> bool:
        """Change a part's state; False if there is no such part. Repeating changes nothing.

        `since` is the version of the batch at this command. A command older than the last one that
        the part has seen changes nothing. For `drop`, `since` is the stamp that the part must have.
        A `release` brings the batch's `record`, and the part keeps this copy: see `record_of`.
        """

    async def claim(self, partition: int, request: ClaimRequest) -> Claimed: ...

    async def settle(
        self, partition: int, outcomes: Sequence[Outcome], beats: Sequence[str], lease_ms: int
    ) -> list[str]:
        """Record outcomes and renew the leases of `beats`; return attempts with lost leases."""

    async def chores(self, partition: int, reported: Sequence[PartEnd]) -> Chores:
        """Forget the `reported` ends, and return what is left to do."""

    async def load(self, partition: int) -> PartitionLoad: ...

    async def part(self, partition: int, part: str) -> PartCounts | None: ...

    async def failures(
        self, partition: int, part: str, after: str, limit: int
    ) -> list[FailedItem]: ...


class LossStore(Protocol):
    """Queries that find what a partition's server has lost."""

    async def gaps(self, partition: int, part: str, chunks: int) -> list[Gap]:
        """Where items are missing in a part that was staged with `chunks` chunks."""

    async def live_parts(self, partition: int, after: str, limit: int) -> list[LivePart]:
        """A page of parts that have not ended, ordered by id, after the id `after`."""

    async def record_of(self, partition: int, part: str) -> Batch | None:
        """The copy of its batch's record that the part carries."""


class BatchStore(Protocol):
    """The records of batches. Each is in the home slot that is derived from the batch's id."""

    async def open(self, batch: Batch) -> Batch:
        """Create a record, or return the existing one with that id.

        Until it is sealed, it expires `KEEP_MS` after its last change.
        """

    async def update(self, batch: Batch) -> Batch | None:
        """Write the record if its stored version and tag are still those of `batch`; else None.

        The update removes the expiry of the record.
        """

    async def restore(self, batch: Batch) -> Batch:
        """Restore a lost record unless one as new or newer exists; return the stored one."""

    async def get(self, id: str) -> Batch | None: ...

    async def list(self, limit: int, tenant: str = "") -> list[Batch]:
        """The newest batches, newest first."""

    async def browse(self, start: int, limit: int) -> Sequence[Batch]:
        """Up to `limit` batches from position `start` of the newest-first list."""

    async def forget(self, id: str, after_ms: int) -> None:
        """Let the record expire after a time."""


class Grants(msgspec.Struct, frozen=True):
    """Booked starts: `size` items may start at each of `wait_ms` from now.

    A start that is not used in time is lost. `now_ms` is the clock of the limit's home slot. The
    next free start after these is in `then_ms`.
    """

    size: int
    wait_ms: list[float]
    now_ms: float
    then_ms: float


class LimitStore(Protocol):
    """Rate limits, each in one home slot, so that they hold over all partitions and workers."""

    async def declare(self, lane: str, rate: Rate | None) -> None:
        """Set the declared rate of a lane; None removes it and keeps a limit found by probing."""

    async def reserve(self, lane: str, starts: int, ahead_ms: int) -> Grants:
        """Book the next starts, at most `ahead_ms` ahead, since the rate may change.

        With `starts=0` the call only returns the time of the limit's home slot.
        """

    async def refused(self, lane: str, started_per_s: float, retry_after_ms: int) -> None:
        """A downstream service said "too many requests": probe for the rate that it accepts."""

    async def rate_of(self, lane: str) -> float | None:
        """The lane's current limit in items per second; None if it has none."""


class QueuePlan(msgspec.Struct, frozen=True):
    """How many partitions new parts go to, and the highest number ever, which workers drain."""

    partitions: int
    high_water: int
    version: int = 0


class FleetStore(Protocol):
    """Membership of consumers, ownership of partitions, and the number of partitions."""

    async def join(self, consumer: str, actions: Sequence[str], ttl_ms: int) -> list[str]:
        """Join or stay a member that offers `actions` for `ttl_ms`; return all members, sorted."""

    async def leave(self, consumer: str) -> None: ...

    async def actions(self) -> list[str]:
        """The actions that workers had within `ANNOUNCED_MS`, without the built-in ones."""

    async def offered(self) -> list[str]:
        """The actions that live workers have."""

    async def own(self, partition: int, consumer: str, ttl_ms: int, workers: int = 0) -> bool:
        """Become or stay the owner of a partition, with a number of workers.

        False if another consumer owns it.
        """

    async def disown(self, partition: int, consumer: str) -> None: ...

    async def plan(self, default: QueuePlan, keep: bool = True) -> QueuePlan:
        """The current plan. If there is none, the default; `keep` stores it."""

    async def change(self, plan: QueuePlan) -> QueuePlan:
        """Store a plan if its version is newer; return the current plan."""


class Bell(Protocol):
    """Wakes consumers when a part is released or resumed. It may miss some: consumers also poll."""

    async def wait(self, timeout_s: float) -> set[int]:
        """The partitions with released parts since the last call; waits if there are none."""


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
        """The parts at these places; None for each that does not exist."""

    async def batches(self, ids: Sequence[str]) -> list[Batch | None]:
        """The records of these batches; None for each that does not exist."""


async def _nothing() -> None:
    pass


async def _no_servers(_: int) -> list[ServerHealth]:
    return []


@dataclass(frozen=True)
class QueueStores:
    """All stores of one queue."""

    queue: QueueStore
    losses: LossStore
    batches: BatchStore
    limits: LimitStore
    fleet: FleetStore
    bell: Bell
    soft: SoftStore
    barrier: Barrier
    health: Callable[[int], Awaitable[list[ServerHealth]]] = _no_servers
    open: Callable[[], Awaitable[None]] = _nothing
    close: Callable[[], Awaitable[None]] = _nothing
