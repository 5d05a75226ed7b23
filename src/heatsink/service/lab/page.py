"""A report in the terminal, and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heatsink.errors import InvalidSetting
from heatsink.lab.report import Report, shown, to_html


def show(report: Report, page: Path, command: str) -> None:
    from rich.console import Console

    console = Console()
    console.print(f"\n[bold]{report.title}[/bold]")
    for figure in report.figures:
        beside = f"  [dim]{figure.beside}[/dim]" if figure.beside else ""
        console.print(f"  {figure.label}: [bold]{figure.value}[/bold]{beside}")
    for table in report.tables:
        console.print(_table(table.title, table.columns, [map(shown, row) for row in table.rows]))
    write_page(report, page, command)
    console.print(f"The page: {page}")


def check_page(page: Path) -> None:
    """Whether it can be written, before minutes of work are spent on what goes into it."""
    is_new = not page.exists()
    if not is_new and not page.is_file():
        return  # a pipe, say: to open it would be to use it up
    try:
        page.open("ab").close()
        if is_new:
            page.unlink()
    except OSError as error:
        raise _unwritable(page, error) from None


def _unwritable(page: Path, error: OSError) -> InvalidSetting:
    return InvalidSetting(f"--out {str(page)!r} cannot be written: {error.strerror}")


def write_page(report: Report, page: Path, command: str) -> None:
    from heatsink.service.dashboard.site import plotly_file

    try:
        page.write_text(to_html(report, command, plotly_file().read_text("utf-8")), "utf-8")
    except OSError as error:
        raise _unwritable(page, error) from None


def _table(title: str, columns: list[str], rows: list[Any]) -> Any:
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    return table
