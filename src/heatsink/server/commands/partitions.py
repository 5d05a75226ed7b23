"""`heatsink dynamo --partitions` and `--explain`: the partitions of a running emulator."""

from __future__ import annotations

import asyncio
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from heatsink.emulator.capacity.table import SPACE
from heatsink.errors import NotFound, Unavailable
from heatsink.primitives.clock import Clock
from heatsink.primitives.words import counted
from heatsink.server.running import one_line

from .remote import Remote

EVERY_S = 1.0
EVENTS = 8
KEY_SHOWN = 40
COLUMNS = ("#", "of hashes", "rows", "writes/s", "reads/s", "load", "lent/s", "refused/s")


def show_partitions(url: str, token: str | None, clock: Clock) -> None:
    """Show partitions until Ctrl-C; print them once if the output is not a terminal."""
    remote, console = Remote(url, token), Console()
    first = view(_ask(remote, url))
    if not console.is_terminal:
        console.print(first)
        return
    with Live(first, console=console, auto_refresh=False) as live:
        while True:
            asyncio.run(clock.sleep(EVERY_S))
            live.update(view(_ask(remote, url)), refresh=True)


def explain_partitions(url: str, token: str | None) -> None:
    """Print which partitions are hot, and why."""
    for line in _got(Remote(url, token), url, "explain")["lines"]:
        click.echo(one_line(line))


def _ask(remote: Remote, url: str) -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = _got(remote, url, "partitions")
    return tables


def _got(remote: Remote, url: str, path: str) -> Any:
    try:
        return remote.get(path)
    except (NotFound, Unavailable) as error:
        cure = "start `heatsink dynamo`, or name its --port"
        if isinstance(error, NotFound):
            raise Unavailable(f"the server at {url} is not the emulator: {cure}") from None
        raise Unavailable(f"no emulator answers at {url}: {cure}") from None


def view(tables: list[dict[str, Any]]) -> Group:
    if not tables:
        return Group(Text("The emulator has no tables yet."))
    return Group(*(part for table in tables for part in _table(table)))


def _table(report: dict[str, Any]) -> list[Any]:
    throttles = ", ".join(f"{count:,} by {limit}" for limit, count in report["throttles"].items())
    held = counted(len(report["partitions"]), "partition")
    name = (
        report["table"]
        if report["index"] is None
        else f"{report['table']}, index {report['index']}"
    )
    title = f"\n{name}: {held}, version "
    title += f"{report['version']}, throttled: {throttles or 'none'}"
    grid = Table(box=None)
    for name in COLUMNS:
        grid.add_column(name, justify="right", no_wrap=True)
    grid.add_column("hottest key", overflow="fold")
    for each in report["partitions"]:
        grid.add_row(*_cells(each))
    events = [Text(_line(event)) for event in report["events"][-EVENTS:]]
    return [Text(title, style="bold"), grid, *events]


def _cells(report: dict[str, Any]) -> list[Any]:
    state = report["state"]
    width = state["end"] - state["start"]
    refused_s = state["refused_writes_s"] + state["refused_reads_s"]
    rates = (state["writes_s"], state["reads_s"])
    notes = []
    if (key := report["hottest"]) is not None and any(round(rate) for rate in rates):
        short = key if len(key) <= KEY_SHOWN else f"{key[:KEY_SHOWN]}…"
        notes.append(f"{short} {state['hottest_share']:.0%}")
    if report["moved"] is not None:
        notes.append(f"moving: {counted(report['moved'], 'row')} so far")
    if state["stuck"]:
        notes.append(f"cannot help: {state['stuck']}")
    return [
        str(state["number"]),
        "one key" if width == 1 else f"{width / SPACE:.2%}",
        f"{report['rows']:,}",
        *(f"{rate:,.0f}" for rate in rates),
        f"{state['load']:.0%}",
        f"{state['lent_s']:,.0f}",
        Text(f"{refused_s:,.0f}", style="red" if refused_s else ""),
        Text("; ".join(notes)),
    ]


def _line(event: dict[str, Any]) -> str:
    done = ", done" if event["done"] else ""
    return f"  {event['what']} of {event['partition']}{done}: {event['reason']}"
