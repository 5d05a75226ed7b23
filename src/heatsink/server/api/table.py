"""Every route of the API: its parameters, its response, and the scope that callers need."""

from __future__ import annotations

from functools import partial
from typing import Any

from heatsink.bulk.batch import Failure, Progress, Result
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.schedules import Schedules

from . import bulk_shapes, shapes
from .calls import bulk, cluster, operations, schedules, system
from .calls import data as conversations
from .calls import data as counters
from .calls import data as timelines
from .calls import operations as recent
from .requests import Route

MESSAGES = "/v1/conversations/{key}/messages"
COUNTER = "/v1/counters/{key}"
TIMELINE = "/v1/timelines/{user}"
BATCH = "/v1/bulk/{name}"
PIN = "/v1/keys/{key}/pin"
SETTING = "/v1/settings/{name}"
SCHEDULE = "/v1/schedules/{name}"
MODE = TIMELINE + "/mode"

read = partial(Route, "GET")
write = partial(Route, "POST", scope="operate")

DATA = (
    write(
        MESSAGES,
        conversations.append,
        "Add a message. A retry with the same id or Idempotency-Key adds no second one. "
        "200: it existed already; 409: it exists with another body.",
        shapes.Appended,
        body=shapes.NewMessage,
        statuses=(201, 200),
        problems={409: "The id was used before with another body, or its message was deleted"},
        retry_key="Any text of yours that names this message: a retry with it adds no second one.",
    ),
    read(
        MESSAGES,
        conversations.page,
        "Messages ordered by id, newest first.",
        shapes.Messages,
        query=shapes.PageQuery,
        absorbed=True,
    ),
    read(
        MESSAGES + "/{id}",
        conversations.get,
        "One message.",
        shapes.Message,
        problems={404: ""},
        absorbed=True,
    ),
    Route(
        "DELETE",
        MESSAGES + "/{id}",
        conversations.delete,
        "Delete a message. A late retry of the append does not bring it back.",
        shapes.DeletedMessage,
        scope="operate",
    ),
    Route(
        "DELETE",
        MESSAGES,
        conversations.erase,
        "Remove a conversation whole: all messages, and the traces of deleted ones. Stop its "
        "writers first.",
        shapes.Erased,
        scope="admin",
        audited=True,
    ),
    write(
        COUNTER,
        counters.add,
        "Add to a counter, once per token.",
        shapes.Added,
        body=shapes.Add,
        problems={
            409: "The token was used before with another amount",
            410: "The token is older than tokens are remembered: nothing was added",
        },
    ),
    read(
        COUNTER,
        counters.value,
        "The value of a counter: the sum of all acknowledged adds.",
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
        "Import part of a follower graph. After an error some pairs may be stored: retry.",
        timelines.FollowedMany,
        body=timelines.FollowMany,
        statuses=(201, 200),
    ),
    write(
        TIMELINE + "/posts",
        timelines.post,
        "Post as this user. A repeated id adds no second post.",
        shapes.Posted,
        body=shapes.NewPost,
        statuses=(201,),
        problems={409: "The id was used before with another body, or its post was deleted"},
    ),
    read(
        TIMELINE + "/home",
        timelines.home,
        "The newest posts of the authors whom this user follows.",
        shapes.Home,
        query=shapes.HomeQuery,
        absorbed=True,
    ),
)


def _steering(verb: str, summary: str, change: Any) -> Route:
    return write(
        f"{BATCH}/{verb}",
        bulk.steer(change),
        summary,
        Progress,
        problems={
            404: "",
            409: "The state of the batch does not allow this change",
        },
        audited=True,
    )


BULK = (
    write(
        BATCH,
        bulk.submit,
        "Submit a batch of items for an action, as an array or as streamed lines. "
        "A retry with the same Idempotency-Key creates no second batch; 422: the key was used for "
        "other items or options.",
        bulk_shapes.Accepted,
        query=bulk_shapes.BulkQuery,
        body_types=(bulk.ARRAY, bulk.LINES),
        statuses=(202,),
        problems={408: "", 422: ""},
        stream=True,
        audited=True,
        retry_key="Id of the batch: a repeated request with the same key adds no second batch.",
    ),
    read(
        "/v1/bulk",
        bulk.show_all,
        "The newest batches.",
        bulk_shapes.Batches,
        query=bulk_shapes.BatchesQuery,
    ),
    read(BATCH, bulk.show, "The progress of a batch.", Progress, problems={404: ""}),
    read(
        BATCH + "/failures",
        bulk.failures,
        "The items that failed and are not retried, one per line.",
        Failure,
        query=bulk_shapes.FailuresQuery,
        problems={404: ""},
        media_type=bulk.LINES,
        stream=True,
    ),
    read(
        BATCH + "/results",
        bulk.results,
        "The results of the items that are done, one per line, in the order of the items.",
        Result,
        query=bulk_shapes.ResultsQuery,
        problems={404: "", 409: "The batch keeps no results"},
        media_type=bulk.LINES,
        stream=True,
    ),
    _steering("cancel", "Cancel waiting items; running items may finish.", Bulk.cancel),
    _steering("pause", "Stop starting items.", Bulk.pause),
    _steering("resume", "Resume a paused batch.", Bulk.resume),
    _steering("retry-failed", "Run failed items again.", Bulk.retry_failed),
)

