"""Which Redis a partition is on: the one place that knows."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from heatsink.bulk.store import LEGACY
from heatsink.checks import shown
from heatsink.clock import Clock
from heatsink.errors import InvalidSetting
from heatsink.stores.redis.address import Address, parse
from heatsink.stores.redis.connection import Connection

TIMEOUT_S = 2.0
PARTITIONS_MAX = 65_536


class Places:
    """Partitions are on the queue's own Redis unless `places` says otherwise."""

    def __init__(
        self, url: str, clock: Clock, rng: Random, places: Mapping[int, str] | None = None
    ) -> None:
        self.home_address = parse(url, "queue", TIMEOUT_S)
        self._connections = {self.home_address: Connection(self.home_address, clock, rng)}
        self._addresses: dict[int, Address] = {}
        for partition, place in (places or {}).items():
            address = parse(place, f"places[{shown(partition)}]", TIMEOUT_S)
            self._addresses[_number(partition)] = address
            if address not in self._connections:
                self._connections[address] = Connection(address, clock, rng)

    @property
    def home(self) -> Connection:
        return self._connections[self.home_address]

    @property
    def addresses(self) -> list[Address]:
        return list(self._connections)

    @property
    def connections(self) -> list[Connection]:
        return list(self._connections.values())

    def at(self, address: Address) -> Connection:
        return self._connections[address]

    def address(self, partition: int) -> Address:
        return self._addresses.get(partition, self.home_address)

    def connection(self, partition: int) -> Connection:
        return self._connections[self.address(partition)]

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()


def _number(partition: object) -> int:
    """From a table in a TOML file the number comes as text."""
    text = str(partition)
    if text == str(LEGACY) or (text.isdecimal() and int(text) < PARTITIONS_MAX):
        return int(text)
    raise InvalidSetting(f"places maps partition numbers to URLs, not {shown(partition)}")
