"""Handlers for operators: heat, keys, pins, decisions, the queue's partitions.

This module also keeps samples of the last minutes in memory, so that a newly opened dashboard can
show them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime

import msgspec

from heatsink.bulk.limits import LimitUse
from heatsink.client.deployment import NAMED, SettingInForce, meaning_of
from heatsink.client.heatsink import Heatsink
from heatsink.coordinator.explainer import Explanation
from heatsink.coordinator.workers import PartitionStatus
from heatsink.errors import NotFound
from heatsink.heat.heat import KeyHeat
from heatsink.heat.plain import plain_report
from heatsink.primitives.clock import Clock
from heatsink.primitives.keys import check_key
from heatsink.primitives.subjects import Kind, Subject, subject_of
from heatsink.registry.decisions import Decision, LogEntry
from heatsink.server.api.bulk_shapes import ControlLines, KeyUseLine, LimitLine
from heatsink.server.api.requests import ApiCall, Reply, RequestCounts
from heatsink.server.api.shapes import (
    Chosen,
    DecisionLine,
    DecisionList,
    DecisionsQuery,
    Done,
    EpochLine,
    HeatAnswer,
    HeatTaken,
    HotKeyLine,
    KeyAnswer,
    LimitQuery,
    NewHeat,
    NewSetting,
    NoQuery,
    PartitionLine,
    PartitionList,
    Pin,
    ReadActivity,
    Requests,
    SettingLine,
    SettingLines,
    SubjectLine,
    SubjectQuery,
    Time,
    WorkerPin,
)

from .data import from_ms

PARTITION_DIGITS_MAX = 6
EVERY_S = 2.0
SAMPLES = 150
KEYS = 50


async def heat(call: ApiCall[LimitQuery, None]) -> Reply:
    return Reply(await heat_of(call.service.hs, call.query.limit))


async def heat_of(hs: Heatsink, limit: int) -> HeatAnswer:
    hottest = await hs.hottest(limit)
    return HeatAnswer(
        leads=hottest.leads,
        leader=hottest.leader,
        window=None if hottest.start_s is None else from_ms(int(hottest.start_s * 1000)),
        window_s=hottest.window_s,
        unreported_s=hottest.unreported_s,
        bucket_units_s=hs.rules.bucket_units_s,
        keys=[_hot_key(hot.key, hot.buckets, hot.heat) for hot in hottest.keys],
        partitions=list(hottest.partitions),
        nobody_leads=hottest.nobody_leads,
    )


def _hot_key(key: str, buckets: int, heat: KeyHeat) -> HotKeyLine:
    subject = subject_of(key)
    return HotKeyLine(
        kind=subject.kind,
        key=subject.name,
        buckets=buckets,
        write_units_s=round(heat.write_units_s, 1),
        writes_s=round(heat.writes_s, 1),
        reads_s=round(heat.reads_s, 1),
        throttles_s=round(heat.throttles_s, 1),
        below_s=round(heat.below_s, 1),
        bound_s=None if heat.bound_s is None else round(heat.bound_s, 1),
    )


def reads_of(hs: Heatsink) -> ReadActivity:
    return ReadActivity(hs.reads.stats(), hs.page_stats())


async def explain(call: ApiCall[SubjectQuery, None]) -> Reply:
    key, kind = call.path["key"], call.query.kind
    asked = key if kind is Kind.KEY else Subject(kind, key)
    return Reply(_explained(await call.service.hs.explain(asked)))


def _explained(found: Explanation) -> KeyAnswer:
    heat, subject = found.heat, subject_of(found.key)
    return KeyAnswer(
        kind=subject.kind,
        key=subject.name,
        buckets=found.buckets,
        hot_by=found.hot_by,
        reason=found.reason,
        pin=_chosen(found.pin),
        near=_chosen(found.near),
        wanted=_chosen(found.wanted),
        heat=None if heat is None else _hot_key(found.key, found.buckets, heat),
        unreported_s=found.unreported_s,
        leads=found.leads,
        leader=found.leader,
        queries_per_page=found.queries_per_page,
        partitions=found.partitions,
        epochs=[
            EpochLine(from_ms(epoch.start_ms) if epoch.start_ms else None, epoch.buckets)
            for epoch in found.epochs
        ],
        store=found.store,
        table_refusal=found.table_refusal,
        bucket_units=list(found.bucket_units),
        nobody_leads=found.nobody_leads,
        lines=found.lines,
    )


def _chosen(decision: Decision | None) -> Chosen | None:
    if decision is None or decision.value is None:
        return None
    return Chosen(decision.value, decision.reason)


async def pin(call: ApiCall[NoQuery, Pin]) -> Reply:
    key, wish = check_key(call.path["key"]), call.body
    await call.service.hs.pin(key, buckets=wish.buckets, reason=wish.reason)
    return Reply(await _done(call.service.hs, Kind.KEY, key, wish.buckets))


async def unpin(call: ApiCall[NoQuery, None]) -> Reply:
    key = check_key(call.path["key"])
    changed = await call.service.hs.unpin(key)
    return Reply(await _done(call.service.hs, Kind.KEY, key, None, changed))


async def _done(
    hs: Heatsink, kind: Kind, name: str, value: int | None, changed: bool = True
) -> Done:
    return Done(SubjectLine(kind, name), value, (await hs.leadership()).vacancy, changed)


async def decisions(call: ApiCall[DecisionsQuery, None]) -> Reply:
    entries = await call.service.hs.decisions(call.query.limit, call.query.before)
    more = bool(entries) and entries[-1].version > 1
    lines = [line for entry in entries for line in lines_of(entry)]
    return Reply(DecisionList(lines, entries[-1].version if more else None))


def lines_of(entry: LogEntry) -> list[DecisionLine]:
    return [
        DecisionLine(
            version=entry.version,
            time=from_ms(entry.decided_ms),
            effective=from_ms(entry.start_ms),
            subject=SubjectLine(decision.subject.kind, decision.subject.name),
            setting=decision.setting,
            value=decision.value,
            reason=decision.reason,
            words=decision.words,
        )
        for decision in entry.decisions
    ]


async def report_heat(call: ApiCall[NoQuery, NewHeat]) -> Reply:
    wish = call.body
    report = plain_report([msgspec.to_builtins(line) for line in wish.keys], wish.server)
    await call.service.hs.parts.stores.bus.send(report)
    return Reply(HeatTaken(len(report.keys)), 202)


async def settings(call: ApiCall[NoQuery, None]) -> Reply:
    return Reply(SettingLines([_setting(each) for each in call.service.hs.settings.all()]))


async def controls(call: ApiCall[NoQuery, None]) -> Reply:
    hs = call.service.hs
    changed = [_setting(each) for each in hs.settings.all() if is_control(each.name, each.source)]
    return Reply(ControlLines(limit_lines(await hs.bulk.limits()), changed))


def is_control(name: str, source: str) -> bool:
    """Return whether the deployment changes a tenant, an action or a limit by this setting."""
    return name.startswith(tuple(NAMED)) and source == "deployment"


def limit_lines(limits: Iterable[LimitUse]) -> list[LimitLine]:
    return [
        LimitLine(
            name=each.limit.name,
            allows=str(each.in_force),
            declared=str(each.limit),
            changed=each.changed,
            actions=list(each.actions),
            uses=[KeyUseLine(use.key, use.running, use.waiting) for use in each.uses],
        )
        for each in limits
    ]


async def setting(call: ApiCall[NoQuery, None]) -> Reply:
    return Reply(_setting(call.service.hs.settings.get(call.path["name"])))


async def set_setting(call: ApiCall[NoQuery, NewSetting]) -> Reply:
    wish, found = call.body, call.service.hs.settings
    by = wish.by or "the HTTP API"
    return Reply(
        _setting(await found.set(call.path["name"], wish.value, reason=wish.reason, by=by))
    )


async def unset_setting(call: ApiCall[NoQuery, None]) -> Reply:
    return Reply(_setting(await call.service.hs.settings.unset(call.path["name"])))


def _setting(found: SettingInForce) -> SettingLine:
    changed = None if found.changed_ms is None else from_ms(found.changed_ms)
    return SettingLine(
        name=found.name,
        value=found.value,
        source=found.source,
        default=found.default,
        by=found.by,
        changed=changed,
        reason=found.reason,
        local=found.local,
        about=meaning_of(found.name),
    )


async def partitions(call: ApiCall[NoQuery, None]) -> Reply:
    return Reply(await partitions_of(call.service.hs))


async def partitions_of(hs: Heatsink) -> PartitionList:
    lines = [_partition(status) for status in await hs.queue_partitions()]
    return PartitionList(hs.status().leads, lines)


def _partition(status: PartitionStatus) -> PartitionLine:
    load, target = status.load, status.target
    return PartitionLine(
        partition=status.number,
        workers=load.workers,
        runnable=load.runnable,
        limited=load.limited,
        delayed=load.delayed,
        in_flight=load.in_flight,
        tenants=load.tenants,
        oldest_s=load.oldest_ms / 1000,
        service_s=load.service_us / 1e6,
        claimed=load.claimed,
        done=load.done,
        failed=load.failed,
        retried=load.retried,
        target=target.value if target else None,
        reason=target.reason if target else "",
        pin=_chosen(status.pin),
        place=status.place.place,
        moves_to=status.place.moves_to,
    )


async def pin_partition(call: ApiCall[NoQuery, WorkerPin]) -> Reply:
    text, wish = call.path["partition"], call.body
    if not (text.isascii() and text.isdigit() and len(text) <= PARTITION_DIGITS_MAX):
        raise NotFound(f"there is no partition {text[:40]!r}: partitions are numbered from 0")
    await call.service.hs.pin_workers(int(text), wish.workers, reason=wish.reason)
    return Reply(await _done(call.service.hs, Kind.WORKERS, str(int(text)), wish.workers))


class Sample(msgspec.Struct, frozen=True):
    """The hottest keys' total heat, and waiting items and workers per queue partition."""

    time: Time
    write_units_s: float
    reads_s: float
    throttles_s: float
    requests: Requests
    reads: ReadActivity
    waiting: list[int]
    workers: list[int]
    finished: int


