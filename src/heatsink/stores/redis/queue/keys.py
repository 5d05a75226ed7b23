"""All keys of a queue in Redis, and the Redis that holds each partition.

    /{stage}/queue/{partition_3}/…     one queue partition: one slot of Redis Cluster
    /{stage}/{queue}/…                 the only partition of a queue without partitions (--legacy)
    /{stage}/batches/{batch_17}/…      batch records: 256 slots, by a hash of the batch's id
    /{stage}/batches/{index}/…         the newest batches
    /{stage}/limits/{limit_17}/…       rate limits: 256 slots, by a hash of the lane
    /{stage}/fleet/{fleet}/…           members and the plan

`{stage}` stands for the stage's name. All other braces are literal: they are Redis Cluster's hash
tags. Names contain only hashes of users' texts; the texts themselves are in values.
scripts/shared/state.lua names the keys inside a partition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import blake2b
from random import Random

import msgspec

from heatsink.bulk.store import LEGACY
from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import shown
from heatsink.primitives.clock import Clock
from heatsink.stores.redis.address import RedisAddress, parse
from heatsink.stores.redis.connection import Connection

STAGE = "default"
HOMES = 256
_STAGE = re.compile(r"[A-Za-z0-9_.:-]{1,48}")
TIMEOUT_S = 2.0
PARTITIONS_MAX = 65_536


def handle(kind: str, text: str) -> str:
    """A short hash of a user's text. `kind` keeps a tenant and a lane of the same name apart."""
    return blake2b(text.encode(), digest_size=12, person=kind.encode()).hexdigest()


def _home(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=2).digest(), "big") % HOMES


class QueueKeys(msgspec.Struct, frozen=True):
    """The keys of one stage; two stages can share a Redis."""

    stage: str = STAGE

    def __post_init__(self) -> None:
        if not isinstance(self.stage, str) or not _STAGE.fullmatch(self.stage):
            raise InvalidSetting(
                f"stage must be 1 to 48 characters of A-Z a-z 0-9 _ . : -, not {shown(self.stage)}",
                field="stage",
            )

    def partition(self, number: int) -> str:
        """The prefix of all keys of a partition."""
        if number == LEGACY:
            return f"/{self.stage}/{{queue}}/"
        return f"/{self.stage}/queue/{{partition_{number}}}/"

    def part(self, partition: int, id: str) -> str:
        """Hash: a part's counters. Its other keys append `/chunks`, `/record`, …"""
        return f"{self.partition(partition)}part/{handle('part', id)}"

    @property
    def bell(self) -> str:
        """Channel: the number of a partition that has something new to claim."""
        return f"/{self.stage}/queue/bell"

    def batch(self, id: str) -> str:
        """Hash: `version`, `tag` and `record` of a batch."""
        return f"/{self.stage}/batches/{{batch_{_home(id)}}}/{handle('batch', id)}"

    def newest(self, tenant: str = "") -> str:
        """Sorted set: ids of batches by time, for all tenants or for one. Capped."""
        whose = f"tenant/{handle('tenant', tenant)}" if tenant else "all"
        return f"/{self.stage}/batches/{{index}}/{whose}"

    def limit(self, lane: str) -> str:
        """Hash: a rate limit, both the declared rate and the one found by probing."""
        return f"/{self.stage}/limits/{{limit_{_home(lane)}}}/{handle('lane', lane)}"

    def fleet(self, name: str) -> str:
        """`members` and `offers`: sorted sets by expiry. `plan` and `time`: hashes."""
        return f"/{self.stage}/fleet/{{fleet}}/{name}"

    @property
    def soft(self) -> str:
        """The prefix of the queue's soft decisions."""
        return f"{self.stage}:queue"


class QueuePlaces:
    """The Redis of each partition: the queue's own, unless `places` names another."""

    def __init__(
        self, url: str, clock: Clock, rng: Random, places: Mapping[int, str] | None = None
    ) -> None:
        self.home_address = parse(url, "queue", TIMEOUT_S)
        self._connections = {self.home_address: Connection(self.home_address, clock, rng)}
        self._addresses: dict[int, RedisAddress] = {}
        for partition, place in (places or {}).items():
            address = parse(place, f"places[{shown(partition)}]", TIMEOUT_S)
            self._addresses[_number(partition)] = address
            if address not in self._connections:
                self._connections[address] = Connection(address, clock, rng)

    @property
    def home(self) -> Connection:
        return self._connections[self.home_address]

    @property
    def addresses(self) -> list[RedisAddress]:
        return list(self._connections)

    @property
    def connections(self) -> list[Connection]:
        return list(self._connections.values())

    def at(self, address: RedisAddress) -> Connection:
        return self._connections[address]

    def address(self, partition: int) -> RedisAddress:
        return self._addresses.get(partition, self.home_address)

    def connection(self, partition: int) -> Connection:
        return self._connections[self.address(partition)]

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()


def _number(partition: object) -> int:
    """The number of a partition, which a TOML table gives as text."""
    text = str(partition)
    if text == str(LEGACY) or (text.isdecimal() and int(text) < PARTITIONS_MAX):
        return int(text)
    raise InvalidSetting(
        f"BulkSettings(places=…) must map partition numbers to URLs, not {shown(partition)}",
        field="places",
    )
