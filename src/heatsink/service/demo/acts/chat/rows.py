"""The chat as a table in a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from heatsink.service.demo.act import Snapshot
from heatsink.service.demo.lanes.lane import LaneNow, Spread

from .act import ChatNow
from .verdict import ChatVerdict, ReadBack

COLUMNS = (("accepted", 9), ("throttled", 10), ("dropped", 8), ("p99 ms", 8))
WIDE = 100  # what a terminal needs for all four columns; in a narrower one the last is left out


class Rows:
    """Prints a line per snapshot, and a word whenever Heatsink decides."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._columns = COLUMNS if console.width >= WIDE else COLUMNS[:-1]
        self._leg = ""
        self._target = 1

    def head(self) -> None:
        lane = "".join(f"{name:>{width}}" for name, width in self._columns)
        plain, heatsink = "PLAIN STORE, per second", "HEATSINK, per second"
        self._say(f"{'':>13} │{plain:^{len(lane)}} │{heatsink:^{len(lane)}} │ parti-")
        self._say(f"{'sec':>4}{'offered':>9} │{lane} │{lane} │ tions")

    def add(self, now: Snapshot) -> None:
        assert isinstance(now, ChatNow)
        if now.leg != self._leg:
            self._leg = now.leg
            self._say(f"── {now.leg}", style="bold")
        line = Text(f"{now.second:4.0f}{now.heatsink.rates.offered_s:9,} │")
        line.append_text(self._lane(now.plain)).append(" │")
        line.append_text(self._lane(now.heatsink)).append(" │")
        line.append(f"{now.heatsink.spread.buckets:4}")
        self._console.print(line, soft_wrap=True)
        self._add_decision(now.heatsink.spread)

    def _lane(self, lane: LaneNow) -> Text:
        rates = lane.rates
        numbers = (
            (rates.accepted_s, "green"),
            (rates.throttled_s, "red" if rates.throttled_s else "dim"),
            (rates.dropped_s, "bold red" if rates.dropped_s else "dim"),
            (rates.p99_ms, ""),
        )
        text = Text()
        for (_, width), (number, style) in zip(self._columns, numbers, strict=False):
            text.append(f"{number:{width},}", style=style)
        return text

    def _add_decision(self, spread: Spread) -> None:
        if spread.target != self._target:
            change = f"from {self._target} to {spread.target}"
            self._say(f"     Heatsink goes {change}: {spread.reason}", style="cyan")
            self._target = spread.target

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)


def ending(verdict: ChatVerdict) -> Table:
    title = "Verdict, with everything read back from both stores"
    table = Table(
        title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0), pad_edge=False
    )
    table.add_column("", no_wrap=True)
    for name in ("offered", "accepted", "throttled", "dropped", "found", "lost", "duplicated"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, ended in (("plain store", verdict.plain), ("Heatsink", verdict.heatsink)):
        table.add_row(name, *[f"{number:,}" for number in _numbers(ended)])
    return table


def _numbers(ended: ReadBack) -> tuple[int, ...]:
    totals = ended.totals
    counts = (totals.offered, totals.accepted, totals.throttled, totals.dropped)
    return (*counts, ended.found, ended.lost, ended.duplicated)
