"""The secret in META: where it comes from, and that nobody is shown it."""

from __future__ import annotations

import logging
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import httpx
import pytest
from click.testing import CliRunner

from heatsink import Heatsink, Settings, connect
from heatsink.cli import main
from heatsink.client.urls import open_stores
from heatsink.primitives.chance import SECRET_BYTES
from heatsink.primitives.clock import SystemClock
from heatsink.server.process import ServeSettings, running_app

CLOCK = SystemClock()
SECRET = b"this-is-secret-and-stays-so-here"
SHAPES = (SECRET.decode(), SECRET.hex(), b64encode(SECRET).decode().rstrip("="))


def check_hidden(shown: str) -> None:
    assert not [shape for shape in SHAPES if shape in shown]


async def secret_at(url: str, **options: object) -> bytes:
    async with connect(url, coordinate=False, **options) as hs:  # type: ignore[arg-type]
        return hs.parts.registry.meta.secret


async def test_no_random_source_that_can_be_guessed_makes_a_secret(tmp_path: Path) -> None:
    """Ids are made of the client's numbers, and many see ids."""
    one, two = [await secret_at(f"sqlite:///{tmp_path}/{n}.db", rng=Random(1)) for n in "ab"]
    assert len(one) == len(two) == SECRET_BYTES
    assert one != two
    assert one not in {Random(1).randbytes(SECRET_BYTES), bytes(SECRET_BYTES)}


async def test_every_process_of_a_store_knows_one_secret(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    assert await secret_at(url) == await secret_at(url)


@pytest.fixture
async def founded(tmp_path: Path) -> str:
    """A store with that secret, which somebody has used."""
    url = f"sqlite:///{tmp_path}/x.db"
    stores = open_stores(url, CLOCK)
    async with Heatsink(stores, Settings(), CLOCK, Random(1), make_secret=lambda: SECRET) as hs:
        assert hs.parts.registry.meta.secret == SECRET
        await hs.log.append("conv", b"hey")
        await hs.pin("conv", buckets=2, reason="a test")
    return url


async def test_no_call_and_no_log_shows_it(founded: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with connect(founded) as hs:
        shown = [hs, hs.status(), hs.parts.registry.meta, await hs.parts.stores.registry.meta()]
        shown += [await hs.explain("conv"), await hs.hottest(), await hs.decisions()]
        check_hidden(repr(shown) + str(shown))
    check_hidden(caplog.text)


@pytest.mark.server("it listens")
async def test_no_answer_of_the_api_shows_it(founded: str, tmp_path: Path) -> None:
    async with (
        connect(founded) as hs,
        running_app(hs, ServeSettings(data=tmp_path), CLOCK) as app,
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as api,
    ):
        paths = (await api.get("/openapi.json")).json()["paths"]
        plain = [path for path, calls in paths.items() if "get" in calls and "{" not in path]
        asked = [path for path in plain if "events" not in path]
        assert len(asked) > 8
        for path in [*asked, "/v1/keys/conv", "/", "/docs"]:
            check_hidden((await api.get(path)).text)


@pytest.mark.parametrize(
    "command",
    [("doctor", "--store"), ("fsck",), ("fsck", "--json"), ("config", "serve", "--store")],
)
async def test_no_command_shows_it(founded: str, command: tuple[str, ...]) -> None:
    with ThreadPoolExecutor(1) as elsewhere:  # a command runs a loop of its own
        result = elsewhere.submit(CliRunner().invoke, main, [*command, founded]).result()
    assert result.output
    check_hidden(result.output)
