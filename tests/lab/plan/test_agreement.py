"""What a plan says of throttles is what the engine does, over HTTP and with the same requests."""

from __future__ import annotations

import pytest

from heatsink.emulator.server import running_engine
from heatsink.primitives.clock import SystemClock
from heatsink.testing import ManualClock

from .driving import Case, driver, in_real_time

WITHIN = 0.1
ON_VIRTUAL_TIME = {
    "many reads": Case("twitter-52", down=100, seconds=6),
    "many reads, split after a while": Case("twitter-52", down=100, seconds=9, split_after_s=5),
    "hot writes of large items": Case("twitter-8", down=20, seconds=10),
}


@pytest.mark.parametrize("case", ON_VIRTUAL_TIME.values(), ids=ON_VIRTUAL_TIME)
async def test_the_plan_agrees_with_the_engine_on_a_published_load(case: Case) -> None:
    clock = ManualClock()
    requests = case.requests()
    async with running_engine(case.engine, clock) as url, driver(url, clock) as made:
        await made.fill(requests, clock.advance)
        before_s = requests[0].time_s
        for request in requests:
            await clock.advance(request.time_s - before_s)
            before_s = request.time_s
            await made.send(request)
    planned = case.planned(requests)
    assert planned > 50
    assert made.throttled == pytest.approx(planned, rel=WITHIN)


async def test_the_plan_agrees_with_the_engine_in_real_time() -> None:
    case, clock = Case("twitter-52", down=200, seconds=6), SystemClock()
    async with running_engine(case.engine, clock) as url, driver(url, clock) as made:
        sent = await in_real_time(made, case.requests())
    planned = case.planned(sent)
    assert planned > 50
    assert made.throttled == pytest.approx(planned, rel=WITHIN)
