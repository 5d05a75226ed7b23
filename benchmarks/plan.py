"""How fast `heatsink plan` replays a trace, under each remedy and under all of them together.

The load is a day of a published one. Beside it the same requests through the DynamoDB engine
itself, without HTTP, which is what the model stands for. One process does it all, so its CPU time
is measured: that is how long it takes where nobody else wants the processor.
"""

from __future__ import annotations

from itertools import islice
from random import Random
from time import process_time
from typing import Any

import msgspec

from heatsink.emulator.engine import API, Engine
from heatsink.emulator.settings import EngineSettings
from heatsink.lab.plan.lane import NOTHING, REMEDIES, Remedy
from heatsink.lab.plan.replay import replay
from heatsink.lab.plan.settings import PlanSettings
from heatsink.lab.plan.traces import SHAPES, SyntheticTrace, TraceRequest
from heatsink.testing import ManualClock

from .harness import Bench, Contender, Scale, at_most, interleave

SHAPE = "twitter-14"
TABLE = "planned"
MILLION = 10**6


def _trace(requests: int) -> SyntheticTrace:
    return SyntheticTrace(SHAPES[SHAPE].load(hours=24), requests, seed=1)


def _replayed(requests: int, *remedies: Remedy) -> Contender:
    """CPU seconds that a million requests take."""

    async def run() -> float:
        began_s = process_time()
        replay(_trace(requests), PlanSettings(), seed=1, remedies=remedies)
        return (process_time() - began_s) * MILLION / requests

    return run


def _through_the_engine(requests: int) -> Contender:
    calls = list(map(_call, islice(_trace(requests).requests(), requests)))

    async def run() -> float:
        engine = Engine(EngineSettings(), ManualClock(), Random(1))
        engine.answer(API + "CreateTable", msgspec.json.encode(_table()))
        began_s = process_time()
        for operation, body in calls:
            engine.answer(operation, body)
        return (process_time() - began_s) * MILLION / requests

    return run


def _table() -> dict[str, Any]:
    return {
        "TableName": TABLE,
        "AttributeDefinitions": [{"AttributeName": "pk", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "pk", "KeyType": "HASH"}],
        "BillingMode": "PAY_PER_REQUEST",
    }


def _call(request: TraceRequest) -> tuple[str, bytes]:
    key = {"pk": {"S": request.key}}
    if request.is_write:
        item = {**key, "body": {"S": "x" * request.size}}
        return API + "PutItem", msgspec.json.encode({"TableName": TABLE, "Item": item})
    return API + "GetItem", msgspec.json.encode({"TableName": TABLE, "Key": key})


async def run(bench: Bench, scale: Scale) -> None:
    few, rounds = scale(20_000, 40_000), scale(1, 11)
    ours, engine = await interleave(
        rounds, _replayed(few, NOTHING), _through_the_engine(few), warm_up=0
    )
    name = f"a million requests, {NOTHING.name}"
    bench.add(name, "s", ours, at_most(60), other=("through the engine", engine))
    for remedy in REMEDIES[1:]:
        (took_s,) = await interleave(rounds, _replayed(few, remedy), warm_up=0)
        bench.add(f"a million requests, {remedy.name}", "s", took_s, at_most(60))
    (together,) = await interleave(1, _replayed(scale(20_000, MILLION), *REMEDIES), warm_up=0)
    bench.add("a million requests, all six at once", "s", together, at_most(60))
