"""`heatsink lab`: runs an experiment and shows its report in the terminal and as a page."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click
import msgspec

from heatsink.errors import HeatsinkError, InvalidSetting, Unavailable
from heatsink.server.commands.configuration import WholeRange, json_option

from . import (
    celebrity,
    fairness,
    fleet,
    hot_key,
    isolation,
    live,
    partitions,
    rates,
    reads,
    scaling,
    steps,
)
from .report import Figure, LabReport, command_of, shown, to_html

AS_JSON = "heatsink.lab.json"
FULL = (errno.ENOSPC, errno.EDQUOT)
TIMES_MAX = 100  # the largest size of an experiment, as a multiple of its default


def show(report: LabReport, page: Path, command: str) -> None:
    """Write the page, and only then print the report.

    A reader such as `heatsink plan | head -1` may close the pipe early, and the page must exist
    then.
    """
    from rich.console import Console

    verb, failure = "Replaced" if page.is_file() else "Wrote", None
    try:
        write_page(report, page, command)
    except HeatsinkError as error:
        failure = error  # the figures took minutes: print them first
    console = Console()
    console.print(f"\n[bold]{report.title}[/bold]")
    for figure in report.figures:
        _show_figure(console, figure)
    console.print()
    for table in report.tables:
        console.print(_table(table.title, table.columns, [map(shown, row) for row in table.rows]))
    if failure is not None:
        raise failure
    console.print(f"{verb} the page {page}", soft_wrap=True, highlight=False)


def _show_figure(console: Any, figure: Figure) -> None:
    """Print a figure in one line. If it is a question, print the answer in the lines below."""
    if figure.label.endswith("?"):
        console.print(f"\n{figure.label}\n[bold]{figure.value}[/bold]")
        console.print(f"[dim]{figure.beside}[/dim]")
        return
    beside = f"  [dim]{figure.beside}[/dim]" if figure.beside else ""
    console.print(f"  {figure.label}: [bold]{figure.value}[/bold]{beside}")


def check_own_page(page: Path, program: str) -> None:
    """Raise `InvalidSetting` if a file that `program` did not write is in the place of its page."""
    for each in (page, page_before(page)):
        if each.exists() and not (_command_of(each) or "").startswith(program):
            raise InvalidSetting(
                f"{each} is not a page of `{program}`, and would be replaced: rename it, or choose "
                "another page with --out"
            )


def set_aside(page: Path, command: str) -> Path | None:
    """Keep a page that another command wrote: rename it to NAME-before.html.

    Returns the new path; None if there is no page, or if `command` itself wrote the page.
    """
    if not page.exists() or _command_of(page) == command:
        return None
    return page.replace(page_before(page))


def page_before(page: Path) -> Path:
    return page.with_stem(f"{page.stem}-before")


def _command_of(page: Path) -> str | None:
    try:
        return command_of(page.read_text("utf-8")) if page.is_file() else None
    except (OSError, UnicodeDecodeError):
        return None


def check_page(page: Path) -> None:
    """Raise `InvalidSetting` if the page cannot be written.

    Call this before the experiment, which may run for minutes.
    """
    is_new = not page.exists()
    if not is_new and not page.is_file():
        return  # for example a pipe: opening it would use it up
    try:
        page.open("ab").close()
        if is_new:
            page.unlink()
    except OSError as error:
        raise _unwritable(page, error) from None


def _unwritable(page: Path, error: OSError) -> HeatsinkError:
    if error.errno in FULL:
        return Unavailable(f"--out {str(page)!r} cannot be written: {error.strerror}: free space")
    return InvalidSetting(f"--out {str(page)!r} cannot be written: {error.strerror}")


def write_page(report: LabReport, page: Path, command: str) -> None:
    from heatsink.server.dashboard import plotly_file

    try:
        page.write_text(to_html(report, command, plotly_file().read_text("utf-8")), "utf-8")
    except OSError as error:
        raise _unwritable(page, error) from None


def _table(title: str, columns: list[str], rows: list[Any]) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


@click.group()
def lab() -> None:
    """Run experiments: the production code under simulated load, on virtual time."""


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    seed = click.option(
        "--seed", default=1, show_default=True, help="Random seed: the same seed repeats a run."
    )
    out = click.option(
        "--out",
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        help="HTML page to write.  [default: lab-NAME.html]",
    )

    @wraps(command)
    def run(as_json: bool, out: Path | None, **options: Any) -> None:
        """Check that the page can be written, then run the experiment."""
        page = out or Path(f"lab-{click.get_current_context().info_name}.html")
        if out is not None or not as_json:
            check_page(page)
        click.get_current_context().meta[AS_JSON] = as_json
        command(out=out, **options)

    return seed(out(json_option(run)))


def _items(default: int, what: str, flag: str = "--items") -> Callable[..., Any]:
    return click.option(
        flag, "items", type=_up_to(default), default=default, show_default=True, help=what
    )


def _up_to(default: int) -> WholeRange:
    """Return the range of an experiment's size: a run of the largest size takes about an hour."""
    return WholeRange(1_000, TIMES_MAX * default)


