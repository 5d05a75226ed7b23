from __future__ import annotations

import asyncio
import inspect
from bisect import bisect_right
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heatsink.errors import Closed, HeatsinkError, InvalidKey, InvalidSetting, Unavailable
from heatsink.primitives.subjects import Kind, Subject
from heatsink.reads import Reads, ReadSettings
from heatsink.testing import ManualClock, SkewedClock, run_on_virtual_time
from tests.waiting import PATIENCE_S

NO_JITTER = ReadSettings(jitter=0.0)


class Source:
    """Counts loads and tells how many there were."""

    def __init__(self) -> None:
        self.loads = 0
        self.gate: asyncio.Event | None = None
        self.error: BaseException | None = None

    async def load(self) -> int:
        self.loads += 1
        mine = self.loads
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return mine


@pytest.fixture
def source() -> Source:
    return Source()


@pytest.fixture
def reads(clock: ManualClock) -> Reads:
    return Reads(NO_JITTER, clock=clock, rng=Random(1))


async def soon() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_ten_thousand_readers_of_a_cold_key_make_one_load(source: Source) -> None:
    source.gate, reads = asyncio.Event(), Reads()
    readers = [asyncio.ensure_future(reads.get("k", source.load)) for _ in range(10_000)]
    await soon()
    source.gate.set()
    assert set(await asyncio.gather(*readers)) == {1}
    stats = reads.stats()
    assert (source.loads, stats.loads, stats.coalesced) == (1, 1, 9_999)


async def test_fresh_then_stale_while_it_is_loaded_anew_then_gone(
    clock: ManualClock, reads: Reads, source: Source
) -> None:
    times: dict[str, Any] = {"fresh_for": 1.0, "stale_for": 5.0}
    assert await reads.get("k", source.load, **times) == 1
    await clock.advance(0.9)
    assert (await reads.get("k", source.load, **times), source.loads) == (1, 1)
    await clock.advance(0.2)
    assert await reads.get("k", source.load, **times) == 1, "stale, and being loaded anew"
    await soon()
    assert (await reads.get("k", source.load, **times), source.loads) == (2, 2)
    await clock.advance(5.0)
    assert await reads.get("k", source.load, **times) == 3, "too old to be served at all"
    stats = reads.stats()
    assert (stats.hits, stats.stale_hits, stats.loads) == (2, 1, 3)


async def test_each_reader_has_its_own_idea_of_fresh(
    clock: ManualClock, reads: Reads, source: Source
) -> None:
    await reads.get("k", source.load, fresh_for=100, stale_for=100)
    await clock.advance(10)
    assert await reads.get("k", source.load, fresh_for=100, stale_for=100) == 1
    assert await reads.get("k", source.load, fresh_for=1, stale_for=2) == 2


async def test_the_time_a_load_takes_counts_as_age(
    clock: ManualClock, reads: Reads, source: Source
) -> None:
    source.gate = asyncio.Event()
    slow = asyncio.ensure_future(reads.get("k", source.load, fresh_for=1, stale_for=1))
    await clock.advance(2.0)
    source.gate.set()
    assert await slow == 1
    assert await reads.get("k", source.load, fresh_for=1, stale_for=1) == 2


async def test_expiry_is_jittered_and_never_late(clock: ManualClock, source: Source) -> None:
    reads = Reads(ReadSettings(jitter=0.5), clock=clock, rng=Random(1))
    for number in range(100):
        await reads.get(f"k{number}", source.load, fresh_for=10, stale_for=10)
    kept = []
    for _ in range(10):
        await clock.advance(1.0)
        entries = (reads._find(f"k{number}") for number in range(100))
        kept.append(sum(clock.monotonic_s() - e.aged_from_s < 10 for e in entries if e))
    assert kept[3] == 100
    assert 20 < kept[6] < 80
    assert kept[9] == 0


async def test_none_is_a_value(reads: Reads) -> None:
    loads = 0

    async def nothing() -> int | None:
        nonlocal loads
        loads += 1
        return None

    for _ in range(3):
        assert await reads.get("k", nothing) is None
    assert loads == 1


async def test_an_error_reaches_those_who_waited_and_nobody_else(
    reads: Reads, source: Source
) -> None:
    source.gate, source.error = asyncio.Event(), ValueError("no")
    readers = [asyncio.ensure_future(reads.get("k", source.load)) for _ in range(5)]
    await soon()
    source.gate.set()
    assert await asyncio.gather(*readers, return_exceptions=True) == [source.error] * 5
    source.error = None
    assert await reads.get("k", source.load) == 2
    assert reads.stats().failures == 1


