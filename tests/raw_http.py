"""HTTP as it is on the wire, for what a well-behaved client would never send, or not so fast."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes


@dataclass
class Line:
    """A kept connection: one request after the other."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, method: str, path: str, body: bytes | None = None) -> Answer:
        self.writer.write(request(method, path, body))
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        return Answer(int(head[9:12]), await self.reader.readexactly(int(length or b"0")))


def request(method: str, path: str, body: bytes | None = None) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\n"
    if body is None:
        return f"{head}\r\n".encode("latin-1")
    about = f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return (head + about).encode("latin-1") + body


async def open_line(port: int, source: str = "127.0.0.1") -> Line:
    return Line(*await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0)))


async def hang_up(*lines: Line) -> None:
    """At once; the loop lets go of the sockets in its next round."""
    for line in lines:
        line.writer.transport.abort()
    await asyncio.sleep(0)
