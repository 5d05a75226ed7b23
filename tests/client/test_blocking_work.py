"""Bulk actions without asyncio: the caller's thread draws the items, and a worker blocks."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from threading import Thread, get_ident
from typing import Any

import pytest

import heatsink
from heatsink.bulk import Actions, Fail
from heatsink.client.blocking import BlockingConsumer, BlockingHeatsink
from heatsink.errors import Closed, InvalidSetting, Misconfigured, NotFound
from tests.waiting import PATIENCE_S


@pytest.fixture
def hs() -> Iterator[BlockingHeatsink]:
    with heatsink.connect_sync("memory://") as client:
        yield client


class Working:
    """A worker that runs in a thread of its own."""

    def __init__(self, worker: BlockingConsumer) -> None:
        self._worker = worker
        self._thread = Thread(target=worker.run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._worker.stop()
        self._thread.join()


def test_a_worker_blocks_and_its_handlers_use_the_client(hs: BlockingHeatsink) -> None:
    actions = Actions()

    @actions.action("tag")
    def tag(item: int, _: Any) -> None:
        hs.log.append("tags", b"%d" % item)

    with Working(hs.worker(actions)):
        batch = hs.bulk.submit("tag", range(100))
        assert hs.bulk.wait(batch.id).done == 100
    assert len(hs.log.page("tags", limit=200).entries) == 100


def test_failures_are_an_iterator(hs: BlockingHeatsink) -> None:
    actions = Actions()

    @actions.action("tag", max_attempts=1)
    def tag(item: int, _: Any) -> None:
        raise Fail(f"never {item}")

    with Working(hs.worker(actions)):
        batch = hs.bulk.submit("tag", range(7))
        hs.bulk.wait(batch.id)
        assert sorted(failure.index for failure in hs.bulk.failures(batch.id)) == [*range(7)]
        first = next(hs.bulk.failures(batch.id))
        assert first.reason.startswith("never")
    with pytest.raises(NotFound):
        next(hs.bulk.failures("nothing"))


def test_items_are_drawn_in_the_callers_thread(hs: BlockingHeatsink) -> None:
    """As a Django queryset must be, which refuses every thread with an event loop."""
    threads = set()

    def items() -> Iterator[int]:
        for number in range(1_700):
            threads.add(get_ident())
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            yield number

    assert hs.bulk.submit("tag", items()).items == 1_700
    assert threads == {get_ident()}


def test_items_may_come_from_the_client_itself(hs: BlockingHeatsink) -> None:
    def items() -> Iterator[str]:
        for number in range(3):
            hs.log.append("seen", b"%d" % number)
            yield from (entry.body.decode() for entry in hs.log.page("seen").entries)

    assert hs.bulk.submit("tag", items()).items == 1 + 2 + 3
    assert hs.timelines.follow_many((f"fan-{n}", "ada") for n in range(3)) == 3


def test_an_error_of_the_items_reaches_the_caller_and_nothing_is_accepted(
    hs: BlockingHeatsink,
) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("row 2")

    with pytest.raises(KeyError, match="row 2"):
        hs.bulk.submit("tag", items(), id="half")
    assert (hs.bulk.status("half").state, hs.bulk.status("half").accepted) == ("aborted", 0)


def test_an_interrupt_while_items_are_drawn_ends_the_submission(hs: BlockingHeatsink) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hs.bulk.submit("tag", items())
    assert hs.log.append("conv", b"it still works").is_new


@pytest.mark.parametrize("items", ["text", {"a": 1}, 7])
def test_what_are_no_items_is_refused_by_name(hs: BlockingHeatsink, items: Any) -> None:
    with pytest.raises(InvalidSetting, match="items"):
        hs.bulk.submit("tag", items)


def test_closing_ends_a_worker_with_an_error() -> None:
    raised: list[BaseException] = []
    with heatsink.connect_sync("memory://") as hs:
        worker = hs.worker(Actions())

        def run() -> None:
            try:
                worker.run()
            except Closed as error:
                raised.append(error)

        thread = Thread(target=run)
        thread.start()
    thread.join(PATIENCE_S)
    assert len(raised) == 1


@pytest.mark.parametrize("heard_by", ["main thread", "another thread"])
def test_ctrl_c_gives_back_what_runs_before_it_is_raised(
    hs: BlockingHeatsink, heard_by: str
) -> None:
    """If another thread hears the signal, the wait of the main thread is not interrupted."""
    actions, began = Actions(), threading.Event()

    @actions.action("tag")
    def tag(*_: Any) -> None:
        began.set()

    def interrupt() -> None:
        began.wait(20)
        hearing = (
            threading.main_thread() if heard_by == "main thread" else threading.current_thread()
        )
        assert hearing.ident is not None
        signal.pthread_kill(hearing.ident, signal.SIGINT)

    hs.bulk.submit("tag", range(10))
    Thread(target=interrupt).start()
    worker = hs.worker(actions)
    with pytest.raises(KeyboardInterrupt):
        worker.run()
    assert worker.partitions == []


def test_a_call_from_the_clients_own_loop_is_refused_and_does_not_hang(
    hs: BlockingHeatsink,
) -> None:
    actions = Actions()

    @actions.action("tag", max_attempts=1)
    async def tag(item: int, _: Any) -> None:
        hs.log.append("tags", b"%d" % item)

    with Working(hs.worker(actions)):
        batch = hs.bulk.submit("tag", [1])
        assert hs.bulk.wait(batch.id).failed == 1
        (failure,) = hs.bulk.failures(batch.id)
    assert Misconfigured.__name__ in failure.reason
    assert "plain functions" in failure.reason


def mistakes_that_type_checkers_find(hs: BlockingHeatsink) -> None:
    """Never called: mypy fails if one of these lines is right."""
    hs.log.apend("conv", b"hey")  # type: ignore[attr-defined]
    hs.log.append("conv", "text")  # type: ignore[arg-type]
    hs.counters.add("likes", "many")  # type: ignore[arg-type]
    hs.bulk.submit("tag", [1], tenent="acme")  # type: ignore[call-arg]
    hs.worker(Actions(), threads=3)  # type: ignore[call-arg]
    hs.pin("conv", buckets=4)  # type: ignore[call-arg]
    hs.log.page("conv").entires  # type: ignore[attr-defined] # noqa: B018
    hs.timelines.home("zoe", limit="all")  # type: ignore[arg-type]
    heatsink.connect_sync("memory://", retry=3)  # type: ignore[call-arg]
    heatsink.connect("memory://", retry=3)  # type: ignore[call-arg]
    heatsink.connect("memory://", window_s="1")  # type: ignore[arg-type]
