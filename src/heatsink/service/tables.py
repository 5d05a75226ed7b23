"""`heatsink table create`."""

from __future__ import annotations

from urllib.parse import urlsplit

from heatsink.clock import Clock
from heatsink.errors import InvalidSetting
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse_url


async def create(url: str, write_units: int | None, clock: Clock) -> None:
    parts = urlsplit(url)
    if parts.scheme != "dynamodb":
        raise InvalidSetting(f"url {url[:80]!r} names no table: use dynamodb://messages?region=…")
    await make_table(parse_url(parts), clock, write_units)
