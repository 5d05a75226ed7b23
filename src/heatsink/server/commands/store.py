"""Commands that need no server: they open the deployment's store and read the registry in it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from heatsink.client import connect
from heatsink.client.blocking import BlockingHeatsink, connect_sync
from heatsink.client.urls import missing_file
from heatsink.primitives.clock import SystemClock
from heatsink.registry.decisions import Decision
from heatsink.server.api.calls.operations import lines_of

from .configuration import WORD
from .coordinator import check_store, ids_of

FOLLOW_S = 0.5
NEW_MAX = 1_000


def store_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--store",
        type=WORD,
        envvar="HEATSINK_STORE",
        help="URL of the deployment's store: then no server is needed.",
    )(command)


@contextmanager
def opened(url: str, may_found: bool = False) -> Iterator[BlockingHeatsink]:
    """Yield a client of the store. The client never leads.

    If the store's file is missing, raise `InvalidSetting`. With `may_found`, create the file
    instead, and say so.
    """
    check_store(url)
    if may_found and (file := missing_file(url)) is not None:
        click.echo(f"heatsink: there was no database {file}: a new one is made", err=True)
    ids = asyncio.run(ids_of(url, SystemClock(), must_exist=not may_found))
    with connect_sync(url, coordinate=False, ids=ids) as hs:
        yield hs


def decisions_in(url: str, limit: int, follow: bool) -> Iterator[list[dict[str, Any]]]:
    """Yield the newest decisions, newest first. With `follow`, then yield new decisions.

    Decisions have the form that the HTTP API gives them.
    """
    clock = SystemClock()
    with opened(url) as hs:
        entries = hs.decisions(limit)
        newest = entries[0].version if entries else 0
        yield _lines(entries)
        while follow:
            asyncio.run(clock.sleep(FOLLOW_S))
            entries = [each for each in hs.decisions(NEW_MAX) if each.version > newest]
            if entries:
                newest = entries[0].version
                yield _lines(entries[::-1])


async def publish_in(url: str, decisions: Sequence[Decision]) -> None:
    """Write decisions to the history of the registry in this store."""
    check_store(url)
    ids = await ids_of(url, SystemClock(), must_exist=True)
    async with connect(url, coordinate=False, ids=ids) as hs:
        await hs.parts.registry.publish(decisions, term=None)


def _lines(entries: list[Any]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(line) for entry in entries for line in lines_of(entry)]
