"""A small HTTP server for tests: a function answers every request, on kept connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple

HOST = "127.0.0.1"


class Reply(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str] = {}


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
Handler = Callable[[Mapping[str, str], bytes], Awaitable[Reply]]
"""From the headers of a request, with their names in lower case, and its body."""


async def read_request(reader: asyncio.StreamReader) -> tuple[Mapping[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    pairs = [line.partition(": ") for line in head.splitlines()[1:] if line]
    headers = {name.lower(): value for name, _, value in pairs}
    return headers, await reader.readexactly(int(headers.get("content-length", 0)))


def framed(reply: Reply) -> bytes:
    headers = {"Content-Length": str(len(reply.body)), **reply.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {reply.status} Said\r\n{lines}\r\n".encode() + reply.body


@asynccontextmanager
async def accepting(serve: Serve) -> AsyncIterator[int]:
    """Yields a port whose connections `serve` gets; all end with the block."""
    served: set[asyncio.Task[None]] = set()

    async def guarded(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, OSError):
                await serve(reader, writer)
                writer.close()
                await writer.wait_closed()
        finally:
            writer.transport.abort()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(guarded(reader, writer))
        served.add(task)
        task.add_done_callback(served.discard)

    server = await asyncio.start_server(accept, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in served:
            task.cancel()
        await asyncio.gather(*served, return_exceptions=True)
        await server.wait_closed()


@asynccontextmanager
async def serving(handle: Handler) -> AsyncIterator[str]:
    """Yields the server's URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(framed(await handle(*await read_request(reader))))

    async with accepting(serve) as port:
        yield f"http://{HOST}:{port}"
