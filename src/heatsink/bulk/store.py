"""What bulk actions ask of a queue store, and the records that pass between them.

A batch has a *part* in each queue partition that holds some of its items, a part keeps them in
*chunks*, and a claim hands out *slices* of chunks under a lease. All calls are atomic and may be
repeated: a call whose answer was lost is safe to make again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec

from heatsink.registry.decisions import SoftStore

from .batch import Batch, PartEnd, PartPlace, Rate
from .items import Gap

LEGACY = -1
"""The partition of deployments that do not partition: another key path, so both can run at once."""

Verb = Literal["release", "drop", "pause", "resume", "cancel", "retry", "limit"]
PartState = Literal["staged", "ready", "paused", "cancelled", "finished"]
RUNNING, DONE, RETRY, FAILED, BACK = ".", "d", "r", "f", "b"


class Part(msgspec.Struct, frozen=True):
    """A batch's share of one partition. If it is `limited`, it waits for its lane's grants."""

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
    """Items that are stored together. Numbered from 0 within the part; `body` is opaque."""

    number: int
    count: int
    body: bytes


class ClaimRequest(msgspec.Struct, frozen=True):
    """`attempt` is random, unguessable, and never used for a second claim.

    `grants` are the starts that each lane was granted. `unanswered` are earlier claims of this
    owner whose answers never came: nobody runs what they handed out, so it is taken back.
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
    """`owned` is False if somebody else owns the partition. `more`: items are left to claim now.

    `wake_ms` is how long until something that sleeps is due, None if nothing sleeps.
    """

    owned: bool
    slices: list[Slice]
    lanes: list[LaneDepth]
    more: bool
    wake_ms: int | None


class Setback(msgspec.Struct, frozen=True):
    """Why one item of a slice did not get done. Not `counted`: the try was nobody's fault."""

    offset: int
    reason: str = ""
    delay_ms: int = 0
    counted: bool = True


class Outcome(msgspec.Struct, frozen=True):
    """What became of a slice so far: one mark for each of its items, of `.drfb`.

    `.` still runs, `d` done, `r` try again later, `f` failed for good, `b` given back unstarted.
    A mark is taken once; `used_us` is the time spent on the items that are newly marked.
    """

    attempt: str
    marks: str
    used_us: int
    setbacks: list[Setback] = msgspec.field(default_factory=list)


class PartCounts(msgspec.Struct, frozen=True):
    """A part as its partition has it. `lost` are items whose chunk was gone when they were due.

    `digest` adds up the checksums of the `chunks` that were staged. `recorded` is the version of
    the batch's record that it carries.
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
    """Those of the delayed that are not due yet; the last of them is in `backoff_ms`."""
    backoff_ms: int = 0

    @property
    def waiting(self) -> int:
        ended = self.done + self.failed + self.cancelled + self.lost
        return self.size - ended - self.running


class LivePart(msgspec.Struct, frozen=True):
    """A part that was released and has not ended, and the batch that it says it belongs to."""

    id: str
    batch: str


class FailedItem(msgspec.Struct, frozen=True):
    """`place` is where to go on from; `body` and `offset` hold the item itself."""

    place: str
    offset: int
    tries: int
    reason: str
    body: bytes


class Chores(msgspec.Struct, frozen=True):
    """What a partition's owner has to carry on: ends to report, stale parts to ask about."""

    ends: list[PartEnd]
    stale: list[tuple[str, str, int]]
    """(part, batch, stamp) of what was staged long ago and neither released nor dropped."""


