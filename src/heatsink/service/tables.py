"""Tables of DynamoDB that commands are about: the one to make, the one to adopt."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from heatsink.checks import shown, shown_url
from heatsink.clock import Clock
from heatsink.errors import InvalidSetting, Misconfigured, NoTable

try:
    from heatsink.stores.dynamodb import make_table, open_table
    from heatsink.stores.dynamodb.address import EXAMPLE, Address, check_table, parse_url
    from heatsink.stores.dynamodb.failures import TableExists
except ImportError:
    raise Misconfigured("DynamoDB needs a client: pip install 'heatsink[aws]'") from None


async def create(url: str, write_units: int | None, clock: Clock) -> None:
    address = _address(url)
    if address is None:
        raise InvalidSetting(f"url {shown(shown_url(url))} names no table: use {EXAMPLE}")
    try:
        await make_table(address, clock, write_units)
    except TableExists:
        raise TableExists(
            f"table {address.table!r} exists already, and {await _fitness(address, clock)}"
        ) from None


async def _fitness(address: Address, clock: Clock) -> str:
    """Whether a table does for Heatsink, and what to do."""
    table, client = open_table(address, clock)
    try:
        await table.check_schema()
    except InvalidSetting as error:
        return str(error).removeprefix(f"table {address.table!r} ")
    finally:
        await client.close()
    return "has Heatsink's keys: connect to it as it is"


async def name_of_existing(table: str, registry: str, clock: Clock) -> str:
    """The name of a user's table, which is beside the registry unless its URL says where."""
    address, beside = _address(table), _address(registry)
    if address is None and beside is None:
        name = shown_url(table)[:80]
        raise InvalidSetting(
            f"TABLE {name!r} is not beside this registry: say where it is, as "
            f"dynamodb://{name}?region=eu-west-1"
        )
    if address is None:
        assert beside is not None
        address = msgspec.structs.replace(beside, table=check_table(table, "TABLE"))
    opened, client = open_table(address, clock)
    try:
        await opened.is_active()
    except NoTable:
        raise NoTable(
            f"there is no table {address.table!r} at {address.endpoint}: check its name; if it is "
            f"elsewhere, say where: dynamodb://{address.table}?region=eu-west-1"
        ) from None
    finally:
        await client.close()
    return address.table


def _address(url: str) -> Address | None:
    try:
        parts = urlsplit(url)
    except ValueError:  # whose text may show a password
        raise InvalidSetting(f"url {shown(shown_url(url))} cannot be read: use {EXAMPLE}") from None
    if parts.scheme != "dynamodb":
        return None
    return parse_url(parts)
