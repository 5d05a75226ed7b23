"""Follow-up batches: `then=` gets the items that were done, `otherwise=` those that failed."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heatsink.bulk import Context, Fail, Next
from heatsink.errors import InvalidSetting, NotFound

from .world import World, on_virtual_time

WAIT_S = 300.0


class Shop(World):
    """Actions `double`, `add` and `note`; `double` fails for items in `broken`."""

    def __init__(self) -> None:
        super().__init__(partitions=16)
        self.broken: set[int] = set()
        self.action(max_attempts=1)(self.double)
        self.action()(self.add)

    async def double(self, item: int, _: Context) -> int:
        if item in self.broken:
            raise Fail("broken")
        return 2 * item

    async def add(self, item: dict[str, int], context: Context) -> int:
        self.ran.append((context.batch, item, context.attempt))
        return item["result"] + 1

    def got(self, id: str) -> list[Any]:
        """The items that a follow-up batch ran, in the order of their indexes."""
        found = [item for batch, item, _ in self.ran if batch == id]
        return sorted(found, key=lambda item: item["index"])

    def ids(self) -> list[str]:
        return sorted(self.server.batches._batches)


@on_virtual_time
async def test_done_and_failed_items_go_to_the_batches_that_follow() -> None:
    shop = Shop()
    shop.broken = {5, 700}
    async with shop.consumer():
        batch = await shop.bulk.submit("double", range(1_000), then="add", otherwise="note")
        then = await shop.bulk.wait(f"{batch.id}:then:0", WAIT_S)
        failed = await shop.bulk.wait(f"{batch.id}:otherwise:0", WAIT_S)
    assert (then.accepted, then.done, failed.accepted) == (998, 998, 2)
    assert shop.got(then.id) == [
        {"index": n, "item": n, "result": 2 * n} for n in range(1_000) if n not in shop.broken
    ]
    assert shop.got(failed.id) == [
        {"index": n, "item": n, "reason": "broken", "attempts": 1} for n in (5, 700)
    ]


@on_virtual_time
async def test_three_batches_make_a_chain() -> None:
    shop = Shop()
    async with shop.consumer():
        chain = Next("add", rate="1000/s", priority=3, then=Next("add", results="keep"))
        batch = await shop.bulk.submit("double", range(100), id="a", tenant="acme", then=chain)
        last = await shop.bulk.wait("a:then:0:then:0", WAIT_S)
        values = [result.value async for result in shop.bulk.results(last.id)]
        middle = await shop.bulk._get("a:then:0")
    assert values == [2 * n + 2 for n in range(100)]
    assert shop.got(last.id)[7]["item"] == {"index": 7, "item": 7, "result": 14}
    assert (middle.tenant, middle.priority, str(middle.rate)) == ("acme", 3, "1000/s")
    assert batch.id == "a"


@on_virtual_time
async def test_after_a_retry_only_the_newly_done_items_follow() -> None:
    shop = Shop()
    shop.broken = {3, 4}
    async with shop.consumer():
        await shop.bulk.submit("double", range(10), id="a", then="add", otherwise="note")
        await shop.bulk.wait("a:otherwise:0", WAIT_S)
        shop.broken = {4}
        await shop.bulk.retry_failed("a")
        again = await shop.bulk.wait("a:then:1", WAIT_S)
        await shop.bulk.wait("a:otherwise:1", WAIT_S)
    assert [item["index"] for item in shop.got("a:then:0")] == [0, 1, 2, 5, 6, 7, 8, 9]
    assert [item["index"] for item in shop.got(again.id)] == [3]
    assert [item["index"] for item in shop.got("a:otherwise:0")] == [3, 4]
    assert [item["index"] for item in shop.got("a:otherwise:1")] == [4]


@on_virtual_time
async def test_a_killed_worker_neither_loses_nor_repeats_what_follows() -> None:
    shop = Shop()
    running = [shop.start(f"worker-{number}", lease_s=2.0, member_s=1.0) for number in range(2)]
    batch = await shop.bulk.submit("double", range(400), then=Next("add", then="note"))
    for number in range(2, 8):
        await shop.clock.sleep(0.35)
        running.append(shop.start(f"worker-{number}", lease_s=2.0, member_s=1.0))
        running.pop(0).kill()
    last = await shop.bulk.wait(f"{batch.id}:then:0:then:0", WAIT_S)
    for each in running:
        await each.stop()
    assert (last.accepted, last.done) == (400, 400)
    assert {item["index"] for item in shop.got(last.id)} == set(range(400))
    assert len([id for id in shop.ids() if ":then:" in id and ":next:" not in id]) == 2


@on_virtual_time
async def test_nothing_follows_a_cancelled_batch() -> None:
    shop = Shop()
    await shop.bulk.submit("double", range(10), id="a", then="add")
    await shop.bulk.cancel("a")
    async with shop.consumer():
        with pytest.raises(NotFound):
            await shop.bulk.wait("a:then:0", WAIT_S)


@on_virtual_time
async def test_a_large_item_and_its_large_result_follow_together() -> None:
    shop = Shop()

    @shop.action()
    async def echo(item: str, _: Context) -> str:
        return item

    async with shop.consumer():
        options = {"result_bytes": 250_000, "results": "keep"}
        await shop.bulk.submit("echo", ["x" * 200_000], id="a", then="note", **options)  # type: ignore[arg-type]
        await shop.bulk.wait("a:then:0", WAIT_S)
    (item,) = shop.got("a:then:0")
    assert len(item["item"]) == len(item["result"]) == 200_000


@on_virtual_time
async def test_what_cannot_follow_is_refused() -> None:
    shop = Shop()
    deep = Next("add")
    for _ in range(8):
        deep = Next("add", then=deep)
    for wrong, why in (
        ("no good", "then.action must be"),
        (7, "then must be the name of an action, or a Next"),
        (Next("add", rate="fast"), "rate must be like"),
        (deep, "at most 8 batches may follow"),
    ):
        with pytest.raises(InvalidSetting, match=why):
            await shop.bulk.submit("double", [1], then=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="reserved for callbacks and follow-up batches"):
        await shop.bulk.submit("double", [1], id="a:then:0")
    async with shop.consumer():
        await shop.clock.sleep(1.0)
        with pytest.raises(InvalidSetting, match=r"then\.otherwise 'nobody' is unknown"):
            await shop.bulk.submit("double", [1], then=Next("add", otherwise="nobody"))


@on_virtual_time
async def test_a_key_has_one_batch_in_each_window() -> None:
    shop = Shop()
    await shop.clock.sleep(60.0 - shop.clock.now_s() % 60.0 + 1.0)
    first = await shop.bulk.submit("note", [1], unique="order-7", within=60)
    again = await shop.bulk.submit("note", [2, 3], unique="order-7", within=60)
    assert (again.id, again.items) == (first.id, 1)
    others = [
        await shop.bulk.submit("note", [4], unique="order-8", within=60),
        await shop.bulk.submit("note", [4], unique="order-7", within=60, tenant="acme"),
        await shop.bulk.submit("add", [4], unique="order-7", within=60),
    ]
    assert len({first.id, *(batch.id for batch in others)}) == 4
    async with shop.consumer():
        assert (await shop.bulk.wait(first.id, WAIT_S)).done == 1
        ended = await shop.bulk.submit("note", [5], unique="order-7", within=60)
        assert ended.id == first.id
        await shop.clock.sleep(60.0)
        later = await shop.bulk.submit("note", [6, 7], unique="order-7", within=60)
        assert (await shop.bulk.wait(later.id, WAIT_S)).done == 2
    assert shop.items_run(first.id) == [1]


@on_virtual_time
async def test_a_window_goes_by_the_clock_of_the_queue() -> None:
    shop = Shop()
    await shop.clock.sleep(60.0 - shop.clock.now_s() % 60.0 + 1.0)
    ids = set()
    for number, ahead_s in enumerate((0.0, 1e6, -90.0)):
        process = shop.process(f"p{number}")
        process.clock.offset_s = ahead_s
        bulk = shop.bulk_of(process)
        ids.add((await bulk.submit("note", [1], unique="order-7", within=60)).id)
        process.clock.offset_s -= 30.0
        ids.add((await bulk.enqueue("note", 1, unique="order-7", within=60)).id)
    (id,) = ids
    window_s = int(id.rpartition(":")[2])
    assert window_s <= shop.clock.now_s() < window_s + 60


@on_virtual_time
async def test_a_key_per_item_drops_items_and_shares_calls() -> None:
    shop = Shop()
    await shop.clock.sleep(60.0 - shop.clock.now_s() % 60.0 + 1.0)
    orders = [1, 2, 3, 2, 1]
    async with shop.consumer():
        for _ in range(2):
            batches = await asyncio.gather(
                *(
                    shop.bulk.enqueue("note", order, unique=f"order-{order}", within=60)
                    for order in orders
                )
            )
            for batch in batches:
                await shop.bulk.wait(batch.id, WAIT_S)
    assert sorted(item for _, item, _ in shop.ran) == [1, 2, 3]


@on_virtual_time
async def test_with_a_delay_all_changes_of_a_window_become_one_item() -> None:
    shop = Shop()
    await shop.clock.sleep(60.0 - shop.clock.now_s() % 60.0 + 1.0)
    began_s = shop.clock.monotonic_s()
    ids = set()
    async with shop.consumer():
        for _ in range(10):
            order = {"unique": "order-7", "within": 60, "delay": 60}
            batch = await shop.bulk.submit("note", [7], **order)  # type: ignore[arg-type]
            ids.add(batch.id)
            await shop.clock.sleep(5.0)
        (id,) = ids
        await shop.bulk.wait(id, WAIT_S)
    assert shop.items_run(id) == [7]
    assert shop.starts_s[0] - began_s >= 60.0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"unique": "a"}, "`unique` needs `within`"),
        ({"within": 60}, "`within` needs `unique`"),
        ({"unique": "a", "within": 60, "id": "b"}, "cannot be used together"),
        ({"unique": "a", "within": 0.5}, "within must be"),
        ({"unique": "a", "within": 1.5}, "`within` must be whole seconds"),
        ({"unique": "a", "within": 8 * 86_400}, "within must be"),
        ({"unique": "", "within": 60}, "unique must"),
        (
            {"unique": "a", "within": 86_400, "results": "keep", "result_days": 0.5},
            "`result_days` must be at least as long as `within`",
        ),
    ],
)
def test_a_wrong_window_is_refused(options: dict[str, Any], why: str) -> None:
    @on_virtual_time
    async def run() -> None:
        with pytest.raises(InvalidSetting, match=why):
            await Shop().bulk.submit("note", [1], **options)

    run()
