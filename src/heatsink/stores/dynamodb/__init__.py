"""One DynamoDB table for logs, counters and the registry."""

from __future__ import annotations

from heatsink.clock import Clock
from heatsink.stores.memory.bus import MemoryBus
from heatsink.stores.stores import Stores

from .client import DynamoClient
from .counters import DynamoCounters
from .log import DynamoLog
from .registry import DynamoRegistry
from .table import Table


def dynamodb_stores(
    client: DynamoClient, table_name: str, clock: Clock, consistent: bool = True
) -> Stores:
    table = Table(client, table_name)
    registry = DynamoRegistry(table)
    return Stores(
        log=DynamoLog(table, clock, consistent),
        counters=DynamoCounters(table),
        registry=registry,
        lease=registry,
        bus=MemoryBus(),
        close=client.close,
    )
