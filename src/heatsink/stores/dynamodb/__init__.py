"""The data store in one DynamoDB table: logs, counters and the registry.

The client needs an extra (`heatsink[dynamodb]` or `heatsink[aws]`). So the client is imported only
when a table is opened. The package `wire` needs no extra, since the emulator uses it without the
client, and starts without importing the other stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heatsink.errors import Misconfigured
from heatsink.primitives.clock import Clock
from heatsink.primitives.words import pip_install

from .address import DynamoAddress

if TYPE_CHECKING:
    from heatsink.stores.stores import Stores

    from .client import DynamoClient
    from .table import DynamoTable

ACTIVE_POLL_S = 1.0


def open_table(address: DynamoAddress, clock: Clock) -> tuple[DynamoTable, DynamoClient]:
    """Open a table and its client.

    Raises `Misconfigured` if the extra that the client needs is not installed.
    """
    try:
        from .client import ChainCredentials, DynamoClient, FixedCredentials
        from .table import DynamoTable
    except ImportError as missing:
        extra = "dynamodb" if address.is_local else "aws"
        raise Misconfigured(
            f"DynamoDB needs {missing.name}: {pip_install(extra)}", field="url"
        ) from None
    credentials = (
        FixedCredentials() if address.is_local else ChainCredentials(clock, address.profile)
    )
    client = DynamoClient(address.endpoint, address.region, credentials, clock)
    return DynamoTable(client, address.table), client


def dynamodb_stores(address: DynamoAddress, clock: Clock) -> Stores:
    """Return the stores of one table.

    Heat reports reach only coordinators in this process. To send them to others, the application
    passes `news=` to `connect`.
    """
    return stores_over(open_table(address, clock)[1], address.table, clock, address.consistent)


def stores_over(
    client: DynamoClient, table_name: str, clock: Clock, consistent: bool = True
) -> Stores:
    from heatsink.stores.memory.messages import MemoryBus
    from heatsink.stores.stores import ConsumptionNotes, Stores

    from .client import TIMEOUT_S
    from .counters import DynamoCounters
    from .log import DynamoLog
    from .registry import DynamoRegistry
    from .table import DynamoTable, RegistryTable

    table, meter = DynamoTable(client, table_name), ConsumptionNotes()
    registry = DynamoRegistry(RegistryTable(client, table_name, clock), rows=table)
    return Stores(
        log=DynamoLog(table, clock, consistent, meter),
        meter=meter,
        answers_in_s=TIMEOUT_S,
        counters=DynamoCounters(table, meter),
        registry=registry,
        lease=registry,
        bus=MemoryBus(),
        open=table.check_schema,
        close=client.close,
    )


async def make_table(address: DynamoAddress, clock: Clock, write_units: int | None = None) -> None:
    """Create the table, and wait until it is active.

    With `write_units`, the table is provisioned, with three times as many read units. Otherwise it
    is on demand.
    """
    table, client = open_table(address, clock)
    try:
        await table.create(write_units, None if write_units is None else 3 * write_units)
        while not await table.is_active():
            await clock.sleep(ACTIVE_POLL_S)
        await table.expire_rows()
    finally:
        await client.close()
