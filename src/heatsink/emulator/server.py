"""The HTTP/1.1 server of the emulator, with keep-alive.

The server is for tests and laptops. By default, it checks no credentials and listens on 127.0.0.1
only. With a token, it checks signatures, and can listen on other addresses. Pages of other sites in
a browser cannot call it: the header X-Amz-Target needs a preflight request, which the server grants
to pages of this machine only. The server also refuses host names that are not this machine's. A GET
without X-Amz-Target returns the page about partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from hmac import compare_digest
from random import Random

import msgspec

from heatsink.primitives.clock import Clock
from heatsink.primitives.connections import Crowd, listen, names_of, refusal_of, within_files
from heatsink.stores.dynamodb.wire.http import (
    Framing,
    GuardedConnection,
    WireConnection,
    close_all,
)
from heatsink.stores.dynamodb.wire.signing import SignedRequest, is_signed_with

from . import page
from .browsers import PREFLIGHT, for_origin, is_local
from .control import CONTROL, Control, error_of
from .engine import Engine
from .settings import EngineSettings

logger = logging.getLogger("heatsink")
encode = msgspec.json.Encoder().encode
TEND_AGAIN_S = 1.0
NOT_THE_API = b'{"message":"this is a DynamoDB endpoint: requests need an X-Amz-Target header"}'
NO_COMMAND = b'{"message":"POST to /control/fail, /throttle, /split or /reset, or GET /control"}'
CORAL = "com.amazon.coral.service#"
NO_CREDENTIALS = (
    "MissingAuthenticationTokenException",
    "Request is missing Authentication Token",
)
BAD_SIGNATURE = (
    "The request signature we calculated does not match the signature you provided. Check your AWS "
    "Secret Access Key and signing method: this emulator wants its token as the secret key."
)
INVALID_SIGNATURE = ("InvalidSignatureException", BAD_SIGNATURE)
_PAGE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\nCache-Control: no-cache\r\n"
    b"X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
    b"Content-Security-Policy: default-src 'none'; script-src 'self'; connect-src 'self'; "
    b"img-src 'self'; style-src 'self'; frame-ancestors 'none'\r\n\r\n"
)


class EngineConnection(WireConnection):
    """A connection that also serves pages of this machine, in a browser (CORS)."""

    def _is_allowed(self) -> bool:
        if not self._origin or self.parser.get_method() != b"OPTIONS":
            return super()._is_allowed()
        refusal = self._server.refusal_of(self._host, self._origin)
        if refusal is None:
            self.send(PREFLIGHT)
        else:
            self.turn_away(*refusal)
        return False

    def _for_page(self, answer: bytes) -> bytes:
        return for_origin(answer, self._origin)

    def turn_away(self, status: int, detail: str) -> None:
        self._origin = b""
        super().turn_away(status, detail)


class GuardedEngineConnection(EngineConnection, GuardedConnection):
    """A connection of an emulator with a token: requests must carry it or be signed with it."""


class EngineServer(Framing):
    """Serves the engine over HTTP."""

    name = "emulator"

    def __init__(self, settings: EngineSettings, clock: Clock, rng: Random) -> None:
        super().__init__(clock, rng)
        self._engine = Engine(settings, clock, rng)
        self.control = Control(self._engine, clock)
        self._latency_s = settings.latency_s
        self._port = settings.port
        self._late: set[asyncio.Task[None]] = set()
        self._tending: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._host, self._token = settings.host, settings.token
        self._names = names_of(settings.host, settings.allow_hosts)
        self._limits = settings.connections
        self.crowd: Crowd
        self.loop: asyncio.AbstractEventLoop

    def refusal_of(self, host: bytes, origin: bytes) -> tuple[int, str] | None:
        """Return the status and the reason if a request with these headers must be refused.

        Returns None if the request is allowed. `primitives.connections` has the rules.
        """
        if self._names is None:
            return None  # an address of any name: clients need the token
        page = origin.decode("latin-1") if origin else None
        if page is not None and is_local(page, self._names):
            page = None
        return refusal_of(host.decode("latin-1"), page, self._names)

    def unauthorized(self, request: SignedRequest) -> bytes | None:
        """Return the answer to a request without the right token; None if the token is right."""
        token, given = self._token or "", request.headers.get("authorization", "")
        if compare_digest(given.encode(), f"Bearer {token}".encode()):
            return None
        if is_signed_with(token, request, self._clock.now_s()):
            return None
        name, message = INVALID_SIGNATURE if given else NO_CREDENTIALS
        return self.framed(400, encode({"__type": CORAL + name, "message": message}))

    def browse(self, method: bytes, url: bytes, body: bytes) -> bytes:
        """Answer a request without X-Amz-Target: the page, the control endpoint, or 404."""
        path = url.partition(b"?")[0].decode("latin-1")
        if path.startswith(CONTROL):
            answer = self.control.answer(method.decode("latin-1"), path, body)
            return self.framed(*(answer or (404, NO_COMMAND)))
        found = page.answer(path, self._engine) if method == b"GET" else None
        if found is None:
            return self.framed(404, NOT_THE_API)
        kind, body = found
        return _PAGE_HEAD % (kind.encode(), len(body)) + body

    async def start(self) -> str:
        """Start to listen. Returns the server's URL."""
        self.loop = loop = asyncio.get_running_loop()
        self.crowd = Crowd(within_files(self._limits))
        kind = EngineConnection if self._token is None else GuardedEngineConnection
        (listener,) = listen(self._host, self._port)
        self._server = await loop.create_server(lambda: kind(self), sock=listener)
        self._tending = loop.create_task(self._keep_tending())
        return f"http://{self._host}:{self._server.sockets[0].getsockname()[1]}"

    async def _keep_tending(self) -> None:
        """Let partitions adapt until cancelled. Log an internal error, then continue."""
        while True:
            try:
                await self._engine.keep_tending()
            except Exception:
                logger.exception("adapting partitions failed; retrying")
            await self._clock.sleep(TEND_AGAIN_S)

    async def stop(self) -> None:
        if self._tending is not None:
            self._tending.cancel()
        for task in self._late:
            task.cancel()
        await close_all(self._server, self.crowd)
        self._engine.close()

    def handle(self, connection: WireConnection, target: str, body: bytes) -> None:
        if not self._latency_s:
            self._answer(connection, target, body)
            return
        task = asyncio.get_running_loop().create_task(self._handle_late(connection, target, body))
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    async def _handle_late(self, connection: WireConnection, target: str, body: bytes) -> None:
        connection.owe(1)
        await self._clock.sleep(self._latency_s)
        self._answer(connection, target, body)
        connection.owe(-1)

    def _answer(self, connection: WireConnection, target: str, body: bytes) -> None:
        fault = self.control.fault(target, body) if self.control.faults else None
        if fault is None:
            accepted = connection.accepted
            connection.send(self.framed(*self._engine.answer(target, body), accepted))
            return
        if fault.applied:
            self._engine.answer(target, body)
        if fault.error == "Disconnect":
            connection.give_up()
        else:
            connection.send(self.framed(*error_of(fault)))


@asynccontextmanager
async def running_engine(
    settings: EngineSettings, clock: Clock, rng: Random | None = None
) -> AsyncIterator[str]:
    """Run the emulator in this event loop and yield its URL.

    Port 0 in the settings means any free port.
    """
    server = EngineServer(settings, clock, rng or Random(0))
    url = await server.start()
    try:
        yield url
    finally:
        await server.stop()


async def serve(
    settings: EngineSettings,
    clock: Clock,
    rng: Random,
    announce: Callable[[str], object] = lambda _: None,
) -> None:
    """Run the emulator until cancelled. Calls `announce` with the URL once it accepts requests."""
    async with running_engine(settings, clock, rng) as url:
        announce(url)
        await asyncio.get_running_loop().create_future()
