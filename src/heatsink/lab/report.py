"""Reports of experiments: figures, tables and charts, and one page that shows them anywhere."""

from __future__ import annotations

import re
from html import escape, unescape
from importlib.resources import files
from string import Template

import msgspec

Cell = str | int | float


class Figure(msgspec.Struct, frozen=True):
    """A headline figure: `label` says what was measured, `beside` is a value to compare it with."""

    label: str
    value: str
    beside: str = ""


class ReportTable(msgspec.Struct, frozen=True):
    title: str
    columns: list[str]
    rows: list[list[Cell]]
    note: str = ""


class Series(msgspec.Struct, frozen=True):
    """A line or the bars of a chart. The style of a line is `plain`, `dot`, `step` or `fill`."""

    name: str
    x: list[float] | list[str]
    y: list[float]
    style: str = "plain"
    colour: int = 0


class Chart(msgspec.Struct, frozen=True):
    """A chart of lines or bars.

    `top` is the end of the vertical axis. Set it on charts that readers compare with each other.
    """

    title: str
    y_title: str
    series: list[Series]
    x_title: str = "seconds"
    kind: str = "lines"
    log: bool = False
    note: str = ""
    top: float | None = None


class LabReport(msgspec.Struct, frozen=True):
    """A report of an experiment. `notes` say what was assumed; the page shows them last.

    `made` says how the results came about. The page shows it before the command.
    """

    name: str
    title: str
    story: str
    figures: list[Figure]
    tables: list[ReportTable]
    charts: list[Chart]
    notes: str = ""
    made: str = (
        "Simulated on virtual time with the production code. The same command repeats this page"
    )


def shown(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.4g}"


COMMAND = re.compile(r"<code>([^<]*)</code></footer>")


def command_of(page: str) -> str | None:
    """Return the command that wrote a page of this content; None if it is no page of a report."""
    found = COMMAND.search(page)
    return unescape(found[1]) if found else None


def to_html(report: LabReport, command: str, plotly: str) -> str:
    """Return the report as one HTML file that loads no other file: `plotly` is its script."""
    page = Template((files(__package__) / "report.html").read_text(encoding="utf-8"))
    charts = msgspec.json.encode(report.charts).decode().replace("<", "\\u003c")
    return page.substitute(
        title=escape(report.title),
        story="".join(f"<p>{escape(text)}</p>" for text in report.story.split("\n\n")),
        figures="".join(map(_figure, report.figures)),
        charts="".join(map(_chart, range(len(report.charts)), report.charts)),
        tables="".join(map(_table, range(len(report.tables)), report.tables)),
        notes=_notes(report.notes),
        made=escape(report.made),
        command=escape(command),
        data=charts,
        plotly=plotly,
    )


def _figure(figure: Figure) -> str:
    beside = f"<small>{escape(figure.beside)}</small>" if figure.beside else ""
    return (
        f"<div><dt>{escape(figure.label)}</dt><dd><b>{escape(figure.value)}</b>{beside}</dd></div>"
    )


def _chart(number: int, chart: Chart) -> str:
    note = f"<p>{escape(chart.note)}</p>" if chart.note else ""
    head = f"<h2>{escape(chart.title)}</h2>{note}"
    label = escape(f"{chart.title}: {chart.y_title} over {chart.x_title}")
    drawn = f'<div class="chart" id="chart-{number}" role="img" aria-label="{label}"></div>'
    return f"<section>{head}{drawn}</section>"


def _table(number: int, table: ReportTable) -> str:
    """Return the HTML of a table. If it is wider than the screen, the keyboard can scroll it."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(shown(cell))}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    named = f'role="group" aria-labelledby="table-{number}" tabindex="0"'
    title = f'<h2 id="table-{number}">{escape(table.title)}</h2>'
    return f'<section class="wide">{title}{note}<div class="scroll" {named}>{body}</div></section>'


def _notes(text: str) -> str:
    return (
        f'<section class="wide"><h2>What is assumed</h2><p>{escape(text)}</p></section>'
        if text
        else ""
    )
