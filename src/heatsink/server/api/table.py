"""Every route of the API: what it takes, what it answers, who may call it."""

from __future__ import annotations

from functools import partial
from typing import Any

from heatsink.bulk.batch import Failure, Progress
from heatsink.bulk.bulk import Bulk

from . import shapes
from .calls import bulk, operations, system
from .calls import data as conversations
from .calls import data as counters
from .calls import data as timelines
from .calls import operations as recent
from .routing import Route

MESSAGES = "/v1/conversations/{key}/messages"
COUNTER = "/v1/counters/{key}"
TIMELINE = "/v1/timelines/{user}"
BATCH = "/v1/bulk/{name}"
PIN = "/v1/keys/{key}/pin"

read = partial(Route, "GET")
write = partial(Route, "POST", scope="operate")

DATA = (
    write(
        MESSAGES,
        conversations.append,
        "Add a message. 200: it was there already; 409: with another body.",
        shapes.Appended,
        body=shapes.NewMessage,
        statuses=(201, 200),
        problems=(409,),
    ),
    read(
        MESSAGES,
        conversations.page,
        "Messages in order of their ids, the newest first.",
        shapes.Messages,
        query=shapes.PageQuery,
        absorbed=True,
    ),
    read(
        MESSAGES + "/{id}",
        conversations.get,
        "One message.",
        shapes.Message,
        problems=(404,),
        absorbed=True,
    ),
    write(
        COUNTER,
        counters.add,
        "Add to a counter, once per token.",
        shapes.Added,
        body=shapes.Add,
        problems=(409, 410),
    ),
    read(
        COUNTER,
        counters.value,
        "The sum of all acknowledged adds.",
        shapes.CounterValue,
        absorbed=True,
    ),
    write(
        TIMELINE + "/follows",
        timelines.follow,
        "Follow an author, or stop following.",
        shapes.Followed,
        body=shapes.Follow,
        statuses=(201, 200),
    ),
    write(
        "/v1/follows",
        timelines.follow_many,
        "Bring a part of a follower graph along. After an error some may follow: repeat it.",
        timelines.FollowedMany,
        body=timelines.FollowMany,
        statuses=(201, 200),
    ),
    write(
        TIMELINE + "/posts",
        timelines.post,
        "Post as this user. With the same id it is the same post.",
        shapes.Posted,
        body=shapes.NewMessage,
        statuses=(201,),
        problems=(409,),
    ),
    read(
        TIMELINE + "/home",
        timelines.home,
        "The newest posts of everybody this user follows.",
        shapes.Home,
        query=shapes.HomeQuery,
        absorbed=True,
    ),
)


def _steering(verb: str, summary: str, change: Any) -> Route:
    return write(
        f"{BATCH}/{verb}", bulk.steer(change), summary, Progress, problems=(404, 409), audited=True
    )


BULK = (
    write(
        BATCH,
        bulk.submit,
        "Submit a batch of an action: an array of items, or a streamed line for each. "
        "Idempotency-Key makes submitting again safe; 422: it was used for something else.",
        shapes.Accepted,
        query=shapes.BulkQuery,
        body_types=(bulk.ARRAY, bulk.LINES),
        statuses=(202,),
        problems=(408, 422),
        stream=True,
        audited=True,
    ),
    read(
        "/v1/bulk", bulk.show_all, "The newest batches.", shapes.Batches, query=shapes.BatchesQuery
    ),
    read(BATCH, bulk.show, "How far a batch is.", Progress, problems=(404,)),
    read(
        BATCH + "/failures",
        bulk.failures,
        "The items that failed for good, one a line.",
        Failure,
        query=shapes.FailuresQuery,
        problems=(404,),
        media_type=bulk.LINES,
        stream=True,
    ),
    _steering("cancel", "What waits will not run; what runs may finish.", Bulk.cancel),
    _steering("pause", "Stop handing out items.", Bulk.pause),
    _steering("resume", "Go on with a paused batch.", Bulk.resume),
    _steering("retry-failed", "Run what failed once more.", Bulk.retry_failed),
)

OPERATIONS = (
    read(
        "/v1/timelines",
        timelines.authors,
        "Authors who are pulled, or were, and why.",
        shapes.Authors,
        query=shapes.LimitQuery,
    ),
    read(
        "/v1/status",
        system.status,
        "How this server is doing, and who leads.",
        shapes.ServerStatus,
    ),
    read(
        "/v1/heat",
        operations.heat,
        "The hottest keys of the whole fleet, with bounds on what is not known.",
        shapes.HeatAnswer,
        query=shapes.LimitQuery,
    ),
    read(
        "/v1/keys/{key}",
        operations.explain,
        "Why a key is laid out as it is, and what reading it costs.",
        shapes.KeyAnswer,
        query=shapes.SubjectQuery,
    ),
    Route(
        "PUT",
        PIN,
        operations.pin,
        "Give a key a fixed number of buckets.",
        shapes.Done,
        scope="admin",
        body=shapes.Pin,
        audited=True,
    ),
    Route(
        "DELETE",
        PIN,
        operations.unpin,
        "Let the policy decide again.",
        shapes.Done,
        scope="admin",
        audited=True,
    ),
    read(
        "/v1/decisions",
        operations.decisions,
        "What was decided and why, the newest first.",
        shapes.Decisions,
        query=shapes.DecisionsQuery,
    ),
    read(
        "/v1/queue-partitions",
        operations.partitions,
        "The partitions of the queue as they are now.",
        shapes.Partitions,
    ),
    Route(
        "PUT",
        "/v1/queue-partitions/{partition}/pin",
        operations.pin_partition,
        "Give a partition a fixed number of workers, or (null) none.",
        shapes.Done,
        scope="admin",
        body=shapes.WorkerPin,
        problems=(404,),
        audited=True,
    ),
)

SYSTEM = (
    read(
        "/v1/events",
        system.events,
        "Server-Sent Events: status, heat, requests, reads, partitions, batches, progress, "
        "decision.",
        str,
        media_type="text/event-stream",
        stream=True,
    ),
    read(
        "/v1/recent",
        recent.recent,
        "The last five minutes: heat, calls, the queue's partitions.",
        recent.RecentAnswer,
    ),
    read(
        "/v1/reads",
        system.reads,
        "What this server answered from what it keeps near.",
        shapes.ReadActivity,
    ),
    read("/metrics", system.metrics, "For Prometheus.", str, media_type="text/plain"),
    read(
        "/healthz", system.healthz, "The process answers.", str, scope=None, media_type="text/plain"
    ),
    read(
        "/readyz",
        system.readyz,
        "Its view of the registry is fresh: send it traffic.",
        shapes.Ready,
        scope=None,
        statuses=(200, 503),
    ),
)

ROUTES = (*DATA, *BULK, *OPERATIONS, *SYSTEM)
