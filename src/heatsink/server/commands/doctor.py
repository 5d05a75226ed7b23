"""`heatsink doctor`: checks the store, the queue, clocks and permissions, and prints remedies."""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import click
import msgspec
from click.core import ParameterSource
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from heatsink.bulk.actions import BUILT_IN
from heatsink.bulk.changes import lacked_at
from heatsink.bulk.plan import QueuePlan, named
from heatsink.client.queue import connect_queue, default_queue
from heatsink.client.urls import open_stores
from heatsink.coordinator.lease import CURE, leadership_of
from heatsink.errors import HeatsinkError, NoRegistry, Unavailable
from heatsink.primitives.checks import shown_url
from heatsink.primitives.clock import BELIEVE_S, Clock, SystemClock, now_ms
from heatsink.primitives.words import counted
from heatsink.registry.closed_time import FAR_AHEAD_MS
from heatsink.registry.decisions import Reading
from heatsink.server.process import DATABASE, QUEUE
from heatsink.stores.stores import Stores

from .configuration import WORD, Folder, config_option, json_option, news_option
from .progress import progress_bar
from .queue_options import absent_queue
from .remote import SERVER, Remote

if TYPE_CHECKING:
    from heatsink.stores.redis.connection import Connection

State = Literal["ok", "warning", "wrong"]
STYLES = {"ok": "green", "warning": "yellow", "wrong": "red"}
FREE_BYTES_MIN = 200 * 1024 * 1024
CLOCK_MS_MAX = 5_000
UNUSED_MS = 1_000  # a closed time this far behind: no process uses the store
CONNECTIONS = 2  # of a server to the Redis for news
CONNECTIONS_SPARE = 50  # of leaders, commands and whoever looks
NO_PLAN = QueuePlan(0, 0)  # of a queue that no process has used yet
BELIEVED = (
    "Processes use this clock once NTP has synchronised it, or after "
    f"{BELIEVE_S:.0f} s in which no other process has contradicted it"
)


NO_REGISTRY = "no process has used this store yet: it has no registry"


class Finding(msgspec.Struct, frozen=True):
    """The result of one check. `cure` says what to do if `state` is not ok."""

    what: str
    state: State
    detail: str
    cure: str = ""


async def examine(
    data: Path, store: str | None, queue: str | None, news: str | None, clock: Clock
) -> AsyncIterator[Finding]:
    """Check the named store, queue and Redis, and yield a finding for each check.

    If `store` is None, check the SQLite store in the folder `data`, which must be an absolute path.
    """
    beside = None
    if store is None:
        findings = _folder(data)
        for finding in findings:
            yield finding
        if findings[0].what != "data":
            store = f"sqlite:///{data}/{DATABASE}"
            beside = f"embedded:///{data}/{QUEUE}"
    is_sound = True
    if store is not None:
        async for finding in _store(store, clock):
            is_sound = is_sound and (finding.what, finding.state) != ("store", "wrong")
            yield finding
    if queue:
        yield await _queue(queue)
    elif store is not None:
        yield await _unnamed_queue(store, beside, is_sound)
    if news is not None:
        servers = await _servers_of(store, clock) if store is not None and is_sound else 0
        yield await _redis("news", news, clock, servers)


def examine_server(remote: Remote, url: str) -> list[Finding]:
    """Check a running server over HTTP. Its store and queue may not be reachable from here."""
    try:
        status = remote.get("v1", "status")
    except HeatsinkError as error:
        cure = "check --server (HEATSINK_SERVER), --token (HEATSINK_TOKEN) and that process"
        return [Finding("server", "wrong", str(error), cure)]
    detail = f"{status['name']} answers at {url}, version {status['version']}"
    found = [Finding("server", "ok", detail)]
    if status["ready"]:
        found.append(Finding("store", "ok", "the server's view of the registry is up to date"))
    else:
        detail = (
            f"the server's view of the registry is {-status['horizon_s']:,.1f} s behind: "
            "writes are waiting"
        )
        cure = "check that the server can reach its store"
        found.append(Finding("store", "wrong", detail, cure))
    found.append(leader_finding(status["leader"], status["nobody_leads"]))
    if status.get("news_lost"):
        cure = "check the server's --news and that Redis; until then changes take effect later"
        found.append(Finding("news", "warning", status["news_lost"], cure))
    found.append(_queue_of(remote))
    return found


