"""Schedules: batches that the leader submits at certain times, such as every night at two.

A schedule is kept in the registry, as a pin of its own subject. Another pin records its last start.
From these two pins and the store's time, the leader computes which starts are due (`due`, a pure
function). It submits the batch, and then records the start under its term
(`coordinator/schedules`). The batch's id consists of the schedule's name, its version and the time.
So if two leaders submit the same start, there is still one batch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypedDict, Unpack, get_args

import msgspec
from msgspec.structs import replace

from heatsink.errors import Conflict, InvalidSetting, NotFound
from heatsink.primitives.checks import check_names, check_number, check_text, check_whole, shown
from heatsink.primitives.owner import Owner
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import PIN, Decision, View
from heatsink.registry.registry import Registry

from .actions import NAME, check_action
from .batch import Batch, Next, parse_rate
from .cron import last_time, next_time, parse_cron, zone_of
from .submit import PRIORITY_MAX, TEXT_MAX

LATE_MS = 60_000  # a start that is later than this was missed
EVERY_S_MAX = 366 * 86_400
ITEMS_BYTES_MAX = 32 * 1024
SCHEDULES_MAX = 1_000
BATCH_ID = "schedule:"
Missed = Literal["skip", "once"]


class Schedule(msgspec.Struct, frozen=True):
    """What runs, and when. `version` counts the changes. Times before `since_ms` do not count."""

    name: str
    action: str
    items: list[Any] | None = None
    """The items of each batch. Without items, a batch has one item that names the schedule."""
    items_from: str = ""
    """The action that returns the items of each batch, as a list."""
    every_s: int = 0
    cron: str = ""
    zone: str = "UTC"
    missed: Missed = "skip"
    tenant: str = "default"
    priority: int = 0
    rate: str | None = None
    paused: bool = False
    version: int = 1
    since_ms: int = 0
    by: str = ""


class LastStart(msgspec.Struct, frozen=True):
    """The last time of a schedule that the leader has dealt with.

    `batch` is the batch that it submitted then; empty if the time was missed and skipped.
    """

    time_ms: int
    batch: str


class ScheduleStatus(msgspec.Struct, frozen=True):
    """A schedule, its last start and its next one, in milliseconds since 1970."""

    schedule: Schedule
    next_ms: int | None
    last_ms: int | None
    last_batch: str = ""


class ScheduleOptions(TypedDict, total=False):
    """Further options of `hs.schedules.set`."""

    every: float | timedelta
    """The time between two starts, in whole seconds or as a `timedelta`. Times are multiples of it
    since 1970 in UTC: every hour is every full hour."""
    cron: str
    """The times as five fields: minute, hour, day of the month, month, day of the week."""
    zone: str
    """The time zone of `cron`, such as `Europe/Berlin`; UTC if it is not set."""
    missed: Missed
    """What happens if no leader was there in time: `skip` waits for the next time, and `once`
    submits one batch for all missed times."""
    items_from: str
    """An action that returns the items of each batch, as a list. It gets one item, which names the
    schedule and the time."""
    tenant: str
    priority: int
    rate: str | None


# -- which start is due --------------------------------------------------------------------------


class Due(msgspec.Struct, frozen=True):
    """A time of a schedule that has come.

    If `starts` is false, the time was missed and is skipped.
    """

    time_ms: int
    starts: bool


def due(schedule: Schedule, last_ms: int, now_ms: int) -> Due | None:
    """Return the schedule's latest time after `last_ms` and up to now; None if there is none.

    If there are several such times, only the latest one counts, and the others were missed.
    """
    if schedule.paused:
        return None
    after_ms = max(last_ms, schedule.since_ms)
    time_ms = _last(schedule, after_ms, now_ms)
    if time_ms is None:
        return None
    return Due(time_ms, schedule.missed == "once" or now_ms - time_ms <= LATE_MS)


def _last(schedule: Schedule, after_ms: int, until_ms: int) -> int | None:
    if schedule.cron:
        cron, zone = parse_cron(schedule.cron), zone_of(schedule.zone)
        return last_time(cron, zone, after_ms, until_ms)
    step_ms = schedule.every_s * 1000
    time_ms = until_ms // step_ms * step_ms
    return time_ms if time_ms > after_ms else None


def next_start(schedule: Schedule, after_ms: int) -> int | None:
    """Return the next time of the schedule; None while it is paused."""
    if schedule.paused:
        return None
    after_ms = max(after_ms, schedule.since_ms)
    if schedule.cron:
        return next_time(parse_cron(schedule.cron), zone_of(schedule.zone), after_ms)
    step_ms = schedule.every_s * 1000
    return (after_ms // step_ms + 1) * step_ms


def utc(time_ms: int) -> str:
    """Return the time as text: `2026-11-18T09:00:00Z`."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