async def test_a_shared_error_does_not_collect_traces(reads: Reads, source: Source) -> None:
    source.gate, source.error = asyncio.Event(), ValueError("no")
    readers = [asyncio.ensure_future(reads.get("k", source.load)) for _ in range(50)]
    await soon()
    source.gate.set()
    await asyncio.gather(*readers, return_exceptions=True)
    length, trace = 0, source.error.__traceback__
    while trace is not None:
        length, trace = length + 1, trace.tb_next
    assert length < 12


async def test_errors_are_kept_on_request_for_a_short_time(
    clock: ManualClock, reads: Reads, source: Source
) -> None:
    source.error = ValueError("no")
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            await reads.get("k", source.load, errors_for=1.0)
    assert source.loads == 1
    await clock.advance(1.1)
    source.error = None
    assert await reads.get("k", source.load, errors_for=1.0) == 2


async def test_a_refresh_that_fails_leaves_the_stale_value(
    clock: ManualClock, reads: Reads, source: Source
) -> None:
    times: dict[str, Any] = {"fresh_for": 1.0, "stale_for": 5.0, "errors_for": 1.0}
    await reads.get("k", source.load, **times)
    source.error = ValueError("no")
    await clock.advance(2.0)
    for _ in range(3):
        assert await reads.get("k", source.load, **times) == 1
        await soon()
    assert source.loads == 2, "a source that fails is left in peace for a moment"
    await clock.advance(1.1)
    assert await reads.get("k", source.load, **times) == 1
    await soon()
    assert source.loads == 3
    await clock.advance(2.0)
    with pytest.raises(ValueError, match="no"):
        await reads.get("k", source.load, **times)


async def test_a_cancelled_leader_does_not_end_the_load(reads: Reads, source: Source) -> None:
    source.gate = asyncio.Event()
    leader = asyncio.ensure_future(reads.get("k", source.load))
    await soon()
    follower = asyncio.ensure_future(reads.get("k", source.load))
    await soon()
    leader.cancel()
    await soon()
    assert leader.cancelled()
    source.gate.set()
    assert (await follower, source.loads) == (1, 1)


async def test_a_load_for_nobody_is_cancelled_and_not_joined(reads: Reads) -> None:
    ended = asyncio.Event()

    async def load() -> int:
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.set()
            await asyncio.sleep(0.01)  # it takes its time to end
        return 1

    reader = asyncio.ensure_future(reads.get("k", load))
    await soon()
    reader.cancel()
    await asyncio.wait_for(ended.wait(), PATIENCE_S)

    async def other() -> int:
        return 2

    assert await reads.get("k", other) == 2


@pytest.mark.parametrize("end", [asyncio.CancelledError(), GeneratorExit(), BaseException("odd")])
async def test_a_loader_that_ends_oddly_tells_its_readers_to_retry(
    reads: Reads, source: Source, end: BaseException
) -> None:
    source.error = end
    readers = [asyncio.ensure_future(reads.get("k", source.load)) for _ in range(3)]
    for outcome in await asyncio.gather(*readers, return_exceptions=True):
        assert isinstance(outcome, Unavailable)
        assert "'k'" in str(outcome)


async def test_a_load_cancelled_before_its_first_step_hangs_nobody(
    reads: Reads, source: Source
) -> None:
    reader = asyncio.ensure_future(reads.get("k", source.load))
    await asyncio.sleep(0)
    for task in reads._loading._tasks:
        task.cancel()
    with pytest.raises(Unavailable, match="cancelled"):
        await asyncio.wait_for(reader, PATIENCE_S)
    assert source.loads == 0


async def test_readers_of_a_load_that_hangs_are_told_in_time(source: Source) -> None:
    reads = Reads(ReadSettings(patience_s=0.05))

    async def stubborn() -> int:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0.2)
                return 7

    readers = [asyncio.ensure_future(reads.get("k", stubborn)) for _ in range(3)]
    for outcome in await asyncio.gather(*readers, return_exceptions=True):
        assert isinstance(outcome, Unavailable)
        assert "0.05 s" in str(outcome)
    assert await reads.get("k", source.load) == 1, "what it brings in the end is not kept"
    await asyncio.sleep(0.3)
    assert await reads.get("k", source.load) == 1


async def test_after_forget_nobody_gets_what_was_loaded_before(
    reads: Reads, source: Source
) -> None:
    source.gate = asyncio.Event()
    before = asyncio.ensure_future(reads.get("k", source.load))
    await soon()
    reads.forget("k")
    after = asyncio.ensure_future(reads.get("k", source.load))
    await soon()
    source.gate.set()
    assert (await before, await after) == (1, 2)
    assert await reads.get("k", source.load) == 2, "the older load was not kept"
    reads.forget("k")
    assert await reads.get("k", source.load) == 3


