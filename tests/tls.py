"""A TLS end before a plain server: none of the servers that tests start speaks TLS itself."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import trustme

HOST = "127.0.0.1"
CHUNK_BYTES = 65_536


class TlsEnd:
    """Decrypts, and passes everything on to a port of this machine."""

    def __init__(self, port: int, authority: trustme.CA, name: str) -> None:
        self._port = port
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(self._context)
        self._served: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def listening(self, at: int) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._accept, HOST, at, ssl=self._context)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in self._served:
                task.cancel()
            await asyncio.gather(*self._served, return_exceptions=True)
            await server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._served.add(task)
        task.add_done_callback(self._served.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind_writer = await asyncio.open_connection(HOST, self._port)
        ways = [
            asyncio.ensure_future(_copy(reader, behind_writer)),
            asyncio.ensure_future(_copy(behind_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            writer.transport.abort()
            behind_writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def tls_before(
    port: int, authority: trustme.CA, name: str = HOST, at: int = 0
) -> AsyncIterator[int]:
    """The port of a TLS end before `port`, whose certificate names a host. 0 is any free one."""
    async with TlsEnd(port, authority, name).listening(at) as tls_port:
        yield tls_port


def certificate_file(authority: trustme.CA, folder: Path) -> Path:
    file = folder / "authority.pem"
    authority.cert_pem.write_to_path(str(file))
    return file