def batch_id(schedule: Schedule, time_ms: int) -> str:
    return f"{BATCH_ID}{schedule.name}:{schedule.version}:{utc(time_ms)}"


def order_of(schedule: Schedule, time_ms: int) -> tuple[str, list[Any], dict[str, Any]]:
    """Return the action, the items and the options with which to submit the batch of this time."""
    options: dict[str, Any] = {
        "id": batch_id(schedule, time_ms),
        "tenant": schedule.tenant,
        "priority": schedule.priority,
    }
    about = {"schedule": schedule.name, "at": utc(time_ms)}
    if schedule.items_from:
        options["then"] = Next(schedule.action, rate=schedule.rate, each=True)
        return schedule.items_from, [about], options
    options["rate"] = schedule.rate
    return schedule.action, [about] if schedule.items is None else schedule.items, options


# -- in the registry -----------------------------------------------------------------------------

_schedule = msgspec.json.Decoder(Schedule).decode
_start = msgspec.json.Decoder(LastStart).decode


def schedule_decision(schedule: Schedule, reason: str) -> Decision:
    text = msgspec.json.encode(schedule).decode()
    return Decision(Subject(Kind.SCHEDULE, schedule.name), PIN, schedule.version, reason, text)


def start_decision(name: str, start: LastStart) -> Decision:
    reason = f"submitted batch {start.batch}" if start.batch else "missed, and skipped"
    text = msgspec.json.encode(start).decode()
    return Decision(Subject(Kind.STARTED, name), PIN, 1, reason, text)


def schedules_in(view: View) -> dict[str, Schedule]:
    pins = [pin for pin in list(view.pins.values()) if pin.subject.kind is Kind.SCHEDULE]
    return {pin.subject.name: _schedule(pin.text) for pin in pins}


def last_start_in(view: View, name: str) -> LastStart | None:
    pin = view.pins.get(Subject(Kind.STARTED, name).text)
    return None if pin is None else _start(pin.text)


