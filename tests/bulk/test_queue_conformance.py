"""What every queue store must do with parts, chunks and items."""

from __future__ import annotations

import asyncio

import pytest

from heatsink.bulk.plan import LEGACY
from heatsink.bulk.store import Chunk, ClaimRequest, Outcome, Part, QueueStores, Setback

from .driver import LEASE_MS, NOW_MS, PARTITION, Driver, places

# -- staging and steering ----------------------------------------------------------------------


async def test_nothing_runs_before_it_is_released(driver: Driver) -> None:
    await driver.submit("a", [3], release=False)
    assert await driver.slices() == []
    assert (await driver.counts("a")).state == "staged"
    await driver.steer("a", "release")
    assert places(await driver.slices()) == [("a/0", 0, 3)]


async def test_a_chunk_that_is_staged_again_is_left_as_it_is(
    driver: Driver, stores: QueueStores
) -> None:
    part = await driver.submit("a", [3], release=False)
    await stores.queue.stage(PARTITION, part, [Chunk(0, 9, b"other"), Chunk(1, 2, b"a/1")])
    await driver.steer("a", "release")
    await stores.queue.stage(PARTITION, part, [Chunk(2, 5, b"too late")])
    assert places(await driver.slices()) == [("a/0", 0, 3), ("a/1", 0, 2)]
    assert (await driver.counts("a")).size == 5


async def test_a_slice_says_whose_items_it_holds(driver: Driver) -> None:
    await driver.submit("a", [3], tenant="größe", action="push", lane="x")
    (found,) = await driver.slices()
    assert (found.part, found.batch, found.tenant) == ("a", "batch-a", "größe")
    assert (found.action, found.lane, found.submitted_ms, found.tries) == ("push", "x", NOW_MS, 0)


async def test_steering_an_unknown_part_says_so_and_repeating_changes_nothing(
    driver: Driver,
) -> None:
    assert not await driver.steer("nobody", "release")
    await driver.submit("a", [3])
    await driver.work()
    assert await driver.steer("a", "release")
    assert (await driver.counts("a")).state == "finished"


async def test_a_dropped_part_is_gone_but_only_a_staged_one_can_be(
    driver: Driver, stores: QueueStores
) -> None:
    await driver.submit("a", [3], release=False)
    assert await driver.steer("a", "drop")
    assert await stores.queue.part(PARTITION, "a") is None
    await driver.submit("b", [3])
    assert await driver.steer("b", "drop")
    assert await driver.work() == 3


async def test_an_empty_part_ends_when_it_is_released(driver: Driver) -> None:
    await driver.submit("a", [])
    assert [end.done for end in await driver.ends()] == [0]


async def test_a_paused_part_hands_out_nothing_and_its_running_items_may_finish(
    driver: Driver,
) -> None:
    await driver.submit("a", [2, 2])
    (running,) = await driver.slices(2)
    await driver.steer("a", "pause")
    assert await driver.slices() == []
    assert await driver.settle(running, "dr")
    assert (await driver.counts("a")).state == "paused"
    await driver.steer("a", "resume")
    assert places(await driver.slices()) == [("a/0", 1, 1), ("a/1", 0, 2)]


async def test_a_partition_is_idle_while_no_part_is_there_to_run_report_or_clear(
    driver: Driver, stores: QueueStores
) -> None:
    async def is_idle() -> bool:
        idle = await asyncio.gather(*(stores.queue.is_idle(PARTITION + n) for n in range(40)))
        assert all(idle[1:]), "other partitions are idle all the time"
        return idle[0]

    assert await is_idle()
    await driver.submit("a", [2], release=False)
    assert not await is_idle()
    await driver.steer("a", "release")
    await driver.steer("a", "pause")
    assert not await is_idle()
    await driver.steer("a", "resume")
    (running,) = await driver.slices()
    assert not await is_idle()
    await driver.settle(running, "dd")
    assert not await is_idle(), "its end is not reported"
    await driver.ends(*await driver.ends())
    assert await is_idle()
    loads = await asyncio.gather(*(stores.queue.load(PARTITION + n) for n in range(40)))
    assert [load.done for load in loads] == [2, *[0] * 39]


