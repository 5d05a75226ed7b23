"""What comes in and goes out as JSON: bodies, queries and answers of the API."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from heatsink.bulk.batch import Progress, State
from heatsink.heat.heat import PartitionHeat
from heatsink.primitives.subjects import Kind
from heatsink.reads.near_cache import ReadStats

Limit = Annotated[int, Meta(ge=1, le=1_000, description="At most so many.")]
HomeLimit = Annotated[int, Meta(ge=1, le=200, description="At most so many.")]
Reason = Annotated[str, Meta(min_length=1, max_length=500, description="For whoever asks later.")]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a caller sends: a field that nobody reads is a mistake, and is refused."""


class Base64(Strict, frozen=True):
    """Bytes that are not text."""

    base64: bytes


class NoQuery(Strict, frozen=True):
    pass


# -- conversations ---------------------------------------------------------------------------


class NewMessage(Strict, frozen=True):
    """`id` makes repeating it safe; without one the server mints it."""

    body: str | Base64
    id: str | None = None


class Appended(msgspec.Struct, frozen=True):
    id: str
    time: datetime


class Message(msgspec.Struct, frozen=True):
    """`body` is text, or `{"base64": …}` where the stored bytes are no UTF-8."""

    id: str
    time: datetime
    body: str | Base64


class Messages(msgspec.Struct, frozen=True):
    """`cursor` goes on where they end; null after the last page."""

    messages: list[Message]
    cursor: str | None


class PageQuery(Strict, frozen=True):
    limit: Limit = 50
    cursor: Annotated[str, Meta(description="From the page before.")] | None = None
    order: Literal["newest", "oldest"] = "newest"
    after: Annotated[str, Meta(description="An id, or a time: 2026-01-31T12:00:00Z.")] | None = None
    before: Annotated[str, Meta(description="An id, or a time.")] | None = None
    fresh_for: Annotated[
        float, Meta(ge=0, le=60, description="Seconds that the page may be old, for hot reads.")
    ] = 0.0


# -- counters --------------------------------------------------------------------------------


class Add(Strict, frozen=True):
    """With the same `token`, an id, it is the same add. `value`: answer with the sum too."""

    amount: int = 1
    token: str | None = None
    value: bool = False


class Added(msgspec.Struct, frozen=True, omit_defaults=True):
    value: int | UnsetType = UNSET


class CounterValue(msgspec.Struct, frozen=True):
    value: int


# -- timelines -------------------------------------------------------------------------------


class Follow(Strict, frozen=True):
    """`follows: false` ends it."""

    author: str
    follows: bool = True


class Followed(msgspec.Struct, frozen=True):
    """`changed` is false if it was so before."""

    author: str
    follows: bool
    changed: bool


class Posted(msgspec.Struct, frozen=True):
    """`mode`: pushed to homes by the batch named, or pulled by readers."""

    id: str
    time: datetime
    mode: str
    batch: str


class HomePost(msgspec.Struct, frozen=True):
    id: str
    time: datetime
    author: str
    body: str | Base64


class Home(msgspec.Struct, frozen=True):
    posts: list[HomePost]
    cursor: str | None


class HomeQuery(Strict, frozen=True):
    limit: HomeLimit = 50
    cursor: Annotated[str, Meta(description="From the page before.")] | None = None


class AuthorLine(msgspec.Struct, frozen=True):
    """`since` is null where a decision has not taken effect yet."""

    author: str
    mode: str
    since: datetime | None
    reason: str


class Authors(msgspec.Struct, frozen=True):
    """The latest decided first. Everybody who is not listed is pushed."""

    authors: list[AuthorLine]


# -- bulk actions ----------------------------------------------------------------------------


class BulkQuery(Strict, frozen=True):
    tenant: Annotated[str, Meta(min_length=1, max_length=256)] = "default"
    priority: Annotated[int, Meta(ge=-1_000, le=1_000)] = 0
    rate: Annotated[str, Meta(description="At most so many starts: 500/s.")] | None = None
    on_done: Annotated[str, Meta(description="Action that is told the outcome.")] = ""
    spread: bool = True


class BatchesQuery(Strict, frozen=True):
    limit: Limit = 50
    tenant: Annotated[str, Meta(max_length=256)] = ""


class FailuresQuery(Strict, frozen=True):
    limit: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000


class Accepted(msgspec.Struct, frozen=True):
    """Every item of it will be run, whatever dies meanwhile."""

    id: str
    items: int
    state: State


class BatchLine(msgspec.Struct, frozen=True):
    """`done`, `failed`, `cancelled` and `lost` count parts that have ended: all, once it has."""

    id: str
    action: str
    tenant: str
    state: State
    items: int
    priority: int
    rate: str | None
    submitted: datetime
    ended: datetime | None
    reason: str
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    lost: int = 0


class ReadActivity(msgspec.Struct, frozen=True):
    """What this process's caches did: for `hs.reads`, and for pages with `fresh_for`."""

    values: ReadStats
    pages: ReadStats


class Batches(msgspec.Struct, frozen=True):
    batches: list[BatchLine]


class Underway(msgspec.Struct, frozen=True):
    """How far the newest batches are that have not ended."""

    progress: list[Progress]


# -- heat, keys, decisions, the queue --------------------------------------------------------


class SubjectLine(msgspec.Struct, frozen=True):
    """What a decision is about. The `name` of a subject of kind `key` is a user's key."""

    kind: Kind
    name: str


