"""The JSON of the API: request bodies, queries and responses."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from heatsink.heat.heat import PartitionHeat
from heatsink.primitives.subjects import Kind
from heatsink.reads.near_cache import ReadStats

Limit = Annotated[int, Meta(ge=1, le=1_000, description="Maximum number of results.")]
HomeLimit = Annotated[int, Meta(ge=1, le=200, description="Maximum number of results.")]
Time = Annotated[datetime, Meta(tz=True)]
Reason = Annotated[
    str, Meta(min_length=1, max_length=500, description="Reason, shown with the decision.")
]


class Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of all that a caller sends: an unknown field is refused."""


class Base64(Strict, frozen=True):
    """Bytes that are not UTF-8 text, encoded as base64."""

    base64: bytes


class NoQuery(Strict, frozen=True):
    pass


# -- conversations ---------------------------------------------------------------------------


class NewMessage(Strict, frozen=True):
    """A message to append.

    To make retries safe, send an `id` of the deployment's kind, or any text of yours in the header
    Idempotency-Key. Otherwise the server makes an id. `ttl` is in seconds.
    """

    body: str | Base64
    id: str | None = None
    ttl: Annotated[float, Meta(gt=0, description="Seconds until the message expires.")] | None = (
        None
    )


class NewPost(Strict, frozen=True):
    """A post. Send an `id` to make retries safe; otherwise the server makes one."""

    body: str | Base64
    id: str | None = None


class DeletedMessage(msgspec.Struct, frozen=True):
    """Whether the message existed."""

    deleted: bool


class ErasedConversation(msgspec.Struct, frozen=True):
    """How many rows were removed, at least."""

    erased: int


class Appended(msgspec.Struct, frozen=True):
    id: str
    time: Time


class Message(msgspec.Struct, frozen=True):
    """A message. `body` is text, or `{"base64": …}` if the stored bytes are not UTF-8."""

    id: str
    time: Time
    body: str | Base64


class MessagePage(msgspec.Struct, frozen=True):
    """A page of messages. Pass `cursor` to get the next page. On the last page `cursor` is null."""

    messages: list[Message]
    cursor: str | None


class PageQuery(Strict, frozen=True):
    limit: Limit = 50
    cursor: Annotated[str, Meta(description="Cursor of the previous page.")] | None = None
    order: Literal["newest", "oldest"] = "newest"
    after: Annotated[str, Meta(description="An id, or a time: 2026-01-31T12:00:00Z.")] | None = None
    before: Annotated[str, Meta(description="An id, or a time, as in `after`.")] | None = None
    fresh_for: Annotated[
        float, Meta(ge=0, le=60, description="Maximum age of the page in seconds, for hot reads.")
    ] = 0.0


# -- counters --------------------------------------------------------------------------------


class Add(Strict, frozen=True):
    """An add to a counter. Several adds with the same `token`, which is an id, count once.

    With `value` the response contains the counter's sum.
    """

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
    """The result of a follow or unfollow; `changed` is false if nothing had to change."""

    author: str
    follows: bool
    changed: bool


class Posted(msgspec.Struct, frozen=True):
    """A stored post. With mode `push`, the batch `batch` writes the post to every follower's home.

    With mode `pull`, the post stays in the author's log, and readers fetch it from there.
    """

    id: str
    time: Time
    mode: str
    batch: str


class HomePost(msgspec.Struct, frozen=True):
    id: str
    time: Time
    author: str
    body: str | Base64


class HomeAnswer(msgspec.Struct, frozen=True):
    posts: list[HomePost]
    cursor: str | None


class HomeQuery(Strict, frozen=True):
    limit: HomeLimit = 50
    cursor: Annotated[str, Meta(description="Cursor of the previous page.")] | None = None


class AuthorLine(msgspec.Struct, frozen=True):
    """How an author's posts reach readers. `since` is null until a decision takes effect."""

    author: str
    mode: str
    since: Time | None
    reason: str


class AuthorList(msgspec.Struct, frozen=True):
    """Authors, the latest decision first. Posts of authors who are not listed are pushed."""

    authors: list[AuthorLine]