async def test_a_reader_does_not_join_a_load_older_than_it_accepts(
    clock: ManualClock, reads: Reads, source: Source
) -> None:
    source.gate = asyncio.Event()
    first = asyncio.ensure_future(reads.get("k", source.load, fresh_for=1, stale_for=2))
    await clock.advance(3.0)
    second = asyncio.ensure_future(reads.get("k", source.load, fresh_for=1, stale_for=2))
    third = asyncio.ensure_future(reads.get("k", source.load, fresh_for=1, stale_for=9))
    await soon()
    source.gate.set()
    assert [await first, await second, await third] == [1, 2, 2]


def test_a_load_left_behind_by_a_closed_loop_is_not_joined(source: Source) -> None:
    reads = Reads()
    source.gate = asyncio.Event()
    loop = asyncio.new_event_loop()
    reader = loop.create_task(reads.get("k", source.load))
    loop.run_until_complete(asyncio.sleep(0.01))
    for task in asyncio.all_tasks(loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    source.gate = None
    assert asyncio.run(reads.get("k", source.load)) == 2
    del reader


async def test_closing_ends_what_is_being_loaded(reads: Reads, source: Source) -> None:
    await reads.get("kept", source.load, fresh_for=9, stale_for=9)
    source.gate = asyncio.Event()
    reader = asyncio.ensure_future(reads.get("k", source.load))
    await soon()
    reads.close()
    with pytest.raises(Closed):
        await reader
    for key in ("k", "kept"):
        with pytest.raises(Closed):
            await reads.get(key, source.load, fresh_for=9, stale_for=9)


async def test_a_weigh_that_fails_hangs_nobody() -> None:
    def weigh(_: Any) -> int:
        raise ZeroDivisionError

    reads, told = Reads(ReadSettings(weigh=weigh)), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    source = Source()
    assert await asyncio.wait_for(reads.get("k", source.load), PATIENCE_S) == 1
    assert len(told) == 1


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"fresh_for": -1}, "fresh_for"),
        ({"fresh_for": float("nan")}, "fresh_for"),
        ({"fresh_for": 2, "stale_for": 1}, "stale_for"),
        ({"stale_for": "5"}, "stale_for"),
        ({"errors_for": -1}, "errors_for"),
    ],
)
async def test_wrong_times_are_refused_by_name(
    reads: Reads, source: Source, wrong: dict[str, Any], names: str
) -> None:
    with pytest.raises(InvalidSetting, match=names):
        await reads.get("k", source.load, **wrong)


@pytest.mark.parametrize(
    ("fresh_for", "stale_for", "names"),
    [(9, 1, "stale_for"), (None, 9, "fresh_for"), (1, "", "st")],
)
async def test_wrong_times_are_refused_on_a_hit_too(
    reads: Reads, source: Source, fresh_for: Any, stale_for: Any, names: str
) -> None:
    await reads.get("k", source.load, fresh_for=9, stale_for=9)
    with pytest.raises(InvalidSetting, match=names):
        await reads.get("k", source.load, fresh_for=fresh_for, stale_for=stale_for)


async def test_wrong_keys_and_loads_are_refused(reads: Reads) -> None:
    async def load() -> int:
        return 1

    for key in ("", "a\0b", 7):
        with pytest.raises(InvalidKey):
            await reads.get(key, load)  # type: ignore[arg-type]
    blocking: Any = lambda: 1  # noqa: E731
    with pytest.raises(InvalidSetting, match="async"):
        await reads.get("k", blocking)


async def test_the_decorator_keeps_by_its_arguments(reads: Reads) -> None:
    calls = []

    @reads.cached(key="product:{id}", fresh_for=5, stale_for=9)
    async def product(id: int, verbose: bool = False) -> str:
        calls.append(id)
        return f"product {id} {verbose}"

    assert [await product(1), await product(1), await product(id=1)] == ["product 1 False"] * 3
    assert await product(2, verbose=True) == "product 2 True"
    assert calls == [1, 2]
    reads.forget(product.key(1))
    await product(1)
    assert calls == [1, 2, 1]
    assert inspect.iscoroutinefunction(product), "frameworks look at this"


class Noted:
    """Counts the reads that it hears of."""

    def __init__(self, key: str) -> None:
        self.reads = 0
        self._key = key

    def note(self, key: str, reads: int) -> None:
        assert key == self._key
        self.reads += reads

    def near_s(self, _key: str) -> float:
        return 0.0


async def test_hits_are_reported_in_batches_and_all_else_one_by_one(clock: ManualClock) -> None:
    heat, source = Noted("k"), Source()
    reads = Reads(clock=clock, heat=heat)
    for _ in range(1 + 640):
        await reads.get("k", source.load)
    assert heat.reads == 641


