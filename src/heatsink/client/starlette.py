"""A client for the life of a Starlette or FastAPI app, and answers for its errors.

app = FastAPI(lifespan=lifespan("sqlite:///chat.db"))
answer_errors(app)

@app.post("/rooms/{room}")
async def say(room: str, hs: Annotated[Heatsink, Depends(client)]) -> None: ...

What makes Heatsink at home in other frameworks: each module needs only its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse

from heatsink import errors

from . import Heatsink, connect

RETRY_AFTER_S = 1
RETRYABLE = (429, 503)
STATUSES: dict[type[Exception], int] = {
    errors.NotFound: 404,
    errors.Misconfigured: 503,  # no fault of the request, which must not be dropped
    errors.InvalidInput: 400,
    errors.IdReused: 422,
    errors.Conflict: 409,
    errors.TokenExpired: 410,
    errors.Throttled: 429,
    errors.HeatsinkError: 503,
}
State = dict[str, Heatsink]


def lifespan(
    url: str, **settings: Any
) -> Callable[[Starlette], AbstractAsyncContextManager[State]]:
    """Opens a client when the app starts and closes it at the end: arguments as of `connect`."""

    @asynccontextmanager
    async def opened(_: Starlette) -> AsyncIterator[State]:
        async with connect(url, **settings) as hs:
            yield {"heatsink": hs}

    return opened


def client(connection: HTTPConnection) -> Heatsink:
    """The app's client: a dependency for FastAPI, a function of the request for Starlette."""
    hs = connection.scope.get("state", {}).get("heatsink")
    if not isinstance(hs, Heatsink):
        raise errors.Closed("this app has no client: make it with lifespan=lifespan(url)")
    return hs


def answer_errors(app: Starlette) -> None:
    """Mistakes become 4xx; what may succeed later 429 or 503, with Retry-After."""
    app.add_exception_handler(errors.HeatsinkError, _answer)


async def _answer(_: Request, error: Exception) -> JSONResponse:
    status = _status_of(error)
    headers = {"Retry-After": str(RETRY_AFTER_S)} if status in RETRYABLE else None
    return JSONResponse({"detail": str(error)}, status, headers)


def _status_of(error: Exception) -> int:
    """Retries that a hot partition refused until the deadline are its refusal."""
    if isinstance(error.__cause__, errors.Throttled):
        error = error.__cause__
    return next(status for kind, status in STATUSES.items() if isinstance(error, kind))