async def test_a_cancelled_part_ends_when_its_running_items_have(driver: Driver) -> None:
    await driver.submit("a", [4, 4])
    (running,) = await driver.slices(4)
    await driver.steer("a", "cancel")
    assert await driver.slices() == []
    assert await driver.ends() == []
    await driver.settle(running, "dfrb")
    (end,) = await driver.ends()
    assert (end.done, end.failed, end.cancelled) == (1, 1, 6)


async def test_items_that_are_lost_after_a_cancel_are_cancelled(driver: Driver) -> None:
    await driver.submit("a", [3])
    await driver.slices()
    await driver.steer("a", "cancel")
    await driver.wait(LEASE_MS)
    await driver.slices()
    assert [end.cancelled for end in await driver.ends()] == [3]


async def test_a_retry_runs_what_failed_as_if_it_never_had(driver: Driver) -> None:
    await driver.submit("a", [3, 3])
    for found in await driver.slices():
        await driver.settle(found, "dfd")
    await driver.ends(*await driver.ends())
    assert await driver.steer("a", "retry", lap=1)
    assert await driver.steer("a", "retry", lap=1)
    again = await driver.slices()
    assert places(again) == [("a/0", 1, 1), ("a/1", 1, 1)]
    assert [found.tries for found in again] == [0, 0]
    assert [await driver.settle(found, "d") for found in again] == [True, True]
    (end,) = await driver.ends()
    assert (end.lap, end.done, end.failed) == (1, 6, 0)


async def test_a_retry_while_others_run_keeps_their_places(
    driver: Driver, stores: QueueStores
) -> None:
    await driver.submit("a", [4])
    (found,) = await driver.slices()
    await driver.settle(found, "fr..", Setback(1, delay_ms=50))
    await driver.steer("a", "retry", lap=1)
    assert places(await driver.slices()) == [("a/0", 0, 1)]
    await driver.wait(50)
    assert places(await driver.slices()) == [("a/0", 1, 1)]
    assert await stores.queue.failures(PARTITION, "a", "", 10) == []


# -- claims and leases -------------------------------------------------------------------------


async def test_only_the_owner_may_claim(driver: Driver, stores: QueueStores) -> None:
    await driver.submit("a", [3])
    request = ClaimRequest("me", "x", 10, LEASE_MS)
    assert not (await stores.queue.claim(PARTITION, request)).owned
    await stores.fleet.own(PARTITION, "me", 100)
    await driver.wait(100)
    assert not (await stores.queue.claim(PARTITION, request)).owned
    await stores.fleet.own(PARTITION, "you", 100)
    assert not (await stores.queue.claim(PARTITION, request)).owned
    assert (await stores.queue.load(PARTITION)).claimed == 0


async def test_a_slice_has_no_more_items_than_the_claim_allows(
    driver: Driver, stores: QueueStores
) -> None:
    await driver.submit("a", [2, 3])
    await stores.fleet.own(PARTITION, "me", 60_000)
    one = ClaimRequest("me", "x", 4, LEASE_MS, each_max=1)
    found = (await stores.queue.claim(PARTITION, one)).slices
    assert places(found) == [("a/0", 0, 1), ("a/0", 1, 1), ("a/1", 0, 1), ("a/1", 1, 1)]
    assert len({each.attempt for each in found}) == 4
    for each in found:  # the same for items that are tried again
        await driver.settle(each, "r", Setback(0))
    again = ClaimRequest("me", "y", 10, LEASE_MS, each_max=2)
    counts = [each.count for each in (await stores.queue.claim(PARTITION, again)).slices]
    assert sum(counts) == 5
    assert max(counts) == 2


async def test_a_claim_takes_no_more_than_it_wants_and_says_if_there_is_more(
    driver: Driver,
) -> None:
    await driver.submit("a", [10, 10])
    first = await driver.claim(4)
    assert (places(first.slices), first.more) == ([("a/0", 0, 4)], True)
    rest = await driver.claim(100)
    assert (places(rest.slices), rest.more) == ([("a/0", 4, 6), ("a/1", 0, 10)], False)


async def test_a_claim_that_comes_twice_hands_out_nothing_more(driver: Driver) -> None:
    await driver.submit("a", [4])
    assert places((await driver.claim(3, attempt="x")).slices) == [("a/0", 0, 3)]
    assert (await driver.claim(3, attempt="x")).slices == []


