"""Reports of experiments: figures, tables and charts, and one page that shows them anywhere."""

from __future__ import annotations

from html import escape
from importlib.resources import files
from string import Template

import msgspec

Cell = str | int | float


class Figure(msgspec.Struct, frozen=True):
    """A headline: what was measured, and what to compare it with."""

    label: str
    value: str
    beside: str = ""


class ReportTable(msgspec.Struct, frozen=True):
    title: str
    columns: list[str]
    rows: list[list[Cell]]
    note: str = ""


class Series(msgspec.Struct, frozen=True):
    """A line; its style is `plain`, `dot`, `step` or `fill`."""

    name: str
    x: list[float] | list[str]
    y: list[float]
    style: str = "plain"
    colour: int = 0


class Chart(msgspec.Struct, frozen=True):
    title: str
    y_title: str
    series: list[Series]
    x_title: str = "seconds"
    kind: str = "lines"
    log: bool = False
    note: str = ""


class LabReport(msgspec.Struct, frozen=True):
    name: str
    title: str
    story: str
    figures: list[Figure]
    tables: list[ReportTable]
    charts: list[Chart]


def shown(cell: Cell) -> str:
    if isinstance(cell, str):
        return cell
    return f"{cell:,}" if isinstance(cell, int) else f"{cell:,.4g}"


def to_html(report: LabReport, command: str, plotly: str) -> str:
    """The report as one self-contained HTML file, with its script."""
    page = Template((files(__package__) / "report.html").read_text(encoding="utf-8"))
    charts = msgspec.json.encode(report.charts).decode().replace("<", "\\u003c")
    return page.substitute(
        title=escape(report.title),
        story="".join(f"<p>{escape(text)}</p>" for text in report.story.split("\n\n")),
        figures="".join(map(_figure, report.figures)),
        charts="".join(map(_chart, range(len(report.charts)), report.charts)),
        tables="".join(map(_table, report.tables)),
        command=escape(command),
        data=charts,
        plotly=plotly,
    )


def _figure(figure: Figure) -> str:
    beside = f"<small>{escape(figure.beside)}</small>" if figure.beside else ""
    return f"<div><span>{escape(figure.label)}</span><b>{escape(figure.value)}</b>{beside}</div>"


def _chart(number: int, chart: Chart) -> str:
    note = f"<p>{escape(chart.note)}</p>" if chart.note else ""
    head = f"<h2>{escape(chart.title)}</h2>{note}"
    return f'<section>{head}<div class="chart" id="chart-{number}"></div></section>'


def _table(table: ReportTable) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(shown(cell))}</td>" for cell in row) + "</tr>"
        for row in table.rows
    )
    note = f"<p>{escape(table.note)}</p>" if table.note else ""
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<section class="wide"><h2>{escape(table.title)}</h2>{note}{body}</section>'
