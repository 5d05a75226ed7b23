from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import pytest
from redis.exceptions import NoScriptError

import heatsink
from heatsink.errors import Closed, InvalidSetting, NoAccess, Unavailable
from heatsink.primitives.clock import SystemClock
from heatsink.stores.redis import connection as module
from heatsink.stores.redis.address import parse
from heatsink.stores.redis.connection import Connection, RedisRefused
from heatsink.testing import ManualClock
from heatsink.testing.redis import RedisCluster, RedisSentinel, RedisServer
from tests.servers import patient, patient_url, real
from tests.waiting import soon

AWKWARD = "p@ss/wörd%"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def a_moment() -> Awaitable[None]:
    return asyncio.sleep(0.05)


async def until_answered(
    connection: Connection, *words: str, wait: Callable[[], Awaitable[None]] = a_moment
) -> object:
    while True:
        try:
            return await connection.run(*words)
        except Unavailable:
            await wait()


async def test_a_password_from_the_url_opens_the_door(clock: ManualClock) -> None:
    with real(lambda: RedisServer(password=AWKWARD)) as server:
        connection = Connection(patient(server.url), clock, Random(1))
        assert await connection.run("PING") in (True, b"PONG")
        await connection.close()


async def test_a_call_that_finds_it_closed_is_told_what_to_do(clock: ManualClock) -> None:
    connection = Connection(parse("redis://127.0.0.1:1"), clock, Random(1))
    await connection.close()
    with pytest.raises(Closed, match=r"127\.0\.0\.1:1 was closed during the call\. A write may"):
        await connection.run("PING")


@pytest.mark.parametrize("login", ["", ":wrong@", "ada:wrong@"])
async def test_a_wrong_password_is_one_clear_line(login: str) -> None:
    with real(lambda: RedisServer(password=AWKWARD)) as server:
        url = patient_url(f"redis://{login}{server.address}")
        with pytest.raises(NoAccess) as caught:
            async with heatsink.connect("memory://", news=url):
                pass
    said = str(caught.value)
    assert said == (
        f"Redis at {server.address} refuses the user or the password: check the Redis URL"
    )


async def test_a_redis_that_is_gone_is_left_alone_for_a_moment(clock: ManualClock) -> None:
    with real(RedisServer) as server:
        connection = Connection(patient(server.url), clock, Random(1))
        await connection.run("PING")
        server.kill()
        with pytest.raises(Unavailable, match="did not answer PING"):
            await connection.run("PING")
        server.start()
        with pytest.raises(Unavailable, match="a moment ago"):
            await connection.run("PING")
        await clock.advance(0.1)
        assert await connection.run("PING") in (True, b"PONG")
        await connection.close()


async def test_a_host_that_has_no_address_is_named_as_such() -> None:
    connection = Connection(parse("redis://nowhere.invalid"), SystemClock(), Random(1))
    with pytest.raises(Unavailable, match=r"\(.*[Nn]ame.*\)"):
        await connection.run("PING")
    await connection.close()


async def test_a_master_without_keys_of_ours_may_be_down() -> None:
    """Also the first, and for a process that starts meanwhile."""
    stream = "{heatsink}:stream"  # of the last master
    with real(RedisCluster) as cluster:
        early, late = (Connection(parse(cluster.url), SystemClock(), Random(1)) for _ in "ab")
        await early.run("XADD", stream, "*", "name", "value")
        cluster.masters[0].kill()
        for connection in (early, late):
            [node] = await connection.nodes(stream)
            assert str(node) == cluster.masters[2].address
            await connection.run("XADD", stream, "*", "name", "value")
            assert await connection.run("XRANGE", stream, "-", "+", "COUNT", 1)
            await connection.run("PUBLISH", "{heatsink}:channel", "word")
            await connection.close()


async def test_what_it_refuses_for_good_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """An app server goes on without it: nobody else would say that its heat is not heard."""
    with real(RedisCluster) as cluster:
        connection = Connection(
            parse(f"redis://{cluster.masters[0].address}"), SystemClock(), Random(1)
        )
        for _ in range(3):
            with pytest.raises(RedisRefused, match="refuses GET: it is a node of a cluster: use"):
                await connection.run("GET", "{heatsink}:of-another-master")
        await connection.close()
        assert [record.message.count("use redis+cluster://") for record in caplog.records] == [1]


async def test_a_cluster_in_trouble_is_left_without_open_connections() -> None:
    with real(RedisCluster) as cluster:
        connection = Connection(patient(cluster.url), SystemClock(), Random(1))
        keys = [f"key-{number}" for number in range(30)]  # of every master
        await run_all(connection, "INCR", keys)
        cluster.masters[2].kill()
        with pytest.raises(Unavailable, match=r"did not answer GET \(ConnectionError: .+\)"):
            await run_all(connection, "GET", keys)
        await connection.close()
        for master in cluster.masters[:2]:
            await until_alone(master)


async def run_all(connection: Connection, command: str, keys: list[str]) -> None:
    for key in keys:
        await connection.run(command, key)


async def until_alone(server: RedisServer) -> None:
    await soon(lambda: "connected_clients:1\r" in server.command("INFO", "clients"), "left alone")


