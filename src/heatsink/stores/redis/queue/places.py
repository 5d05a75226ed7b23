"""Places at limits, in Redis. The scripts behave like `MemoryPlaces`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from heatsink.bulk.limits import DeclaredLimits, Granted, HoldAnswer, HoldRequest, KeyUse, Limit
from heatsink.bulk.store import ANNOUNCED_MS
from heatsink.primitives.clock import Clock, now_ms
from heatsink.stores.redis.connection import Connection, Word

from .durability import RedisBarrier
from .keys import QueueKeys, handle
from .scripts import Script, SlotClock

_packed = msgspec.msgpack.Encoder().encode
_limit = msgspec.msgpack.Decoder(Limit).decode
_names = msgspec.msgpack.Decoder(tuple[str, ...]).decode
_OPERATIONS = ("hold", "free", "use")
_WORDS = 3  # of an answer for each ask


def own_name() -> str:
    """Return an empty name: then a script uses the server's own name. Tests pass another name."""
    return ""


class RedisPlaces:
    """The homes of limits, each with its own slot time."""

    def __init__(
        self,
        connection: Connection,
        keys: QueueKeys,
        barrier: RedisBarrier,
        time: SlotClock,
        clock: Clock,
        server: Callable[[], str] = own_name,
    ) -> None:
        self._connection = connection
        self._keys = keys
        self._barrier = barrier
        self._time = time
        self._clock = clock
        self._server = server
        self._scripts = {
            name: Script(f"homes/place_{name}", "clock places") for name in _OPERATIONS
        }
        self._declare = Script("homes/place_declare")

    async def _run(self, operation: str, limit: str, *words: Word) -> Any:
        key = self._keys.places(limit)
        script, now = self._scripts[operation], self._time.words(key)
        return await script.run(self._connection, key, now, *words, others=[key])

    async def hold(self, request: HoldRequest) -> HoldAnswer:
        rule = request.rule
        asks = [
            (handle("key", a.key), a.key, a.running, a.fresh, a.started, a.want)
            for a in request.asks
        ]
        server, quiet_ms, told, is_new, *words = await self._run(
            "hold",
            request.limit,
            *(
                request.limit,
                self._server(),
                self._keys.bell,
                request.holder,
                request.turn,
                request.lease_ms,
            ),
            *(request.bell, request.server),
            _packed((-1 if rule.running is None else rule.running, rule.windows)),
            _packed(asks),
            *(rule.incarnation, rule.version),
        )
        self._time.heard(self._keys.places(request.limit), told)
        granted = [
            Granted(ask.key, words[at], bool(words[at + 1]), float(words[at + 2]))
            for ask, at in zip(request.asks, range(0, len(words), _WORDS), strict=not is_new)
        ]
        return HoldAnswer(server.decode(), granted, float(quiet_ms), bool(is_new))

    async def confirm(self, limit: str, server: str) -> None:
        key = self._keys.places(limit)
        if await self._barrier.home(key, "server") == server.encode():
            await self._connection.run("HSET", key, "confirmed", server)

    async def free(self, process: str, limits: Sequence[str]) -> int:
        return sum(
            [
                int(await self._run("free", limit, limit, self._keys.bell, process))
                for limit in limits
            ]
        )

    async def use(self, limit: str, most: int) -> list[KeyUse]:
        words = await self._run("use", limit)
        found = [
            KeyUse(limit, words[at].decode(), words[at + 1], words[at + 2])
            for at in range(0, len(words), _WORDS)
        ]
        return sorted(found, key=lambda use: (-use.waiting, -use.running, use.key))[:most]

    async def declare(self, process: str, declared: DeclaredLimits, ttl_ms: int) -> DeclaredLimits:
        words: list[Word] = [now_ms(self._clock), process, ttl_ms, int(ANNOUNCED_MS)]
        for name, limit in declared.limits.items():
            words += (f"l{name}", _packed(limit))
        for action, names in declared.actions.items():
            words += (f"a{action}", _packed(names))
        found = await self._declare.run(self._connection, self._keys.fleet("limits"), *words)
        fields = dict(zip((word.decode() for word in found[::2]), found[1::2], strict=True))
        return DeclaredLimits(
            {name[1:]: _limit(word) for name, word in fields.items() if name[0] == "l"},
            {name[1:]: _names(word) for name, word in fields.items() if name[0] == "a"},
        )

    async def declared(self) -> DeclaredLimits:
        return await self.declare("", DeclaredLimits(), 0)
