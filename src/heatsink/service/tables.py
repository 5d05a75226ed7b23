"""`heatsink table create`."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from heatsink.clock import Clock
from heatsink.errors import InvalidSetting
from heatsink.stores.dynamodb import make_table
from heatsink.stores.dynamodb.address import parse


async def create(url: str, write_units: int | None, clock: Clock) -> None:
    parts = urlsplit(url)
    if parts.scheme != "dynamodb":
        raise InvalidSetting(f"url {url[:80]!r} names no table: use dynamodb://messages?region=…")
    await make_table(parse(parts.netloc, dict(parse_qsl(parts.query))), clock, write_units)
