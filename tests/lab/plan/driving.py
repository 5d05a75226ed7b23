"""The engine driven for real: its HTTP server, a client, and the requests of a trace."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from heatsink.emulator.settings import EngineSettings
from heatsink.emulator.units import READ_UNIT_BYTES
from heatsink.errors import Throttled
from heatsink.lab.plan.lane import Remedy
from heatsink.lab.plan.replay import replay
from heatsink.lab.plan.settings import PlanSettings
from heatsink.lab.plan.traces import SHAPES, SyntheticTrace, TraceRequest
from heatsink.primitives.clock import Clock, SystemClock
from heatsink.stores.dynamodb.client import DynamoClient, FixedCredentials

TABLE = "planned"
NEVER_S = 1e6
CALM_S = 2.0
Wait = Callable[[float], Awaitable[None]]


class Case(msgspec.Struct, frozen=True):
    """A published shape at a part of its rate, on a table with the same part of the limits."""

    shape: str
    down: float
    seconds: float
    partitions: int = 4
    split_after_s: float | None = None

    @property
    def engine(self) -> EngineSettings:
        return EngineSettings(
            port=0,
            write_limit=1_000 / self.down,
            read_limit=3_000 / self.down,
            partitions=self.partitions,
            split_after_s=self.split_after_s or NEVER_S,
            cool_down_s=2.0,
        )

    def requests(self) -> list[TraceRequest]:
        load = SHAPES[self.shape].load(self.seconds / 3_600)
        slower = msgspec.structs.replace(load, peak=load.peak / self.down)
        return list(SyntheticTrace(slower, 10**9, seed=1).requests())

    def planned(self, requests: list[TraceRequest]) -> int:
        """How many of these the plan says will be throttled."""
        remedy = Remedy("as the engine", adaptive=self.split_after_s is not None)
        settings = PlanSettings(partitions=self.partitions, split=self.engine.of_partitions())
        return replay(Recorded(requests), settings, seed=1, remedies=[remedy]).outcomes[0].throttled


class Recorded:
    """A trace of requests that are at hand."""

    name, weight = "recorded", 1

    def __init__(self, requests: list[TraceRequest]) -> None:
        self._requests = requests

    def requests(self) -> Iterator[TraceRequest]:
        return iter(self._requests)

    def done(self) -> float:
        return 0.0


class Driver:
    """Sends requests to a table of the engine and counts those that it throttles."""

    def __init__(self, client: DynamoClient) -> None:
        self.throttled = 0
        self._call = client.call

    async def create(self) -> None:
        await self._call(
            "CreateTable",
            {
                "TableName": TABLE,
                "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}],
                "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}],
                "BillingMode": "PAY_PER_REQUEST",
            },
        )

    async def fill(self, requests: list[TraceRequest], wait: Wait) -> None:
        """Reads of large items cost what there is to read, so it has to be there."""
        large = [each for each in requests if each.size > READ_UNIT_BYTES]
        for request in {each.key: each for each in large}.values():
            while not await self._is_served(request._replace(is_write=True)):
                await wait(0.1)
        await wait(CALM_S)

    async def send(self, request: TraceRequest) -> None:
        if not await self._is_served(request):
            self.throttled += 1

    async def _is_served(self, request: TraceRequest) -> bool:
        operation, body = _call_of(request)
        try:
            await self._call(operation, body)
        except Throttled:
            return False
        return True


def _call_of(request: TraceRequest) -> tuple[str, dict[str, Any]]:
    key = {"pk": {"S": request.key}}
    if not request.is_write:
        return "GetItem", {"TableName": TABLE, "Key": key}
    filler = "x" * (request.size - len("pk") - len(request.key) - len("body"))
    return "PutItem", {"TableName": TABLE, "Item": {**key, "body": {"S": filler}}}


@asynccontextmanager
async def driver(url: str, clock: Clock) -> AsyncIterator[Driver]:
    """With a table made."""
    client = DynamoClient(url, "us-east-1", FixedCredentials(), clock)
    try:
        made = Driver(client)
        await made.create()
        yield made
    finally:
        await client.close()


async def in_real_time(made: Driver, requests: list[TraceRequest]) -> list[TraceRequest]:
    """Each at its time, whether or not those before it were answered. Returns when they went."""
    clock, sent = SystemClock(), list[TraceRequest]()
    behind_s = clock.monotonic_s() - requests[0].time_s

    async def send(request: TraceRequest) -> None:
        sent.append(request._replace(time_s=clock.monotonic_s() - behind_s))
        await made.send(request)

    answers = []
    for request in requests:
        await clock.sleep(max(request.time_s + behind_s - clock.monotonic_s(), 0))
        answers.append(asyncio.ensure_future(send(request)))
    await asyncio.gather(*answers)
    return sent
