"""The invariants of bulk actions, stated over histories and what the store holds in the end."""

from __future__ import annotations

from heatsink.bulk.batch import Batch, parse_rate, total
from heatsink.stores.memory.queue import MemoryQueueServer
from heatsink.stores.memory.queue.queue import QueuePartition

from .audit import Audit
from .history import History, Violation


def held(server: MemoryQueueServer, number: int) -> QueuePartition:
    """The partition at the place that the stored plan has for it."""
    plan = server.fleet.stored
    return server.queue.held(plan.spot(number) if plan else number)


def partitions_of(server: MemoryQueueServer) -> list[tuple[int, QueuePartition]]:
    numbers = {number for place in server.queue.places.values() for number in place}
    return [(number, held(server, number)) for number in sorted(numbers)]


def leftovers(server: MemoryQueueServer) -> list[str]:
    """What partitions should not hold for ever.

    A plan that is lost may leave staged parts in partitions that nobody owns until it has as many
    again: they were never accepted.
    """
    left, plan = [], server.fleet._fleet.plan
    for number, queue in partitions_of(server):
        is_unowned = plan is not None and number >= plan.high_water
        left += [f"{attempt} is leased in {number}" for attempt in queue.leases]
        left += [f"the end of {part} stays in {number}" for part in queue.outbox]
        left += [
            f"{share.part.batch} is {share.state} in {number}"
            for share in queue.shares.values()
            if share.state != "finished" and not (is_unowned and share.state == "staged")
        ]
    return left


def check_all(server: MemoryQueueServer, history: History, audit: Audit) -> None:
    if audit.violation:
        raise audit.violation
    records = server.batches._batches
    for batch in history.submitted.values():
        record = records.get(batch.id)
        if batch.accepted and (record is None or record.state in ("open", "aborted")):
            raise Violation(f"{batch.id} was accepted and is {record and record.state}")
    for record in list(records.values()):
        if record.state in ("open", "aborted"):
            check_nothing_ran(record, history)
        else:
            check_ended(record, server, audit, record.id in history.broken)
            check_told(record, history)
    if left := leftovers(server):
        raise Violation(f"left behind: {left[0]}")
    if not history.events["lost limits"]:
        check_rates(history)


def check_nothing_ran(record: Batch, history: History) -> None:
    ran = [index for batch, index in history.starts if batch == record.id]
    if ran and record.id not in history.broken:
        raise Violation(f"{record.id} is {record.state}, and {len(ran)} of its items ran")


def results_of(record: Batch, audit: Audit) -> tuple[list[int], list[int]]:
    """The items that are done, and those that failed, in the parts that the record names."""
    parts = {place.id for place in record.parts}
    done = [index for part, index in audit.done if part in parts]
    failed = [i for part, i, lap in audit.failed if part in parts and lap == record.lap]
    return done, failed


def check_ended(
    record: Batch, server: MemoryQueueServer, audit: Audit, is_broken: bool = False
) -> None:
    """Invariant 7: each item in exactly one final state, and the record says the same.

    A part that went back in time after its end was recorded may end in another way.
    """
    if not record.is_final:
        raise Violation(f"{record.id} is still {record.state} though nothing is wrong any more")
    done, failed = results_of(record, audit)
    if len({*done, *failed}) < len(done) + len(failed) and not is_broken:
        raise Violation(f"an item of {record.id} has results in two parts")
    cancelled = 0
    ends = {end.part: (end.done, end.failed, end.cancelled) for end in record.ends}
    for place in record.parts:
        share = held(server, place.partition).shares.get(place.id)
        if share is None and (is_broken or (record.state == "done" and record.items == 1)):
            continue  # it was lost after its end was recorded, or forgotten with its end
        counts = share and (share.done, share.failed, share.cancelled)
        if is_broken and counts != ends.get(place.id):
            continue  # it went back in time after its end was recorded, and ended in another way
        if share is None or share.size - share.lost != place.items - total(place.missing):
            raise Violation(f"a part of {record.id} has lost items: {share and share.size}")
        cancelled += share.cancelled
    all_ends = [(end.done, end.failed, end.cancelled) for end in record.ends]
    recorded = tuple(map(sum, zip(*all_ends, strict=True))) or (0, 0, 0)
    found = (len(done), len(failed), cancelled)
    if sum(recorded) + record.lost != record.items or (recorded != found and not is_broken):
        raise Violation(f"{record.id} of {record.items} says {recorded}, the items say {found}")
    if is_broken:
        return
    final = "cancelled" if cancelled else "failed" if failed else "done"
    if record.state not in (final, "lost" if record.lost else final):
        raise Violation(f"{record.id} is {record.state}, its items are {final}")


def check_missing(record: Batch, audit: Audit) -> None:
    """A batch that has lost items says exactly which."""
    done, failed = results_of(record, audit)
    missing = {i for first, count in record.missing for i in range(first, first + count)}
    if missing & {*done, *failed}:
        raise Violation(f"{record.id} says that it lost items that have a result")
    recorded = sum(end.items for end in record.ends)
    if len(missing) + recorded != record.items:
        raise Violation(
            f"{record.id} of {record.items} has lost {len(missing)}, {recorded} have a result"
        )


def check_told(record: Batch, history: History) -> None:
    """One callback for each lap, and it ran."""
    batch = history.submitted.get(record.id)
    if batch is None or not batch.on_done or record.id in history.broken:
        return
    if not record.items and not batch.accepted:
        return  # nothing is left to be done by others: the caller was to try again
    told = history.told[record.id]
    if len(told) != record.lap + record.restored + 1:
        raise Violation(f"{record.id} ended {record.lap + 1} times and told it as {dict(told)}")


def check_still_ended(server: MemoryQueueServer, history: History) -> None:
    """What somebody was told to have ended has ended, also after the power has failed."""
    for id, (state, lap, restored) in history.ended.items():
        record = server.batches._batches.get(id)
        if id in history.broken:
            continue
        if record is None:
            raise Violation(f"{id} was {state}, and there is no record of it any more")
        if (record.lap, record.restored) == (lap, restored) and record.state != state:
            raise Violation(f"{id} was {state}, and is {record.state} again")


def check_rates(history: History) -> None:
    """Invariant 8: no window of one period holds more starts than the rate allows."""
    from .world import RATES

    for tenant, text in RATES.items():
        rate, starts_s = parse_rate(text), sorted(history.lane_starts_s[f"limited/{tenant}"])
        for early_s, late_s in zip(starts_s, starts_s[rate.count :], strict=False):
            if late_s - early_s < rate.period_s - 1e-6:
                raise Violation(
                    f"{rate.count + 1} starts within {late_s - early_s:.3f} s, allowed are {text}"
                )
