"""The acts as tables in a terminal, or as lines of JSON for a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import msgspec
from rich.console import Console
from rich.text import Text

from heatsink.clock import Clock

from .act import Act, Snapshot, Verdict, Watcher
from .acts import ACTS
from .acts.chat import rows as chat_rows
from .acts.chat.verdict import ChatVerdict
from .traffic import Plan
from .world import open_world

EVERY_S = 1.0
PIPE_WIDTH = 120
CELL_WIDTH_MIN = 9
MARKS = {True: ("✓", "bold green"), False: ("✗", "bold red"), None: ("·", "dim")}
Write = Callable[[str], None]


def make_console() -> Console:
    """As wide as the terminal; what goes to a file or a pipe has room enough."""
    console = Console()
    return console if console.is_terminal else Console(width=PIPE_WIDTH)


async def perform(act: Act, plan: Plan, clock: Clock, rng: Random, watcher: Watcher) -> Verdict:
    """One run from beginning to end, in files that are gone afterwards."""
    async with open_world(plan, clock, rng) as world:
        return await act.run(world, plan, watcher)


class Rows:
    """Prints a line per snapshot, under the names of its figures."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._leg = ""
        self._has_head = False

    def add(self, now: Snapshot) -> None:
        cells = now.cells()
        widths = [max(len(name), CELL_WIDTH_MIN) + 2 for name in cells]
        if not self._has_head:
            self._has_head = True
            self._say(" sec" + "".join(map(str.rjust, map(str.rstrip, cells), widths)))
        if now.leg != self._leg:
            self._leg = now.leg
            self._say(f"── {now.leg}", "bold")
        shown = (f"{cell:,}" if isinstance(cell, int) else cell for cell in cells.values())
        self._say(f"{now.second:4.0f}" + "".join(map(str.rjust, shown, widths)))

    def _say(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style=style), soft_wrap=True)


def _rows(act: Act, console: Console) -> Callable[[Snapshot], None]:
    """The first act has two lanes and decisions to tell."""
    if act is not ACTS[0]:
        return Rows(console).add
    rows = chat_rows.Rows(console)
    rows.head()
    return rows.add


def _end(console: Console, verdict: Verdict) -> None:
    console.print()
    if isinstance(verdict, ChatVerdict):
        console.print(chat_rows.ending(verdict))
    for finding in verdict.findings:
        sign, style = MARKS[finding.good]
        console.print(Text(f"{sign} ", style=style) + Text(finding.text), soft_wrap=True)
    console.print(Text(verdict.line, style="bold"), soft_wrap=True)


async def run_as_table(
    acts: Iterable[Act], plan: Plan, clock: Clock, rng: Random, console: Console
) -> bool:
    """Whether everything was kept."""
    kept = True
    for act in acts:
        about = act.about(plan)
        title = f"Act {ACTS.index(act) + 1} of {len(ACTS)}: {about.title}"
        console.print(Text(title, style="bold"))
        console.print("\n".join(about.sentences), highlight=False)
        console.print()
        verdict = await perform(act, plan, clock, rng, Watcher(_rows(act, console), EVERY_S))
        _end(console, verdict)
        console.print()
        kept = kept and verdict.kept_everything
    return kept


async def run_as_json(
    acts: Iterable[Act], plan: Plan, clock: Clock, rng: Random, write: Write
) -> bool:
    """One object per line: snapshots, then the verdict, act by act."""

    def tell(event: Snapshot | Verdict) -> None:
        write(msgspec.json.encode(event).decode())

    kept = True
    for act in acts:
        verdict = await perform(act, plan, clock, rng, Watcher(tell, EVERY_S))
        tell(verdict)
        kept = kept and verdict.kept_everything
    return kept