async def test_a_redis_that_answers_nothing_is_given_up_on(clock: ManualClock) -> None:
    with real(RedisServer) as server:
        connection = Connection(parse(f"{server.url}?timeout_s=0.05"), clock, Random(1))
        await until_answered(connection, "PING", wait=lambda: clock.advance(2.0))
        with server.stopped(), pytest.raises(Unavailable, match="TimeoutError"):
            await connection.run("PING")
        await connection.close()


class Stubborn:
    """A driver that takes a cancellation for a timeout and tries again, as drivers have done."""

    async def initialize(self) -> None:
        pass

    async def execute_command(self, *_words: object) -> None:
        for _ in range(3):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.2)

    async def aclose(self) -> None:
        pass


async def test_a_driver_cannot_swallow_a_cancellation(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "open_driver", lambda _: Stubborn())
    connection = Connection(parse("redis://nowhere"), clock, Random(1))
    call = asyncio.ensure_future(connection.run("PING"))
    await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await connection.close()


class Failing:
    """A driver that has read an error when it is cancelled, and raises that."""

    async def initialize(self) -> None:
        pass

    async def execute_command(self, *_words: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise NoScriptError from None

    async def aclose(self) -> None:
        pass


async def test_a_failure_that_nobody_waits_for_any_more_is_not_left_lying_about(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "open_driver", lambda _: Failing())
    connection = Connection(parse("redis://nowhere"), clock, Random(1))
    call = asyncio.ensure_future(connection.run("PING"))
    await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.wait({call})
    del call
    await asyncio.sleep(0.01)
    gc.collect()
    assert not caplog.records
    await connection.close()


class Counted:
    """A driver that counts how many of its kind are open."""

    def __init__(self, opened: set[Counted]) -> None:
        self._opened = opened

    def set_response_callback(self, command: str, callback: object) -> None:
        pass

    async def initialize(self) -> None:
        self._opened.add(self)
        await asyncio.sleep(0)

    async def execute_command(self, *_: object) -> bytes:
        await asyncio.sleep(0)
        return b"PONG"

    async def aclose(self) -> None:
        self._opened.discard(self)


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_close_during_a_call_leaves_no_connection_open(
    steps: int, is_first: bool, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = set[Counted]()
    monkeypatch.setattr(module, "open_driver", lambda _: Counted(opened))
    connection = Connection(parse("redis://nowhere"), clock, Random(1))
    if not is_first:
        await connection.run("PING")
    call = asyncio.ensure_future(connection.run("PING"))
    for _ in range(steps):  # of the event loop: the call is further on with each
        await asyncio.sleep(0)
    await connection.close()
    await asyncio.wait({call})
    assert opened == set()
    if steps:
        assert call.result() == b"PONG"
    else:
        assert isinstance(call.exception(), Closed)


async def test_a_refusal_has_a_code(connection: Connection) -> None:
    with pytest.raises(RedisRefused, match="refuses GET") as caught:
        await connection.run("GET")
    assert caught.value.code


async def test_commands_sent_together_are_answered_each_on_its_own(connection: Connection) -> None:
    await asyncio.gather(*(connection.run_together("SET", f"k{n}", n) for n in range(300)))
    calls = [connection.run_together("GET", f"k{n}") for n in range(300)]
    calls.insert(150, connection.run_together("HGET", "k1", "f"))
    answers = await asyncio.gather(*calls, return_exceptions=True)
    refused = answers.pop(150)
    assert isinstance(refused, RedisRefused)
    assert refused.code == "WRONGTYPE"
    assert answers == [b"%d" % n for n in range(300)]


async def test_a_caller_who_gives_up_leaves_the_others_their_answers(
    connection: Connection,
) -> None:
    first, second = (asyncio.ensure_future(connection.run_together("ECHO", w)) for w in "ab")
    await asyncio.sleep(0)
    first.cancel()
    assert await second == b"b"
    assert first.cancelled()


async def test_commands_sent_together_fail_together_if_redis_is_gone() -> None:
    with real(RedisServer) as server:
        connection = Connection(patient(server.url), SystemClock(), Random(1))
        await connection.run("PING")
        server.kill()
        calls = [connection.run_together("GET", f"k{n}") for n in range(5)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [Unavailable] * 5
        await connection.close()
        with pytest.raises(Closed):
            await connection.run_together("PING")


async def test_sentinel_leads_to_the_new_primary() -> None:
    with real(RedisSentinel) as group:
        connection = Connection(patient(group.url), SystemClock(), Random(1))
        await connection.run("SET", "who", "first")
        group.primary.kill()
        assert await until_answered(connection, "SET", "who", "second")
        assert group.replica.command("GET", "who").endswith("second")
        await connection.close()


@pytest.mark.parametrize(
    "url",
    ["redis://127.0.0.1:1", "redis+cluster://127.0.0.1:1", "redis+sentinel://127.0.0.1:1/news"],
)
async def test_a_redis_that_is_down_at_the_start_stops_nobody(url: str) -> None:
    async with heatsink.connect("memory://", news=url) as hs:
        assert await hs.log.append("k", b"hey")


async def test_redis_stays_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in [name for name in sys.modules if name.startswith("heatsink.stores.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(InvalidSetting, match=r"pip install '\.\[redis\]'"):
        heatsink.connect("memory://", news="redis://localhost")
