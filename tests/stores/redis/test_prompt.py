"""The client that all calls to one server go through."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from enum import IntEnum

import pytest
from redis import exceptions

from heatsink.stores.redis.address import parse
from heatsink.stores.redis.connection import open_driver
from heatsink.stores.redis.prompt import PromptRedis
from heatsink.testing.redis import RedisServer
from tests.servers import patient_url, real


@pytest.fixture
async def client() -> AsyncIterator[PromptRedis]:
    with real(RedisServer) as server:
        driver = open_driver(parse(patient_url(server.url)))
        assert isinstance(driver, PromptRedis)
        yield driver
        await driver.aclose()


async def test_calls_at_the_same_time_get_their_own_replies(client: PromptRedis) -> None:
    words = [f"word {number}" for number in range(50)]
    replies = await asyncio.gather(*(client.execute_command("ECHO", word) for word in words))
    assert [reply.decode() for reply in replies] == words


async def test_a_reply_that_nobody_waits_for_goes_to_nobody_else(client: PromptRedis) -> None:
    call = asyncio.ensure_future(client.execute_command("BLPOP", "list", 0))
    await client.execute_command("PING")
    while not (await client.info("clients"))["blocked_clients"]:
        await asyncio.sleep(0.01)
    call.cancel()
    await client.execute_command("RPUSH", "list", "reply")
    for number in range(5):
        assert await client.execute_command("ECHO", number) == b"%d" % number


async def test_a_connection_that_the_server_has_closed_is_not_used(client: PromptRedis) -> None:
    await asyncio.gather(*(client.execute_command("PING") for _ in range(3)))
    for _ in range(3):
        await client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        assert await client.execute_command("ECHO", "here") == b"here"


async def test_an_error_is_the_reply_of_its_own_command(client: PromptRedis) -> None:
    pipeline = client.pipeline()
    for words in (("SET", "key", 1), ("LPOP", "key"), ("GET", "key")):
        pipeline.execute_command(*words)
    first, error, last = await pipeline.execute(raise_on_error=False)
    assert (first, last) == (True, b"1")
    assert isinstance(error, exceptions.ResponseError)
    with pytest.raises(exceptions.ResponseError, match="WRONGTYPE"):
        await client.execute_command("LPOP", "key")


async def test_a_server_that_stands_still_is_given_up(client: PromptRedis) -> None:
    impatient = open_driver(parse(f"redis://{client._host}:{client._port}?timeout_s=1"))
    await impatient.execute_command("PING")
    await client.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
    with pytest.raises(exceptions.TimeoutError, match="Timeout reading"):
        await impatient.execute_command("SET", "key", 1)
    await client.execute_command("CLIENT", "UNPAUSE")
    assert await impatient.execute_command("ECHO", "here") == b"here"
    await impatient.aclose()


async def test_what_is_no_redis_is_named() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        driver = open_driver(parse(f"redis://127.0.0.1:{port}"))
        with pytest.raises(exceptions.ConnectionError, match=f"127.0.0.1:{port} is no Redis"):
            await driver.execute_command("PING")
        await driver.aclose()


async def test_close_waits_for_calls_that_run(client: PromptRedis) -> None:
    call = asyncio.ensure_future(client.execute_command("BLPOP", "list", 0.2))
    await client.execute_command("PING")
    await client.aclose()
    assert await call is None


class Number(IntEnum):
    ONE = 1


async def test_types_derived_from_plain_ones_are_sent_as_those(client: PromptRedis) -> None:
    assert await client.execute_command("ECHO", Number.ONE) == b"1"
    assert await client.execute_command("ECHO", bytearray(b"bytes")) == b"bytes"
