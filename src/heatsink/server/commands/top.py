"""`heatsink top`: hot keys, buckets, partitions and batches, live in the terminal."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from heatsink.primitives.words import counted

from .operator import decisions_table, heat_table, shown
from .remote import Remote, remote_options

ROWS = 8
PER_SECOND = 4


@click.command()
@remote_options
@click.option("--once", is_flag=True, help="Print the current state once and exit.")
def top(server: str, token: str | None, as_json: bool, once: bool) -> None:
    """Show hot keys, buckets, partitions and batches, live. Press Ctrl-C to exit.

    If the output is no terminal, the current state is printed once.
    """
    remote = Remote(server, token)
    recent = remote.get("v1", "decisions", limit=ROWS)["decisions"]
    seen: dict[str, Any] = {"decisions": recent}
    if as_json:
        for name, data in remote.events():
            shown({name: data})
            if once and name == "progress":
                return
    console = Console()
    if once or not console.is_terminal:
        _fill(remote, seen)
        console.print(view(seen))
        return
    with Live(view(seen), console=console, refresh_per_second=PER_SECOND, screen=True) as live:
        for name, data in remote.events():
            if name == "decision":
                seen["decisions"] = [data, *seen["decisions"]][:ROWS]
            seen[name] = data
            live.update(view(seen))


def _fill(remote: Remote, seen: dict[str, Any]) -> None:
    for name, data in remote.events():
        seen[name] = data
        if name == "progress":
            return


def view(seen: dict[str, Any]) -> Group:
    parts: list[Any] = [_header(seen.get("status"))]
    if "heat" in seen:
        parts += [
            _title("Hot keys"),
            heat_table({**seen["heat"], "keys": seen["heat"]["keys"][:ROWS]}),
        ]
    if "partitions" in seen:
        parts += [_title("Queue partitions"), _partitions(seen["partitions"]["partitions"])]
    if "progress" in seen:
        parts += [_title("Batches in progress"), _batches(seen["progress"]["progress"])]
    parts += [_title("Decisions"), decisions_table(seen["decisions"])]
    return Group(*parts)


def _title(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _header(status: dict[str, Any] | None) -> Text:
    if status is None:
        return Text("waiting for the first data …")
    role = "leads" if status["leads"] else f"follows; {status['leader']} leads"
    if not status["leader"]:
        leaderless_s = status["leaderless_s"]  # null if it is infinite
        role = "has seen no leader yet"
        if leaderless_s:
            role = f"has seen no leader for {leaderless_s:,.0f} s"
    return Text(
        f"{status['name']} {role} · {counted(status['servers'], 'server')} · "
        f"version {status['version']} · {counted(status['spread_keys'], 'key')} spread over "
        f"{counted(status['extra_buckets'], 'extra bucket')} · "
        f"{status['pinned_keys']} pinned"
    )


def _partitions(partitions: list[dict[str, Any]]) -> Table:
    """Return a table of the partitions that are not idle, the busiest first."""
    table = Table("partition", box=None)
    columns = ("workers", "target", "runnable", "limited", "in_flight", "done", "failed")
    for name in columns:
        table.add_column(name.replace("_", " "), justify="right")
    busy = [each for each in partitions if each["runnable"] or each["in_flight"] or each["limited"]]
    for each in sorted(busy, key=lambda each: -each["runnable"])[:ROWS]:
        table.add_row(
            str(each["partition"]),
            *("–" if each[name] is None else f"{each[name]:,}" for name in columns),
        )
    if not busy:
        table.add_row(f"({len(partitions)} idle)")
    return table


def _batches(batches: list[dict[str, Any]]) -> Table:
    table = Table("batch", "action", "tenant", "state", "done", "of", "failed", "left", box=None)
    for batch in batches[:ROWS]:
        eta = "" if batch["eta_s"] is None else f"{batch['eta_s']:,.0f} s"
        state = batch["reason"] or batch["state"]
        words = (batch["id"][:30], batch["action"], batch["tenant"][:20], state)
        counts = (batch["done"], batch["accepted"], batch["failed"])
        table.add_row(*map(escape, words), *(f"{count:,}" for count in counts), eta)
    if not batches:
        table.add_row("(none)")
    return table