class Schedules:
    """`hs.schedules`: batches that start by themselves at certain times.

    The leader of the coordinators submits the batches, so a coordinator must run. A name that no
    schedule has raises `NotFound`; only `set` accepts a new one::

        await hs.schedules.set("report", "send", cron="0 9 * * MON-FRI", zone="Europe/Berlin")
        print(hs.schedules.get("report").next_ms)
    """

    def __init__(
        self,
        registry: Registry,
        name: str,
        owner: Owner,
        check_known: Callable[[Batch], Awaitable[object]] | None = None,
    ) -> None:
        """`check_known` raises `InvalidSetting` for a batch whose action no worker announced."""
        self._registry = registry
        self._name = name
        self._owner = owner
        self._check_known = check_known

    def all(self) -> list[ScheduleStatus]:
        """Return all schedules, by name: `for one in hs.schedules.all(): print(one.next_ms)`"""
        return [self.get(name) for name in sorted(schedules_in(self._registry.view))]

    def get(self, name: str) -> ScheduleStatus:
        """Return a schedule with its last and its next start.

        Raises `NotFound` if no schedule has this name::

            print(hs.schedules.get("report").last_batch)
        """
        found = schedules_in(self._registry.view).get(name)
        if found is None:
            raise NotFound(
                f"there is no schedule {shown(name)}: `heatsink schedules list` and "
                "hs.schedules.all() show all"
            )
        last = last_start_in(self._registry.view, name)
        after_ms = max(self._now_ms(), last.time_ms if last else 0)
        batch = last.batch if last else ""
        return ScheduleStatus(
            found, next_start(found, after_ms), last.time_ms if last else None, batch
        )

    async def set(
        self,
        name: str,
        action: str,
        items: Sequence[Any] | None = None,
        *,
        reason: str = "set",
        by: str = "",
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleStatus:
        """Add a schedule, or replace the one with this name. It needs `every` or `cron`.

        If you leave a field out, it has its default value again. Only a pause stays: `resume` ends
        it. Each batch has these `items`, at most 32 KiB of JSON values. Without `items`, each batch
        has one item, which names the schedule and the time. Raises `InvalidSetting` for an invalid
        value, and for an action that no worker has announced, if workers have announced any. Raises
        `Conflict` if there are 1,000 schedules already, and `Overloaded` if the queue does not
        answer::

            await hs.schedules.set("tidy", "delete-old", [{"days": 30}], every=3600)
        """
        checked = _checked(name, action, items, options)
        known = schedules_in(self._registry.view)
        if name not in known and len(known) >= SCHEDULES_MAX:
            raise Conflict(f"there are {SCHEDULES_MAX:,} schedules already: remove some")
        self._owner.check()
        for each in (checked.action, checked.items_from):
            if each and self._check_known is not None:
                wanted = Batch(BATCH_ID + name, each, checked.tenant, self._now_ms())
                await self._check_known(wanted)
        is_paused = name in known and known[name].paused
        await self._publish(replace(checked, by=by or self._name, paused=is_paused), reason)
        return self.get(name)

    async def pause(self, name: str, *, reason: str = "paused") -> None:
        """Start no more batches until `resume`: `await hs.schedules.pause("report")`"""
        await self._publish(replace(self.get(name).schedule, paused=True), reason)

    async def resume(self, name: str, *, reason: str = "resumed") -> None:
        """Go on after `pause`, from now on: `await hs.schedules.resume("report")`"""
        await self._publish(replace(self.get(name).schedule, paused=False), reason)

    async def remove(self, name: str, *, reason: str = "removed") -> None:
        """Remove a schedule; its batches stay: `await hs.schedules.remove("report")`"""
        self.get(name)
        check_text("reason", reason, TEXT_MAX)
        self._owner.check()
        subjects = (Subject(Kind.SCHEDULE, name), Subject(Kind.STARTED, name))
        await self._registry.publish([Decision(s, PIN, None, reason) for s in subjects], term=None)

    async def _publish(self, schedule: Schedule, reason: str) -> None:
        check_text("reason", reason, TEXT_MAX)
        self._owner.check()
        known = schedules_in(self._registry.view).get(schedule.name)
        version = known.version + 1 if known else 1
        newer = replace(schedule, version=version, since_ms=self._now_ms())
        await self._registry.publish([schedule_decision(newer, reason)], term=None)

    def _now_ms(self) -> int:
        return int(self._registry.fleet_now_s() * 1000)


def _checked(
    name: str, action: str, items: Sequence[Any] | None, options: ScheduleOptions
) -> Schedule:
    check_names("set()", options, ("items", "reason", "by", *ScheduleOptions.__annotations__))
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InvalidSetting(
            "name must be 1 to 100 characters of A-Z a-z 0-9 _ . - and begin with a letter or "
            f"digit, not {shown(name)}",
            field="name",
        )
    missed = options.get("missed", "skip")
    if missed not in get_args(Missed):
        wrong = f"missed must be 'skip' or 'once', not {shown(missed)}"
        raise InvalidSetting(wrong, field="missed")
    if (rate := options.get("rate")) is not None:
        parse_rate(rate)
    items_from = options.get("items_from", "")
    if items_from and items is not None:
        wrong = "items and items_from cannot be used together: leave one out"
        raise InvalidSetting(wrong, field="items")
    return Schedule(
        name=name,
        action=check_action("action", action),
        items=_items(items),
        items_from=check_action("items_from", items_from) if items_from else "",
        missed=missed,
        tenant=check_text("tenant", options.get("tenant", "default"), TEXT_MAX),
        priority=check_whole("priority", options.get("priority", 0), -PRIORITY_MAX, PRIORITY_MAX),
        rate=rate,
        **_times(options),
    )


def _times(options: ScheduleOptions) -> dict[str, Any]:
    every, cron, zone = options.get("every"), options.get("cron", ""), options.get("zone")
    if (every is None) == (not cron):
        raise InvalidSetting("a schedule needs every or cron, and not both", field="cron")
    if every is None:
        parse_cron(check_text("cron", cron, TEXT_MAX))
        return {"cron": cron, "zone": zone_of("UTC" if zone is None else zone).key}
    if zone is not None:
        raise InvalidSetting("zone needs cron: every counts in UTC", field="zone")
    length_s = every.total_seconds() if isinstance(every, timedelta) else every
    if check_number("every", length_s, 1, EVERY_S_MAX, "seconds") != int(length_s):
        raise InvalidSetting("every must be whole seconds", field="every")
    return {"every_s": int(length_s)}


def _items(items: Sequence[Any] | None) -> list[Any] | None:
    if items is None:
        return None
    if not isinstance(items, list | tuple | range):
        raise InvalidSetting(f"items must be a list, not {shown(items)}", field="items")
    found = list(items)
    try:
        body = msgspec.json.encode(found)
        is_kept = msgspec.json.decode(body) == found
    except (TypeError, ValueError, OverflowError, RecursionError):
        is_kept, body = False, b""
    if not is_kept:
        raise InvalidSetting("items of a schedule must be JSON values", field="items")
    if len(body) > ITEMS_BYTES_MAX:
        raise InvalidSetting(
            f"items have {len(body):,} bytes, more than {ITEMS_BYTES_MAX:,}: let an action return "
            "them, with items_from",
            field="items",
        )
    return found
