"""A web application gets its client from the lifespan, and its callers get honest answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from heatsink import Heatsink, PartitionLimit, Retries, errors
from heatsink.client.starlette import answer_errors, client, lifespan

Client = Annotated[Heatsink, Depends(client)]


@asynccontextmanager
async def visiting(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """A browser for an app that runs, without a socket."""
    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx.ASGITransport(with_state)
        async with httpx.AsyncClient(transport=transport, base_url="http://web") as browser:
            yield browser


def raising(error: Exception) -> Callable[[Request], Any]:
    async def fail(_: Request) -> PlainTextResponse:
        raise error

    return fail


def overloaded_by(cause: Exception) -> errors.Overloaded:
    error = errors.Overloaded("until the deadline")
    error.__cause__ = cause
    return error


async def test_a_client_is_open_for_the_life_of_the_app() -> None:
    seen: list[Heatsink] = []
    app = FastAPI(lifespan=lifespan("memory://", name="web"))

    @app.post("/{room}")
    async def say(room: str, hs: Client) -> str:
        seen.append(hs)
        return str((await hs.log.append(room, b"hey")).id)

    async with visiting(app) as browser:
        assert (await browser.post("/tea")).status_code == 200
        assert (await browser.post("/tea")).status_code == 200
        assert seen[0] is seen[1]
        assert seen[0].status().name.startswith("web")


async def test_it_is_closed_when_the_app_ends() -> None:
    async with lifespan("memory://")(Starlette()) as state:
        hs = state["heatsink"]
        await hs.log.append("tea", b"hey")
    with pytest.raises(errors.Closed):
        await hs.log.append("tea", b"hey")


async def test_starlette_asks_for_it_with_the_request() -> None:
    async def say(request: Request) -> PlainTextResponse:
        await client(request).log.append("tea", b"hey")
        return PlainTextResponse("said")

    app = Starlette(routes=[Route("/", say)], lifespan=lifespan("memory://"))
    async with visiting(app) as browser:
        assert (await browser.get("/")).text == "said"


async def test_a_web_socket_gets_it_too() -> None:
    async with lifespan("memory://")(Starlette()) as state:
        assert client(HTTPConnection({"type": "websocket", "state": state})) is state["heatsink"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidKey("key is empty"), 400),
        (errors.NotFound("no batch 7"), 404),
        (errors.Conflict("another body"), 409),
        (errors.Deleted("deleted"), 409),
        (errors.TokenExpired("too old"), 410),
        (errors.Throttled("conv#0"), 429),
        (overloaded_by(errors.Throttled("conv#0")), 429),
        (overloaded_by(errors.Unavailable("no answer")), 503),
        (errors.Unavailable("no answer"), 503),
        (errors.WrongIncarnation("restored"), 503),
        (errors.NoTable("the table is gone"), 503),
        (errors.NoAccess("the token expired"), 503),
        (errors.Misconfigured("evicts"), 503),
    ],
    ids=repr,
)
async def test_errors_become_answers(error: Exception, status: int) -> None:
    app = Starlette(routes=[Route("/", raising(error))])
    answer_errors(app)
    async with visiting(app) as browser:
        answer = await browser.get("/")
    assert (answer.status_code, answer.json()) == (status, {"detail": str(error)})
    assert ("retry-after" in answer.headers) == (status in (429, 503))


async def test_an_app_without_a_lifespan_is_told_what_it_lacks() -> None:
    async def say(request: Request) -> PlainTextResponse:
        client(request)
        return PlainTextResponse("said")

    app = Starlette(routes=[Route("/", say)])
    answer_errors(app)
    async with visiting(app) as browser:
        answer = await browser.get("/")
    assert answer.status_code == 503
    assert "lifespan=lifespan(url)" in answer.json()["detail"]


async def test_a_key_that_is_too_hot_is_a_429() -> None:
    limit, retries = PartitionLimit(writes_s=1), Retries(deadline_s=0.05)
    app = FastAPI(lifespan=lifespan("memory://", limit=limit, retries=retries))
    answer_errors(app)

    @app.post("/")
    async def say(hs: Client) -> None:
        for _ in range(100):
            await hs.log.append("tea", b"hey")

    async with visiting(app) as browser:
        assert (await browser.post("/")).status_code == 429