class ReadActivity(msgspec.Struct, frozen=True):
    """Statistics of this server's caches: `hs.reads`, and pages read with `fresh_for`."""

    values: ReadStats
    pages: ReadStats


# -- heat, keys, decisions, the queue --------------------------------------------------------


class SubjectLine(msgspec.Struct, frozen=True):
    """What a decision is about. If `kind` is `key`, `name` is a key of the application."""

    kind: Kind
    name: str


class HotKeyLine(msgspec.Struct, frozen=True):
    """A hot key and its rates over all servers.

    With a confidence of 99.9 %, the true rate of write units lies between `write_units_s - below_s`
    and `write_units_s + bound_s`: servers sample cold keys.

    `kind` is `key` for a key of the application; `posts`, for example, are the rows of an author's
    posts. While a server's report is late, there is no upper bound, and `bound_s` is null.
    """

    kind: Kind
    key: str
    buckets: int
    write_units_s: float
    writes_s: float
    reads_s: float
    throttles_s: float
    below_s: float
    bound_s: float | None


class HeatAnswer(msgspec.Struct, frozen=True):
    """The hottest keys. If `window` is null, this server does not know them: ask `leader`.

    A key that is not listed costs at most `unreported_s` units a second. `unreported_s` is null
    while a server's report is late, since there is no such bound then. `bucket_units_s` is the
    planned load of a bucket, in write units a second. `partitions` is empty unless the store
    reports its partitions. `nobody_leads` says how long there has been no leader; it is null while
    there is one.
    """

    leads: bool
    leader: str
    window: Time | None
    window_s: float
    unreported_s: float | None
    bucket_units_s: int
    keys: list[HotKeyLine]
    partitions: list[PartitionHeat]
    nobody_leads: str | None = None


class LimitQuery(Strict, frozen=True):
    limit: Limit = 20


class SubjectQuery(Strict, frozen=True):
    """`kind` as `/v1/heat` lists it: `key`, or the name of Heatsink's own rows such as `posts`."""

    kind: Kind = Kind.KEY


class EpochLine(msgspec.Struct, frozen=True):
    """An epoch of the key: a span of time with this number of buckets.

    `start` is null for the first epoch.
    """

    start: Time | None
    buckets: int


class Chosen(msgspec.Struct, frozen=True):
    """A value in force, and the reason for it."""

    value: int
    reason: str


class KeyAnswer(msgspec.Struct, frozen=True):
    """A key's buckets, heat and epochs, and the reasons for them.

    `heat` is null for a key that the heat reports do not list. Such a key costs at most
    `unreported_s` write units a second. If `unreported_s` is null too, this server does not know
    the key's heat: ask the server named in `leader`. `bucket_units` are the write units that this
    server has sent to each bucket since it started. `hot_by` says why the key is spread or cached:
    `write-hot`, `pinned`, `unpinned` (a pin spread it, and was withdrawn), `read-hot`, or empty.
    `near` is how long all servers cache reads of the key, in milliseconds. `store` says what the
    store can do about throttled writes. `wanted` is a decision that the leader could not write to
    the store so far. `nobody_leads` says how long there has been no leader; it is null while there
    is one. `lines` is the whole answer in words, as `heatsink explain` prints it.
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
    lines: list[str] = []


class Pin(Strict, frozen=True):
    buckets: Annotated[int, Meta(ge=1, le=10_000)]
    reason: Reason


class WorkerPin(Strict, frozen=True):
    """A fixed number of workers; `workers: null` removes the pin."""

    workers: Annotated[int, Meta(ge=1, le=10_000)] | None
    reason: Reason


class ModePin(Strict, frozen=True):
    """A fixed mode of an author: posts are pushed to followers' homes, or pulled by followers."""

    mode: Literal["push", "pull"]
    reason: Reason


class AuthorAnswer(msgspec.Struct, frozen=True):
    """Whether posts of an author are pushed or pulled, and why, in words."""

    author: str
    followers: int
    explanation: str


