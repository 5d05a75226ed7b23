"""TLS to Redis is run, not only parsed: a trusted server, and everything that is not one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from urllib.parse import quote

import pytest
import trustme

import heatsink
from heatsink.errors import InvalidSetting, NoAccess
from heatsink.primitives.clock import SystemClock
from heatsink.stores.embedded import free_port
from heatsink.stores.redis.address import parse
from heatsink.stores.redis.connection import Connection
from heatsink.testing.redis import RedisCluster, RedisSentinel, RedisServer
from tests.servers import real
from tests.tls import HOST, certificate_file, tls_before

from .test_connection import AWKWARD


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca(authority: trustme.CA, tmp_path: Path) -> Path:
    return certificate_file(authority, tmp_path)


@pytest.fixture
def another_ca(tmp_path: Path) -> Path:
    return certificate_file(trustme.CA(), tmp_path)


@asynccontextmanager
async def a_connection(url: str) -> AsyncIterator[Connection]:
    connection = Connection(parse(url), SystemClock(), Random(1))
    try:
        yield connection
    finally:
        await connection.close()


async def refusal(news: str) -> str:
    """The one line that an application gets when it connects."""
    with pytest.raises(NoAccess) as caught:
        async with heatsink.connect("memory://", news=news):
            pytest.fail("it connected")
    assert "\n" not in str(caught.value)
    return str(caught.value)


async def test_news_goes_over_tls(
    server: RedisServer, authority: trustme.CA, ca: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "heatsink")
    async with tls_before(server.port, authority) as port:
        news = f"rediss://{HOST}:{port}?ca={ca}&timeout_s=5&prefix=tls"
        async with heatsink.connect("memory://", news=news) as hs:
            await hs.pin("k", buckets=4, reason="launch")
            while (await hs.explain("k")).buckets != 4:  # decided only where reports arrive
                await asyncio.sleep(0.02)
        async with a_connection(news) as connection:
            assert await connection.run("GET", "{tls}:registry:pair")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_login_goes_over_tls(authority: trustme.CA, ca: Path) -> None:
    with real(lambda: RedisServer(password=AWKWARD)) as server:
        async with tls_before(server.port, authority) as port:
            where = f"{HOST}:{port}?ca={ca}&timeout_s=5"
            async with a_connection(f"rediss://:{quote(AWKWARD, safe='')}@{where}") as connection:
                assert await connection.run("PING") in (True, b"PONG")
            assert "refuses the user or the password" in await refusal(f"rediss://{where}")


async def test_every_master_of_a_cluster_is_reached_over_tls(
    authority: trustme.CA, ca: Path
) -> None:
    """A cluster of its own: it goes on for a while to announce ports that were taken back."""
    async with AsyncExitStack() as stack:
        cluster = stack.enter_context(real(RedisCluster))
        ports = []
        for master in cluster.masters:
            ports.append(await stack.enter_async_context(tls_before(master.port, authority)))
            master.command("CONFIG", "SET", "cluster-announce-port", str(ports[-1]))
        while not all(
            f":{port}" in cluster.masters[0].command("CLUSTER", "SLOTS") for port in ports
        ):
            await asyncio.sleep(0.05)
        url = f"rediss+cluster://{HOST}:{ports[0]}?ca={ca}&timeout_s=5"
        connection = await stack.enter_async_context(a_connection(url))
        for key in "abcdef":
            assert await connection.run("SET", key, "over TLS")


@pytest.mark.parametrize("kind", ["rediss", "rediss+cluster"])
async def test_an_unknown_authority_names_the_option_that_helps(
    server: RedisServer, authority: trustme.CA, another_ca: Path, kind: str
) -> None:
    async with tls_before(server.port, authority) as port:
        for option in ("", f"&ca={another_ca}"):
            said = await refusal(f"{kind}://ada:geheim@{HOST}:{port}?timeout_s=5{option}")
            assert said.startswith(f"Redis at {HOST}:{port} shows a certificate that is not trust")
            assert said.endswith("to the PEM file of the certificate's authority")


async def test_sentinels_of_an_unknown_authority_are_refused(authority: trustme.CA) -> None:
    with real(RedisSentinel) as group:
        async with tls_before(group.sentinel.port, authority) as port:
            said = await refusal(f"rediss+sentinel://{HOST}:{port}/news?timeout_s=5")
    assert "set ?ca= in the Redis URL to the PEM file of the certificate's authority" in said


async def test_a_certificate_of_another_host_says_so(
    server: RedisServer, authority: trustme.CA, ca: Path
) -> None:
    async with tls_before(server.port, authority, "cache.example.org") as port:
        said = await refusal(f"rediss://{HOST}:{port}?ca={ca}&timeout_s=5")
    assert "use the host that the certificate names in the Redis URL" in said


async def test_a_certificate_that_is_not_trusted_any_more_stops_nobody(
    server: RedisServer, authority: trustme.CA, ca: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncExitStack() as stack:
        async with tls_before(server.port, authority, at=free_port()) as port:
            news = f"rediss://{HOST}:{port}?ca={ca}&timeout_s=5"
            hs = await stack.enter_async_context(heatsink.connect("memory://", news=news))
        await stack.enter_async_context(tls_before(server.port, trustme.CA(), at=port))
        while "its certificate is not trusted" not in caplog.text:
            assert await hs.log.append("k", b"hey")
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "no certificates"])
def test_a_file_that_is_no_authority_is_refused_at_the_start(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    with pytest.raises(InvalidSetting, match=rf"ca in a Redis URL, '{file}', cannot be used"):
        heatsink.connect("memory://", news=f"rediss://ada:geheim@localhost?ca={file}")


def test_an_authority_without_tls_is_refused(ca: Path) -> None:
    with pytest.raises(InvalidSetting, match="begin the URL with rediss"):
        heatsink.connect("memory://", news=f"redis://localhost?ca={ca}")
