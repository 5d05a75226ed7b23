"""A small chat API: messages of a room are posted, and read in pages.

./dev run python examples/chat_api.py                       checks itself, in memory, and ends
./dev run python examples/chat_api.py --port 8000           serves, in memory
./dev run python examples/chat_api.py --port 8000 \\
    --store 'dynamodb://messages?region=eu-west-1' --news redis://localhost:6379

It is written with Starlette; in FastAPI the lifespan, the client and the errors are the same.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import heatsink
from heatsink import errors

RETRY_AFTER_S = 1
ROOM = "/rooms/{room}/messages"


async def post_message(request: Request) -> Response:
    """The client may send its own id (a UUIDv7) and repeat the call with it: one message."""
    hs: heatsink.Heatsink = request.state.hs
    id = request.headers.get("idempotency-key")
    body = await request.body()
    receipt = await hs.log.append(request.path_params["room"], body, id=UUID(id) if id else None)
    return JSONResponse({"id": str(receipt.id)}, 201)


async def get_messages(request: Request) -> Response:
    hs: heatsink.Heatsink = request.state.hs
    limit, cursor = int(request.query_params.get("limit", 50)), request.query_params.get("cursor")
    page = await hs.log.page(request.path_params["room"], limit=limit, cursor=cursor)
    messages = [
        {"id": str(each.id), "text": each.body.decode(errors="replace")} for each in page.entries
    ]
    return JSONResponse({"messages": messages, "cursor": page.cursor})


async def come_back(_: Request, error: Exception) -> Response:
    """One key is too hot (429), or the store does not answer (503): the same call may succeed."""
    hot = isinstance(error.__cause__, errors.Throttled)
    headers = {"Retry-After": str(RETRY_AFTER_S)}
    return JSONResponse({"error": str(error)}, 429 if hot else 503, headers)


async def refuse(status: int, _: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status)


def make_app(store: str, news: str | None = None, **settings: Any) -> Starlette:
    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[dict[str, heatsink.Heatsink]]:
        async with heatsink.connect(store, news=news, **settings) as hs:
            yield {"hs": hs}

    return Starlette(
        lifespan=lifespan,
        routes=[Route(ROOM, post_message, methods=["POST"]), Route(ROOM, get_messages)],
        exception_handlers={
            errors.Retryable: come_back,
            errors.InvalidInput: partial(refuse, 400),
            ValueError: partial(refuse, 400),
            errors.Conflict: partial(refuse, 409),
        },
    )


@asynccontextmanager
async def running(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    """The app without a socket, for the check below and for your tests."""
    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx.ASGITransport(with_state)
        async with httpx.AsyncClient(transport=transport, base_url="http://chat") as client:
            yield client


async def read_all(client: httpx.AsyncClient, room: str) -> list[str]:
    texts: list[str] = []
    query = {"limit": "50"}
    while True:
        page = (await client.get(room, params=query)).json()
        texts += [message["text"] for message in page["messages"]]
        if page["cursor"] is None:
            return texts
        query["cursor"] = page["cursor"]


async def post_many(client: httpx.AsyncClient, room: str, count: int) -> list[httpx.Response]:
    posts = (client.post(room, content=f"message {n}") for n in range(count))
    return await asyncio.gather(*posts)


async def check_itself(store: str, news: str | None) -> None:
    room = f"/rooms/{uuid4().hex}/messages"
    async with running(make_app(store, news)) as client:
        await post_many(client, room, 120)
        texts = await read_all(client, room)
        assert sorted(texts) == sorted(f"message {n}" for n in range(120))
        print(f"120 messages posted, {len(texts)} read back in pages of 50")
        wrong = await client.get(room, params={"cursor": "made up"})
        print(f"a wrong cursor: {wrong.status_code} {wrong.json()['error']}")
    tight = heatsink.PartitionLimit(writes_s=5)  # as a partition of DynamoDB has, only smaller
    impatient = heatsink.Retries(deadline_s=0.1)
    async with running(make_app("memory://", limit=tight, retries=impatient)) as client:
        refused = [a for a in await post_many(client, room, 100) if a.status_code != 201]
        assert {answer.status_code for answer in refused} == {429}
        retry_after = refused[0].headers["retry-after"]
        print(f"far over the limit: {len(refused)} of 100 told to retry after {retry_after} s")


def main() -> None:
    parser = argparse.ArgumentParser(description="A small chat API on Heatsink.")
    parser.add_argument("--store", default="memory://")
    parser.add_argument("--news", help="a Redis, if there are several processes")
    parser.add_argument("--port", type=int, help="serve here; without it, check and end")
    chosen = parser.parse_args()
    if chosen.port is None:
        asyncio.run(check_itself(chosen.store, chosen.news))
    else:
        uvicorn.run(make_app(chosen.store, chosen.news), host="127.0.0.1", port=chosen.port)


if __name__ == "__main__":
    main()
