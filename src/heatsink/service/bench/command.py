"""`heatsink bench`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click
import msgspec
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from heatsink.client.chance import fresh_random
from heatsink.clock import SystemClock
from heatsink.errors import InvalidSetting
from heatsink.service.configuration import Number, json_option

from .measure import Line, Plan, contest, measure

CAPTION = (
    "“of it” is the median of the rounds' ratios (both run in each round, in turns), "
    "not the ratio of the medians shown."
)


@click.command()
@click.argument("url", required=False)
@click.option("--seconds", type=Number(1, 3_600), default=12.0, help="For all calls together.")
@click.option("--at-once", type=click.IntRange(1, 1_000), default=32, help="Calls under way.")
@json_option
def bench(url: str | None, seconds: float, at_once: int, as_json: bool) -> None:
    """How fast the store at URL is through Heatsink, beside the bare store.

    Without URL: a new SQLite file in this folder, which is removed again. Rows are written to keys
    of its own and erased at the end; a store that bills for writes bills for these.
    """
    with _url(url) as where:
        asyncio.run(_run(where, Plan(seconds, at_once), as_json))


@contextmanager
def _url(url: str | None) -> Iterator[str]:
    if url is not None:
        yield url
        return
    try:
        folder = TemporaryDirectory(prefix="heatsink-bench-", dir=Path.cwd())
    except OSError as error:
        raise InvalidSetting(f"this folder cannot be written to ({error}): name a URL") from None
    with folder as name:
        yield f"sqlite:///{name}/bench.db"


async def _run(url: str, plan: Plan, as_json: bool) -> None:
    """Figures are shown before rows are erased, which may take long and fail."""
    clock, console = SystemClock(), Console(stderr=True)
    async with contest(url, clock, fresh_random()) as found:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            turns = bar.add_task("measuring", total=plan.turns)
            lines = await measure(found, plan, clock, lambda: bar.advance(turns))
            bar.update(turns, completed=plan.turns)
        _show(lines, as_json)


def _show(lines: list[Line], as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode(lines).decode())
        return
    Console().print(_table(lines))
    for line in lines:
        if line.refused or line.bare_refused:
            click.echo(
                f"{line.what}: the store refused {line.refused:,} calls for longer than Heatsink "
                f"retries, and {line.bare_refused:,} bare ones, which nobody retries"
            )
        if line.unanswered or line.bare_unanswered:
            click.echo(
                f"{line.what}: {line.unanswered:,} calls and {line.bare_unanswered:,} bare ones "
                "had no answer when their time was up: give it more --seconds"
            )


def _table(lines: list[Line]) -> Table:
    table = Table("call", box=None, caption=CAPTION, caption_justify="left")
    for title in ("a second", "half within", "99 % within", "bare store", "of it"):
        table.add_column(title, justify="right")
    for line in lines:
        times = (_figure(line.p50_ms, ",.2f", " ms"), _figure(line.p99_ms, ",.2f", " ms"))
        ratio = _figure(line.ratio and 100 * line.ratio, ",.0f", " %")
        table.add_row(line.what, f"{line.per_s:,.0f}", *times, f"{line.bare_per_s:,.0f}", ratio)
    return table


def _figure(value: float | None, shape: str, unit: str = "") -> str:
    return "–" if value is None else f"{value:{shape}}{unit}"