class PartitionLoad(msgspec.Struct, frozen=True):
    """Totals (claimed, done …, used_us) only grow; the rest is now.

    `service_us` is for each item that waits; `used_us` is what all that was started has taken.
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
    async def stage(self, partition: int, part: Part, chunks: Sequence[Chunk]) -> PartitionLoad:
        """Put chunks where nothing runs yet. A chunk that is there already is left as it is.

        Without chunks it only renews the part's stamp, so that it is not taken for stale.
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

        `since` is the version of the batch that the wish comes from: a wish that is older than
        one the part has heard changes nothing. For `drop` it is the stamp that the part must have.
        A `release` brings the batch's `record`, which the part keeps: see `record_of`.
        """

    async def claim(self, partition: int, request: ClaimRequest) -> Claimed: ...

    async def settle(
        self, partition: int, outcomes: Sequence[Outcome], beats: Sequence[str], lease_ms: int
    ) -> list[str]:
        """Record outcomes and prolong the leases of `beats`. Returns attempts that were lost."""

    async def chores(self, partition: int, reported: Sequence[PartEnd]) -> Chores:
        """Forget the ends that were reported; tell what is left to do."""

    async def load(self, partition: int) -> PartitionLoad: ...

    async def part(self, partition: int, part: str) -> PartCounts | None: ...

    async def failures(
        self, partition: int, part: str, after: str, limit: int
    ) -> list[FailedItem]: ...


class LossStore(Protocol):
    """What partitions tell of parts, to find what a server has lost."""

    async def gaps(self, partition: int, part: str, chunks: int) -> list[Gap]:
        """Where items are missing in a part that was staged with so many chunks."""

    async def live_parts(self, partition: int, after: str, limit: int) -> list[LivePart]:
        """Some of the parts that have not ended, ordered by id, behind the one named `after`."""

    async def record_of(self, partition: int, part: str) -> Batch | None:
        """The newest record of its batch that a part has seen."""


class BatchStore(Protocol):
    """Batches at home: one small record each, in a slot that the id alone decides."""

    async def open(self, batch: Batch) -> Batch:
        """Keep it, unless one of that id is there: then that one is the answer.

        Until it is sealed, `KEEP_MS` after the last change it is forgotten.
        """

    async def update(self, batch: Batch) -> Batch | None:
        """Replace the record of the same `version` and `tag` by the next; None if that is gone.

        What was to be forgotten stays.
        """

    async def restore(self, batch: Batch) -> Batch:
        """Put back a record that was lost, unless one with its version or a newer one is there.

        Answers the record that is there then.
        """

    async def get(self, id: str) -> Batch | None: ...

    async def list(self, limit: int, tenant: str = "") -> list[Batch]:
        """The newest first."""

    async def browse(self, start: int, limit: int) -> Sequence[Batch]:
        """The batches from place `start` on in the list of the newest; fewer may be there."""

    async def forget(self, id: str, after_ms: int) -> None:
        """Let the record go after a time."""


class Grants(msgspec.Struct, frozen=True):
    """`size` starts each at `wait_ms[0]`, `wait_ms[1]` … from now; not used in time: forfeited.

    `now_ms` is by the clock of the limit's home; the next start after these is in `then_ms`.
    """

    size: int
    wait_ms: list[float]
    now_ms: float
    then_ms: float


class LimitStore(Protocol):
    """Rate limits at home, so that they hold over all partitions and workers."""

    async def declare(self, lane: str, rate: Rate | None) -> None:
        """Set the rate that may not be exceeded; None leaves only what was explored."""

    async def reserve(self, lane: str, starts: int, ahead_ms: int) -> Grants:
        """Book the next starts, not further ahead than `ahead_ms`: later the rate may be another.

        Asked for none, it only tells the time there.
        """

    async def refused(self, lane: str, started_per_s: float, retry_after_ms: int) -> None:
        """Somebody downstream said "too many": explore for the rate that it takes."""

    async def rate_of(self, lane: str) -> float | None:
        """Items a second that the lane is granted now; None if it has no limit."""


class QueuePlan(msgspec.Struct, frozen=True):
    """How many partitions new parts go to, and the most there ever were: those are drained."""

    partitions: int
    high_water: int
    version: int = 0


ANNOUNCED_MS = 86_400_000  # an action is known so long after the last worker that had it


class FleetStore(Protocol):
    """Who is there, who owns what, and how many partitions there are."""

    async def join(self, consumer: str, actions: Sequence[str], ttl_ms: int) -> list[str]:
        """Stay a member for `ttl_ms`, and offer actions for as long. The members, sorted."""

    async def leave(self, consumer: str) -> None: ...

    async def actions(self) -> list[str]:
        """What workers had within `ANNOUNCED_MS`, without Heatsink's own."""

    async def offered(self) -> list[str]:
        """The actions that some worker has now: none once the last has left."""

    async def own(self, partition: int, consumer: str, ttl_ms: int, workers: int = 0) -> bool:
        """Take the partition or stay its owner, and tell how many workers it has there.

        False if somebody else owns it.
        """

    async def disown(self, partition: int, consumer: str) -> None: ...

    async def plan(self, default: QueuePlan, keep: bool = True) -> QueuePlan:
        """The plan in force. If there is none, the default; with `keep` it is in force then."""

    async def change(self, plan: QueuePlan) -> QueuePlan:
        """Put a plan in force if its version is newer."""


class Bell(Protocol):
    """Rings when a part was released or resumed. It may miss a ring: whoever waits also polls."""

    async def wait(self, timeout_s: float) -> set[int]:
        """The partitions that rang since this process last asked; waits if none did."""


class ServerHealth(msgspec.Struct, frozen=True):
    """One server of the queue. `cpu_used_s` only grows; a `memory_max` of 0 means no bound."""

    place: str
    cpu_used_s: float
    memory: int
    memory_max: int
    latency_ms: float
    partitions: tuple[int, ...] = ()


class Barrier(Protocol):
    """Reads what a server holds and makes it durable, in one go on one connection.

    So what a call returns is on disk, and on the replicas that were asked to acknowledge it. If
    the server was restarted or replaced meanwhile, the call raises `Unavailable`: what it would
    have confirmed may be gone.
    """

    async def parts(self, places: Sequence[PartPlace]) -> list[PartCounts | None]:
        """The parts at these places; None for each that is not there."""

    async def batches(self, ids: Sequence[str]) -> list[Batch | None]:
        """The records of these batches; None for each that is not there."""


async def _nothing() -> None:
    pass


async def _no_servers(_: int) -> list[ServerHealth]:
    return []


@dataclass(frozen=True)
class QueueStores:
    """One queue as a process sees it."""

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
