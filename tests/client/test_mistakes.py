"""The mistakes of a first hour in Python: one line answers each, with the field and the cure."""

from __future__ import annotations

import asyncio
import datetime
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from heatsink import BucketRules, Heatsink, Snowflake, Uuid7, connect, connect_sync
from heatsink.bulk import Actions
from heatsink.client.blocking import BlockingHeatsink
from heatsink.errors import Closed, HeatsinkError, InvalidInput, InvalidSetting, Unavailable


async def load_one(_id: int) -> int:
    return 1


async def load() -> int:
    return 1


async def waits_for_a_batch(hs: Heatsink) -> None:
    batch: Any = await hs.bulk.submit("tag", [1])
    await hs.bulk.wait(batch)


async def awaits(thing: Any) -> None:
    await thing


UNTYPED: Any = load
CALLS: dict[str, tuple[Callable[[Heatsink], Any], str]] = {
    "a time to live without its unit": (
        lambda hs: hs.log.append("k", b"x", ttl=0),
        "ttl must be a number of seconds from 0.001 to 3,153,600,000, not 0",
    ),
    "an id of another version": (
        lambda hs: hs.log.get("k", UUID("00000000-0000-4000-8000-000000000000")),
        r"id .* of version 4; expected version 7, as in a receipt\. `append` without id",
    ),
    "a date as a bound": (
        lambda hs: hs.log.page("k", before=datetime.date(2026, 11, 15)),
        r"before must be .*, not datetime.date\(2026, 11, 15\); before is the id of an entry, or",
    ),
    "a time without a zone": (
        lambda hs: hs.log.page("k", before=datetime.datetime(2026, 11, 15)),  # noqa: DTZ001
        r"before must have a time zone: use datetime\(2026, 11, 15, tzinfo=UTC\), or an id",
    ),
    "text as a bound": (
        lambda hs: hs.log.page("k", after="yesterday"),
        "after must be a uuid.UUID .version 7., not 'yesterday'.*after is the id of an entry, or",
    ),
    "text as an id": (
        lambda hs: hs.log.get("k", "abc"),
        r"id must be a uuid.UUID .version 7., not 'abc': this is not the text of a UUID",
    ),
    "a load that is no function": (
        lambda hs: hs.reads.get("k", 5),  # type: ignore[arg-type]
        "load must be an async function without parameters, not 5: pass the function itself",
    ),
    "a load that was called": (
        lambda hs: hs.reads.get("k", "its result"),  # type: ignore[arg-type]
        "load must be an async function without parameters, not 'its result': pass the function",
    ),
    "a load with a parameter": (
        lambda hs: hs.reads.get("k", load_one),  # type: ignore[arg-type]
        "load must be an async function without parameters.*: bind its arguments with functools",
    ),
    "a load that is not async": (
        lambda hs: hs.reads.get("k", lambda: 5),  # type: ignore[arg-type, return-value]
        "load must be an async function, not .* returned 5: define it with `async def`",
    ),
    "handlers instead of actions": (
        lambda hs: hs.worker([load]),  # type: ignore[arg-type]
        "actions must be an Actions, not ",
    ),
    "a setting of a worker": (
        lambda hs: hs.worker(Actions(), worker=5),  # type: ignore[call-arg]
        r"worker\(\) has no setting 'worker': did you mean 'workers'\?",
    ),
    "a number as a batch": (
        lambda hs: hs.bulk.wait(5),  # type: ignore[arg-type]
        "id must be text of 1 to 256 characters, not 5",
    ),
    "a batch for its id": (
        lambda hs: waits_for_a_batch(hs),
        r"id must be text of 1 to 256 characters, not Batch\(.*: pass its .id",
    ),
    "a worker that is awaited": (
        lambda hs: awaits(hs.worker(Actions())),
        "a worker cannot be awaited: write `await worker.run\\(\\)`",
    ),
    "a decorator without a key": (
        lambda hs: hs.reads.cached(load),  # type: ignore[arg-type]
        r"cached\(\) needs a key before the function: write @hs.reads.cached",
    ),
    "a pin without a reason": (
        lambda hs: hs.pin("k", buckets=4, reason=""),
        "reason must be text of 1 to 500 characters, not ''",
    ),
}


@pytest.mark.parametrize(("call", "answer"), CALLS.values(), ids=CALLS)
async def test_a_mistake_is_answered_in_one_line(
    call: Callable[[Heatsink], Any], answer: str
) -> None:
    async with connect("memory://") as hs:
        with pytest.raises(HeatsinkError) as caught:
            await call(hs)
    said = str(caught.value)
    assert re.match(answer, said), said
    assert "\n" not in said
    assert caught.value.field is None or caught.value.field in said


