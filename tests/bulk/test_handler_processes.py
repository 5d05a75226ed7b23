"""Handlers with `process=True` run in processes of a pool."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from heatsink import Heatsink, connect
from heatsink.bulk import Actions, BulkSettings, Context
from heatsink.bulk.batch import Progress
from heatsink.client.queue import connect_queue
from heatsink.errors import InvalidSetting, Unavailable
from heatsink.primitives.hooks import Event, Hook
from heatsink.testing.redis import RedisServer
from tests.bulk import computing
from tests.processes import Served, serving
from tests.servers import real
from tests.waiting import soon

pytestmark = pytest.mark.server("it starts processes")


class Told(Hook):
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


@asynccontextmanager
async def working(
    *hooks: Hook, actions: Actions = computing.actions, **settings: Any
) -> AsyncIterator[Heatsink]:
    async with connect("memory://", hooks=hooks) as hs:
        worker = hs.worker(actions, **{"handler_processes": 2, **settings})
        running = asyncio.create_task(worker.run())
        try:
            yield hs
        finally:
            worker.stop()
            await running


async def ended(hs: Heatsink, action: str, items: list[Any], **order: Any) -> Progress:
    batch = await hs.bulk.submit(action, items, **order)
    return await hs.bulk.wait(batch.id)


async def reasons(hs: Heatsink, progress: Progress) -> list[str]:
    return [failure.reason async for failure in hs.bulk.failures(progress.id)]


def is_gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def written(file: Path) -> int:
    return int(file.read_text()) if file.exists() and file.read_text() else 0


async def test_handlers_run_in_processes_that_end_with_the_worker() -> None:
    async with working() as hs:
        items = [{"n": n} for n in range(20)]
        progress = await ended(hs, "square", items, results="keep")
        assert (progress.done, progress.failed) == (20, 0)
        results: list[Any] = [each.value async for each in hs.bulk.results(progress.id)]
        assert [each["of"] for each in results] == [n**2 for n in range(20)]
        assert all(each["noted"] for each in results)  # a middleware, where the handler runs
        processes = {each["pid"] for each in results}
        assert 1 <= len(processes) <= 2
        assert os.getpid() not in processes
    assert all(map(is_gone, processes))


async def test_an_item_that_does_not_fit_its_type_fails() -> None:
    async with working() as hs:
        progress = await ended(hs, "square", [{"n": "one"}])
        assert "not a valid Square" in (await reasons(hs, progress))[0]


async def test_a_process_that_dies_costs_its_own_item_an_attempt_and_no_other() -> None:
    told = Told()
    async with working(told) as hs:
        items = [{"dies": n % 4 == 0, "times": 1 + n % 8} for n in range(16)]
        progress = await ended(hs, "dies", items)
        assert (progress.done, progress.failed) == (14, 2)
        died = "ProcessDied: the process of the handler was killed by SIGKILL"
        assert await reasons(hs, progress) == [died] * 2
        assert any("ProcessDied" in event.message for event in told.events)


async def test_a_handler_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    async with working() as hs:
        progress = await ended(hs, "hangs", [str(tmp_path / "pid")])
        late = "the handler took longer than timeout_s=0.3: its process was killed"
        assert await reasons(hs, progress) == [late]
        await soon(lambda: is_gone(written(tmp_path / "pid")))


async def test_waiting_for_a_process_is_not_counted_as_time_of_the_handler(tmp_path: Path) -> None:
    async with working(handler_processes=1, workers=8) as hs:
        items = [str(tmp_path / str(n)) for n in range(4)]
        progress = await ended(hs, "hangs", items)
        assert progress.failed == 4
        assert all(written(Path(item)) for item in items)  # each has run


async def test_exceptions_arrive_with_their_meaning_and_traceback() -> None:
    told = Told()
    async with working(told) as hs:
        items = ["fail", "retry", "limited", "odd", "value", "result", "fine"]
        kept = await ended(hs, "raises", items, results="keep")
        assert (kept.done, kept.failed) == (3, 4)
        assert sorted(await reasons(hs, kept)) == [
            "RaisedInProcess: Odd: 1 and 2",
            "ValueError: a wrong number",
            "it can never work",
            *[each for each in await reasons(hs, kept) if each.startswith("the result cannot")],
        ]
        (error,) = (e.error for e in told.events if isinstance(e.error, ValueError))
        assert 'raise ValueError("a wrong number")' in error.__notes__[0]


async def test_a_handler_of_lists_gets_lists() -> None:
    async with working() as hs:
        progress = await ended(hs, "many", list(range(9)))
        assert (progress.done, progress.failed) == (5, 4)


async def test_a_process_is_killed_before_the_lease_of_its_item_ends(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    async with working(lease_s=2.0, member_s=2.0) as hs:
        batch = await hs.bulk.submit("stays", [str(file)])
        await soon(lambda: bool(written(file)))
        first, store = written(file), hs.parts.queue.queue.stores.queue

        async def refuse(*_: object) -> Any:
            raise Unavailable("cut off")

        calls = {name: getattr(store, name) for name in ("settle", "claim")}
        for name in calls:
            setattr(store, name, refuse)
        await soon(lambda: is_gone(first))
        file.with_suffix(".go").touch()
        for name, call in calls.items():
            setattr(store, name, call)
        assert (await hs.bulk.wait(batch.id)).done == 1
        assert written(file) != first


def nested() -> Callable[..., None]:
    def handler(item: Any, context: Context) -> None: ...

    return handler


def of_the_program(item: Any, context: Context) -> None: ...


of_the_program.__module__ = "__main__"


async def on_the_loop(item: Any, context: Context) -> None: ...


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (lambda item, context: None, "not .*<lambda>: a lambda or a nested function"),  # noqa: ARG005
        (nested(), "not nested.<locals>.handler: a lambda or a nested function"),
        (partial(computing.square), "must be a function at the top level of a module"),
        (of_the_program, "move of_the_program from the program that is run to a module"),
        (on_the_loop, "it must be a plain `def`"),
    ],
)
def test_a_handler_that_a_process_cannot_import_is_refused(handler: Any, says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        Actions().action("act", process=True)(handler)


def pretender(item: Any, context: Context) -> None: ...


pretender.__qualname__, pretender.__module__ = "square", computing.__name__


async def test_what_a_process_cannot_find_is_refused_when_the_worker_is_made() -> None:
    @contextmanager
    def around(_: Any) -> Any:
        yield

    async with connect("memory://") as hs:
        actions = Actions(middleware=[around])
        actions.action("act", process=True)(computing.square)
        with pytest.raises(InvalidSetting, match="a middleware of 'act', which has process=True"):
            hs.worker(actions)
        other = Actions()
        other.action("act", process=True)(pretender)
        with pytest.raises(InvalidSetting, match=r"put @actions\.action above all other"):
            hs.worker(other)


# -- with a worker's process -------------------------------------------------------------------


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with real(RedisServer) as server:
        yield server


def a_worker(folder: Path, redis: RedisServer, stage: str) -> AbstractContextManager[Served]:
    queue = ("--queue", redis.url, "--relaxed", "--partitions", "4", "--stage", stage)
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    flags = ("tests.bulk.computing:actions", *queue, "--handler-processes", "1")
    return serving(folder, *flags, command="worker", variables=here)


INTERRUPT = pytest.param(signal.SIGINT, marks=pytest.mark.full("SIGTERM ends it in the same way"))


@pytest.mark.parametrize("ending", [INTERRUPT, signal.SIGTERM, signal.SIGKILL])
async def test_no_process_outlives_the_worker(
    tmp_path: Path, redis: RedisServer, ending: signal.Signals
) -> None:
    file = tmp_path / "pid"
    settings = BulkSettings(partitions=4, durability="relaxed", stage=ending.name.lower())
    with a_worker(tmp_path, redis, settings.stage) as worker:
        async with connect_queue(redis.url, settings) as queue:
            await queue.bulk.submit("stays", [str(file)])
            await soon(lambda: bool(written(file)))
        worker.process.send_signal(ending)
        await soon(lambda: is_gone(written(file)))