def _queue_of(remote: Remote) -> Finding:
    try:
        lines = remote.get("v1", "queue-partitions")["partitions"]
    except Unavailable as error:
        cure = "check the server's --queue and the Redis there"
        return Finding("queue", "wrong", str(error), cure)
    except HeatsinkError as error:
        cure = "if this server should run bulk actions, check its --queue and the Redis there"
        return Finding("queue", "warning", str(error), cure)
    workers = sum(line["workers"] for line in lines)
    found = f"{counted(len(lines), 'partition')}, {counted(workers, 'worker')}"
    moves = {line["partition"]: line["moves_to"] for line in lines if line["moves_to"]}
    return _unless_moving(Finding("queue", "ok", found), moves)


def _unless_moving(finding: Finding, moves: dict[int, str]) -> Finding:
    """Return the finding, or a warning if partitions of the queue are about to move.

    `moves` maps each of these partitions to its target.
    """
    if not moves:
        return finding
    numbers = ", ".join(map(str, sorted(moves)))
    first, to = min(moves.items())
    return Finding(
        "queue",
        "warning",
        f"{finding.detail}; to move: {numbers}",
        f"if nobody moves them now, finish the move: heatsink bulk place {first} {to}",
    )


def _folder(folder: Path) -> list[Finding]:
    if not folder.is_dir():
        return [
            Finding("data", "warning", f"{folder} does not exist yet", "heatsink serve creates it")
        ]
    found = []
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        cure = "run Heatsink as the owner of the folder, or change the owner"
        found.append(Finding("permissions", "wrong", f"{folder} cannot be written to", cure))
    elif folder.stat().st_mode & 0o077:
        cure = f"chmod 700 {folder}"
        detail = "other users of this machine have access to the data folder"
        found.append(Finding("permissions", "warning", detail, cure))
    else:
        found.append(Finding("permissions", "ok", f"only you have access to {folder}"))
    free = shutil.disk_usage(folder).free
    state: State = "ok" if free >= FREE_BYTES_MIN else "wrong"
    cure = "" if state == "ok" else "free some space: writes fail when the disk is full"
    found.append(Finding("disk", state, f"{free / 2**30:,.1f} GiB free", cure))
    return found


async def _store(url: str, clock: Clock) -> AsyncIterator[Finding]:
    try:
        stores = await _opened(url, clock)
    except HeatsinkError as error:
        yield Finding("store", "wrong", _said(error, "store"), "check --store or --data")
        return
    try:
        reading = await stores.registry.meta()
    except NoRegistry:
        yield Finding("store", "warning", NO_REGISTRY, _cure_of_no_registry(url))
    except HeatsinkError as error:
        cure = "when this is repaired, run heatsink doctor again"
        yield Finding("store", "wrong", str(error), cure)
    else:
        meta = reading.meta
        yield Finding("store", "ok", f"version {meta.version}, {meta.id_scheme} ids")
        for finding in _times(url, reading, clock):
            yield finding
    finally:
        await stores.close()


def _cure_of_no_registry(url: str) -> str:
    start = shlex.join(["heatsink", "serve", "--store", shown_url(url)])
    return (
        f"a new store gets its registry from the first process that uses it, such as {start}. If "
        "processes have used the store, it was wiped: restore a backup"
    )


async def _opened(url: str, clock: Clock) -> Stores:
    stores = open_stores(url, clock, must_exist=not url.startswith("memory:"))
    try:
        await stores.open()
    except BaseException:
        await stores.close()
        raise
    return stores


def _times(url: str, reading: Reading, clock: Clock) -> list[Finding]:
    meta = reading.meta
    found = [_clock(reading, clock)]
    known_ms = now_ms(clock) if reading.verdict else reading.store_ms
    if (ahead_ms := meta.closed_ms - known_ms) > FAR_AHEAD_MS:
        detail = (
            f"a wrong clock has moved the closed time {ahead_ms / 1000:,.0f} s ahead: no key can "
            "change its number of buckets until then"
        )
        found.append(Finding("closed time", "wrong", detail, _cure_of_closed_time(url)))
    leadership = leadership_of(meta, reading.store_ms)
    is_unused = urlsplit(url).scheme == "sqlite" and ahead_ms < -UNUSED_MS
    if leadership.vacancy and is_unused:
        found.append(Finding("leader", "ok", "not needed: no process uses the store now"))
    else:
        found.append(leader_finding(leadership.leader, leadership.vacancy))
    return found


