"""`heatsink adopt`: brings a table under Heatsink in steps, and out of it again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from heatsink.door.declaration import SpreadTable
from heatsink.errors import InvalidSetting, Retryable, Unavailable
from heatsink.primitives.clock import Clock, SystemClock
from heatsink.primitives.words import counted
from heatsink.registry.decisions import View
from heatsink.registry.declarations import recorded
from heatsink.registry.registry import Registry
from heatsink.server.adoption.indexing import IndexStanding, indexing
from heatsink.server.adoption.steps import (
    Departure,
    Repair,
    Standing,
    Sweep,
    check_fixed,
    complete,
    dated_ahead,
    leave,
    move_strays,
    registry_at,
    standing_of,
    written_past,
)
from heatsink.server.adoption.writers import ForeignWriter, Stray, only_writers, writers_in
from heatsink.server.door.tables import read_tables, table_of
from heatsink.stores.dynamodb import open_table
from heatsink.stores.dynamodb.address import DynamoAddress

from .configuration import json_option
from .fsck import existing_table
from .progress import progress_bar

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
SHOWN = 20
CHANGES = ("moves", "completes", "leaves", "spreads", "sweeps")


class Past(msgspec.Struct, frozen=True):
    """Programs that write past Heatsink, and rows that they wrote."""

    writers: list[ForeignWriter]
    rows: list[Stray]


@click.command()
@click.argument("url")
@click.argument("table_name", metavar="TABLE")
@click.option(
    "--check",
    is_flag=True,
    help="Look for programs that write TABLE past Heatsink: in --trail, and in the rows of spread "
    "keys and of prefixes with fixed buckets (needs --tables). The exit code is 1 if there are "
    "any.",
)
@click.option(
    "--trail", multiple=True, type=FILE, help="Log file of CloudTrail's data events; repeatable."
)
@click.option(
    "--role", multiple=True, help="ARN of a role that writes through Heatsink; may be repeated."
)
@click.option("--tables", type=FILE, help="The file that declares TABLE, as for heatsink door.")
@click.option(
    "--move-strays",
    "moves",
    is_flag=True,
    help="Move rows that were written past Heatsink into their places.",
)
@click.option(
    "--strays-to",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --move-strays: if a place is taken by another row, append the stray to this file "
    "and delete it. Otherwise both rows stay, and queries that meet them fail.",
)
@click.option(
    "--policy", is_flag=True, help="Print the table policy that lets only the --role write."
)
@click.option(
    "--complete",
    "completes",
    is_flag=True,
    help="Confirm that no program writes TABLE past Heatsink any more: its keys may be spread.",
)
@click.option(
    "--leave",
    "leaves",
    is_flag=True,
    help="Move all rows back under the bare key. Processes with Heatsink refuse TABLE from now on. "
    "Waits --in-flight seconds for their last calls first. If it is interrupted, run it again.",
)
@click.option(
    "--scan",
    is_flag=True,
    help="With --leave: read the whole table, even if the registry knows of no prefix with fixed "
    "buckets.",
)
@click.option(
    "--index",
    help="Spread this global index of TABLE, whose hot values throttle writes. Alone: a dry run.",
)
@click.option(
    "--spread",
    "spreads",
    is_flag=True,
    help="With --index: create the new index, fill it, compare both, let queries use it, and "
    "delete the old one. If it is interrupted, run it again.",
)
@click.option(
    "--keep-old", is_flag=True, help="With --spread: stop before the old index is deleted."
)
@click.option(
    "--sweep",
    "sweeps",
    is_flag=True,
    help="With --index: move items out of buckets that are not used any more. heatsink door and "
    "heatsink coordinator --sweep do so by themselves.",
)
@click.option(
    "--pace",
    type=click.FloatRange(0.1, 100_000),
    default=200.0,
    show_default=True,
    help="With --index: how many items of one value are changed per second.",
)
@click.option(
    "--in-flight",
    type=click.FloatRange(0, 3_600),
    default=60.0,
    show_default=True,
    help="With --index and --leave: how many seconds a program's call may take to reach DynamoDB.",
)
@json_option
def adopt(url: str, table_name: str, as_json: bool, **options: Any) -> None:
    """Show how far the adoption of your TABLE by Heatsink is, and take the next step.

    URL is the store that holds Heatsink's registry. TABLE is the name of a table in the same
    region, or the URL of a table elsewhere: dynamodb://chat?region=eu-west-1. Until --complete,
    Heatsink counts heat and decides, but gives no key a second bucket: a dry run.
    """
    steps = ("check", "moves", "policy", "completes", "leaves")
    if sum(bool(options[name]) for name in steps) > 1:
        raise InvalidSetting(
            "choose one of --check, --move-strays, --policy, --complete and --leave"
        )
    of_index = [name for name in ("spreads", "keep_old", "sweeps") if options[name]]
    if of_index and options["index"] is None:
        raise InvalidSetting("--spread, --keep-old and --sweep need --index", field="index")
    if options["index"] is not None and any(options[name] for name in steps[:-1]):
        raise InvalidSetting(
            "combine --index only with --spread, --sweep or --leave", field="index"
        )
    with _says_how_to_go_on(options):
        result = asyncio.run(_step(url, table_name, options, SystemClock()))
    if as_json or options["policy"]:
        text = msgspec.json.encode(result)
        click.echo((msgspec.json.format(text) if options["policy"] else text).decode())
    else:
        _print(table_name, result)
    if isinstance(result, Past) and (result.writers or result.rows):
        click.get_current_context().exit(1)
    if isinstance(result, Departure | Repair) and result.conflicts:
        click.get_current_context().exit(1)


@contextmanager
def _says_how_to_go_on(options: dict[str, Any]) -> Iterator[None]:
    """If a step that changes something fails, say so in the error: the step can be repeated."""
    try:
        yield
    except Retryable as error:
        if not any(options[name] for name in CHANGES):
            raise
        raise Unavailable(
            f"{error}. This step may already have changed something: run the same command again to "
            "finish it"
        ) from error


async def _step(url: str, table_name: str, options: dict[str, Any], clock: Clock) -> Any:
    address = await existing_table(table_name, url, clock)
    if options["policy"]:
        return await _policy(address, options["role"], clock)
    async with registry_at(url, clock) as registry:
        if options["index"] is not None:
            return await _index_step(registry, address, options, clock)
        if options["check"]:
            writers = writers_in(options["trail"], address.table, options["role"])
            rows: list[Stray] = []
            if options["tables"] is not None:
                declared = _declared_in(registry.view, address.table, options["tables"])
                rows = await written_past(registry, address, declared, clock)
            elif not options["trail"]:
                raise InvalidSetting(
                    "--check needs --trail (files of CloudTrail) or --tables (the declaration)"
                )
            return Past(writers, rows)
        if options["moves"]:
            table = _declared_in(registry.view, address.table, options["tables"])
            return await _moved(registry, address, table, clock, options["strays_to"])
        if options["leaves"]:
            sweep = Sweep(options["scan"], options["in_flight"])
            click.echo(f"{address.table}: waiting for the last calls of your programs…", err=True)
            with progress_bar(count="rows moved") as bar:
                task = bar.add_task("", total=None)
                tick = lambda: bar.advance(task)  # noqa: E731
                return await leave(registry, address, clock, sweep, tick)
        if options["completes"]:
            await check_fixed(registry, address, clock)
            await complete(registry, address.table)
        return await _standing(registry, address, options["tables"], clock)


async def _standing(
    registry: Registry, address: DynamoAddress, tables: Path | None, clock: Clock
) -> Standing:
    """Return how far the adoption is. In a dry run, add items whose time is in the future."""
    standing = standing_of(registry.view, address.table)
    if standing.state != "dry run" or not standing.would:
        return standing
    try:
        table = _declared_in(registry.view, address.table, tables)
    except InvalidSetting:
        if tables is not None:
            raise
        return standing  # a function of the application's own reads its times
    ahead = await dated_ahead(standing, address, table, clock)
    return msgspec.structs.replace(standing, ahead=ahead)


async def _index_step(
    registry: Registry, address: DynamoAddress, options: dict[str, Any], clock: Clock
) -> IndexStanding:
    """Take a step with an index: spread it, sweep it, or bring it back."""
    table = _declared_in(registry.view, address.table, options["tables"])
    with progress_bar(count="items changed") as bar:
        task = bar.add_task("", total=None)

        def told(step: str, changed: int) -> None:
            bar.update(task, completed=changed)
            if step:
                click.echo(f"{address.table}, index {options['index']}: {step}", err=True)

        async with indexing(registry, address, table, options["index"], clock) as (index, runner):
            migration = index.migration(options["pace"], told)
            run, left = runner(options["in_flight"]).run, 0
            if options["leaves"]:
                await run(migration.leave())
            if options["spreads"]:
                await run(migration.spread(keep_old=options["keep_old"]))
            if options["sweeps"]:
                left = await run(migration.sweep())
            return await index.standing(left)


async def _policy(address: DynamoAddress, roles: tuple[str, ...], clock: Clock) -> Any:
    if not roles:
        raise InvalidSetting("--policy needs --role: the ARN of the role that may write")
    client = open_table(address, clock)[1]
    try:
        described = (await client.call("DescribeTable", {"TableName": address.table})).body
    finally:
        await client.close()
    return only_writers(described["Table"]["TableArn"], list(roles))


async def _moved(
    registry: Registry,
    address: DynamoAddress,
    table: SpreadTable,
    clock: Clock,
    path: Path | None,
) -> Repair:
    if path is None:
        return await move_strays(registry, address, table, clock, None)
    try:
        file = path.open("ab")
    except OSError as error:
        raise InvalidSetting(
            f"--strays-to {str(path)!r} cannot be written: {error.strerror}. Name a file in a "
            "folder that exists and that you may write to",
            field="strays_to",
        ) from None
    with file:

        def save(row: dict[str, Any]) -> None:
            file.write(msgspec.json.encode(row) + b"\n")
            file.flush()
            os.fsync(file.fileno())

        return await move_strays(registry, address, table, clock, save)


def _declared_in(view: View, table: str, path: Path | None) -> SpreadTable:
    """Return the declaration in a file; without a file, the one in the registry."""
    record = recorded(view, table)
    if path is None and record is not None:
        return table_of(table, record)
    if path is None:
        raise InvalidSetting(f"the registry has no declaration of {table!r}: pass --tables")
    return _declared(path, table)


def _declared(path: Path, table: str) -> SpreadTable:
    for declared in read_tables(path):
        if declared.name == table:
            return declared
    raise InvalidSetting(f"{path} does not declare the table {table!r}", field="tables")


def _print(name: str, result: Standing | Past | Departure | Repair | IndexStanding) -> None:
    if isinstance(result, IndexStanding):
        _print_index(result)
    elif isinstance(result, Standing):
        _print_standing(result)
    elif isinstance(result, Past):
        _print_past(name, result)
    elif isinstance(result, Repair):
        click.echo(
            f"{name}: {counted(result.moved, 'stray row')} moved into place, {result.merged:,} "
            f"were there already, {result.saved:,} saved to --strays-to and deleted."
        )
        for row in result.conflicts[:SHOWN]:
            click.echo(
                f"conflict: {row.partition_key} {row.sort_key} is also in its place, with other "
                "content. Pass --strays-to FILE to keep the row in its place"
            )
    else:
        click.echo(
            f"{name}: {counted(result.moved, 'row')} moved under the bare key, "
            f"{result.merged:,} were already there."
        )
        for row in result.conflicts[:SHOWN]:
            click.echo(
                f"conflict: {row.partition_key} {row.sort_key} is also under the bare key, with "
                "other content. Compare both, delete one, and run this again"
            )


def _instant(time_ms: int | None) -> str:
    """Return a time as people read it, with the number that times in the table are compared to."""
    when = datetime.fromtimestamp((time_ms or 0) / 1_000, UTC)
    return f"{when.isoformat(timespec='milliseconds')} ({time_ms} ms since 1970)"


def _print_standing(standing: Standing) -> None:
    words = {
        "dry run": "adoption is not complete. Heatsink counts and decides, and spreads no key.",
        "complete": f"adoption is complete for rows from {_instant(standing.complete_from_ms)} on.",
        "append-only": "declared append-only: keys are spread while other programs write.",
        "leaving": "leaves Heatsink: processes refuse it.",
    }
    said = words[standing.state]
    if standing.state == "dry run" and not standing.is_declared:
        said = (
            "no program has declared this table. Attach Heatsink to the programs that write it, "
            "or check the table's name and the registry's URL."
        )
    click.echo(f"{standing.table}: {said}")
    if standing.spread_keys:
        click.echo(f"{counted(standing.spread_keys, 'key')} had several buckets so far.")
    if standing.state == "dry run" and standing.would:
        table = Table("partition key", "would have had", box=None)
        for one in standing.would[:SHOWN]:
            table.add_row(escape(one.partition_key), counted(one.buckets, "bucket"))
        Console().print(table)
    for late in standing.ahead[:SHOWN]:
        click.echo(
            f"in the future: {late.partition_key} {late.sort_key} is dated {late.ahead_s:,.0f} s "
            "ahead. Once that time has come, a query that finds such an item fails: declare its "
            "prefix unspread, or give it another prefix"
        )


STEPS = {
    "creating": "the new index is being created. Run --spread again to go on.",
    "tagging": "existing items get their shadow attribute. Run --spread again to go on.",
    "filled": "both indexes are being compared. Run --spread again to go on.",
    "reading": "queries use the new index; the old one still exists. Run --spread to delete it.",
    "deleting": "the old index is being deleted. Run --spread again to go on.",
    "spread": "spread. After a hot time, a sweep makes reads cheap again: by heatsink door, by "
    "heatsink coordinator --sweep, or at once by --sweep.",
    "restoring": "the old index is being created again. Run --leave again to go on.",
    "returning": "queries use the old index again. Run --leave again to go on.",
    "clearing": "the shadow attribute is being removed. Run --leave again to go on.",
    "left": "not spread any more: it is as it was.",
}


def _print_index(index: IndexStanding) -> None:
    name = f"{index.table}, index {index.index}"
    if index.step is not None:
        click.echo(f"{name}: {STEPS[index.step]}")
        if index.spread_values:
            click.echo(f"{counted(len(index.spread_values), 'value')} had several buckets so far.")
        if index.open_buckets:
            left = counted(index.open_buckets, "unused bucket")
            click.echo(f"{left} may still hold items: run --sweep again later.")
        return
    click.echo(
        f"{name}: not spread. --spread would create the index {index.new_index} on the attribute "
        f"{index.shadow!r}, which holds {index.attribute} and a bucket, fill it, and delete "
        f"{index.index} at the end."
    )
    if index.common:
        table = Table(index.attribute, f"of {counted(index.looked_at, 'item')}", box=None)
        for one in index.common:
            table.add_row(escape(one.value), f"{one.items:,}")
        Console().print(table)


def _print_past(name: str, past: Past) -> None:
    if not past.writers and not past.rows:
        click.echo(f"{name}: nobody was found who writes past Heatsink.")
    for writer in past.writers:
        click.echo(
            f"{writer.who}: {counted(writer.writes, 'write')} ({', '.join(writer.operations)}), "
            f"the last at {writer.last} with {writer.agent}"
        )
    for row in past.rows[:SHOWN]:
        click.echo(f"written past Heatsink: {row.partition_key} {row.sort_key}")
