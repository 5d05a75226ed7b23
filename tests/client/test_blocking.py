from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from tools import blocking_client

import heatsink
from heatsink import Heatsink
from heatsink.bulk.bulk import Bulk
from heatsink.bulk.schedules import Schedules
from heatsink.bulk.work.consumer import Consumer
from heatsink.client.blocking import BlockingConsumer, BlockingHeatsink
from heatsink.client.blocking_calls import (
    BlockingBufferedCounters,
    BlockingBulk,
    BlockingCounters,
    BlockingDeploymentSettings,
    BlockingLog,
    BlockingSchedules,
    BlockingTimelines,
)
from heatsink.client.deployment import DeploymentSettings
from heatsink.errors import Closed, InvalidKey
from heatsink.reads.blocking import BlockingReads
from heatsink.reads.reads import Reads
from heatsink.spread.counters import BufferedCounters, Counters
from heatsink.spread.log import Log
from heatsink.timelines.timelines import Timelines
from tests.spread.test_log import losing_the_first_answer
from tests.waiting import PATIENCE_S


def test_the_whole_surface_without_asyncio(url: str) -> None:
    with heatsink.connect_sync(url) as hs:
        receipt = hs.log.append("conv", b"hey")
        hs.log.append("conv", b"hey", id=receipt.id)
        page = hs.log.page("conv", limit=50)
        assert [entry.body for entry in page.entries] == [b"hey"]
        entry = hs.log.get("conv", receipt.id)
        assert entry is not None
        assert entry.body == b"hey"
        hs.counters.add("views", 3)
        assert hs.counters.value("views") == 3
        hs.pin("conv", buckets=4, reason="launch")
        assert "conv" in str(hs.explain("conv"))
        assert (hs.unpin("conv"), hs.unpin("conv")) == (True, False)
        assert hs.log.delete("conv", receipt.id) is True
        assert hs.log.erase("conv") == 1
        with pytest.raises(InvalidKey):
            hs.log.append("", b"")


def test_an_append_without_an_id_is_new_also_after_a_lost_answer() -> None:
    with losing_the_first_answer(), heatsink.connect_sync("memory://") as hs:
        assert all(hs.log.append("conv", b"hey").is_new for _ in range(5))


def test_threads_may_share_it(tmp_path: Path) -> None:
    with heatsink.connect_sync(f"sqlite:///{tmp_path}/x.db") as hs, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: hs.log.append("conv", b"%d" % n), range(200)))
        assert len(hs.log.page("conv", limit=1_000).entries) == 200


def test_outside_its_block_it_is_closed(url: str) -> None:
    client = heatsink.connect_sync(url)
    with pytest.raises(Closed):
        client.log.append("k", b"")
    with client as hs:
        log = hs.log
        log.append("k", b"")
    with pytest.raises(Closed):
        client.log.append("k", b"")
    with pytest.raises(Closed):
        log.append("k", b"")
    client.close()


def test_a_closed_client_names_the_block_that_it_is_used_in(url: str) -> None:
    with heatsink.connect_sync(url) as hs:
        log = hs.log
    uses = (
        lambda: hs.log,
        lambda: hs.counters,
        lambda: hs.bulk,
        lambda: hs.reads,
        lambda: hs.explain("k"),
        lambda: log.append("k", b""),
    )
    for use in uses:
        with pytest.raises(Closed, match=r"inside `with heatsink\.connect_sync\(…\)`"):
            use()


def test_what_fails_to_open_leaves_nothing_running(tmp_path: Path) -> None:
    (tmp_path / "x.db").write_text("no database at all " * 200)
    with pytest.raises(heatsink.errors.Unavailable):
        heatsink.connect_sync(f"sqlite:///{tmp_path}/x.db").__enter__()


