"""A small chat with FastAPI: messages of a room are posted, and read in pages.

./dev run python examples/chat_api.py                       checks itself, in memory, and ends
./dev run python examples/chat_api.py --port 8000           serves, in memory: see /docs
./dev run python examples/chat_api.py --port 8000 \\
    --store 'dynamodb://messages?region=eu-west-1' --news rediss://cache.example.org
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID, uuid4

import httpx
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Header, Query
from pydantic import BaseModel, Field
from starlette.types import Receive, Scope, Send

import heatsink
from heatsink import Heatsink
from heatsink.client.starlette import answer_errors, client, lifespan

room_messages = APIRouter(prefix="/rooms/{room}/messages", tags=["messages"])


class NewMessage(BaseModel):
    author: str = Field(min_length=1, max_length=64)
    text: str = Field(min_length=1, max_length=4_000)


class Message(NewMessage):
    id: UUID
    time: datetime


class Page(BaseModel):
    messages: list[Message]
    cursor: str | None


class Posted(BaseModel):
    id: UUID


Client = Annotated[Heatsink, Depends(client)]
OwnId = Annotated[UUID | None, Header(alias="Idempotency-Key")]


@room_messages.post("", status_code=201)
async def post_message(room: str, message: NewMessage, hs: Client, id: OwnId = None) -> Posted:
    """Say something. Send an id of your own (a UUIDv7) and repeat the call with it: one message."""
    receipt = await hs.log.append(room, message.model_dump_json().encode(), id=id)
    return Posted(id=receipt.id)


@room_messages.get("")
async def get_messages(
    room: str,
    hs: Client,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: str | None = None,
) -> Page:
    """Newest first; the cursor leads to older ones and stays good for ever."""
    page = await hs.log.page(room, limit=limit, cursor=cursor)
    messages = [
        Message(id=entry.id, time=entry.time, **json.loads(entry.body)) for entry in page.entries
    ]
    return Page(messages=messages, cursor=page.cursor)


def make_app(store: str, news: str | None = None, **settings: Any) -> FastAPI:
    app = FastAPI(title="Chat on Heatsink", lifespan=lifespan(store, news=news, **settings))
    app.include_router(room_messages)
    answer_errors(app)
    return app


@asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """The app without a socket, for the check below and for your tests."""
    async with app.router.lifespan_context(app) as state:

        async def with_state(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "state": dict(state or {})}, receive, send)

        transport = httpx.ASGITransport(with_state)
        async with httpx.AsyncClient(transport=transport, base_url="http://chat") as browser:
            yield browser


async def read_all(browser: httpx.AsyncClient, room: str) -> list[str]:
    texts: list[str] = []
    query = {"limit": "50"}
    while True:
        page = (await browser.get(room, params=query)).json()
        texts += [message["text"] for message in page["messages"]]
        if page["cursor"] is None:
            return texts
        query["cursor"] = page["cursor"]


async def post_many(browser: httpx.AsyncClient, room: str, count: int) -> list[httpx.Response]:
    said = ({"author": "ada", "text": f"message {n}"} for n in range(count))
    return await asyncio.gather(*(browser.post(room, json=message) for message in said))


async def check_itself(store: str, news: str | None) -> None:
    room = f"/rooms/{uuid4().hex}/messages"
    async with running(make_app(store, news)) as browser:
        posted = await post_many(browser, room, 120)
        texts = await read_all(browser, room)
        assert sorted(texts) == sorted(f"message {n}" for n in range(120))
        print(f"120 messages posted, {len(texts)} read back in pages of 50")
        wrong = await browser.get(room, params={"cursor": "made up"})
        assert wrong.status_code == 400
        print(f"a wrong cursor: {wrong.status_code} {wrong.json()['detail']}")
        taken = {"Idempotency-Key": posted[0].json()["id"]}
        other = {"author": "eve", "text": "not what was said"}
        assert (await browser.post(room, json=other, headers=taken)).status_code == 409
        assert (await browser.post(room, json={"text": "who?"})).status_code == 422
    tight = heatsink.PartitionLimit(writes_s=5)  # as a partition of DynamoDB has, only smaller
    impatient = heatsink.Retries(deadline_s=0.1)
    async with running(make_app("memory://", limit=tight, retries=impatient)) as browser:
        refused = [a for a in await post_many(browser, room, 100) if a.status_code != 201]
        assert {answer.status_code for answer in refused} == {429}
        retry_after = refused[0].headers["retry-after"]
        print(f"far over the limit: {len(refused)} of 100 told to retry after {retry_after} s")


def main() -> None:
    parser = argparse.ArgumentParser(description="A small chat on Heatsink.")
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
