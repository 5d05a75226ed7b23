"""Forgotten keys over pub/sub: who is subscribed hears them, who is not was told so.

A subscription that says nothing looks like one whose connection is dead, so it is pinged, and one
that does not answer is given up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Annotated, Any

import msgspec
from redis import exceptions

from heatsink.absorb.invalidation import Ear
from heatsink.clock import Clock
from heatsink.errors import Unavailable

from .address import Address
from .connection import Connection, open_driver
from .keys import Keys

PING_S = 1.0
SILENCE_S = 3.0
NOTHING = b""
TROUBLE = (exceptions.RedisError, OSError, TimeoutError, RuntimeError)


class _Message(msgspec.Struct, frozen=True, array_like=True):
    sender: str
    keys: Annotated[list[str], msgspec.Meta(max_length=10_000)]


_MESSAGE = msgspec.msgpack.Decoder(_Message)


class RedisWire:
    def __init__(
        self, connection: Connection, address: Address, keys: Keys, clock: Clock, rng: Random
    ) -> None:
        self._connection = connection
        self._address = address
        self._channel = keys.forgotten
        self._clock = clock
        self._name = f"{rng.getrandbits(64):016x}"

    async def send(self, keys: Sequence[str]) -> None:
        body = msgspec.msgpack.encode(_Message(self._name, list(keys)))
        await self._connection.run("PUBLISH", self._channel, body)

    async def listen(self, ear: Ear) -> None:
        try:
            await self._hear(ear)
        except TROUBLE as error:
            name = type(error).__name__
            raise Unavailable(f"the link to Redis at {self._address} broke ({name})") from None

    async def _hear(self, ear: Ear) -> None:
        driver: Any = open_driver(await self._home())
        pubsub = driver.pubsub()
        try:
            await asyncio.wait_for(pubsub.subscribe(self._channel), SILENCE_S)
            await self._take_messages(pubsub, ear)
        finally:
            await pubsub.aclose()
            await driver.aclose()

    async def _home(self) -> Address:
        """In a cluster the node that is published at: a young or mended one loses what its nodes
        pass on. A message that says nothing finds out whether it is still the one that is known.
        """
        if self._address.kind != "cluster":
            return self._address
        await self._connection.run("PUBLISH", self._channel, NOTHING)
        (home,) = await self._connection.nodes(self._channel)
        return home

    async def _take_messages(self, pubsub: Any, ear: Ear) -> None:
        heard_s = pinged_s = self._clock.monotonic_s()
        while True:
            message = await pubsub.get_message(timeout=PING_S)
            now_s = self._clock.monotonic_s()
            if message is not None:
                heard_s = now_s
                self._take(message, ear)
            if now_s - heard_s > SILENCE_S:
                raise TimeoutError
            if now_s - pinged_s >= PING_S:
                pinged_s = now_s
                await pubsub.ping()

    def _take(self, message: dict[str, Any], ear: Ear) -> None:
        if message["type"] == "subscribe":
            ear.linked()
        if message["type"] != "message":
            return
        try:
            heard = _MESSAGE.decode(message["data"])
        except msgspec.MsgspecError:
            return  # not ours: anybody may publish
        if heard.sender != self._name:
            ear.heard(heard.keys)
