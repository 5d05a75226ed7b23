"""`heatsink bench` on a table that throttles, and where a turn is over before a call began."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from random import Random
from typing import Any

import pytest

from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.errors import Throttled, Unavailable
from heatsink.lab import bench as command
from heatsink.lab.bench import SETTLE_S, BenchPlan, Contest, Line, Samples, _line, contest, measure
from heatsink.primitives.clock import SystemClock
from heatsink.stores.dynamodb import make_table, open_table
from heatsink.stores.dynamodb.address import parse
from heatsink.testing import SkewedClock, run_on_virtual_time
from tests.life.test_restore import all_items

CLOCK = SystemClock()
TIGHT = EngineSettings(port=0, write_limit=60, burst_s=1, partitions=1, adaptive=False)


@asynccontextmanager
async def a_tight_table() -> AsyncIterator[str]:
    async with running_engine(TIGHT, CLOCK) as endpoint:
        await make_table(parse("messages", {"endpoint": endpoint}), CLOCK)
        yield endpoint


async def rows_left(endpoint: str) -> int:
    table, client = open_table(parse("messages", {"endpoint": endpoint}), CLOCK)
    try:
        items = await all_items(table)
    finally:
        await client.close()
    return sum(item["p"]["S"].startswith("bench:") for item in items)


async def test_a_table_that_throttles_is_measured_and_left_clean() -> None:
    async with a_tight_table() as endpoint:
        url = f"dynamodb://messages?endpoint={endpoint}"
        async with contest(url, CLOCK, Random(1)) as found:
            lines = await measure(found, BenchPlan(1.5, 16), CLOCK, lambda: None)
            assert await rows_left(endpoint) > 0
        assert await rows_left(endpoint) == 0
    assert sum(line.bare_refused for line in lines) > 0
    assert sum(line.per_s for line in lines) > 0  # in one turn, the table may refuse all calls


async def test_a_clean_up_in_vain_says_what_may_be_left_and_how_to_erase_it() -> None:
    async with contest("memory://", CLOCK, Random(1)) as found:
        for _ in range(3):
            await found.append()
            await found.put()
        with refusing(found), pytest.raises(Unavailable) as caught:
            await found.clean_up(patience_s=0.1)
    said = str(caught.value)
    assert "up to 3 rows" in said
    assert re.search(r"hs\.log\.erase\(key\) for the keys bench:\w+:\{n\} and bench:\w+:bare", said)


@contextmanager
def refusing(found: Contest) -> Iterator[None]:
    async def refuse(name: str) -> int:
        raise Throttled(name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(found._stores.log, "erase", refuse)
        yield


async def test_figures_are_shown_whatever_the_clean_up_does(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise Unavailable("some rows may be left")

    monkeypatch.setattr(Contest, "clean_up", fail)
    with pytest.raises(Unavailable, match="may be left"):
        await command._run("memory://", BenchPlan(0.3, 2), as_json=False)
    assert "add to a counter" in capsys.readouterr().out


async def test_an_interrupted_run_says_which_rows_may_be_left(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "BRIEFLY_S", 0.1)

    async def interrupted(stack: ExitStack) -> None:
        async with contest("memory://", CLOCK, Random(1)) as found:
            stack.enter_context(refusing(found))
            await found.put()
            raise asyncio.CancelledError

    with ExitStack() as stack, pytest.raises(asyncio.CancelledError):
        await interrupted(stack)
    assert "up to 1 row of this run may be left" in capsys.readouterr().err


async def test_a_store_that_dies_ends_the_run_without_figures(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(_: Contest) -> None:
        raise Unavailable("no server answers")

    monkeypatch.setattr(Contest, "query", die)
    with pytest.raises(Unavailable, match="does not answer any more: no server answers"):
        await command._run("memory://", BenchPlan(0.3, 2), as_json=False)
    assert capsys.readouterr().out == ""


async def test_a_turn_that_is_over_before_it_began_has_a_call_of_each() -> None:
    async with contest("memory://", CLOCK, Random(1)) as found:
        lines = await measure(found, BenchPlan(0.0, 3), CLOCK, lambda: None)
    assert all(line.per_s > 0 and line.bare_per_s > 0 for line in lines)


class SlowContest:
    """Every call takes so long, on the clock."""

    def __init__(self, clock: SkewedClock, call_s: float) -> None:
        self._clock = clock
        self._call_s = call_s

    async def append(self) -> None:
        await self._clock.sleep(self._call_s)

    put = page = query = add = add_bare = append


@pytest.mark.parametrize("call_s", [0.001, 0.1, 0.5, 1.0, 1.9, 2.9, 60.0])
def test_it_ends_in_about_the_time_asked_however_slow_the_store_is(call_s: float) -> None:
    async def run() -> tuple[list[Line], float]:
        clock = SkewedClock()
        found: Any = SlowContest(clock, call_s)
        lines = await measure(found, BenchPlan(12.0, 4), clock, lambda: None)
        return lines, clock.monotonic_s()

    lines, took_s = run_on_virtual_time(run())
    gives_up = call_s > 12 / 6 * 1.5
    assert took_s <= (12 * 1.5 + SETTLE_S if gives_up else max(12, 6 * call_s) + 1)
    for line in lines:
        assert (line.per_s, line.unanswered) == (
            (0, 4) if gives_up else (pytest.approx(4 / call_s, rel=0.01, abs=0.05), 0)
        )


def test_what_was_always_refused_has_no_figures() -> None:
    line = _line("append", Samples(rates=[0.0], refused=4), Samples(rates=[0.0], refused=5))
    assert line == Line("append", 0.0, None, None, 0.0, None, 4, 5)
    columns = [next(iter(column.cells)) for column in command._table([line]).columns]
    assert columns == ["append", "0", "–", "–", "0", "–"]