async def test_what_an_unanswered_claim_took_is_handed_out_again(driver: Driver) -> None:
    await driver.submit("a", [4])
    lost = (await driver.claim(3, attempt="x")).slices
    again = (await driver.claim(3, unanswered=["x", "never"])).slices
    assert places(lost) == [("a/0", 0, 3)]
    assert places(again) == [("a/0", 0, 3)]
    assert [found.tries for found in again] == [0]
    assert (await driver.counts("a")).running == 3


async def test_a_wish_that_comes_after_a_newer_one_changes_nothing(driver: Driver) -> None:
    await driver.submit("a", [2])
    await driver.steer("a", "pause", since=3)
    await driver.steer("a", "resume", since=2)
    assert (await driver.counts("a")).state == "paused"
    await driver.steer("a", "resume", since=4)
    assert (await driver.counts("a")).state == "ready"


async def test_a_part_may_be_paused_before_it_is_released(driver: Driver) -> None:
    await driver.submit("a", [2], release=False)
    await driver.steer("a", "pause", since=1)
    await driver.steer("a", "release")
    assert (await driver.counts("a")).state == "paused"


async def test_only_the_part_that_was_seen_is_dropped(driver: Driver) -> None:
    await driver.submit("a", [2], release=False)
    await driver.steer("a", "drop", since=7)
    assert (await driver.counts("a")).state == "staged"
    await driver.steer("a", "drop", since=NOW_MS)
    assert await driver.stores.queue.part(PARTITION, "a") is None


async def test_wake_says_when_the_next_lease_or_delay_is_due(driver: Driver) -> None:
    assert (await driver.claim()).wake_ms is None
    await driver.submit("a", [2])
    claimed = await driver.claim()
    assert claimed.wake_ms == LEASE_MS
    await driver.settle(claimed.slices[0], "dr", Setback(1, delay_ms=700))
    assert (await driver.claim()).wake_ms == 700


async def test_a_lease_that_ran_out_is_lost_and_its_worker_changes_nothing(
    driver: Driver, stores: QueueStores
) -> None:
    await driver.submit("a", [1])
    (late,) = await driver.lose()
    (found,) = await driver.slices()
    assert not await driver.settle(late, "d")
    assert await driver.beat(late.attempt) == [late.attempt]
    counts, load = await driver.counts("a"), await stores.queue.load(PARTITION)
    assert (counts.done, counts.running, load.fenced, load.expired) == (0, 1, 1, 1)
    assert await driver.settle(found, "d")


async def test_beats_prolong_a_lease(driver: Driver) -> None:
    await driver.submit("a", [1])
    (found,) = await driver.slices()
    for _ in range(3):
        await driver.wait(LEASE_MS - 1)
        assert await driver.beat(found.attempt) == []
        assert await driver.slices() == []
    assert await driver.settle(found, "d")


async def test_only_what_a_dead_worker_had_not_settled_runs_again(driver: Driver) -> None:
    await driver.submit("a", [4])
    (found,) = await driver.lose(4)
    await driver.submit("b", [4])
    assert await driver.settle(found, "d.d.")
    again = await driver.slices(2)
    assert places(again) == [("a/0", 1, 1), ("a/0", 3, 1)]


async def test_suspects_run_alone_and_few_at_a_time(driver: Driver) -> None:
    await driver.submit("a", [20])
    await driver.lose(20)
    first = await driver.slices()
    assert places(first) == [("a/0", n, 1) for n in range(8)]
    assert await driver.slices() == []
    await driver.settle(first[0], "d")
    await driver.wait(20)
    assert places(await driver.slices()) == [("a/0", 8, 1)]


async def test_twice_lost_runs_one_at_a_time_and_the_third_loss_fails_it(
    driver: Driver, stores: QueueStores
) -> None:
    await driver.submit("a", [2])
    await driver.lose()
    assert len(await driver.lose()) == 2
    assert len(await driver.lose()) == 1
    assert len(await driver.lose()) == 1
    await driver.slices()
    failures = await stores.queue.failures(PARTITION, "a", "", 10)
    assert [failed.reason for failed in failures] == [
        "the worker died 3 times while the item ran"
    ] * 2
    assert (await stores.queue.load(PARTITION)).failed == 2
    assert [end.failed for end in await driver.ends()] == [2]


