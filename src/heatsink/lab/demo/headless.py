"""The acts as tables in a terminal, or as JSON lines for a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from heatsink.primitives.clock import Clock
from heatsink.server.commands.progress import progress_bar

from .act import TOO_BUSY, Act, ActSnapshot, ActVerdict, Outcome, Watcher
from .acts import ACTS
from .acts.chat import ChatNow, ChatVerdict, ReadBack
from .lanes import LaneNow, Spread
from .traffic import TrafficPlan
from .world import open_world

COLUMNS = (("accepted", 9), ("throttled", 10), ("dropped", 8), ("p99 ms", 8))
WIDE = 100  # columns a terminal needs for all four figures; a narrower one omits the last
EVERY_S = 1.0
PIPE_WIDTH = 120
CELL_WIDTH_MIN = 9
MARKS = {True: ("✓", "bold green"), False: ("✗", "bold red"), None: ("·", "dim")}
WORDS: dict[Outcome, tuple[str, str]] = {
    "held": ("Held.", "bold green"),
    "not_held": ("Did not hold.", "bold red"),
    "too_busy": ("Too busy.", "dim"),
}
SEVERITY: tuple[Outcome, ...] = ("held", "too_busy", "not_held")
Write = Callable[[str], None]


class ChatRows:
    """Prints the first act: a line for each snapshot, and one for each decision of Heatsink."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._columns = COLUMNS if console.width >= WIDE else COLUMNS[:-1]
        self._leg = ""
        self._target = 1

    def head(self) -> None:
        lane = "".join(f"{name:>{width}}" for name, width in self._columns)
        plain, heatsink = "PLAIN STORE, per second", "HEATSINK, per second"
        self._say(f"{'':>15} │{plain:^{len(lane)}} │{heatsink:^{len(lane)}} │ parti-")
        self._say(f"{'sec':>6}{'offered':>9} │{lane} │{lane} │ tions")

    def add(self, now: ActSnapshot) -> None:
        assert isinstance(now, ChatNow)
        if now.leg != self._leg:
            self._leg = now.leg
            self._say(f"── {now.leg}", style="bold")
        line = Text(f"{now.second:6.1f}{now.heatsink.rates.offered_s:9,} │")
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


def make_console() -> Console:
    """Return a console as wide as the terminal.

    If the output is a file or a pipe, the console is wide enough for all tables.
    """
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


async def perform(
    act: Act, plan: TrafficPlan, clock: Clock, rng: Random, watcher: Watcher
) -> ActVerdict:
    """Run an act from beginning to end, on temporary files, and return its verdict."""
    async with open_world(plan, clock, rng) as world:
        return await act.run(world, plan, watcher)


async def _with_bar(
    act: Act, plan: TrafficPlan, clock: Clock, rng: Random, tell: Callable[[ActSnapshot], None]
) -> ActVerdict:
    with progress_bar() as bar:
        task = bar.add_task(f"act {ACTS.index(act) + 1}", total=act.seconds(plan))

        def show(now: ActSnapshot) -> None:
            bar.update(task, completed=now.second)
            tell(now)

        return await perform(act, plan, clock, rng, Watcher(show, EVERY_S))


class ActRows:
    """Prints an act: a line for each snapshot, with its figures in named columns."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._leg = ""
        self._has_head = False

    def add(self, now: ActSnapshot) -> None:
        cells = now.cells()
        widths = [max(len(name), CELL_WIDTH_MIN) + 2 for name in cells]
        if not self._has_head:
            self._has_head = True
            self._say("   sec" + "".join(map(str.rjust, map(str.rstrip, cells), widths)))
        if now.leg != self._leg:
            self._leg = now.leg
            self._say(f"── {now.leg}", "bold")
        shown = (f"{cell:,}" if isinstance(cell, int) else cell for cell in cells.values())
        self._say(f"{now.second:6.1f}" + "".join(map(str.rjust, shown, widths)))

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)


def _rows(act: Act, console: Console) -> Callable[[ActSnapshot], None]:
    """Return a function that prints each snapshot of the act as a line of a table.

    The first act has a table of its own, with two lanes and decisions.
    """
    if act is not ACTS[0]:
        return ActRows(console).add
    rows = ChatRows(console)
    rows.head()
    return rows.add


def _end(
    console: Console, verdict: ActVerdict, plan: TrafficPlan, again: TrafficPlan | None
) -> None:
    console.print()
    if isinstance(verdict, ChatVerdict):
        console.print(ending(verdict))
    for finding in verdict.findings:
        sign, style = MARKS[finding.good]
        console.print(Text(f"{sign} ", style=style) + Text(finding.text), soft_wrap=True)
    word, style = WORDS[verdict.outcome]
    line = verdict.line
    if again is not None:
        line = f"{TOO_BUSY.partition(':')[0]}: playing again with half the traffic."
    console.print(Text(f"{word} ", style=style) + Text(line, style="bold"), soft_wrap=True)
    if verdict.outcome == "too_busy" and again is None and (smaller := plan.smaller()):
        hint = f"With half the traffic: --peak {smaller.peak} --limit {smaller.limit}."
        console.print(Text(hint), soft_wrap=True)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the worst of the outcomes: "not_held" is worse than "too_busy"."""
    return max(outcomes, key=SEVERITY.index, default="held")


def next_plan(plan: TrafficPlan, verdict: ActVerdict, replays: int) -> TrafficPlan | None:
    """Return the smaller plan with which to play an act again, if the machine was too busy.

    Returns None if the run counts, if no `replays` are left, or if there is no smaller plan.
    """
    return plan.smaller() if replays and verdict.outcome == "too_busy" else None


async def run_as_table(
    acts: Iterable[Act],
    plan: TrafficPlan,
    clock: Clock,
    rng: Random,
    console: Console,
    replays: int = 0,
) -> Outcome:
    """Run the acts, print each of them as a table, and return the worst outcome.

    If the machine is too busy for an act, the act is played again with half the traffic, at most
    `replays` times. The acts that follow have the smaller traffic, too.
    """
    outcomes: list[Outcome] = []
    for act in acts:
        about = act.about(plan)
        title = f"Act {ACTS.index(act) + 1} of {len(ACTS)}: {about.title}"
        console.print(Text(title, style="bold"))
        console.print("\n".join(about.sentences), highlight=False)
        console.print()
        left = replays
        while True:
            verdict = await _with_bar(act, plan, clock, rng, _rows(act, console))
            again = next_plan(plan, verdict, left)
            _end(console, verdict, plan, again)
            console.print()
            if again is None:
                break
            plan, left = again, left - 1
        outcomes.append(verdict.outcome)
    return worst(outcomes)


async def run_as_json(
    acts: Iterable[Act],
    plan: TrafficPlan,
    clock: Clock,
    rng: Random,
    write: Write,
    replays: int = 0,
) -> Outcome:
    """Run the acts, print one JSON object per line, and return the worst outcome.

    For each act this prints its snapshots, then its verdict. An act for which the machine is too
    busy is played again, as by `run_as_table`.
    """

    def tell(event: ActSnapshot | ActVerdict) -> None:
        write(msgspec.json.encode(event).decode())

    outcomes: list[Outcome] = []
    for act in acts:
        left = replays
        while True:
            verdict = await _with_bar(act, plan, clock, rng, tell)
            tell(verdict)
            again = next_plan(plan, verdict, left)
            if again is None:
                break
            plan, left = again, left - 1
        outcomes.append(verdict.outcome)
    return worst(outcomes)