MADE: dict[str, tuple[Callable[[], Any], str]] = {
    "a setting of connect": (
        lambda: connect("memory://", retry=5),  # type: ignore[call-arg]
        r"connect\(\) has no setting 'retry': did you mean 'retries'\?",
    ),
    "an argument of connect": (
        lambda: connect("memory://", new="redis://x"),  # type: ignore[call-arg]
        r"connect\(\) has no setting 'new': did you mean 'news'\?",
    ),
    "a field of a struct of settings": (
        lambda: BucketRules(bucket_max=4),  # type: ignore[call-arg]
        r"BucketRules has no setting 'bucket_max': did you mean 'buckets_max'\?",
    ),
    "ids by name": (
        lambda: connect("memory://", ids="uuid"),  # type: ignore[arg-type]
        r"ids must be Uuid7\(\), Ulid\(\) or Snowflake\(epoch_ms=…\), not 'uuid'",
    ),
    "a class of ids": (
        lambda: connect("memory://", ids=Uuid7),  # type: ignore[arg-type]
        r"ids must be Uuid7\(\), .* not <class",
    ),
    "a number as a queue": (
        lambda: connect("memory://", queue=5),  # type: ignore[arg-type]
        "queue must be a str, not 5",
    ),
    "a handler with one parameter": (
        lambda: Actions().action("tag")(load_one),
        r"the handler of 'tag' must take an item and a context: write `async def load_one\(item, c",
    ),
    "an action without a name": (
        lambda: Actions().action(load),  # type: ignore[arg-type]
        r"action\(\) needs a name before the handler: write @actions.action\(\"tag\"\)",
    ),
    "an option of an action": (
        lambda: Actions().action("tag", attempts=5),
        r"action\(\) has no setting 'attempts': did you mean 'max_attempts'\?",
    ),
}


@pytest.mark.parametrize(("make", "answer"), MADE.values(), ids=MADE)
def test_a_wrong_setting_is_answered_in_one_line(make: Callable[[], Any], answer: str) -> None:
    with pytest.raises(InvalidSetting, match=answer) as caught:
        make()
    assert caught.value.field


async def test_with_and_async_with_name_each_other() -> None:
    client: Any = connect("memory://")
    with pytest.raises(InvalidInput, match=r"`async with`.*`with heatsink.connect_sync"), client:
        pass
    with pytest.raises(InvalidInput, match=r"needs `with`.*`async with heatsink.connect"):
        async with connect_sync("memory://"):  # type: ignore[attr-defined]
            pass


@pytest.fixture
def blocking() -> Iterator[BlockingHeatsink]:
    with connect_sync("memory://") as hs:
        yield hs


def test_a_blocking_load_must_be_a_plain_function(blocking: BlockingHeatsink) -> None:
    """Before, the coroutine of an `async def` was cached as the value."""
    with pytest.raises(InvalidSetting, match=r"load must be a plain function, .*`async def`"):
        blocking.reads.get("k", UNTYPED)
    with pytest.raises(InvalidSetting, match="load must be a function without parameters, not 5"):
        blocking.reads.get("k", 5)  # type: ignore[arg-type]
    assert blocking.reads.get("k", lambda: 7) == 7


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"settings": ["rules.shrink"]}, "settings must be a Mapping, not .'rules.shrink'."),
        ({"clock": datetime}, r"clock must be like SystemClock\(\), not <module"),
    ],
)
def test_a_wrong_option_is_named(options: Any, complaint: str) -> None:
    with pytest.raises(InvalidSetting, match=complaint):
        connect("memory://", **options)


async def test_a_client_is_not_awaited() -> None:
    with pytest.raises(InvalidInput, match=r"is not awaited: write `async with heatsink\.connect"):
        await connect("memory://")  # type: ignore[misc]


def test_the_blocking_client_names_its_own_cure() -> None:
    client = connect_sync("memory://")
    with client as hs:
        log, reads = hs.log, hs.reads
        assert reads.get("k", lambda: 7) == 7
    for call in (lambda: client.log, lambda: log.page("k"), lambda: client.explain("k")):
        with pytest.raises(Closed, match=r"not open: use it inside `with heatsink.connect_sync"):
            call()
    with pytest.raises(Closed, match="not open: use it inside"):
        reads.get("k", lambda: 8)


def test_a_type_error_of_the_load_itself_is_not_hidden(blocking: BlockingHeatsink) -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        blocking.reads.get("k", lambda: 1 + "one")  # type: ignore[operator]


async def test_a_page_is_gone_through_entry_by_entry() -> None:
    async with connect("memory://") as hs:
        for body in (b"a", b"b"):
            await hs.log.append("k", body)
        assert [entry.body for entry in await hs.log.page("k")] == [b"b", b"a"]


def test_a_file_that_is_no_database_names_the_cure(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database " * 100)
    client = connect_sync(f"sqlite:///{tmp_path}/notes.txt")
    with (
        pytest.raises(Unavailable, match="not a database: check the path, or name"),
        client,
    ):
        pass


def test_a_program_without_logging_sees_warnings_on_stderr() -> None:
    """Python prints warnings of loggers without a handler, so this library must have none."""
    assert not logging.getLogger("heatsink").handlers


def test_an_epoch_that_is_no_number_is_one_line() -> None:
    with pytest.raises(InvalidSetting, match=r"epoch_ms must be an int, milliseconds.*, not 'x'"):
        Snowflake(epoch_ms="x")  # type: ignore[arg-type]


def test_a_url_without_a_file_is_answered_with_one_that_has_one() -> None:
    with pytest.raises(InvalidSetting, match=r"url must name a file, as in sqlite:///chat\.db"):
        connect("sqlite:///")


async def test_the_blocking_client_warns_inside_an_event_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    connect_sync("memory://")
    assert "connect_sync was called inside an event loop" in caplog.text
    caplog.clear()
    await asyncio.to_thread(connect_sync, "memory://")
    assert caplog.text == ""