class RecentAnswer(msgspec.Struct, frozen=True):
    """The samples of the last minutes, oldest first; `now` is the server's time."""

    now: Time
    samples: list[Sample]


class Recent:
    def __init__(self, hs: Heatsink, counts: RequestCounts, clock: Clock) -> None:
        self._hs = hs
        self._counts = counts
        self._clock = clock
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)

    async def run(self) -> None:
        while True:
            self._samples.append(await self._look())
            await self._clock.sleep(EVERY_S)

    def answer(self) -> RecentAnswer:
        return RecentAnswer(self._now(), list(self._samples))

    async def _look(self) -> Sample:
        keys = (await heat_of(self._hs, KEYS)).keys
        watch = self._hs.queue_watch
        readings = watch.latest.partitions if watch and watch.latest else {}
        loads = {number: reading.load for number, reading in readings.items()}
        numbers = range(max(loads, default=-1) + 1)
        return Sample(
            time=self._now(),
            write_units_s=round(sum(key.write_units_s for key in keys), 1),
            reads_s=round(sum(key.reads_s for key in keys), 1),
            throttles_s=round(sum(key.throttles_s for key in keys), 1),
            requests=self._counts.totals(),
            reads=reads_of(self._hs),
            waiting=[
                load.runnable + load.limited + load.delayed if (load := loads.get(n)) else 0
                for n in numbers
            ],
            workers=[load.workers if (load := loads.get(n)) else 0 for n in numbers],
            finished=sum(load.done + load.failed for load in loads.values()),
        )

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now_s(), UTC)


async def recent(call: ApiCall[NoQuery, None]) -> Reply:
    return Reply(call.service.recent())
