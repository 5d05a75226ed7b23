"""Server-Sent Events: the state of the service twice a second, for all listeners.

A slow listener gets every decision, but of the other events only the latest of each kind. The feed
reads the state in rounds of half a second. The reads are spread over the round, so that no request
has to wait for all of them. Their results are sent together, so a browser tab costs one small write
per round.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress

import msgspec

from heatsink.errors import HeatsinkError
from heatsink.primitives.clock import Clock

from .shapes import DecisionLine

LOOK_S = 0.5
PATIENCE_S = 1.0  # timeout of a read: an unavailable queue must not delay the rest
QUIET_S = 15.0
DECISIONS_MAX = 1_000
_encode = msgspec.json.Encoder().encode
Look = Callable[[], Awaitable[msgspec.Struct]]
NewDecisions = Callable[[int], Awaitable[list[DecisionLine]]]


class FeedListener:
    """What one stream still has to send: the latest event of each kind, and all decisions."""

    def __init__(self) -> None:
        self.latest: dict[str, bytes] = {}
        self.decisions: list[bytes] = []
        self.woken = asyncio.Event()

    def tell_decision(self, data: bytes) -> None:
        self.decisions = [*self.decisions, data][-DECISIONS_MAX:]

    def wake(self) -> None:
        if self.latest or self.decisions:
            self.woken.set()

    def take(self) -> bytes:
        told = b"".join([*self.latest.values(), *self.decisions])
        self.latest, self.decisions = {}, []
        self.woken.clear()
        return told


class Feed:
    """Reads the state of the service once for all streams.

    `looks` are the functions that read the state, by event name. `version` returns the version of
    the registry. `decided` returns the decisions after a version.
    """

    def __init__(
        self,
        looks: Mapping[str, Look],
        version: Callable[[], int],
        decided: NewDecisions,
        clock: Clock,
    ) -> None:
        self._looks = looks
        self._now = version
        self._decided = decided
        self._clock = clock
        self._listeners: set[FeedListener] = set()
        self._latest: dict[str, bytes] = {}
        self._version = 0
        self._looking: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def listeners(self) -> int:
        return len(self._listeners)

    async def listen(self, after: int | None) -> AsyncIterator[bytes]:
        """Yield events until the feed closes.

        With `after`, the first events are the decisions after that version of the registry.
        """
        listener = FeedListener()
        listener.latest = dict(self._latest)
        self._listeners.add(listener)
        self._start()
        try:
            yield b"retry: 1000\n\n"
            if after is not None:
                for line in await self._decided(after):
                    listener.tell_decision(decision_event(line))
            while not self._closed:
                yield listener.take() or b": still here\n\n"
                with suppress(TimeoutError):
                    async with asyncio.timeout(QUIET_S):
                        await listener.woken.wait()
        finally:
            self._listeners.discard(listener)

    def _start(self) -> None:
        if self._looking is None or self._looking.done():
            self._version = self._now()
            self._looking = asyncio.ensure_future(self._keep_looking())

    async def _keep_looking(self) -> None:
        pause_s = 0.0  # a listener waits for the first state
        while self._listeners and not self._closed:
            for name, look in self._looks.items():
                await self._look_at(name, look)
                await self._clock.sleep(pause_s)
            with suppress(HeatsinkError):
                await self._tell_decisions()
            self._wake()
            pause_s = LOOK_S / (len(self._looks) + 1)
            await self._clock.sleep(pause_s)
        self._latest.clear()

    async def _look_at(self, name: str, look: Look) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                data = event(name, await look())
        except (HeatsinkError, TimeoutError):
            self._wake()  # the other results must not wait for this one
            return
        if self._latest.get(name) != data:
            self._latest[name] = data
            for listener in self._listeners:
                listener.latest[name] = data

    def _wake(self) -> None:
        for listener in self._listeners:
            listener.wake()

    async def _tell_decisions(self) -> None:
        """Send new decisions, from the start of the feed on, to all streams.

        Each stream reads older decisions itself.
        """
        if self._now() == self._version:
            return
        lines = await self._decided(self._version)
        self._version = max([self._version, *(line.version for line in lines)])
        for line in lines:
            for listener in self._listeners:
                listener.tell_decision(decision_event(line))

    async def close(self) -> None:
        """End all streams and the reads, so that the server can stop."""
        self.end()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)

    def end(self) -> None:
        self._closed = True
        for listener in self._listeners:
            listener.woken.set()


def event(name: str, value: msgspec.Struct) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), _encode(value))


def decision_event(line: DecisionLine) -> bytes:
    return b"id: %d\n%s" % (line.version, event("decision", line))
