"""Steps of an adoption, as operators take them: `heatsink adopt --complete` and `--index`."""

from __future__ import annotations

import asyncio

from click.testing import CliRunner

import heatsink
from heatsink.cli import main
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.subjects import Kind, Subject
from heatsink.server.adoption.steps import complete, registry_at
from tests.waiting import until


def complete_adoption(registry: str, table: str) -> None:
    """Record that all programs write to a table through Heatsink from now on."""

    async def record() -> None:
        async with registry_at(registry, SystemClock()) as opened:
            await complete(opened, table)

    asyncio.run(record())


def wait_until_spread(registry: str, subject: Subject, buckets: int, since_ms: int) -> None:
    """Pin a key or a value of an index. Wait until it had its buckets `since_ms` ago."""
    with heatsink.connect_sync(registry, coordinate=False) as hs:
        hs.pin(subject, buckets=buckets, reason="a test")

        def is_spread() -> bool:
            found = hs.explain(subject)
            return found.layout.epoch_at(found.now_ms - since_ms).buckets == buckets

        until(is_spread)


def spread_index(registry: str, endpoint: str, table: str, index: str) -> None:
    """Spread an index of a table that some program has declared."""
    flags = ["--index", index, "--spread", "--in-flight", "0"]
    address = f"dynamodb://{table}?endpoint={endpoint}"
    ran = CliRunner().invoke(main, ["adopt", registry, address, *flags])
    assert ran.exit_code == 0, ran.output


def spread_value(registry: str, table: str, index: str, value: str, since_ms: int = 0) -> None:
    """Give a value of a spread index three buckets."""
    subject = Subject(Kind.INDEX, f"{table}/{index}/{value}")
    wait_until_spread(registry, subject, 3, since_ms)
