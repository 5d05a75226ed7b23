"""All keys of a queue in Redis, and the Redis that holds each partition.

    /{stage}/queue/{partition_3}/…     one queue partition: one slot of Redis Cluster
    /{stage}/{queue}/…                 the only partition of a queue without partitions (--legacy)
    /{stage}/batches/{batch_17}/…      batch records: 256 slots, by a hash of the batch's id
    /{stage}/batches/{index}/…         the newest batches
    /{stage}/limits/{limit_17}/…       rate limits: 256 slots, by a hash of the lane
    /{stage}/fleet/{fleet}/…           members and the plan

`{stage}` stands for the stage's name. All other braces are literal: they are Redis Cluster's hash
tags. Key names contain only hashes of users' texts. The texts themselves are in values.
scripts/shared/numbers.lua lists the keys of a partition.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import blake2b
from random import Random

import msgspec

from heatsink.bulk.plan import LEGACY, spot_of
from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import shown
from heatsink.primitives.clock import Clock
from heatsink.stores.redis.address import RedisAddress, parse
from heatsink.stores.redis.connection import Connection

STAGE = "default"
HOMES = 256
REMEMBERED = 4096  # hashes of tenants and lanes
_STAGE = re.compile(r"[A-Za-z0-9_.:-]{1,48}")
TIMEOUT_S = 2.0


def handle(kind: str, text: str) -> str:
    """Return a short hash of a user's text, for the name of a key.

    `kind` is part of the hash, so a tenant and a lane with the same name get different hashes.
    """
    return blake2b(text.encode(), digest_size=12, person=kind.encode()).hexdigest()


@lru_cache(REMEMBERED)
def handle_of_few(kind: str, text: str) -> str:
    """Return `handle(kind, text)` for a text that is often used again."""
    return handle(kind, text)


def _home(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=2).digest(), "big") % HOMES


@lru_cache(REMEMBERED)
def _limit(stage: str, lane: str) -> str:
    return f"/{stage}/limits/{{limit_{_home(lane)}}}/{handle('lane', lane)}"


class QueueKeys(msgspec.Struct, frozen=True):
    """The names of one deployment's Redis keys. `stage` tells deployments on one Redis apart."""

    stage: str = STAGE

    def __post_init__(self) -> None:
        if not isinstance(self.stage, str) or not _STAGE.fullmatch(self.stage):
            raise InvalidSetting(
                f"stage must be 1 to 48 characters of A-Z a-z 0-9 _ . : -, not {shown(self.stage)}",
                field="stage",
            )

    def partition(self, number: int) -> str:
        """Return the prefix of the names of all keys of a partition."""
        if number == LEGACY:
            return f"/{self.stage}/{{queue}}/"
        return f"/{self.stage}/queue/{{partition_{number}}}/"

    def part(self, partition: int, id: str) -> str:
        """Return the name of the hash with a part's counts.

        The names of the part's other keys begin with this name: `…/chunks`, `…/record` and so on.
        """
        return f"{self.partition(partition)}part/{handle('part', id)}"

    def short(self, partition: int, id: str) -> tuple[str, str, str]:
        """Return the command that reads a part's short form: see `scripts/shared/state.lua`.

        A part in short form may become an ordinary hash, but not the reverse. So read the short
        form first, and then the hash.
        """
        return "HGET", f"{self.partition(partition)}singles", handle("part", id)

    @property
    def bell(self) -> str:
        """The name of the channel that carries the numbers of partitions with new items."""
        return f"/{self.stage}/queue/bell"

    def batch(self, id: str) -> str:
        """Return the name of the string with the record of a batch."""
        return f"/{self.stage}/batches/{{batch_{_home(id)}}}/{handle('batch', id)}"

    def newest(self, tenant: str = "") -> str:
        """Return the name of the sorted set with the ids of the newest batches.

        Without `tenant`, the set has the batches of all tenants.
        """
        whose = f"tenant/{handle_of_few('tenant', tenant)}" if tenant else "all"
        return f"/{self.stage}/batches/{{index}}/{whose}"

    def limit(self, lane: str) -> str:
        """Return the name of the hash with a lane's declared rate and probed rate."""
        return _limit(self.stage, lane)

    def places(self, limit: str) -> str:
        """Return the name of the hash of a `Limit`.

        The names of the limit's other keys begin with it.
        """
        return f"/{self.stage}/limits/{{limit_{_home(limit)}}}/places/{handle('limit', limit)}"

    def fleet(self, name: str) -> str:
        """Return the name of a key of the fleet. `name` is members, offers, plan, limits or time.

        The first two are sorted sets, ordered by expiry time. The others are hashes.
        """
        return f"/{self.stage}/fleet/{{fleet}}/{name}"

    @property
    def soft(self) -> str:
        """The prefix of the keys that carry the queue's soft decisions."""
        return f"{self.stage}:queue"


class QueuePlaces:
    """The connections to each Redis of a queue. The queue's home is at `url`.

    The connection to another Redis is made when a partition is placed there.
    """

    def __init__(self, url: str, clock: Clock, rng: Random) -> None:
        self._clock = clock
        self._rng = rng
        self.home_address = parse(url, "queue", TIMEOUT_S)
        self._addresses = {"": self.home_address}
        self._connections = {self.home_address: Connection(self.home_address, clock, rng)}

    @property
    def home(self) -> Connection:
        return self._connections[self.home_address]

    @property
    def addresses(self) -> list[RedisAddress]:
        return list(self._connections)

    def at(self, address: RedisAddress) -> Connection:
        if address not in self._connections:
            self._connections[address] = Connection(address, self._clock, self._rng)
        return self._connections[address]

    def address(self, partition: int) -> RedisAddress:
        """Return the address of the Redis at the partition's spot."""
        url = spot_of(partition).url
        if url not in self._addresses:
            self._addresses[url] = place_address(url)
        return self._addresses[url]

    def connection(self, partition: int) -> Connection:
        return self.at(self.address(partition))

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()


def place_address(url: str, partition: object = "…") -> RedisAddress:
    """Return the address of a partition's place. Raises `InvalidSetting`."""
    return parse(url, f"places[{shown(partition)}]", TIMEOUT_S)