PAIRS = {
    Heatsink: BlockingHeatsink,
    Log: BlockingLog,
    Counters: BlockingCounters,
    BufferedCounters: BlockingBufferedCounters,
    Reads: BlockingReads,
    Timelines: BlockingTimelines,
    Bulk: BlockingBulk,
    Consumer: BlockingConsumer,
    Schedules: BlockingSchedules,
    DeploymentSettings: BlockingDeploymentSettings,
}
TWINS = "|".join(kind.__name__ for kind in PAIRS)
INTERNAL = {
    Heatsink: {"cluster_watch", "parts", "queue_watch"},
    Reads: {"close", "get_own"},
    Timelines: {"adopt"},
    Bulk: {"adopt", "close", "is_closed", "change", "tell_done", "trace_of", "next_action"},
    Consumer: {"cut_off"},
    DeploymentSettings: {"now", "controls", "checked", "found", "warn_of_differences"},
}


@pytest.mark.parametrize("asynchronous", PAIRS, ids=lambda kind: kind.__name__)
def test_both_clients_have_the_same_calls_with_the_same_arguments(asynchronous: type) -> None:
    blocking = PAIRS[asynchronous]
    for name in calls_of(asynchronous) - INTERNAL.get(asynchronous, set()):
        ours, theirs = getattr(blocking, name), getattr(asynchronous, name)
        assert isinstance(ours, property) == isinstance(theirs, property), name
        if isinstance(ours, property):
            ours, theirs = ours.fget, theirs.fget
        assert arguments_of(ours) == arguments_of(theirs), name
        assert types_of(ours) == {each: blocking_type(of) for each, of in types_of(theirs).items()}
        assert (ours.__doc__ is None) == (theirs.__doc__ is None), name
    assert calls_of(blocking) <= calls_of(asynchronous)


def calls_of(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def arguments_of(function: Any) -> dict[str, tuple[object, object]]:
    parameters = signature(function).parameters.values()
    return {each.name: (each.kind, each.default) for each in parameters}


def types_of(function: Any) -> dict[str, str]:
    """The annotations of a function as text, that of its result too."""
    return {name: str(of) for name, of in function.__annotations__.items()}


def blocking_type(annotation: str) -> str:
    """The type that a client without asyncio has in the place of this one."""
    text = annotation.replace("asyncio.Future", "Future")
    text = re.sub(r"(Iterable\[.*?\]) \| AsyncIterable\[\S+(?: \S+)?\]", r"\1", text)
    text = re.sub(r"Awaitable\[(\w+)\]", r"\1", text).replace("AsyncIterator[", "Iterator[")
    return re.sub(rf"^({TWINS})$|\bCached\b", r"Blocking\g<0>", text)


@pytest.mark.server("it runs ruff")
def test_the_generated_calls_are_up_to_date() -> None:
    assert blocking_client.TARGET.read_text() == blocking_client.source(), "run ./dev generate"


def test_threads_that_wait_when_another_closes_are_told() -> None:
    limit = heatsink.PartitionLimit(writes_s=1)
    client = heatsink.connect_sync("memory://", limit=limit, coordinate=False)
    client.__enter__()

    def append(n: int) -> str:
        try:
            client.log.append("k", b"%d" % n)
        except heatsink.errors.HeatsinkError as error:
            return str(error)
        return "appended"

    with ThreadPoolExecutor(6) as pool:
        waiting = [pool.submit(append, n) for n in range(6)]
        while not any(future.done() for future in waiting):
            pass
        client.close()
        outcomes = {future.result(timeout=PATIENCE_S) for future in waiting}
    told = {str(heatsink.errors.Closed.meanwhile("the client"))}
    late = {outcome for outcome in outcomes if "this client is not open" in outcome}
    assert outcomes <= {"appended", *told, *late}  # late: one that came only after the end
    assert len(outcomes) >= 2


def test_buffered_counters_without_asyncio() -> None:
    with heatsink.connect_sync("memory://") as hs:
        with hs.counters.buffered(flush_s=0.01) as counts:
            counts.add("views", 5)
            counts.add("views", 0)
        assert hs.counters.value("views") == 5


def test_it_is_opened_once() -> None:
    client = heatsink.connect_sync("memory://")
    with client, pytest.raises(Closed, match="once"):
        client.__enter__()
    with pytest.raises(Closed, match="once"):
        client.__enter__()