def leader_finding(leader: str, vacancy: str | None) -> Finding:
    if vacancy is None:
        return Finding("leader", "ok", leader)
    return Finding("leader", "warning", vacancy, CURE)


def _clock(reading: Reading, clock: Clock) -> Finding:
    off_ms = now_ms(clock) - reading.store_ms
    if abs(off_ms) <= CLOCK_MS_MAX:
        return Finding("clock", "ok", f"{off_ms / 1000:+.1f} s from the store's time")
    if not reading.verdict:
        cure = "set this machine's clock (NTP). Until then Heatsink uses the store's time"
        return Finding("clock", "wrong", f"{off_ms / 1000:+.1f} s from the store's time", cure)
    detail = f"{off_ms / 1000:+,.1f} s from the last time recorded in the store"
    cure = "normal right after a reboot without NTP; otherwise set this machine's clock. "
    cure += BELIEVED
    return Finding("clock", "warning", detail, cure)


def _cure_of_closed_time(url: str) -> str:
    if urlsplit(url).scheme == "sqlite":
        return (
            "if this machine's clock is right, stop all processes that use the store and run: "
            f"heatsink fsck {shlex.quote(url)} --reset-closed-time"
        )
    return (
        "set the clocks and wait. The closed time of a DynamoDB table cannot be reset, since other "
        "processes cannot be locked out. To continue immediately, copy the rows to a new table"
    )


async def _unnamed_queue(store: str, beside: str | None, is_sound: bool) -> Finding:
    """Check the queue that belongs to the store, if it exists. Never create an embedded queue."""
    try:
        url = beside or default_queue(store)
    except HeatsinkError:
        cure = "for bulk actions and timelines: --queue redis://host:6379"
        return Finding("queue", "warning", "--queue is not set", cure)
    if not is_sound:
        cure = "repair the store first, then run heatsink doctor again"
        return Finding("queue", "warning", "not checked, since the store failed its check", cure)
    if (folder := absent_queue(url)) is not None:
        detail = f"none in {folder} yet: the first process that needs a queue creates it"
        return Finding("queue", "ok", detail)
    return await _queue(url)


async def _queue(url: str) -> Finding:
    try:
        if (folder := absent_queue(url)) is not None:
            cure = "if a queue should be there, check --queue; otherwise its first user creates it"
            return Finding("queue", "warning", f"there is no queue in {folder}", cure)
        async with connect_queue(url) as queue:
            plan = await queue.stores.fleet.plan(NO_PLAN, keep=False)
            shards = counted(plan.partitions, "partition") if plan.partitions else "no partitions"
            servers = len({place.url for place in plan.places.values()} | {""})
            spread = f" on {counted(servers, 'Redis server')}" if servers > 1 else ""
            moves = {number: named(move.to) for number, move in plan.moves.items()}
            found = Finding("queue", "ok", f"durable, {shards}{spread}")
            offered = await queue.stores.fleet.offered()
            return _with_workers(_unless_moving(found, moves), offered)
    except HeatsinkError as error:
        return Finding("queue", "wrong", _said(error, "queue"), "check --queue and that Redis")


def _with_workers(found: Finding, offered: Sequence[str]) -> Finding:
    """Return the finding with the actions of live workers. `offered` is `FleetStore.offered`.

    The finding is a warning if workers have met items of actions that they lack.
    """
    names = ", ".join(name for name in offered if not name.startswith(BUILT_IN))
    run = f"workers run {names or 'built-in actions only'}" if offered else "no worker runs"
    detail = f"{found.detail}; {run}"
    lacked = sorted(set[str]().union(*lacked_at(offered).values()))
    if not lacked or found.state != "ok":
        return Finding(found.what, found.state, detail, found.cure)
    detail += f"; some of them lack {', '.join(lacked)}"
    return Finding(found.what, "warning", detail, "run the same actions in all workers")


async def _servers_of(store: str, clock: Clock) -> int:
    """Return how many servers report heat, as the leader counted them; 0 if that is not known."""
    try:
        stores = await _opened(store, clock)
        try:
            return (await stores.registry.meta()).meta.servers
        finally:
            await stores.close()
    except HeatsinkError:
        return 0


