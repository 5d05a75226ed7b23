"""The alternative of `http`: a Starlette endpoint that writes the row to SQLite and nothing else.

It writes through the same engine (one writer, shared fsyncs), into a database of the same schema:
what is compared is everything around that write.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from time import time
from uuid import UUID

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from heatsink.primitives.clock import SystemClock
from heatsink.spread.store import Row
from heatsink.stores.sqlite import sqlite_stores


def application(file: Path) -> Starlette:
    stores = sqlite_stores(file, SystemClock())
    numbers = count(1)

    async def append(request: Request) -> JSONResponse:
        message = msgspec.json.decode(await request.body())
        now_ms = int(time() * 1000)
        raw = (now_ms << 80 | next(numbers)).to_bytes(16, "big")
        await stores.log.put(request.path_params["key"], Row(raw, message["body"].encode(), 0, 1))
        moment = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat()
        return JSONResponse({"id": str(UUID(bytes=raw)), "time": moment}, 201)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await stores.open()
        yield
        await stores.close()

    path = "/v1/conversations/{key}/messages"
    return Starlette(routes=[Route(path, append, methods=["POST"])], lifespan=lifespan)


if __name__ == "__main__":
    uvicorn.run(
        application(Path(sys.argv[1])),
        port=int(sys.argv[2]),
        access_log=False,
        log_level="warning",
    )
