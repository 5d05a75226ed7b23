"""Every route of the API: its parameters, its response, and the scope that callers need."""

from __future__ import annotations

from functools import partial
from typing import Any

from heatsink.bulk.batch import Failure, Progress, Result
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.schedules import Schedules

from . import bulk_shapes, shapes
from .calls import bulk, cluster, operations, schedules, system, work
from .calls import data as conversations
from .calls import data as counters
from .calls import data as timelines
from .calls import operations as recent
from .requests import CSV, LINES, Route

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
        "append_message",
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
        "page_messages",
        MESSAGES,
        conversations.page,
        "Messages ordered by id, newest first.",
        shapes.MessagePage,
        query=shapes.PageQuery,
        absorbed=True,
    ),
    read(
        "get_message",
        MESSAGES + "/{id}",
        conversations.get,
        "One message.",
        shapes.Message,
        problems={404: ""},
        absorbed=True,
    ),
    Route(
        "DELETE",
        "delete_message",
        MESSAGES + "/{id}",
        conversations.delete,
        "Delete a message. A late retry of the append does not bring it back.",
        shapes.DeletedMessage,
        scope="operate",
    ),
    Route(
        "DELETE",
        "erase_conversation",
        MESSAGES,
        conversations.erase,
        "Remove a conversation whole: all messages, and the traces of deleted ones. Stop its "
        "writers first.",
        shapes.ErasedConversation,
        scope="admin",
        audited=True,
    ),
    write(
        "add_to_counter",
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
        "get_counter",
        COUNTER,
        counters.value,
        "The value of a counter: the sum of all acknowledged adds.",
        shapes.CounterValue,
        absorbed=True,
    ),
    write(
        "follow",
        TIMELINE + "/follows",
        timelines.follow,
        "Follow an author, or stop following.",
        shapes.Followed,
        body=shapes.Follow,
        statuses=(201, 200),
    ),
    write(
        "follow_many",
        "/v1/follows",
        timelines.follow_many,
        "Import part of a follower graph. After an error some pairs may be stored: retry.",
        timelines.FollowedMany,
        body=timelines.FollowMany,
        statuses=(201, 200),
    ),
    write(
        "add_post",
        TIMELINE + "/posts",
        timelines.post,
        "Post as this user. A repeated id adds no second post.",
        shapes.Posted,
        body=shapes.NewPost,
        statuses=(201,),
        problems={409: "The id was used before with another body, or its post was deleted"},
    ),
    read(
        "get_home",
        TIMELINE + "/home",
        timelines.home,
        "The newest posts of the authors whom this user follows.",
        shapes.HomeAnswer,
        query=shapes.HomeQuery,
        absorbed=True,
    ),
)


def _steering(name: str, verb: str, summary: str, change: Any) -> Route:
    return write(
        name,
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
        "submit_batch",
        BATCH,
        bulk.submit,
        "Submit a batch of items for an action, as an array or as streamed lines. "
        "A retry with the same Idempotency-Key creates no second batch; 422: the key was used for "
        "other items or options.",
        bulk_shapes.Accepted,
        query=bulk_shapes.BulkQuery,
        statuses=(202,),
        problems={408: "", 422: ""},
        stream=True,
        audited=True,
        retry_key="Id of the batch: a repeated request with the same key adds no second batch.",
    ),
    read(
        "list_batches",
        "/v1/bulk",
        bulk.show_all,
        "The newest batches.",
        bulk_shapes.BatchList,
        query=bulk_shapes.BatchesQuery,
    ),
    read("get_batch", BATCH, bulk.show, "The progress of a batch.", Progress, problems={404: ""}),
    read(
        "get_failures",
        BATCH + "/failures",
        bulk.failures,
        "The items that failed and are not retried, one per line.",
        Failure,
        query=bulk_shapes.FailuresQuery,
        problems={404: ""},
        media_types=(LINES, CSV),
        stream=True,
    ),
    read(
        "get_results",
        BATCH + "/results",
        bulk.results,
        "The results of the items that are done, one per line, in the order of the items.",
        Result,
        query=bulk_shapes.ResultsQuery,
        problems={404: "", 409: "The batch keeps no results"},
        media_types=(LINES, CSV),
        stream=True,
    ),
    _steering(
        "cancel_batch", "cancel", "Cancel waiting items; running items may finish.", Bulk.cancel
    ),
    _steering("pause_batch", "pause", "Stop starting items.", Bulk.pause),
    _steering("resume_batch", "resume", "Resume a paused batch.", Bulk.resume),
    _steering("retry_failed", "retry-failed", "Run failed items again.", Bulk.retry_failed),
)

STALE = "The leases of all these items have ended: drop the items"

WORK = (
    Route(
        "POST",
        "claim_items",
        "/v1/work/claim",
        work.claim,
        "Claim items to run, and wait for them. An empty list means that there were none: claim "
        "again.",
        work.ClaimAnswer,
        scope="work",
        body=work.Claim,
        problems={409: "A limit is declared in two ways, or this server takes no remote workers"},
    ),
    Route(
        "POST",
        "renew_items",
        "/v1/work/renew",
        work.renew,
        "Renew the leases of claimed items.",
        work.Accounted,
        scope="work",
        body=work.Renewal,
        problems={409: STALE},
    ),
    Route(
        "POST",
        "report_items",
        "/v1/work/report",
        work.report,
        "Report the outcomes of claimed items. Each is recorded once.",
        work.Accounted,
        scope="work",
        body=work.Outcomes,
        problems={409: STALE},
    ),
)

