"""A client that waits while DynamoDB throttles, for steps that read or move whole tables.

Such a step may take hours, and an interrupted one reads the table from its beginning. So a call
that is throttled, or fails because DynamoDB is not available, is sent again, for about a minute.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Protocol

from heatsink.errors import Retryable
from heatsink.primitives.clock import Clock
from heatsink.stores.dynamodb import open_table
from heatsink.stores.dynamodb.address import DynamoAddress

TRIES = 20
FIRST_PAUSE_S, PAUSE_S_MAX = 0.1, 5.0


class Caller(Protocol):
    """Sends one request to DynamoDB, and returns its response."""

    async def call(self, operation: str, payload: dict[str, Any], /) -> Any: ...


class PatientClient:
    """Sends each request until DynamoDB answers it.

    A write may be applied more than once, so every write of a caller has a condition.
    """

    def __init__(self, client: Caller, clock: Clock, rng: Random) -> None:
        self._client = client
        self._clock = clock
        self._rng = rng

    async def call(self, operation: str, payload: dict[str, Any], /) -> Any:
        """Send a request and return its response. Raises `Retryable` after the last try."""
        for attempt in range(TRIES - 1):
            try:
                return await self._client.call(operation, payload)
            except Retryable:
                pause_s = min(FIRST_PAUSE_S * 2**attempt, PAUSE_S_MAX)
                await self._clock.sleep(pause_s * (0.5 + self._rng.random() / 2))
        return await self._client.call(operation, payload)


@asynccontextmanager
async def patient_client(address: DynamoAddress, clock: Clock) -> AsyncIterator[PatientClient]:
    """Open a patient client of a table's DynamoDB."""
    client = open_table(address, clock)[1]
    try:
        yield PatientClient(client, clock, Random())
    finally:
        await client.close()