@lab.command("hot-key")
@_items(hot_key.PEAK_S, "Writes per second at the peak.", "--peak")
@_options
def hot_key_command(items: int, seed: int, out: Path | None) -> None:
    """Compare a viral conversation in one bucket with one spread over several."""
    _show(hot_key.experiment(items, seed), out, f"--peak {items} --seed {seed}")


@lab.command("scaling")
@click.option(
    "--items",
    type=_up_to(scaling.ITEMS),
    help=f"Number of items in the spike.  [default: {scaling.ITEMS}; {live.ITEMS} with --live]",
)
@click.option(
    "--live", "is_live", is_flag=True, help="Also run it on a real Redis, and compare the two."
)
@click.option(
    "--speed",
    type=click.FloatRange(1, 100),
    default=live.SPEED,
    show_default=True,
    help="How many times as fast as real time the clock of --live goes.",
)
@_options
def scaling_command(
    items: int | None, is_live: bool, speed: float, seed: int, out: Path | None
) -> None:
    """Compare the scaling policies of workers under one load spike."""
    if is_live:
        items = items or live.ITEMS
        report = live.experiment(items, seed, speed)
        _show(report, out, f"--live --items {items} --speed {speed:g} --seed {seed}")
    else:
        items = items or scaling.ITEMS
        _show(scaling.experiment(items, seed), out, f"--items {items} --seed {seed}")


@lab.command("steps")
@_items(steps.ITEMS, "Number of items of the customer.")
@_options
def steps_command(items: int, seed: int, out: Path | None) -> None:
    """Replay the article's load test: 25 minutes with 8 workers, 4 minutes with partitions."""
    _show(steps.experiment(items, seed), out, f"--items {items} --seed {seed}")


@lab.command("fairness")
@_items(fairness.GIANT, "Number of items in the giant batch.")
@_options
def fairness_command(items: int, seed: int, out: Path | None) -> None:
    """Measure how long small batches take while one giant batch runs."""
    _show(fairness.experiment(items, seed), out, f"--items {items} --seed {seed}")


@lab.command("isolation")
@_items(isolation.LARGE, "Number of items in the large batch.")
@_options
def isolation_command(items: int, seed: int, out: Path | None) -> None:
    """Measure how a large batch delays small ones, with 1 to 32 partitions."""
    _show(isolation.experiment(items, seed), out, f"--items {items} --seed {seed}")


@lab.command("rates")
@_items(rates.JOBS, "Number of jobs in the three batches together.")
@_options
def rates_command(items: int, seed: int, out: Path | None) -> None:
    """Compare rate limits that are declared with limits that workers discover."""
    _show(rates.experiment(items, seed=seed), out, f"--items {items} --seed {seed}")


@lab.command("reads")
@_items(reads.READS_PER_S, "Reads per second.", "--reads")
@_options
def reads_command(items: int, seed: int, out: Path | None) -> None:
    """Compare ways to read one hot product: load each time, share loads, or cache."""
    _show(reads.experiment(items, seed), out, f"--reads {items} --seed {seed}")


@lab.command("celebrity")
@_items(celebrity.FANS, "Number of followers of the celebrity.")
@_options
def celebrity_command(items: int, seed: int, out: Path | None) -> None:
    """Compare pushing a celebrity's posts to all followers with pulling them on read."""
    _show(celebrity.experiment(items, seed), out, f"--items {items} --seed {seed}")


@lab.command("partitions")
@_items(partitions.WRITES_PER_S, "Writes per second to the conversation.")
@_options
def partitions_command(items: int, seed: int, out: Path | None) -> None:
    """Compare remedies for a hot conversation: adaptive capacity, salting, and both."""
    _show(partitions.experiment(items, seed), out, f"--items {items} --seed {seed}")


@lab.command("fleet")
@click.option(
    "--servers",
    type=WholeRange(10, 20_000),
    default=fleet.SERVERS,
    show_default=True,
    help="Number of app servers of the largest fleet.",
)
@click.option(
    "--live",
    "is_live",
    is_flag=True,
    help="Also run 400 real reporters on a real Redis, and compare.",
)
@_options
def fleet_command(servers: int, is_live: bool, seed: int, out: Path | None) -> None:
    """Measure what a large fleet costs its coordinator and Redis, and how fast it reacts."""
    report = fleet.experiment(servers, seed, is_live)
    live = "--live " if is_live else ""
    _show(report, out, f"{live}--servers {servers} --seed {seed}")


def _show(report: LabReport, out: Path | None, options: str) -> None:
    meta, command = click.get_current_context().meta, f"heatsink lab {report.name} {options}"
    if not meta[AS_JSON]:
        show(report, out or Path(f"lab-{report.name}.html"), command)
        return
    if out is not None:
        write_page(report, out, command)
    click.echo(msgspec.json.encode(report).decode())
