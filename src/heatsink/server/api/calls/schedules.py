"""Handlers for schedules: list, show, set, pause, resume and remove them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from heatsink.bulk.schedules import Schedules, ScheduleStatus
from heatsink.server.api.requests import ApiCall, Handler, Reply
from heatsink.server.api.shapes import NoQuery, Reason, Strict, Time

from .data import from_ms


class NewSchedule(Strict, frozen=True):
    """A schedule: `action` with `items`, and `every` or `cron`. `by` names who sets it."""

    action: Annotated[str, Meta(min_length=1, max_length=100)]
    items: list[Any] | None = None
    items_from: Annotated[str, Meta(max_length=100)] = ""
    every: Annotated[float, Meta(ge=1, description="Seconds between two starts.")] | None = None
    cron: Annotated[str, Meta(max_length=256)] = ""
    zone: Annotated[str, Meta(max_length=100)] | None = None
    missed: Literal["skip", "once"] = "skip"
    tenant: Annotated[str, Meta(min_length=1, max_length=256)] = "default"
    priority: Annotated[int, Meta(ge=-1_000, le=1_000)] = 0
    rate: str | None = None
    reason: Reason = "set"
    by: Annotated[str, Meta(max_length=200)] = ""


class ScheduleLine(msgspec.Struct, frozen=True):
    """A schedule with its last and its next start. Without `every_s`, `cron` says when it runs."""

    name: str
    action: str
    items: int | None
    """The number of items of each batch; null if the schedule names none."""
    items_from: str
    every_s: int
    cron: str
    zone: str
    missed: str
    tenant: str
    priority: int
    rate: str | None
    paused: bool
    version: int
    by: str
    next: Time | None
    last: Time | None
    last_batch: str


class ScheduleDetails(ScheduleLine, frozen=True):
    """A schedule with the items of each batch: all that is needed to set the schedule again."""

    item_values: list[Any] | None = None
    """The items of each batch; null if the schedule names none."""


class ScheduleLines(msgspec.Struct, frozen=True):
    schedules: list[ScheduleLine]


class RemovedSchedule(msgspec.Struct, frozen=True):
    removed: str


def line_of(status: ScheduleStatus) -> ScheduleLine:
    """Return the schedule as the HTTP API and the commands show it."""
    return ScheduleLine(**_fields_of(status))


def details_of(status: ScheduleStatus) -> ScheduleDetails:
    return ScheduleDetails(**_fields_of(status), item_values=status.schedule.items)


def _fields_of(status: ScheduleStatus) -> dict[str, Any]:
    one = status.schedule
    return {
        "name": one.name,
        "action": one.action,
        "items": None if one.items is None else len(one.items),
        "items_from": one.items_from,
        "every_s": one.every_s,
        "cron": one.cron,
        "zone": one.zone,
        "missed": one.missed,
        "tenant": one.tenant,
        "priority": one.priority,
        "rate": one.rate,
        "paused": one.paused,
        "version": one.version,
        "by": one.by,
        "next": None if status.next_ms is None else from_ms(status.next_ms),
        "last": None if status.last_ms is None else from_ms(status.last_ms),
        "last_batch": status.last_batch,
    }


async def show_all(call: ApiCall[NoQuery, None]) -> Reply:
    return Reply(ScheduleLines([line_of(each) for each in call.service.hs.schedules.all()]))


async def show(call: ApiCall[NoQuery, None]) -> Reply:
    return Reply(details_of(call.service.hs.schedules.get(call.path["name"])))


async def put(call: ApiCall[NoQuery, NewSchedule]) -> Reply:
    wish = msgspec.structs.asdict(call.body)
    optional = ("every", "cron", "zone", "items_from", "rate")
    options = {name: of for name, of in wish.items() if of or name not in optional}
    options["by"] = call.body.by or "the HTTP API"
    return Reply(line_of(await call.service.hs.schedules.set(call.path["name"], **options)))


async def remove(call: ApiCall[NoQuery, None]) -> Reply:
    await call.service.hs.schedules.remove(call.path["name"])
    return Reply(RemovedSchedule(call.path["name"]))


def steer(change: Callable[[Schedules, str], Awaitable[None]]) -> Handler:
    async def steered(call: ApiCall[NoQuery, None]) -> Reply:
        schedules, name = call.service.hs.schedules, call.path["name"]
        await change(schedules, name)
        return Reply(line_of(schedules.get(name)))

    return steered
