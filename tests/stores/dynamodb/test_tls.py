"""HTTPS to an endpoint of one's own is run: with an authority that is known, and without."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trustme

from heatsink import connect
from heatsink.emulator.server import running_engine
from heatsink.emulator.settings import EngineSettings
from heatsink.errors import HeatsinkError
from heatsink.primitives.clock import SystemClock
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse
from tests.tls import HOST, certificate_file, tls_before

ENGINE = EngineSettings(port=0)
APPEND = """
import asyncio, sys
import heatsink

async def main():
    async with heatsink.connect(sys.argv[1]) as hs:
        receipt = await hs.log.append("k", b"over TLS")
        print((await hs.log.get("k", receipt.id)).body.decode())

asyncio.run(main())
"""


def port_of(endpoint: str) -> int:
    port = urlsplit(endpoint).port
    assert port is not None
    return port


async def test_an_authority_of_the_environment_is_trusted(tmp_path: Path) -> None:
    """In a process of its own: the variable is read when Python starts to speak TLS."""
    authority = trustme.CA()
    trusting = {**os.environ, "SSL_CERT_FILE": str(certificate_file(authority, tmp_path))}
    async with (
        running_engine(ENGINE, SystemClock()) as plain,
        tls_before(port_of(plain), authority) as port,
    ):
        await make_table(parse("messages", {"endpoint": plain}), SystemClock())
        url = f"dynamodb://messages?endpoint=https://{HOST}:{port}"
        command = [sys.executable, "-W", "error", "-c", APPEND, url]
        child = await asyncio.create_subprocess_exec(*command, env=trusting, stdout=PIPE)
        said, _ = await child.communicate()
    assert said == b"over TLS\n"


async def test_an_unknown_authority_is_one_line_that_says_what_helps() -> None:
    async with (
        running_engine(ENGINE, SystemClock()) as plain,
        tls_before(port_of(plain), trustme.CA()) as port,
    ):
        with pytest.raises(HeatsinkError) as caught:
            async with connect(f"dynamodb://messages?endpoint=https://{HOST}:{port}"):
                pytest.fail("it connected")
    said = str(caught.value)
    assert "\n" not in said
    assert f"https://{HOST}:{port}/ shows a certificate that is not trusted" in said
    assert "SSL_CERT_FILE" in said