class HotKeyLine(msgspec.Struct, frozen=True):
    """Costs a second over the whole fleet: each is true within `[rate, rate + bound_s]`.

    `kind` is `key` for a user's key, and `posts`, for example, for the rows of an author's posts.
    `bound_s` is null where a server's report is late: then nobody knows how much more it is.
    """

    kind: Kind
    key: str
    buckets: int
    write_units_s: float
    writes_s: float
    reads_s: float
    throttles_s: float
    bound_s: float | None


class HeatAnswer(msgspec.Struct, frozen=True):
    """Where `window` is null, the fleet's heat is not known here: ask `leader`.

    No key that is not listed costs more than `unreported_s` a second; null: nobody knows, as a
    server's report is late. A bucket is meant to take
    `bucket_units_s` write units a second. `partitions` are those of a store that tells of them.
    `nobody_leads` says since when nobody leads, and is null while somebody does.
    """

    leads: bool
    leader: str
    window: datetime | None
    window_s: float
    unreported_s: float | None
    bucket_units_s: int
    keys: list[HotKeyLine]
    partitions: list[PartitionHeat]
    nobody_leads: str | None = None


class LimitQuery(Strict, frozen=True):
    limit: Limit = 20


class SubjectQuery(Strict, frozen=True):
    """`kind` is what the heat lists for rows of Heatsink's own, such as `posts`."""

    kind: Kind = Kind.KEY


class EpochLine(msgspec.Struct, frozen=True):
    """`start` is null for the first, which is from the beginning."""

    start: datetime | None
    buckets: int


class Chosen(msgspec.Struct, frozen=True):
    """A value in force, and why."""

    value: int
    reason: str


class KeyAnswer(msgspec.Struct, frozen=True):
    """`heat` is null for a key that costs at most `unreported_s`, and where that is null too.

    Then the fleet's heat is not known here: ask `leader`.
    `bucket_units` went to each bucket through this server, since it started.
    `hot_by` says what makes it hot, writes or reads; `near` for how many ms its reads are kept.
    `store` is about a key that is throttled: by its own heat, or by its partition's. `wanted` are
    buckets that are decided and that the store refuses to write so far. `nobody_leads` says since
    when nobody leads, and is null while somebody does.
    """

    kind: Kind
    key: str
    buckets: int
    hot_by: str
    reason: str
    pin: Chosen | None
    near: Chosen | None
    wanted: Chosen | None
    heat: HotKeyLine | None
    unreported_s: float | None
    leads: bool
    leader: str
    queries_per_page: int
    partitions: int
    epochs: list[EpochLine]
    store: str | None
    table_refusal: str | None
    bucket_units: list[int]
    nobody_leads: str | None = None


class Pin(Strict, frozen=True):
    buckets: Annotated[int, Meta(ge=1, le=10_000)]
    reason: Reason


class WorkerPin(Strict, frozen=True):
    """`workers: null` lets the policy decide again."""

    workers: Annotated[int, Meta(ge=1, le=10_000)] | None
    reason: Reason


class Done(msgspec.Struct, frozen=True):
    """What was asked for is decided. It is in force within a second or two, if somebody leads.

    `nobody_leads` says since when nobody does; then it waits for the next leader.
    """

    subject: SubjectLine
    value: int | None
    nobody_leads: str | None = None


class DecisionLine(msgspec.Struct, frozen=True):
    """`effective` is when it takes effect for new rows; `value: null` takes it back."""

    version: int
    time: datetime
    effective: datetime
    subject: SubjectLine
    setting: str
    value: int | None
    reason: str


class Decisions(msgspec.Struct, frozen=True):
    """The newest first. `before` goes on where they end; null after the oldest that is kept."""

    decisions: list[DecisionLine]
    before: int | None


class DecisionsQuery(Strict, frozen=True):
    limit: Limit = 50
    before: Annotated[int, Meta(ge=1, le=10**12, description="A version.")] | None = None


class PartitionLine(msgspec.Struct, frozen=True):
    """Totals (`claimed`, `done`, …) only grow; the rest is now.

    `target` is what the coordinator decided, null where that is not known.
    """

    partition: int
    workers: int
    runnable: int
    limited: int
    delayed: int
    in_flight: int
    tenants: int
    oldest_s: float
    service_s: float
    claimed: int
    done: int
    failed: int
    retried: int
    target: int | None
    reason: str
    pin: Chosen | None


class Partitions(msgspec.Struct, frozen=True):
    leads: bool
    partitions: list[PartitionLine]


# -- the server itself -----------------------------------------------------------------------


class Ready(msgspec.Struct, frozen=True):
    ready: bool
    leads: bool
    version: int


class ServerStatus(msgspec.Struct, frozen=True):
    """How the server that was asked is doing.

    `horizon_s` is how far its view is ahead of now: below 0 it is not `ready`, and writes wait.
    `nobody_leads` says since when nobody leads, and is null while `leader` does.
    """

    name: str
    ready: bool
    leads: bool
    leader: str
    nobody_leads: str | None
    term: int
    version: int
    horizon_s: float
    servers: int
    spread_keys: int
    extra_buckets: int
    pinned_keys: int


class RequestTotals(msgspec.Struct, frozen=True):
    """`times` counts answers by the first bound they were within; the last is beyond all."""

    kind: Literal["writes", "reads"]
    answered: int
    refused: int
    failed: int
    times: list[int]


class Requests(msgspec.Struct, frozen=True):
    """Calls for data since this server started: totals, so that a missed look misses nothing."""

    bounds_s: list[float]
    kinds: list[RequestTotals]


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error, as RFC 9457 has it. `field` names what of the request is wrong."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
