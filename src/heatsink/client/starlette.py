"""Starlette and FastAPI: a client for the lifespan of an app, and responses for its errors.

    app = FastAPI(lifespan=lifespan("sqlite:///chat.db"))
    answer_errors(app)

    @app.post("/rooms/{room}")
    async def say(room: str, hs: Annotated[Heatsink, Depends(client)]) -> None: ...

In Starlette, `client(request)` returns the app's client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Unpack

from heatsink import errors

try:
    from starlette.applications import Starlette
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import JSONResponse
except ModuleNotFoundError:
    raise errors.Misconfigured(
        "heatsink.client.starlette needs Starlette: pip install starlette, or fastapi"
    ) from None

from . import Heatsink, connect
from .settings import ConnectOptions

State = dict[str, Heatsink]


def lifespan(
    url: str, **settings: Unpack[ConnectOptions]
) -> Callable[[Starlette], AbstractAsyncContextManager[State]]:
    """Return a lifespan that opens a client when the app starts, and closes it when the app ends.

    The arguments are those of `connect`. An invalid one raises `InvalidSetting` when the app
    starts::

        app = FastAPI(lifespan=lifespan("sqlite:///chat.db"))
    """

    @asynccontextmanager
    async def opened(_: Starlette) -> AsyncIterator[State]:
        async with connect(url, **settings) as hs:
            yield {"heatsink": hs}

    return opened


def client(connection: HTTPConnection) -> Heatsink:
    """Return the app's client. In FastAPI, use `Depends(client)`. In Starlette, pass the request.

    Raises `Closed` if the app has no client::

        hs = client(request)
        await hs.log.append("room-7", b"hello")
    """
    hs = connection.scope.get("state", {}).get("heatsink")
    if not isinstance(hs, Heatsink):
        raise errors.Closed("this app has no client: make it with lifespan=lifespan(url)")
    return hs


def answer_errors(app: Starlette) -> None:
    """Turn Heatsink's errors into responses: 4xx, or 429 and 503 with Retry-After.

    Call it once, when the app is made::

        app = FastAPI(lifespan=lifespan("sqlite:///chat.db"))
        answer_errors(app)
    """
    app.add_exception_handler(errors.HeatsinkError, _answer)


async def _answer(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, errors.HeatsinkError)
    answer = errors.answer_of(error)
    headers = {"Retry-After": str(answer.retry_after_s)} if answer.retryable else None
    return JSONResponse({"detail": str(error)}, answer.status, headers)
