from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Barrier, Event, Thread
from typing import Any

import pytest

from heatsink.errors import InvalidSetting, Unavailable
from heatsink.reads import BlockingReads, ReadSettings
from heatsink.testing import ManualClock
from tests.waiting import PATIENCE_S, until


@pytest.fixture
def reads() -> BlockingReads:
    return BlockingReads(ReadSettings(jitter=0.0))


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual_s)


def test_many_threads_make_one_load(reads: BlockingReads) -> None:
    gate, loads = Event(), []

    def load() -> int:
        loads.append(1)
        gate.wait(PATIENCE_S)
        return 7

    with ThreadPoolExecutor(32) as pool:
        readers = [pool.submit(reads.get, "k", load) for _ in range(32)]
        until(lambda: reads.stats().coalesced >= 31, "readers wait")
        gate.set()
        assert {reader.result() for reader in readers} == {7}
    assert len(loads) == 1


def test_an_error_reaches_those_who_waited_and_nobody_else(reads: BlockingReads) -> None:
    gate = Event()

    def fail() -> int:
        gate.wait(PATIENCE_S)
        raise ValueError("no")

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(reads.get, "k", fail) for _ in range(4)]
        until(lambda: reads.stats().coalesced >= 3, "readers wait")
        gate.set()
        assert {str(reader.exception()) for reader in readers} == {"no"}
    assert reads.get("k", lambda: 1) == 1


def test_a_thread_that_is_interrupted_tells_the_others_to_retry(reads: BlockingReads) -> None:
    gate = Event()

    def interrupted() -> int:
        gate.wait(PATIENCE_S)
        raise SystemExit

    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(reads.get, "k", interrupted)
        until(lambda: reads.stats().loads, "loads")
        follower = pool.submit(reads.get, "k", lambda: 1)
        until(lambda: reads.stats().coalesced, "coalesced")
        gate.set()
        assert isinstance(follower.exception(), Unavailable)
        assert isinstance(leader.exception(), SystemExit)
    assert reads.get("k", lambda: 1) == 1


def test_nobody_waits_for_ever() -> None:
    reads, gate = BlockingReads(ReadSettings(patience_s=0.05)), Event()

    def hang() -> int:
        gate.wait(PATIENCE_S)
        return 1

    leader = Thread(target=lambda: reads.get("k", hang))
    leader.start()
    until(lambda: reads.stats().loads, "loads")
    with pytest.raises(Unavailable, match=r"0\.05 s"):
        reads.get("k", lambda: 2)
    gate.set()
    leader.join()


async def test_stale_values_are_served_while_one_reader_loads_anew(clock: ManualClock) -> None:
    reads = BlockingReads(ReadSettings(jitter=0.0), clock=clock, rng=Random(1))
    times: dict[str, Any] = {"fresh_for": 1.0, "stale_for": 5.0}
    assert reads.get("k", lambda: 1, **times) == 1
    await clock.advance(2.0)
    seen = []

    def load() -> int:
        seen.append(reads.get("k", lambda: 99, **times))
        return 2

    assert reads.get("k", load, **times) == 2
    assert seen == [1]
    await clock.advance(2.0)

    def fail() -> int:
        raise ValueError

    assert reads.get("k", fail, **times) == 2, "a refresh that fails leaves the stale value"
    assert reads.get("k", lambda: 9, **times) == 2, "and the source in peace for a moment"
    await clock.advance(6.0)
    with pytest.raises(ValueError):
        reads.get("k", fail, errors_for=1.0, **times)
    with pytest.raises(ValueError):
        reads.get("k", lambda: 3, errors_for=1.0, **times)


def test_after_forget_nobody_gets_what_was_loaded_before(reads: BlockingReads) -> None:
    gate = Event()

    def old() -> str:
        gate.wait(PATIENCE_S)
        return "old"

    with ThreadPoolExecutor(1) as pool:
        before = pool.submit(reads.get, "k", old)
        until(lambda: reads.stats().loads, "loads")
        reads.forget("k")
        assert reads.get("k", lambda: "new") == "new"
        gate.set()
        assert before.result() == "old"
    assert reads.get("k", lambda: "none") == "new"


@pytest.mark.usefixtures("hasty_threads")
def test_readers_never_see_what_their_own_writes_replaced(reads: BlockingReads) -> None:
    versions, start = dict.fromkeys(range(4), 0), Barrier(8)
    wrong: list[Any] = []

    def write(number: int) -> None:
        start.wait()
        for version in range(1, 200):
            versions[number] = version
            reads.forget(f"k{number}")
            got = reads.get(f"k{number}", lambda: versions[number], fresh_for=9, stale_for=9)
            if got < version:
                wrong.append((version, got))

    def read(number: int) -> None:
        start.wait()
        for _ in range(400):
            got = reads.get(f"k{number}", lambda: versions[number], fresh_for=9, stale_for=9)
            if not isinstance(got, int):
                wrong.append(got)

    threads = [Thread(target=act, args=(n,)) for n in range(4) for act in (write, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_weigh_that_reads_locks_nobody_out() -> None:
    def weigh(value: int) -> int:
        return value and cache.get("one", lambda: 0)

    cache = BlockingReads(ReadSettings(weigh=weigh))
    assert cache.get("k", lambda: 2) == 2


def test_the_decorator(reads: BlockingReads) -> None:
    calls = []

    @reads.cached(key="product:{id}")
    def product(id: int) -> str:
        calls.append(id)
        return f"product {id}"

    assert [product(1), product(id=1), product(2)] == ["product 1", "product 1", "product 2"]
    assert calls == [1, 2]
    reads.forget(product.key(1))
    assert product(1) == "product 1"
    assert calls == [1, 2, 1]
    with pytest.raises(InvalidSetting, match="stale_for"):
        reads.cached(key="{id}", fresh_for=9, stale_for=1)
    with pytest.raises(InvalidSetting, match="fresh_for must be a number"):
        reads.get(product.key(1), lambda: "", fresh_for=None)  # type: ignore[arg-type]


def test_a_load_that_reads_its_own_key_fails_at_once(reads: BlockingReads) -> None:
    def load() -> int:
        return reads.get("k", load)

    with pytest.raises(InvalidSetting, match="the load of 'k' reads 'k' itself"):
        reads.get("k", load)


def test_two_loads_that_read_each_others_keys_fail_at_once(reads: BlockingReads) -> None:
    both_load = Barrier(2)

    def load(other: str) -> int:
        both_load.wait(PATIENCE_S)
        return reads.get(other, lambda: load(other))

    with ThreadPoolExecutor(2) as pool:
        readers = [
            pool.submit(reads.get, key, lambda other=other: load(other))
            for key, other in ("ab", "ba")
        ]
        errors = {type(reader.exception(PATIENCE_S)) for reader in readers}
    assert errors == {InvalidSetting}
