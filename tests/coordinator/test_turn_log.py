from __future__ import annotations

import logging

import pytest

from heatsink.coordinator.lease import TurnLog
from heatsink.errors import HeatsinkError, Unavailable
from heatsink.testing import ManualClock
from tests.waiting import soon

AWAY = Unavailable("the store does not answer: retry")


class Turns:
    """Eight turns a second, and what the log says of them."""

    def __init__(self, clock: ManualClock, said: pytest.LogCaptureFixture) -> None:
        self._clock = clock
        self._said = said
        self._log = TurnLog(clock)

    async def last(self, seconds: float, *outcomes: HeatsinkError | None) -> list[str]:
        self._said.clear()
        for turn in range(round(seconds * 8)):
            self._log.note(outcomes[turn % len(outcomes)], None)
            await self._clock.advance(0.125)
        assert all(record.levelno == logging.WARNING for record in self._said.records)
        return [record.getMessage() for record in self._said.records]


@pytest.fixture
def turns(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> Turns:
    caplog.set_level(logging.DEBUG, "heatsink")
    return Turns(clock, caplog)


async def test_a_store_that_is_away_is_told_once_then_every_ten_seconds(turns: Turns) -> None:
    assert await turns.last(1, None) == []
    first, *later = await turns.last(35, AWAY)
    assert first == f"a turn of the coordinator failed: {AWAY}"
    assert later == [f"80 more turns of the coordinator failed: {AWAY}"] * 3
    assert await turns.last(1, None) == [
        "the coordinator's turns succeed again, after 39 more failures"
    ]
    assert await turns.last(20, None) == []
    assert await turns.last(1, AWAY) == [first]


async def test_a_store_that_comes_and_goes_does_not_flood_the_log(turns: Turns) -> None:
    assert await turns.last(30, AWAY, None) == [
        f"a turn of the coordinator failed: {AWAY}",
        "the coordinator's turns succeed again",
        f"40 more turns of the coordinator failed: {AWAY}",
        "the coordinator's turns succeed again",
        f"40 more turns of the coordinator failed: {AWAY}",
        "the coordinator's turns succeed again",
    ]


def test_whoever_begins_or_ends_to_lead_says_so(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "heatsink.lead")
    log = TurnLog(clock)
    for term in (None, 3, 3, None, None, 5):
        log.note(None, term)
    assert [record.getMessage() for record in caplog.records] == [
        "this coordinator leads now, in term 3",
        "another coordinator may lead now: term 3 is over",
        "this coordinator leads now, in term 5",
    ]


async def test_a_client_tells_it_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import heatsink
    from heatsink.stores.memory.data import MemoryRegistry

    asked = 0

    async def away(*_: object) -> None:
        nonlocal asked
        asked += 1
        raise AWAY

    def lines() -> list[str]:
        return [record.getMessage() for record in caplog.records if "coordinator" in record.msg]

    async with heatsink.connect("memory://") as hs:
        await soon(lambda: hs.status().leads, "it leads")
        with monkeypatch.context() as broken:
            broken.setattr(MemoryRegistry, "meta", away)
            await soon(lambda: asked > 2 and lines(), "turns fail")
        await soon(lambda: len(lines()) > 1, "turns succeed")
    assert len(lines()) == 2
    assert lines()[0] == f"a turn of the coordinator failed: {AWAY}"
    assert lines()[1].startswith("the coordinator's turns succeed again")
