"""What every heat bus, relay of news and log of soft decisions must do."""

from __future__ import annotations

import asyncio

import pytest

from heatsink.heat.heat import Heat, Report
from heatsink.primitives.subjects import Kind, Subject
from heatsink.registry.decisions import Decision, SoftDecision, Targets

from .conftest import Relay

PAIR = b"1000|2|first|signed"


def body(version: int) -> bytes:
    """A relay does not look into what it carries."""
    return b"\0signed\xff entry %d" % version


PARTITION = Subject(Kind.WORKERS, "2")


def workers(count: int | None) -> Decision:
    return Decision(PARTITION, "workers", count, "depth 12.5")


async def test_reports_arrive_once_and_in_order(relay: Relay) -> None:
    reports = [Report("a", n, 1.0, True, 4, {"k": Heat(n, n)}) for n in range(5)]
    for report in reports:
        await relay.bus.send(report)
    assert await relay.bus.receive() == reports
    assert await relay.bus.receive() == []


async def test_reports_that_nobody_takes_do_not_pile_up(relay: Relay) -> None:
    await asyncio.gather(*(relay.bus.send(Report("a", n, 1.0, True, 1, {})) for n in range(1_200)))
    assert len(await relay.bus.receive()) <= 1_100


async def test_without_news_there_is_none(relay: Relay) -> None:
    assert await relay.news.pair() is None
    assert await relay.news.entries("first", 0, 9) == []


async def test_news_is_the_pair_and_the_entries_that_are_missing(relay: Relay) -> None:
    await relay.news.publish("first", {1: body(1), 2: body(2), 3: body(3)}, PAIR)
    assert await relay.news.pair() == PAIR
    assert await relay.news.entries("first", 0, 3) == [body(1), body(2), body(3)]
    assert await relay.news.entries("first", 1, 2) == [body(2)]
    assert await relay.news.entries("first", 3, 9) == []


async def test_entries_told_twice_or_late_change_nothing(
    relay: Relay, caplog: pytest.LogCaptureFixture
) -> None:
    await relay.news.publish("first", {1: body(1), 2: body(2)}, PAIR)
    await relay.news.publish("first", {1: b"late"}, b"older")
    assert await relay.news.pair() == b"older"
    assert await relay.news.entries("first", 0, 2) == [body(1), body(2)]
    await relay.news.publish("first", {}, PAIR)
    assert await relay.news.pair() == PAIR
    assert not caplog.records


async def test_a_gap_shows(relay: Relay) -> None:
    await relay.news.publish("first", {1: body(1), 3: body(3)}, PAIR)
    assert await relay.news.entries("first", 0, 3) == [body(1), body(3)]


async def test_another_incarnation_has_a_log_of_its_own(relay: Relay) -> None:
    await relay.news.publish("first", {6: body(6), 7: body(7)}, PAIR)
    await relay.news.publish("second", {1: body(1)}, b"another")
    assert await relay.news.pair() == b"another"
    assert await relay.news.entries("second", 0, 7) == [body(1)]


async def test_soft_decisions_reach_every_reader_once_and_in_order(relay: Relay) -> None:
    one, other = relay.soft(), relay.soft()
    await one.publish([workers(8), workers(16)], term=3)
    expected = [SoftDecision(3, workers(8)), SoftDecision(3, workers(16))]
    assert await other.read() == expected
    assert await other.read() == []
    await one.publish([workers(24)], term=3)
    assert await other.read() == [SoftDecision(3, workers(24))]
    assert await relay.soft().read() == [*expected, SoftDecision(3, workers(24))]


@pytest.mark.parametrize("late", [workers(99), workers(None)])
async def test_a_deposed_leader_sets_no_target(relay: Relay, late: Decision) -> None:
    soft, targets = relay.soft(), Targets()
    await soft.publish([workers(8)], term=3)
    await soft.publish([workers(24)], term=4)
    await soft.publish([late], term=3)
    targets.apply(await soft.read())
    assert targets.get(PARTITION, "workers") == workers(24)


async def test_a_target_is_taken_back_by_none(relay: Relay) -> None:
    soft, targets = relay.soft(), Targets()
    await soft.publish([workers(8), workers(None)], term=3)
    targets.apply(await soft.read())
    assert targets.get(PARTITION, "workers") is None