OPERATIONS = (
    read(
        "list_authors",
        "/v1/timelines",
        timelines.authors,
        "Authors whose posts are or were pulled on read, and why.",
        shapes.AuthorList,
        query=shapes.LimitQuery,
    ),
    read(
        "get_mode",
        MODE,
        timelines.author,
        "Whether posts of this author are pushed or pulled, and why.",
        shapes.AuthorAnswer,
    ),
    Route(
        "PUT",
        "pin_mode",
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
        "unpin_mode",
        MODE,
        timelines.unpin_mode,
        "Let followers and cost decide about this author again.",
        shapes.AuthorAnswer,
        scope="admin",
        audited=True,
    ),
    read(
        "get_status",
        "/v1/status",
        system.status,
        "The state of this server, and who leads.",
        shapes.ServerStatus,
    ),
    read(
        "get_heat",
        "/v1/heat",
        operations.heat,
        "The hottest keys of the whole fleet, with error bounds.",
        shapes.HeatAnswer,
        query=shapes.LimitQuery,
    ),
    write(
        "report_heat",
        "/v1/heat",
        operations.report_heat,
        "Report hot keys that this server does not see, from a program in any language.",
        shapes.HeatTaken,
        body=shapes.NewHeat,
        statuses=(202,),
    ),
    read(
        "explain_key",
        "/v1/keys/{key}",
        operations.explain,
        "Why a key has its number of buckets, and how many queries a read takes.",
        shapes.KeyAnswer,
        query=shapes.SubjectQuery,
    ),
    Route(
        "PUT",
        "pin_key",
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
        "unpin_key",
        PIN,
        operations.unpin,
        "Remove a key's pin: the policy sets its number of buckets again.",
        shapes.Done,
        scope="admin",
        audited=True,
    ),
    read(
        "list_decisions",
        "/v1/decisions",
        operations.decisions,
        "Decisions with their reasons, newest first.",
        shapes.DecisionList,
        query=shapes.DecisionsQuery,
    ),
    read(
        "list_settings",
        "/v1/settings",
        operations.settings,
        "The settings in force, and where each comes from.",
        shapes.SettingLines,
    ),
    read(
        "get_controls",
        "/v1/controls",
        operations.controls,
        "The limits of bulk actions and their use; what operators have paused or changed.",
        bulk_shapes.ControlLines,
    ),
    read(
        "get_setting",
        SETTING,
        operations.setting,
        "One setting in force.",
        shapes.SettingLine,
        problems={404: ""},
    ),
    Route(
        "PUT",
        "set_setting",
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
        "unset_setting",
        SETTING,
        operations.unset_setting,
        "Remove a setting of the deployment: each process uses its own value or the default again.",
        shapes.SettingLine,
        scope="admin",
        problems={404: ""},
        audited=True,
    ),
    read(
        "list_schedules",
        "/v1/schedules",
        schedules.show_all,
        "The schedules, with their last and next starts.",
        schedules.ScheduleLines,
    ),
    read(
        "get_schedule",
        SCHEDULE,
        schedules.show,
        "One schedule, with its items.",
        schedules.ScheduleDetails,
        problems={404: ""},
    ),
    Route(
        "PUT",
        "set_schedule",
        SCHEDULE,
        schedules.put,
        "Add or replace a schedule: a batch that starts at certain times. What is left out has its "
        "default value again; a paused schedule stays paused.",
        schedules.ScheduleLine,
        scope="operate",
        body=schedules.NewSchedule,
        problems={409: "There are too many schedules"},
        audited=True,
    ),
    Route(
        "DELETE",
        "remove_schedule",
        SCHEDULE,
        schedules.remove,
        "Remove a schedule. Its batches stay.",
        schedules.RemovedSchedule,
        scope="operate",
        problems={404: ""},
        audited=True,
    ),
    write(
        "pause_schedule",
        SCHEDULE + "/pause",
        schedules.steer(Schedules.pause),
        "Start no more batches of a schedule.",
        schedules.ScheduleLine,
        problems={404: ""},
        audited=True,
    ),
    write(
        "resume_schedule",
        SCHEDULE + "/resume",
        schedules.steer(Schedules.resume),
        "Resume a paused schedule, from now on.",
        schedules.ScheduleLine,
        problems={404: ""},
        audited=True,
    ),
    read(
        "list_partitions",
        "/v1/queue-partitions",
        operations.partitions,
        "The current state of the queue's partitions.",
        shapes.PartitionList,
    ),
    read(
        "get_cluster",
        "/v1/cluster",
        cluster.cluster,
        "The watched Redis or Valkey Cluster: the heat of its slots, and slots that move.",
        cluster.ClusterAnswer,
    ),
    Route(
        "PUT",
        "pin_partition",
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
        "stream_events",
        "/v1/events",
        system.events,
        "Server-Sent Events: status, heat, requests, reads, partitions, batches, progress, "
        "decision.",
        str,
        media_types=("text/event-stream",),
        stream=True,
    ),
    read(
        "get_recent",
        "/v1/recent",
        recent.recent,
        "The last five minutes: heat, calls, the queue's partitions.",
        recent.RecentAnswer,
    ),
    read(
        "get_read_counts",
        "/v1/reads",
        system.reads,
        "Statistics of this server's near cache.",
        shapes.ReadActivity,
    ),
    read(
        "get_metrics",
        "/metrics",
        system.metrics,
        "Metrics for Prometheus.",
        str,
        media_types=("text/plain",),
    ),
    read(
        "get_health",
        "/healthz",
        system.healthz,
        "Whether the process answers.",
        str,
        scope=None,
        media_types=("text/plain",),
    ),
    read(
        "get_readiness",
        "/readyz",
        system.readyz,
        "200 while the server's view of the registry is fresh and it can take traffic.",
        shapes.Readiness,
        scope=None,
        statuses=(200, 503),
    ),
)

ROUTES = (*DATA, *BULK, *WORK, *OPERATIONS, *SYSTEM)