async def test_a_claim_takes_back_a_bounded_number_of_leases_and_says_that_there_are_more(
    driver: Driver, stores: QueueStores
) -> None:
    await driver.submit("a", [1] * 60)
    assert len(await driver.lose(60)) == 60
    first = await driver.claim(0)
    assert ((await stores.queue.load(PARTITION)).expired, first.wake_ms) == (50, 0)
    await driver.claim(0)
    assert (await stores.queue.load(PARTITION)).expired == 60


async def test_fresh_items_pass_suspects_that_must_wait(driver: Driver) -> None:
    await driver.submit("a", [9, 3])
    await driver.lose(9)
    found = await driver.slices()
    assert places(found)[-1] == ("a/1", 0, 3)
    assert len(found) == 9


# -- outcomes ----------------------------------------------------------------------------------


async def test_a_mark_is_taken_once(driver: Driver) -> None:
    await driver.submit("a", [4])
    (found,) = await driver.slices()
    assert await driver.settle(found, "dd..")
    assert await driver.settle(found, "ffd.")
    counts = await driver.counts("a")
    assert (counts.done, counts.failed, counts.running) == (3, 0, 1)
    assert await driver.settle(found, "...d")
    assert not await driver.settle(found, "dddd")
    assert (await driver.counts("a")).done == 4


async def test_marks_of_another_length_are_refused(driver: Driver) -> None:
    await driver.submit("a", [4])
    (found,) = await driver.slices()
    assert not await driver.settle(found, "ddddd")
    assert (await driver.counts("a")).running == 4


async def test_a_retry_waits_its_delay_and_counts_its_tries(driver: Driver) -> None:
    await driver.submit("a", [2])
    (found,) = await driver.slices()
    await driver.settle(found, "rr", Setback(0, delay_ms=500), Setback(1, counted=False))
    (now,) = await driver.slices()
    assert (now.start, now.tries) == (1, 0)
    assert (await driver.counts("a")).delayed == 1
    await driver.wait(500)
    (later,) = await driver.slices()
    assert (later.start, later.tries) == (0, 1)


async def test_what_is_due_again_goes_before_what_is_fresh(driver: Driver) -> None:
    await driver.submit("a", [2, 2])
    (found,) = await driver.slices(2)
    await driver.settle(found, "dr")
    assert places(await driver.slices()) == [("a/0", 1, 1), ("a/1", 0, 2)]


async def test_what_is_given_back_unstarted_is_not_a_try(
    driver: Driver, stores: QueueStores
) -> None:
    await driver.submit("a", [2])
    (found,) = await driver.slices()
    await driver.settle(found, "b")
    assert [again.tries for again in await driver.slices()] == [0]
    assert (await stores.queue.load(PARTITION)).retried == 0


async def test_neighbours_that_are_due_again_come_in_one_slice_if_they_are_alike(
    driver: Driver,
) -> None:
    await driver.submit("a", [6, 6])
    first, second = await driver.slices()
    await driver.settle(first, "rrbrrd", Setback(4, delay_ms=900))
    await driver.settle(second, "r")
    again = await driver.slices()
    assert places(again) == [("a/0", 0, 2), ("a/0", 2, 1), ("a/0", 3, 1), ("a/1", 0, 6)]
    assert [found.tries for found in again] == [1, 0, 1, 1]
    for found in again:
        await driver.settle(found, "d")
    await driver.wait(900)
    assert places(await driver.slices()) == [("a/0", 4, 1)]


async def test_what_once_lost_its_worker_never_shares_a_slice(driver: Driver) -> None:
    await driver.submit("a", [4])
    await driver.lose(2)
    for found in await driver.slices():
        await driver.settle(found, "r")
    assert places(await driver.slices()) == [("a/0", 0, 1), ("a/0", 1, 1), ("a/0", 2, 2)]


async def test_failures_come_in_pages_ordered_by_place(driver: Driver, stores: QueueStores) -> None:
    await driver.submit("a", [3, 3])
    first, second = await driver.slices()
    await driver.settle(second, "fdf", Setback(0, "y"), Setback(2, "z"))
    await driver.settle(first, "dfd", Setback(1, "größer"))
    page = await stores.queue.failures(PARTITION, "a", "", 2)
    rest = await stores.queue.failures(PARTITION, "a", page[-1].place, 2)
    found = [(f.body, f.offset, f.reason, f.tries) for f in [*page, *rest]]
    assert found == [(b"a/0", 1, "größer", 1), (b"a/1", 0, "y", 1), (b"a/1", 2, "z", 1)]
    assert await stores.queue.failures(PARTITION, "nobody", "", 2) == []


