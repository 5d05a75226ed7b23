"""The JSON of the API: request bodies, queries and responses."""

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
    """What a caller sends; an unknown field is refused."""


class Base64(Strict, frozen=True):
    """Bytes that are not UTF-8 text, encoded as base64."""

    base64: bytes


class NoQuery(Strict, frozen=True):
    pass


# -- conversations ---------------------------------------------------------------------------


class NewMessage(Strict, frozen=True):
    """A message to append. Send an `id` to make retries safe; without one the server makes it."""

    body: str | Base64
    id: str | None = None


class Appended(msgspec.Struct, frozen=True):
    id: str
    time: datetime


class Message(msgspec.Struct, frozen=True):
    """A message. `body` is text, or `{"base64": …}` if the stored bytes are not UTF-8."""

    id: str
    time: datetime
    body: str | Base64


class Messages(msgspec.Struct, frozen=True):
    """A page of messages. Pass `cursor` to get the next page; it is null on the last one."""

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
    """Adds with the same `token`, an id, count once. With `value` the response has the sum."""

    amount: int = 1
    token: str | None = None
    value: bool = False


class Added(msgspec.Struct, frozen=True, omit_defaults=True):
    value: int | UnsetType = UNSET


class CounterValue(msgspec.Struct, frozen=True):
    value: int


# -- timelines -------------------------------------------------------------------------------


class Follow(Strict, frozen=True):
    """Follow an author; `follows: false` stops following."""

    author: str
    follows: bool = True


class Followed(msgspec.Struct, frozen=True):
    """`changed` is false if nothing had to change."""

    author: str
    follows: bool
    changed: bool


class Posted(msgspec.Struct, frozen=True):
    """With mode `push` the named batch writes it to every home; with `pull` readers fetch it."""

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
    """How an author's posts reach readers; `since` is null before a decision takes effect."""

    author: str
    mode: str
    since: datetime | None
    reason: str


class Authors(msgspec.Struct, frozen=True):
    """Authors, the latest decision first. Posts of authors who are not listed are pushed."""

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
    """An accepted batch: each of its items will run, whichever process crashes."""

    id: str
    items: int
    state: State


class BatchLine(msgspec.Struct, frozen=True):
    """A batch. `done`, `failed`, `cancelled` and `lost` count only parts that have ended."""

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
    """Statistics of this server's caches: `hs.reads`, and pages read with `fresh_for`."""

    values: ReadStats
    pages: ReadStats


class Batches(msgspec.Struct, frozen=True):
    batches: list[BatchLine]


class Underway(msgspec.Struct, frozen=True):
    """The progress of the newest batches that have not ended."""

    progress: list[Progress]


# -- heat, keys, decisions, the queue --------------------------------------------------------


class SubjectLine(msgspec.Struct, frozen=True):
    """What a decision is about. If `kind` is `key`, `name` is a key of the application."""

    kind: Kind
    name: str


class HotKeyLine(msgspec.Struct, frozen=True):
    """A hot key and its rates over all servers; a true rate lies in `[rate, rate + bound_s]`.

    `kind` is `key` for a key of the application; `posts`, for example, are the rows of an author's
    posts. `bound_s` is null while a server's report is late: then there is no upper bound.
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
    """The hottest keys. If `window` is null, this server does not know them: ask `leader`.

    A key that is not listed costs at most `unreported_s` units a second; null if there is no such
    bound, because a server's report is late. `bucket_units_s` is the planned load of a bucket, in
    write units a second. `partitions` is empty unless the store reports its partitions.
    `nobody_leads` says how long there has been no leader; it is null while there is one.
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
    """`kind` as `/v1/heat` lists it, for Heatsink's own rows such as `posts`."""

    kind: Kind = Kind.KEY


class EpochLine(msgspec.Struct, frozen=True):
    """A layout of the key; `start` is null for its first one."""

    start: datetime | None
    buckets: int


class Chosen(msgspec.Struct, frozen=True):
    """A value in force, and the reason for it."""

    value: int
    reason: str


class KeyAnswer(msgspec.Struct, frozen=True):
    """A key's buckets, heat and layouts, and the reasons for them.

    `heat` is null for a key that costs at most `unreported_s`. If that is null too, this server
    does not know the heat: ask `leader`. `bucket_units` are the write units that this server has
    sent to each bucket since it started. `hot_by` says whether writes or reads make it hot. `near`
    is how long all servers cache its reads, in milliseconds. `store` says what the store can do
    about throttled writes. `wanted` is a decision that the store has refused to write so far.
    `nobody_leads` says how long there has been no leader; it is null while there is one.
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
    """A fixed number of workers; `workers: null` removes the pin."""

    workers: Annotated[int, Meta(ge=1, le=10_000)] | None
    reason: Reason


class Done(msgspec.Struct, frozen=True):
    """The decision is stored. The leader puts it in force within a second or two.

    `nobody_leads` says how long there has been no leader; then the decision waits for the next one.
    """

    subject: SubjectLine
    value: int | None
    nobody_leads: str | None = None


class DecisionLine(msgspec.Struct, frozen=True):
    """A decision. It applies to rows written from `effective` on; `value: null` revokes one."""

    version: int
    time: datetime
    effective: datetime
    subject: SubjectLine
    setting: str
    value: int | None
    reason: str


class Decisions(msgspec.Struct, frozen=True):
    """Decisions, newest first. Pass `before` to get older ones; it is null on the last page."""

    decisions: list[DecisionLine]
    before: int | None


class DecisionsQuery(Strict, frozen=True):
    limit: Limit = 50
    before: Annotated[int, Meta(ge=1, le=10**12, description="A version.")] | None = None


class PartitionLine(msgspec.Struct, frozen=True):
    """A queue partition. `claimed`, `done`, `failed` and `retried` are totals, the rest is current.

    `target` is the number of workers that the leader wants; null if this server does not know it.
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
    """The state of the server that answers.

    `horizon_s` is how far its view of the registry is ahead of now. Below 0 it is not `ready`, and
    writes wait. `nobody_leads` says how long there has been no leader, and is null with one.
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
    """`times` is a histogram of response times over `bounds_s`; its last bin has no bound."""

    kind: Literal["writes", "reads"]
    answered: int
    refused: int
    failed: int
    times: list[int]


class Requests(msgspec.Struct, frozen=True):
    """Requests for data since this server started, as totals that only grow."""

    bounds_s: list[float]
    kinds: list[RequestTotals]


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error in the format of RFC 9457. `field` names the wrong part of the request."""

    type: str
    title: str
    status: int
    detail: str
    field: str | None = None