async def test_values_of_heatsinks_own_are_kept_and_counted_alike(clock: ManualClock) -> None:
    posts = Subject(Kind.POSTS, "ada")
    heat, source = Noted(posts.text), Source()
    reads = Reads(clock=clock, heat=heat)
    for _ in range(1 + 640):
        assert await reads.get_own(posts, source.load, fresh_for=60.0, stale_for=60.0) == 1
    assert (source.loads, heat.reads) == (1, 641)
    reads.forget(posts)
    assert await reads.get_own(posts, source.load, fresh_for=60.0, stale_for=60.0) == 2


async def test_a_read_hot_key_is_refreshed_no_more_often_than_decided(clock: ManualClock) -> None:
    class Decided:
        def note(self, key: str, reads: int) -> None: ...

        def near_s(self, key: str) -> float:
            return 2.0 if key == "hot" else 0.0

    source = Source()
    reads = Reads(NO_JITTER, clock=clock, heat=Decided())
    times: dict[str, Any] = {"fresh_for": 0.5, "stale_for": 5.0}
    for step in range(8):
        await reads.get("hot", source.load, **times)
        await soon()
        assert source.loads == 1 + step // 4
        await clock.advance(0.5)


Step = tuple[str, float]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["get", "get", "get", "cancel", "write", "elsewhere", "fail", "well"]),
        st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0]),
    ),
    max_size=40,
)


@settings(max_examples=150)
@given(steps=STEPS, latency_s=st.sampled_from([0.0, 0.2, 1.0]), seed=st.integers(0, 99))
def test_whatever_the_order_no_reader_hangs_or_gets_what_is_too_old(
    steps: list[Step], latency_s: float, seed: int
) -> None:
    run_on_virtual_time(_play(steps, latency_s, seed))


async def _play(steps: list[Step], latency_s: float, seed: int) -> None:
    reads = Reads(ReadSettings(patience_s=9.0), clock=SkewedClock(), rng=Random(seed))
    loop, versions, own, fails = asyncio.get_running_loop(), [0.0], 0, False
    readers: list[asyncio.Task[None]] = []
    asked: list[asyncio.Task[int]] = []

    async def load() -> int:
        version = len(versions) - 1
        await asyncio.sleep(latency_s)
        if fails:
            raise ValueError
        return version

    async def read() -> None:
        oldest = max(own, bisect_right(versions, loop.time() - 2.0) - 1)
        reading = reads.get("k", load, fresh_for=0.5, stale_for=2.0)
        asked.append(asyncio.ensure_future(reading))
        try:
            got = await asyncio.wait_for(asyncio.shield(asked[-1]), 9.0)
        except (ValueError, asyncio.CancelledError):
            return
        assert got >= oldest, "older than stale_for, or than the reader's own last write"

    for act, pause_s in steps:
        if act == "get":
            readers.append(asyncio.ensure_future(read()))
        elif act == "cancel" and asked:
            asked[seed % len(asked)].cancel()
        elif act in ("write", "elsewhere"):
            versions.append(loop.time())
        if act == "write":
            own = len(versions) - 1
            reads.forget("k")
        fails = act == "fail" or (fails and act != "well")
        await asyncio.sleep(pause_s)
    await asyncio.gather(*readers)
    fails = False
    await asyncio.sleep(3.0)
    newest = await reads.get("k", load, fresh_for=0.5, stale_for=2.0)
    assert newest == len(versions) - 1, "no error and no old value stays"


def test_settings_name_what_is_wrong() -> None:
    for wrong in ({"capacity": 0}, {"patience_s": 0}, {"jitter": 2}, {"weigh": 3}):
        with pytest.raises(HeatsinkError, match=next(iter(wrong))):
            ReadSettings(**wrong)  # type: ignore[arg-type]


async def test_a_load_that_reads_its_own_key_fails_at_once(reads: Reads) -> None:
    async def load() -> int:
        return await reads.get("k", load)

    with pytest.raises(InvalidSetting, match="the load of 'k' reads 'k' itself") as raised:
        await reads.get("k", load)
    assert raised.value.field == "load"


async def test_two_loads_that_read_each_others_keys_fail_at_once(reads: Reads) -> None:
    async def load_a() -> int:
        await soon()
        return await reads.get("b", load_b)

    async def load_b() -> int:
        await soon()
        return await reads.get("a", load_a)

    both = await asyncio.gather(
        reads.get("a", load_a), reads.get("b", load_b), return_exceptions=True
    )
    assert {type(error) for error in both} == {InvalidSetting}


async def test_a_load_may_read_a_key_that_another_load_reads(reads: Reads, source: Source) -> None:
    async def load() -> int:
        return await reads.get("below", source.load)

    source.gate = asyncio.Event()
    readers = [asyncio.ensure_future(reads.get(key, load)) for key in ("a", "b")]
    await soon()
    source.gate.set()
    assert await asyncio.gather(*readers) == [1, 1]