async def test_counts_add_up_at_every_moment(driver: Driver) -> None:
    await driver.submit("a", [5])
    (found,) = await driver.slices()
    await driver.settle(found, "dfr..", Setback(2, delay_ms=900))
    counts = await driver.counts("a")
    assert (counts.size, counts.done, counts.failed, counts.delayed) == (5, 1, 1, 1)
    assert (counts.running, counts.waiting) == (2, 1)


# -- ends, chores, load ------------------------------------------------------------------------


async def test_an_end_is_told_until_it_is_reported_and_then_never_again(driver: Driver) -> None:
    await driver.submit("a", [2, 1])
    for found in await driver.slices():
        assert await driver.ends() == []
        await driver.settle(found, "df" if found.count == 2 else "d")
    (end,) = await driver.ends()
    assert (end.batch, end.part, end.lap) == ("batch-a", "a", 0)
    assert (end.done, end.failed, end.cancelled) == (2, 1, 0)
    assert await driver.ends() == [end]
    assert await driver.ends(end) == []
    assert await driver.ends(end) == []


async def test_reporting_an_older_lap_does_not_forget_the_newer(driver: Driver) -> None:
    await driver.submit("a", [1])
    await driver.work(mark="f")
    (first,) = await driver.ends()
    await driver.steer("a", "retry", lap=1)
    await driver.work(mark="f")
    (second,) = await driver.ends(first)
    assert (second.lap, second.failed) == (1, 1)


async def test_what_was_staged_long_ago_is_asked_about(driver: Driver, stores: QueueStores) -> None:
    await driver.submit("a", [1], release=False)
    await driver.wait(60_000)
    assert (await stores.queue.chores(PARTITION, [])).stale == []
    await driver.wait(1)
    assert (await stores.queue.chores(PARTITION, [])).stale == [("a", "batch-a", NOW_MS)]
    await driver.steer("a", "release")
    assert (await stores.queue.chores(PARTITION, [])).stale == []


async def test_load_tells_what_there_is_to_do(driver: Driver, stores: QueueStores) -> None:
    await driver.submit("a", [10], tenant="ada")
    await driver.submit("b", [5], tenant="bob", lane="slow", limited=True)
    await driver.submit("c", [7], tenant="cyd", release=False)
    (found,) = await driver.slices(4)
    await driver.settle(found, "dr..", Setback(1, delay_ms=1_000), used_us=6_000)
    await driver.wait(500)
    load = await stores.queue.load(PARTITION)
    assert (load.runnable, load.limited, load.delayed, load.in_flight) == (6, 5, 1, 2)
    assert (load.tenants, load.oldest_ms, load.claimed, load.done) == (2, 500, 4, 1)
    assert load.service_us == pytest.approx(3_000)
    assert load.used_us == 6_000
    await driver.wait(500)
    load = await stores.queue.load(PARTITION)
    assert (load.runnable, load.delayed) == (7, 0)


async def test_staging_answers_with_the_load(driver: Driver, stores: QueueStores) -> None:
    await driver.submit("a", [10])
    part = Part("b", "b", "bob", "mail", NOW_MS, "mail/bob")
    assert (await stores.queue.stage(PARTITION, part, [])).runnable == 10


async def test_partitions_know_nothing_of_each_other(driver: Driver, stores: QueueStores) -> None:
    await driver.submit("a", [3])
    for other in (LEGACY, 4):
        assert await stores.queue.part(other, "a") is None
        assert (await stores.queue.load(other)).runnable == 0


async def test_parts_of_one_settle_call_are_all_settled(
    driver: Driver, stores: QueueStores
) -> None:
    await driver.submit("a", [2, 2, 2])
    outcomes = [Outcome(found.attempt, "dd", 10) for found in await driver.slices()]
    lost = await stores.queue.settle(PARTITION, [*outcomes, Outcome("x:0", "d", 1)], ["y:0"], 100)
    assert lost == ["x:0", "y:0"]
    assert [end.done for end in await driver.ends()] == [6]