OPERATIONS = (
    read(
        "/v1/timelines",
        timelines.authors,
        "Authors whose posts are or were pulled on read, and why.",
        shapes.Authors,
        query=shapes.LimitQuery,
    ),
    read(
        MODE,
        timelines.author,
        "Whether posts of this author are pushed or pulled, and why.",
        shapes.AuthorAnswer,
    ),
    Route(
        "PUT",
        MODE,
        timelines.pin_mode,
        "Fix whether posts of this author are pushed or pulled.",
        shapes.AuthorAnswer,
        scope="admin",
        body=shapes.ModePin,
        audited=True,
    ),
    Route(
        "DELETE",
        MODE,
        timelines.unpin_mode,
        "Let followers and cost decide about this author again.",
        shapes.AuthorAnswer,
        scope="admin",
        audited=True,
    ),
    read(
        "/v1/status",
        system.status,
        "The state of this server, and who leads.",
        shapes.ServerStatus,
    ),
    read(
        "/v1/heat",
        operations.heat,
        "The hottest keys of the whole fleet, with error bounds.",
        shapes.HeatAnswer,
        query=shapes.LimitQuery,
    ),
    write(
        "/v1/heat",
        operations.report_heat,
        "Report hot keys that this server does not see, from a program in any language.",
        shapes.HeatTaken,
        body=shapes.NewHeat,
        statuses=(202,),
    ),
    read(
        "/v1/keys/{key}",
        operations.explain,
        "Why a key has its number of buckets, and how many queries a read takes.",
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
        "Remove a key's pin: the policy sets its number of buckets again.",
        shapes.Done,
        scope="admin",
        audited=True,
    ),
    read(
        "/v1/decisions",
        operations.decisions,
        "Decisions with their reasons, newest first.",
        shapes.Decisions,
        query=shapes.DecisionsQuery,
    ),
    read(
        "/v1/settings",
        operations.settings,
        "The settings in force, and where each comes from.",
        shapes.SettingLines,
    ),
    read(
        SETTING,
        operations.setting,
        "One setting in force.",
        shapes.SettingLine,
        problems={404: ""},
    ),
    Route(
        "PUT",
        SETTING,
        operations.set_setting,
        "Set a setting for all processes of the deployment.",
        shapes.SettingLine,
        scope="admin",
        body=shapes.NewSetting,
        problems={404: ""},
        audited=True,
    ),
    Route(
        "DELETE",
        SETTING,
        operations.unset_setting,
        "Remove a setting of the deployment: each process uses its own value or the default again.",
        shapes.SettingLine,
        scope="admin",
        problems={404: ""},
        audited=True,
    ),
    read(
        "/v1/schedules",
        schedules.show_all,
        "The schedules, with their last and next starts.",
        schedules.ScheduleLines,
    ),
    read(
        SCHEDULE,
        schedules.show,
        "One schedule.",
        schedules.ScheduleLine,
        problems={404: ""},
    ),
    Route(
        "PUT",
        SCHEDULE,
        schedules.put,
        "Add or replace a schedule: a batch that starts at certain times.",
        schedules.ScheduleLine,
        scope="operate",
        body=schedules.NewSchedule,
        problems={409: "There are too many schedules"},
        audited=True,
    ),
    Route(
        "DELETE",
        SCHEDULE,
        schedules.remove,
        "Remove a schedule. Its batches stay.",
        schedules.Removed,
        scope="operate",
        problems={404: ""},
        audited=True,
    ),
    write(
        SCHEDULE + "/pause",
        schedules.steer(Schedules.pause),
        "Start no more batches of a schedule.",
        schedules.ScheduleLine,
        problems={404: ""},
        audited=True,
    ),
    write(
        SCHEDULE + "/resume",
        schedules.steer(Schedules.resume),
        "Resume a paused schedule, from now on.",
        schedules.ScheduleLine,
        problems={404: ""},
        audited=True,
    ),
    read(
        "/v1/queue-partitions",
        operations.partitions,
        "The current state of the queue's partitions.",
        shapes.Partitions,
    ),
    read(
        "/v1/cluster",
        cluster.cluster,
        "The watched Redis or Valkey Cluster: the heat of its slots, and slots that move.",
        cluster.ClusterAnswer,
    ),
    Route(
        "PUT",
        "/v1/queue-partitions/{partition}/pin",
        operations.pin_partition,
        "Pin a partition to a fixed number of workers; null removes the pin.",
        shapes.Done,
        scope="admin",
        body=shapes.WorkerPin,
        problems={404: ""},
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
        "Statistics of this server's near cache.",
        shapes.ReadActivity,
    ),
    read("/metrics", system.metrics, "Metrics for Prometheus.", str, media_type="text/plain"),
    read(
        "/healthz",
        system.healthz,
        "Whether the process answers.",
        str,
        scope=None,
        media_type="text/plain",
    ),
    read(
        "/readyz",
        system.readyz,
        "200 while the server's view of the registry is fresh and it can take traffic.",
        shapes.Ready,
        scope=None,
        statuses=(200, 503),
    ),
)

ROUTES = (*DATA, *BULK, *OPERATIONS, *SYSTEM)