class PlainHeat(Strict, frozen=True):
    """The load of one key per second, as counted by a program without the library."""

    key: Annotated[str, Meta(min_length=1, max_length=1_024)]
    writes_s: Annotated[float, Meta(ge=0)]
    reads_s: Annotated[float, Meta(ge=0)] = 0.0
    throttles_s: Annotated[float, Meta(ge=0)] = 0.0


class NewHeat(Strict, frozen=True):
    """The hot keys of one sender. `server` is the sender's name.

    Rates from different names add up. Rates under the same name do not: give each sender its own
    name.
    """

    keys: Annotated[list[PlainHeat], Meta(min_length=1, max_length=256)]
    server: Annotated[str, Meta(max_length=100)] = ""


class HeatTaken(msgspec.Struct, frozen=True):
    keys: int


class NewSetting(Strict, frozen=True):
    """A setting for the whole deployment. `by` names the person who sets it."""

    value: bool | int | float | str
    reason: Reason
    by: Annotated[str, Meta(max_length=200)] = ""


class SettingLine(msgspec.Struct, frozen=True):
    """A setting in force. `source` is `deployment`, `process` (of this server) or `default`.

    `about` says what the setting means.
    """

    name: str
    value: bool | int | float | str
    source: str
    default: bool | int | float | str | None
    by: str
    changed: Time | None
    reason: str
    local: bool | int | float | str | None
    """What this server was started with, if the deployment has another value."""
    about: str = ""


class SettingLines(msgspec.Struct, frozen=True):
    settings: list[SettingLine]


class Done(msgspec.Struct, frozen=True):
    """The decision is stored. The leader puts it in force within a second or two.

    `nobody_leads` says how long there has been no leader. In this case the decision waits for the
    next leader. `changed` is false if there was no pin to remove.
    """

    subject: SubjectLine
    value: int | None
    nobody_leads: str | None = None
    changed: bool = True


class DecisionLine(msgspec.Struct, frozen=True):
    """A decision.

    The decision applies to rows written from `effective` on. `value: null` revokes the subject's
    last decision about this setting.
    """

    version: int
    time: Time
    effective: Time
    subject: SubjectLine
    setting: str
    value: int | None
    reason: str
    words: str
    """The decision for people: `5 buckets`, `pinned to 4 buckets`, `24 workers`."""


class DecisionList(msgspec.Struct, frozen=True):
    """Decisions, newest first.

    To get older ones, pass the `before` of this answer in the next request. If `before` is null,
    there are no older ones.
    """

    decisions: list[DecisionLine]
    before: int | None


class DecisionsQuery(Strict, frozen=True):
    limit: Limit = 50
    before: Annotated[int, Meta(ge=1, le=10**12, description="A version.")] | None = None


class PartitionLine(msgspec.Struct, frozen=True):
    """A queue partition. `claimed`, `done`, `failed` and `retried` are totals.

    All other fields describe the partition now. `target` is the number of workers that the leader
    wants. It is null if this server does not know the number. `place` is the Redis that holds the
    partition, without login, or `home`; `moves_to` is empty unless the partition is to move.
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
    place: str
    moves_to: str


class PartitionList(msgspec.Struct, frozen=True):
    leads: bool
    partitions: list[PartitionLine]


# -- the server itself -----------------------------------------------------------------------


class Readiness(msgspec.Struct, frozen=True):
    ready: bool
    leads: bool
    version: int


class ServerStatus(msgspec.Struct, frozen=True):
    """The state of the server that answers.

    `horizon_s` is how far its view of the registry is ahead of now. If it is below 0, the server is
    not `ready`, and writes wait. `nobody_leads` says how long there has been no leader, and is null
    while there is one. `news_lost` says why the Redis for news does not answer. `news_lost` is null
    while that Redis answers, and in a deployment without a Redis for news.
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
    news_lost: str | None = None


class RequestTotals(msgspec.Struct, frozen=True):
    """Totals of requests. `times` is a histogram of response times; its bins end at `bounds_s`.

    The last bin has no upper bound.
    """

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
