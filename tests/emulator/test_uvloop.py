"""The engine and the client on uvloop, whose transports are not asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
import trustme
import uvloop

from heatsink import connect
from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.errors import NoAccess
from heatsink.primitives.clock import SystemClock
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse
from heatsink.stores.dynamodb.client import DynamoClient, FixedCredentials
from tests.tls import HOST, tls_before

ENGINE = EngineSettings(port=0)


def run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


def test_rows_are_written_and_read_on_uvloop() -> None:
    async def work() -> None:
        async with running_engine(ENGINE, SystemClock()) as endpoint:
            await make_table(parse("messages", {"endpoint": endpoint}), SystemClock())
            async with connect(f"dynamodb://messages?endpoint={endpoint}") as hs:
                await asyncio.gather(*(hs.log.append(f"room-{n}", b"hello") for n in range(50)))
                [entry] = (await hs.log.page("room-7")).entries
                assert entry.body == b"hello"

    run(work())


def test_a_certificate_is_checked_on_uvloop() -> None:
    async def work() -> None:
        async with tls_before(1, trustme.CA()) as port:
            url = f"https://{HOST}:{port}"
            client = DynamoClient(url, "local", FixedCredentials(), SystemClock())
            with pytest.raises(NoAccess, match="not trusted"):
                await client.call("ListTables", {})
            await client.close()

    run(work())
