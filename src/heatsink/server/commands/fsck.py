"""`heatsink fsck`, `table create` and `adopt`: checks and repairs of a store, DynamoDB tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit
from uuid import uuid4

import click
import msgspec

from heatsink.client.urls import open_alone, open_stores
from heatsink.errors import InvalidSetting, NoTable, TableExists
from heatsink.primitives.chance import fresh_secret
from heatsink.primitives.checks import shown, shown_url
from heatsink.primitives.clock import Clock, SystemClock, now_ms, witness_of
from heatsink.primitives.ids import scheme_named
from heatsink.primitives.subjects import Kind
from heatsink.primitives.words import counted
from heatsink.registry.closed_time import FAR_AHEAD_MS, evidence_of
from heatsink.server.commands.configuration import WholeRange, json_option
from heatsink.server.commands.progress import progress_bar
from heatsink.spread.fsck import (
    Findings,
    OtherSubjects,
    Reset,
    StoredRows,
    check,
    rebuild,
    reset_closed_time,
)
from heatsink.spread.store import Row
from heatsink.stores.dynamodb import make_table, open_table
from heatsink.stores.dynamodb.address import EXAMPLE, DynamoAddress, check_table, parse_url
from heatsink.stores.stores import Stores

FROM_ELSEWHERE = OtherSubjects(
    unseen=(Kind.TABLE, Kind.INDEX, Kind.TRIAL), follow=((Kind.AUTHOR, Kind.POSTS),)
)


class FsckOutcome(msgspec.Struct, frozen=True):
    findings: Findings
    keys_mended: int | None = None
    copy: str | None = None
    reset: Reset | None = None

    def as_json(self) -> str:
        return msgspec.json.encode(self).decode()

    def __str__(self) -> str:
        findings = self.findings
        lines = [f"{counted(findings.rows, 'row')} of {counted(findings.keys, 'key')} checked"]
        if self.keys_mended is not None:
            mended = counted(self.keys_mended, "key")
            lines.insert(0, f"epochs of {mended} rebuilt: reconnect all clients")
        if self.reset is not None:
            lines = [*_told(self.reset, self.copy), *lines]
        if findings.clean:
            return "\n".join([*lines, "every row is where its layout puts it"])
        lines.append(f"{counted(findings.misplaced, 'row')} in the wrong partition")
        lines.append(f"{counted(findings.unread_shares, 'part')} of counters where no reader looks")
        unknown = counted(findings.unknown_epochs, "row")
        lines.append(f"{unknown} placed by epochs the registry lacks")
        unlike = counted(findings.unlike_layouts, "layout")
        lines.append(f"{unlike} with a difference between the two copies")
        lines += [f"  {problem}" for problem in findings.problems]
        if findings.unknown_epochs or findings.unread_shares or findings.unlike_layouts:
            lines.append("cure: heatsink fsck URL --rebuild restores the epochs from the rows")
        return "\n".join(lines)


def _told(reset: Reset, copy: str | None) -> list[str]:
    lines = [
        f"copied to {copy}",
        f"closed time: {_date(reset.closed_before_ms)} before, {_date(reset.closed_ms)} now",
    ]
    if reset.held_keys:
        lines.append(
            f"{counted(reset.held_keys, 'key')} with later rows, the last of "
            f"{_date(reset.held_until_ms)}: layouts stay as they are until then"
        )
    if reset.sealed:
        lines.append(
            f"{reset.sealed:,} parts of counters refuse adds until then: their tokens of this time "
            "were dropped, so it is not known which adds were counted"
        )
    return [*lines, "start your processes again: all other keys get new layouts immediately"]


def _date(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="seconds")


def _away(ahead_ms: int) -> str:
    return f"{abs(ahead_ms) / 1000:,.1f} s {'ago' if ahead_ms < 0 else 'from now'}"


@dataclass(frozen=True)
class _Counted:
    """A log whose scan reports its progress."""

    rows: StoredRows
    tick: Callable[[], object]

    async def scan(self) -> AsyncIterator[tuple[str, Row]]:
        async for found in self.rows.scan():
            self.tick()
            yield found


async def run_fsck(
    url: str, mend: bool, clock: Clock, tick: Callable[[], object] = lambda: None
) -> FsckOutcome:
    """Check a store. With `mend`, first rebuild its epochs from its rows.

    This process never leads and publishes nothing.
    """
    stores = open_stores(url, clock, must_exist=True)
    try:
        meta = (await stores.registry.meta()).meta
        scheme = scheme_named(meta.id_scheme)
        mended, log = None, _Counted(stores.log, tick)
        if mend:
            parts = (log, stores.counters, stores.registry)
            mended = await rebuild(*parts, scheme, uuid4().hex, fresh_secret())
        findings = await check(log, stores.counters, stores.registry, scheme)
        return FsckOutcome(findings, mended)
    finally:
        await stores.close()


async def run_reset(
    url: str, clock: Clock, tick: Callable[[], object] = lambda: None
) -> FsckOutcome:
    """Lower a closed time that a wrong clock moved far ahead. No other process may use the store.

    The steps are: check the store, copy it, reset the closed time, and check the store again. If
    the first check finds a problem, the other steps are skipped.
    """
    alone = open_alone(url, clock)
    try:
        stores = alone.stores
        evidence = evidence_of(witness_of(clock), now_ms(clock))
        await _check_reset(stores, evidence.time_ms)
        before = await _checked(stores, tick)
        if not before.clean:
            return FsckOutcome(before)
        copy = alone.copy()
        parts = (stores.registry, stores.counters, evidence, FROM_ELSEWHERE, uuid4().hex)
        reset = await reset_closed_time(alone, *parts)
        return FsckOutcome(await _checked(stores, tick), copy=str(copy), reset=reset)
    finally:
        await alone.close()


async def _checked(stores: Stores, tick: Callable[[], object]) -> Findings:
    scheme = scheme_named((await stores.registry.meta()).meta.id_scheme)
    return await check(_Counted(stores.log, tick), stores.counters, stores.registry, scheme)


async def _check_reset(stores: Stores, time_ms: int) -> None:
    ahead_ms = (await stores.registry.meta()).meta.closed_ms - time_ms
    if ahead_ms <= FAR_AHEAD_MS:
        raise InvalidSetting(f"the closed time is {_away(ahead_ms)}: no reset is needed")
    pins = (await stores.registry.snapshot()).pins
    adopted = (pin.subject.name for pin in pins.values() if pin.subject.kind is Kind.ADOPTED)
    tables = {name.partition("/")[0] for name in adopted}
    if tables:
        raise InvalidSetting(
            f"this registry also places rows of the tables {', '.join(sorted(tables))}, which this "
            f"command cannot check. Do not reset: the closed time is {_away(ahead_ms)}, and writes "
            "work again when it has passed"
        )


async def create(url: str, write_units: int | None, clock: Clock) -> None:
    address = _address(url)
    if address is None:
        raise InvalidSetting(
            f"url {shown(shown_url(url))} names no table: use {EXAMPLE}", field="url"
        )
    try:
        await make_table(address, clock, write_units)
    except TableExists:
        raise TableExists(
            f"table {address.table!r} exists already, and {await _fitness(address, clock)}"
        ) from None


async def _fitness(address: DynamoAddress, clock: Clock) -> str:
    """Return in words whether an existing table suits Heatsink, and what to do."""
    table, client = open_table(address, clock)
    try:
        await table.check_schema()
    except InvalidSetting as error:
        return str(error).removeprefix(f"table {address.table!r} ")
    finally:
        await client.close()
    return "has Heatsink's keys: connect to it"


async def existing_table(
    table: str, registry: str, clock: Clock, what: str = "TABLE"
) -> DynamoAddress:
    """Return the address of a user's table, and raise if the table does not exist.

    The table is in the registry's region, unless `table` is a URL that names another region.
    `what` is the argument or option that names the table.
    """
    address, beside = _address(table), _address(registry)
    if address is None and beside is None:
        name = shown_url(table)[:80]
        raise InvalidSetting(
            f"{what} {name!r} names no region, and the registry is not in DynamoDB: write it as "
            f"dynamodb://{name}?region=eu-west-1"
        )
    if address is None:
        assert beside is not None
        address = msgspec.structs.replace(beside, table=check_table(table, what))
    opened, client = open_table(address, clock)
    try:
        await opened.is_active()
    except NoTable:
        raise NoTable(
            f"there is no table {address.table!r} at {address.endpoint}: check its name; if it is "
            f"in another region, write {what} as dynamodb://{address.table}?region=eu-west-1"
        ) from None
    finally:
        await client.close()
    return address


def _address(url: str) -> DynamoAddress | None:
    try:
        parts = urlsplit(url)
    except ValueError:  # its text may contain a password
        raise InvalidSetting(
            f"url {shown(shown_url(url))} cannot be read: use {EXAMPLE}", field="url"
        ) from None
    if parts.scheme != "dynamodb":
        return None
    return parse_url(parts)


PROVISIONED_MAX = 10**12 // 3  # DynamoDB's maximum is 10**12; the table gets 3 times as many reads


@click.command()
@click.argument("url")
@click.option(
    "--rebuild",
    is_flag=True,
    help="Restore lost epochs of the registry from the rows. Reconnect all clients afterwards.",
)
@click.option(
    "--reset-closed-time",
    "reset",
    is_flag=True,
    help="Set the closed time back to now, after a wrong clock has moved it far ahead. Only for "
    "SQLite. Stop all processes that use the store first.",
)
@json_option
def fsck(url: str, rebuild: bool, reset: bool, as_json: bool) -> None:
    """Check that every row of the store at URL is in the partition where readers look for it."""
    if rebuild and reset:
        raise InvalidSetting(
            "--rebuild and --reset-closed-time cannot be combined: run one after the other"
        )

    with progress_bar(count="rows checked") as bar:
        rows = bar.add_task("", total=None)
        clock, tick = SystemClock(), lambda: bar.advance(rows)
        run = run_reset(url, clock, tick) if reset else run_fsck(url, rebuild, clock, tick)
        outcome = asyncio.run(run)
    click.echo(outcome.as_json() if as_json else str(outcome))
    if not outcome.findings.clean:
        click.get_current_context().exit(1)


@click.group()
def table() -> None:
    """Manage DynamoDB tables for Heatsink."""


@table.command("create")
@click.argument("url")
@click.option(
    "--write-units",
    type=WholeRange(1, PROVISIONED_MAX),
    help="Provisioned write units/s; read units are three times as many. Default: on demand.",
)
@json_option
def create_table(url: str, write_units: int | None, as_json: bool) -> None:
    """Create the table that URL names: dynamodb://messages?region=eu-west-1."""
    with progress_bar() as bar:
        bar.add_task("creating the table", total=None)
        asyncio.run(create(url, write_units, SystemClock()))
    click.echo('{"made":true}' if as_json else "The table is created.")