async def _redis(what: str, url: str, clock: Clock, servers: int) -> Finding:
    from random import Random

    from heatsink.stores.redis.address import parse
    from heatsink.stores.redis.connection import Connection

    try:
        connection = Connection(parse(url, what), clock, Random())
        try:
            seconds, _ = await connection.run("TIME")
            clients_max = await _clients_max(connection)
        finally:
            await connection.close()
    except HeatsinkError as error:
        return Finding(what, "wrong", _said(error, what), f"check --{what} and that Redis")
    off_s = clock.now_s() - int(seconds)
    if abs(off_s) * 1000 > CLOCK_MS_MAX:
        detail = f"this machine's clock is {off_s:+.0f} s from that of the Redis"
        return Finding(what, "warning", detail, "set both clocks by NTP")
    if clients_max and clients_max < (needed := CONNECTIONS * servers + CONNECTIONS_SPARE):
        detail = f"maxclients of the Redis is {clients_max:,}, too few for {servers:,} servers"
        cure = f"set maxclients to {needed:,} or more: each server has {CONNECTIONS} connections"
        return Finding(what, "warning", detail, cure)
    return Finding(what, "ok", "the Redis answers")


async def _clients_max(connection: Connection) -> int:
    """Return how many clients the Redis accepts; 0 if it does not say, as a cluster's nodes."""
    try:
        found = await connection.run("INFO", "clients")
    except Unavailable:  # its user may not ask
        return 0
    return int(found.get("maxclients", 0))


def _said(error: HeatsinkError, flag: str) -> str:
    """Return the error's text, which names the flag and not the setting in Python."""
    first, _, rest = str(error).partition(" ")
    return f"--{flag} {rest}" if first in (flag, "url") else str(error)


def _table(findings: list[Finding]) -> Table:
    """Return a table of findings. The cure, which may be long, follows on a separate line."""
    table = Table(box=None, show_header=False)
    table.add_column()
    table.add_column()
    table.add_column(overflow="fold")
    for one in findings:
        state = f"[{STYLES[one.state]}]{one.state}[/]"
        table.add_row(state, one.what, escape(one.detail))
        if one.cure:
            table.add_row("", "", f"→ {escape(one.cure)}")
    return table


def _names_other_things(context: click.Context) -> bool:
    """Return whether the flags --data, --store, --queue or --news say what to check.

    Then HEATSINK_SERVER does not count. The flag --server counts in any case.
    """
    if context.get_parameter_source("server") is ParameterSource.COMMANDLINE:
        return False
    named = map(context.get_parameter_source, ("data", "store", "queue", "news"))
    return ParameterSource.COMMANDLINE in named


@click.command()
@config_option
@click.option(
    "--data",
    default="heatsink-data",
    type=Folder(),
    help="Folder of the embedded store and queue, checked if --store is not set.",
)
@click.option("--store", type=WORD, help="URL of the data store.")
@click.option("--queue", type=WORD, help="URL of the queue: redis://host:6379")
@news_option
@click.option(
    "--server",
    envvar="HEATSINK_SERVER",
    help="URL of a running `heatsink serve` to check instead of a store.",
)
@click.option("--token", envvar="HEATSINK_TOKEN", help="Token for --server, with the scope read.")
@json_option
@click.pass_context
def doctor(
    context: click.Context,
    data: Path,
    store: str | None,
    queue: str | None,
    news: str | None,
    server: str | None,
    token: str | None,
    as_json: bool,
) -> None:
    """Check the store, the queue, clocks and permissions, and say how to repair what is wrong.

    With --server, doctor checks that running server over HTTP. HEATSINK_SERVER does the same, but
    the flags --data, --store, --queue and --news take precedence over it.
    """
    clock, folder = SystemClock(), data.resolve()

    async def run() -> list[Finding]:
        found = []
        with progress_bar(count="checks done so far") as bar:
            checks = bar.add_task("", total=None)
            async for one in examine(folder, store, queue, news, clock):
                found.append(one)
                bar.advance(checks)
        return found

    asks_server = server is not None and not _names_other_things(context)
    if not as_json:
        url = server if asks_server else store
        what = shown_url(url) if url else f"the folder {folder}"
        hint = "" if asks_server else f". To check a running server: --server {SERVER}"
        click.echo(f"Checking {what}{hint}")
    if server is not None and asks_server:
        findings = examine_server(Remote(server, token), server)
    else:
        findings = asyncio.run(run())
    if as_json:
        click.echo(msgspec.json.encode(findings).decode())
    else:
        Console().print(_table(findings))
    if any(one.state == "wrong" for one in findings):
        click.get_current_context().exit(1)
