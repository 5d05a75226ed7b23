"""All tables of the emulator and what they share: settings, clock, random source, tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from random import Random
from typing import Any

from heatsink.primitives.clock import Clock
from heatsink.stores.dynamodb.wire.errors import not_found
from heatsink.stores.dynamodb.wire.keys import Key

from .indexes import GlobalIndex, LocalIndex
from .settings import EngineSettings
from .streams import Stream
from .table import EngineTable

Json = dict[str, Any]
TOKEN_TTL_S = 600.0


class RequestTokens:
    """The client request tokens of transactions, kept for ten minutes.

    Each token is stored with a fingerprint of its request.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: dict[str, tuple[float, bytes]] = {}

    def fingerprint(self, token: str) -> bytes | None:
        self._forget()
        known = self._known.get(token)
        return known[1] if known else None

    def remember(self, token: str, fingerprint: bytes) -> None:
        self._known[token] = (self._clock.monotonic_s() + TOKEN_TTL_S, fingerprint)

    def restore(self, token: str, fingerprint: bytes, at_s: float) -> None:
        """Remember a token that was used at the wall time `at_s`, if it is still valid."""
        left_s = at_s + TOKEN_TTL_S - self._clock.now_s()
        if left_s > 0:
            until_s = self._clock.monotonic_s() + min(left_s, TOKEN_TTL_S)
            self._known[token] = (until_s, fingerprint)

    def kept(self) -> Iterator[tuple[str, bytes, float]]:
        """Yield each valid token, its fingerprint and the wall time of its use: see `restore`."""
        self._forget()
        used_s = self._clock.now_s() - self._clock.monotonic_s() - TOKEN_TTL_S
        for token, (until_s, fingerprint) in self._known.items():
            yield token, fingerprint, until_s + used_s

    def _forget(self) -> None:
        now_s = self._clock.monotonic_s()
        while self._known:
            oldest = next(iter(self._known))
            if self._known[oldest][0] > now_s:
                return
            del self._known[oldest]


class Database:
    """All tables of the emulator, by name."""

    def __init__(self, settings: EngineSettings, clock: Clock, rng: Random) -> None:
        self.settings = settings
        self.clock = clock
        self.rng = rng
        self.tables: dict[str, EngineTable] = {}
        self.streams: dict[str, Stream] = {}
        self.tokens = RequestTokens(clock)
        self.together: Callable[[str | None, bytes], AbstractContextManager[object]] = _apart
        """Makes the writes inside it one record of the journal. Takes token and fingerprint."""

    def table(self, name: str) -> EngineTable:
        """Return the table with this name or ARN. Raises ResourceNotFoundException."""
        table = self.tables.get(name) or self.tables.get(name.rpartition("/")[2])
        if table is None:
            raise not_found()
        return table

    def reset(self) -> None:
        """Delete all tables and forget all client request tokens."""
        self.tables.clear()
        self.streams.clear()
        self.tokens = RequestTokens(self.clock)

    def tend(self) -> None:
        """Let every table adapt its partitions. The engine calls this periodically."""
        failures: list[Exception] = []
        for table in self.tables.values():
            try:
                table.tend()
            except Exception as error:  # a bug here, which must not block the other tables
                error.add_note(f"while the partitions of table {table.spec.name!r} were adapted")
                failures.append(error)
        for arn, stream in list(self.streams.items()):
            stream.tend()
            if stream.is_over:
                del self.streams[arn]
        if failures:
            raise ExceptionGroup("adapting partitions failed", failures)


def _apart(_: str | None, __: bytes) -> AbstractContextManager[object]:
    return nullcontext()


class Consumed:
    """The field `ConsumedCapacity` of an answer: the units that a request used in each table.

    The emulator also returns the number of the partition that holds the rows. DynamoDB does not,
    and SDKs ignore that field.
    """

    def __init__(self, level: str) -> None:
        self._level = level
        self._partition: int | None = None
        self._tables: dict[str, dict[str, float]] = {}
        self._indexes: dict[str, dict[tuple[str, str], dict[str, float]]] = {}

    def add(self, table: EngineTable, operation: str, units: float) -> None:
        if self._level != "NONE":
            used = self._tables.setdefault(table.spec.name, {})
            used[operation] = used.get(operation, 0.0) + units

    def add_index(
        self, table: EngineTable, index: LocalIndex | GlobalIndex, operation: str, units: float
    ) -> None:
        if self._level != "NONE":
            self._tables.setdefault(table.spec.name, {})
            indexes = self._indexes.setdefault(table.spec.name, {})
            used = indexes.setdefault((_FIELDS[index.is_global], index.spec.name), {})
            used[operation] = used.get(operation, 0.0) + units

    def at(self, table: EngineTable, key: Key) -> None:
        """Remember the partition of `key`, which holds all rows of the request."""
        if self._level != "NONE":
            self._partition = table.partition_of(key)

    def one(self) -> Json:
        """Return the field `ConsumedCapacity` for the answer to a request to one table."""
        if self._level == "NONE":
            return {}
        found = self._listed(False)
        return {"ConsumedCapacity": found[0]} if found else {}

    def many(self, split: bool = False) -> Json:
        """Return the field `ConsumedCapacity` for the answer to a batch or a transaction.

        With `split`, the field also shows the read units and the write units separately.
        """
        return {"ConsumedCapacity": self._listed(split)} if self._level != "NONE" else {}

    def _listed(self, split: bool) -> list[Json]:
        found = [self._shown(name, used, split) for name, used in self._tables.items()]
        if self._partition is not None:
            found[0]["Partition"] = self._partition
        return found

    def _shown(self, name: str, used: dict[str, float], split: bool) -> Json:
        indexes = self._indexes.get(name, {})
        total = dict(used)
        for units in indexes.values():
            for operation, amount in units.items():
                total[operation] = total.get(operation, 0.0) + amount
        shown: Json = {"TableName": name, **_capacity(total, split)}
        if self._level == "INDEXES":
            shown["Table"] = _capacity(used, split)
            for (field, index), units in indexes.items():
                shown.setdefault(field, {})[index] = _capacity(units, split)
        return shown


_FIELDS = {False: "LocalSecondaryIndexes", True: "GlobalSecondaryIndexes"}


def _capacity(used: dict[str, float], split: bool) -> Json:
    units: Json = {"CapacityUnits": sum(used.values(), 0.0)}
    if split:
        units |= {f"{operation}CapacityUnits": amount for operation, amount in used.items()}
    return units


def only_one(given: Iterable[object]) -> bool:
    return sum(one is not None for one in given) == 1
