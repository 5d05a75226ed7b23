"""A chart of the lab as SVG, in colours that can be read on light and on dark pages."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import pairwise
from math import ceil, floor, log10

from docs.generate.pictures.axis import Axis, linear, logarithmic
from heatsink.lab.report import Chart, Series

WIDTH, HEIGHT = 720, 340
LEFT, RIGHT, TOP, BOTTOM = 78, 16, 40, 48
LEGEND_ROW = 20
COLOURS = ("#2f81c7", "#d9502f", "#a87400", "#9a62d0", "#2e9a54")
TEXT = "#757e88"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif"
DOT = 1.6
CHARACTER = 7.0


def svg(chart: Chart) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="{FONT}" font-size="13" fill="{TEXT}">'
    )
    legend, rows = _legend(chart)
    y = _y_axis(chart, TOP + LEGEND_ROW * (rows - 1))
    drawn = _bars(chart, y) if chart.kind == "bars" else _lines(chart, y)
    lines = [head, f"<title>{escape(chart.title)}</title>", *_frame(chart, y), *legend]
    return "\n".join([*lines, *drawn, "</svg>", ""])


def _y_axis(chart: Chart, top: float) -> Axis:
    highest = max(max(series.y) for series in chart.series)
    span = (HEIGHT - BOTTOM, top)
    if chart.log:
        lowest = min(min(series.y) for series in chart.series)
        return logarithmic(10 ** floor(log10(lowest)), 10 ** ceil(log10(highest)), span)
    lowest = -0.5 if chart.kind == "dots" else 0.0
    return linear(lowest, highest, span)


def _x_axis(chart: Chart) -> Axis:
    xs = [float(x) for series in chart.series for x in series.x]
    return linear(min(xs), max(xs), (LEFT, WIDTH - RIGHT), tight=True)


def _frame(chart: Chart, y: Axis) -> Iterator[str]:
    for tick in y.ticks:
        at = y.place(tick)
        yield (
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" '
            f'stroke="{TEXT}" stroke-opacity="0.25"/>'
        )
        yield _text(LEFT - 8, at + 4, f"{tick:,g}", "end")
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f'transform="rotate(-90 14 {middle:g})"'
    yield _text(14, middle, chart.y_title, "middle", turned)
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, chart.x_title, "middle")


def _legend(chart: Chart) -> tuple[list[str], int]:
    """Its lines, and over how many rows they go."""
    drawn: list[str] = []
    x, row = float(LEFT), 0
    for series in chart.series if len(chart.series) > 1 else []:
        width = 24 + CHARACTER * len(series.name)
        if x + width > WIDTH:
            x, row = float(LEFT), row + 1
        y = 18 + row * LEGEND_ROW
        dash = ' stroke-dasharray="2 4"' if series.style == "dot" else ""
        drawn.append(
            f'<line x1="{x:g}" x2="{x + 18:g}" y1="{y}" y2="{y}" stroke-width="4" '
            f'stroke="{COLOURS[series.colour]}"{_opacity(series)}{dash}/>'
        )
        drawn.append(_text(x + 24, y + 4, series.name, "start"))
        x += width + 22
    return drawn, row + 1


def _opacity(series: Series) -> str:
    return ' opacity="0.35"' if series.style == "fill" else ""


def _text(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" {more}>{escape(text)}</text>'


def _lines(chart: Chart, y: Axis) -> Iterator[str]:
    x = _x_axis(chart)
    for tick in x.ticks:
        yield _text(x.place(tick), HEIGHT - BOTTOM + 18, f"{tick:,g}", "middle")
    for series in chart.series:
        points = [
            (x.place(at), y.place(value))
            for at, value in zip(map(float, series.x), series.y, strict=True)
        ]
        yield _dots(series, points) if chart.kind == "dots" else _line(series, points)


def _dots(series: Series, points: list[tuple[float, float]]) -> str:
    marks = "".join(f"M{x:.1f} {y:.1f}h0" for x, y in points)
    return (
        f'<path d="{marks}" stroke="{COLOURS[series.colour]}" stroke-width="{2 * DOT}" '
        'stroke-linecap="round"/>'
    )


def _line(series: Series, points: list[tuple[float, float]]) -> str:
    if series.style == "step":
        first, *_ = points
        points = [first, *(p for a, b in pairwise(points) for p in ((b[0], a[1]), b))]
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="2 5"' if series.style == "dot" else ""
    colour = COLOURS[series.colour]
    if series.style == "fill":
        floor_y = HEIGHT - BOTTOM
        ends = f"L{points[-1][0]:.1f} {floor_y}L{points[0][0]:.1f} {floor_y}Z"
        return f'<path d="{path}{ends}" fill="{colour}"{_opacity(series)}/>'
    return (
        f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2.5" '
        f'stroke-linejoin="round"{dash}/>'
    )


def _bars(chart: Chart, y: Axis) -> Iterator[str]:
    names = chart.series[0].x
    group = (WIDTH - LEFT - RIGHT) / len(names)
    width = group * 0.7 / len(chart.series)
    floor_y = HEIGHT - BOTTOM
    for place, name in enumerate(names):
        left = LEFT + place * group + group * 0.15
        yield _text(left + group * 0.35, floor_y + 18, str(name), "middle")
        for number, series in enumerate(chart.series):
            top = y.place(series.y[place])
            x = left + number * width
            height = floor_y - top
            yield (
                f'<rect x="{x:.1f}" y="{top:.1f}" width="{width - 2:.1f}" '
                f'height="{height:.1f}" fill="{COLOURS[series.colour]}"/>'
            )
