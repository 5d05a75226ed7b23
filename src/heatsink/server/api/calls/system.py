"""Handlers about the server itself: health, metrics, status, caches, events."""

from __future__ import annotations

from starlette.responses import PlainTextResponse, Response, StreamingResponse

from heatsink.bulk.batch import State
from heatsink.client.heatsink import Heatsink
from heatsink.client.status import Status
from heatsink.errors import InvalidSetting, Misconfigured
from heatsink.primitives.clock import Clock
from heatsink.server.api.bulk_shapes import BatchList, Underway
from heatsink.server.api.feed import Feed
from heatsink.server.api.metrics import PROMETHEUS
from heatsink.server.api.problems import Refusal
from heatsink.server.api.requests import ApiCall, Reply, RequestCounts
from heatsink.server.api.shapes import (
    DecisionLine,
    HeatAnswer,
    NoQuery,
    PartitionLine,
    PartitionList,
    ReadActivity,
    Readiness,
    Requests,
    ServerStatus,
)

from .bulk import line_of
from .operations import heat_of, lines_of, partitions_of, reads_of

SHOWN = 50
FOLLOWED_MAX = 10
MISSED_MAX = 1_000
EVENT_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


async def healthz(_: ApiCall[NoQuery, None]) -> Response:
    return PlainTextResponse("ok\n")


async def readyz(call: ApiCall[NoQuery, None]) -> Reply:
    status = call.service.hs.status()
    answer = Readiness(status.ready, status.leads, status.version)
    return Reply(answer, 200 if status.ready else 503)


async def status(call: ApiCall[NoQuery, None]) -> Reply:
    found = await call.service.hs.leadership()
    now = call.service.hs.status()
    return Reply(
        ServerStatus(
            name=now.name,
            ready=now.ready,
            leads=now.leads,
            leader=found.leader,
            nobody_leads=found.vacancy,
            term=now.term,
            version=now.version,
            horizon_s=round(now.horizon_s, 3),
            servers=now.servers,
            spread_keys=now.spread_keys,
            extra_buckets=now.extra_buckets,
            pinned_keys=now.pinned_keys,
            news_lost=now.news_lost,
        )
    )


async def metrics(call: ApiCall[NoQuery, None]) -> Response:
    return Response(call.service.metrics(), media_type=PROMETHEUS)


async def events(call: ApiCall[NoQuery, None]) -> Response:
    service = call.service
    last = call.headers.get(b"last-event-id", b"").decode("latin-1")
    if last and not (last.isascii() and last.isdigit() and len(last) < 16):
        raise Refusal(400, "last-event-id must be the version of a decision")
    chunks = service.feed.listen(int(last) if last else None)
    return StreamingResponse(chunks, media_type="text/event-stream", headers=EVENT_HEADERS)


async def reads(call: ApiCall[NoQuery, None]) -> Reply:
    return Reply(reads_of(call.service.hs))


def make_feed(hs: Heatsink, clock: Clock, counts: RequestCounts) -> Feed:
    async def status() -> Status:
        return hs.status()

    async def heat() -> HeatAnswer:
        return await heat_of(hs, SHOWN)

    async def requests() -> Requests:
        return counts.totals()

    async def kept() -> ReadActivity:
        return reads_of(hs)

    async def decided(after: int) -> list[DecisionLine]:
        entries = await hs.decisions(min(max(version() - after, 1), MISSED_MAX))
        newer = [entry for entry in reversed(entries) if entry.version > after]
        return [line for entry in newer for line in lines_of(entry)]

    def version() -> int:
        return hs.status().version

    queue = _QueueLooks(hs)
    looks = {
        "status": status,
        "heat": heat,
        "requests": requests,
        "reads": kept,
        "partitions": queue.partitions,
        "batches": queue.batches,
        "progress": queue.progress,
    }
    return Feed(looks, version, decided, clock)


class _QueueLooks:
    """Reads the state of the queue for the dashboard.

    While no item moves, the progress of batches is not read again.
    """

    def __init__(self, hs: Heatsink) -> None:
        self._hs = hs
        self._running: list[tuple[str, State, str]] = []
        self._moved: list[tuple[int, ...]] | None = None
        self._asked: object = None
        self._underway = Underway([])

    async def partitions(self) -> PartitionList:
        self._moved = None
        try:
            found = await partitions_of(self._hs)
        except Misconfigured:
            raise
        except InvalidSetting:  # there is no queue: show that
            return PartitionList(self._hs.status().leads, [])
        self._moved = [_moved(line) for line in found.partitions]
        return found

    async def batches(self) -> BatchList:
        listed = await self._hs.bulk.list(SHOWN)
        running = [(one.id, one.state, one.reason) for one in listed if not one.is_final]
        self._running = running[:FOLLOWED_MAX]
        return BatchList([line_of(batch) for batch in listed])

    async def progress(self) -> Underway:
        """Return the progress of the running batches that the last call of `batches` found."""
        asked = self._running, self._moved
        if self._moved is None or asked != self._asked:
            self._underway = Underway([await self._hs.bulk.status(id) for id, *_ in self._running])
            self._asked = asked
        return self._underway


def _moved(line: PartitionLine) -> tuple[int, ...]:
    """Return counts of a queue partition. Whenever an item moves, at least one of them changes."""
    waiting = (line.runnable, line.limited, line.delayed, line.in_flight)
    return (*waiting, line.claimed, line.done, line.failed, line.retried)
