"""The progress display of commands that take a while: what is done, and the time left.

On a terminal it is a bar. If stderr is a file or a pipe, it is a plain line every few seconds.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from math import ceil
from threading import Event, Thread
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from heatsink.primitives.words import duration


class TimeLeft(ProgressColumn):
    """The time left, at the pace since the task's start."""

    def render(self, task: Task) -> Text:
        left_s = left(task, task.elapsed)
        text = "-:--:--" if left_s is None else str(timedelta(seconds=left_s))
        return Text(text, style="progress.remaining")


PART_OF_A_WHOLE = (
    TextColumn("{task.description}"),
    BarColumn(),
    TaskProgressColumn(),
    TimeLeft(),
    TextColumn("left"),
)
COUNTED = (TimeElapsedColumn(), TextColumn("{task.completed:,}"))
LINE_EVERY_S = 5.0


def progress_bar(count: str = "", every_s: float = LINE_EVERY_S) -> Progress:
    """Return a progress bar for a `with` block, which adds its tasks by `add_task`.

    The bar vanishes at the end. `count` says what is counted if the total is unknown. If stdout is
    a file or a pipe, rich does not redirect it, so that the block's output reaches the file or
    pipe. If stderr is no terminal, there is a line on stderr each `every_s` instead of a bar.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        return _Lines(count, every_s)
    return Progress(
        *(COUNTED if count else PART_OF_A_WHOLE),
        *([TextColumn(count)] if count else []),
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    )


class _Lines(Progress):
    """A bar that never shows: a thread prints the state of its newest task now and then."""

    def __init__(self, count: str, every_s: float) -> None:
        super().__init__(disable=True)
        self._count = count
        self._every_s = every_s
        self._ended = Event()
        self._thread = Thread(target=self._print, name="progress", daemon=True)

    def __enter__(self) -> _Lines:
        self._thread.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._ended.set()
        self._thread.join()

    def _print(self) -> None:
        seen, since_s = (-1, 0.0), 0.0
        while not self._ended.wait(self._every_s):
            if not self.tasks:
                continue
            task = self.tasks[-1]
            if seen != (seen := (task.id, task.completed)):
                since_s = self.get_time()
            click.echo(line_of(task, self._count, self.get_time() - since_s), err=True)


def left(task: Task, elapsed_s: float | None) -> int | None:
    """Return the seconds left at the pace since the task's start. They grow while it stands still.

    rich's own estimate uses the latest pace, and does not change while the task stands still.
    """
    if elapsed_s is None or task.remaining is None or not task.completed:
        return None
    return ceil(elapsed_s * task.remaining / task.completed)


def line_of(task: Task, count: str = "", still_s: float = 0.0) -> str:
    """Return a task's state in one line: `replaying: 25 %, about 90 s left`.

    If the task has stood still for `still_s`, longer than what is left, the estimate is left out.
    """
    if count:
        return f"{task.completed:,.0f} {count}"
    line = task.description
    if task.total:
        line += f": {task.percentage:.0f} %"
    elapsed_s = task.elapsed
    left_s = left(task, elapsed_s)
    if left_s and left_s > still_s:
        line += f", about {duration(left_s)} left"
    elif elapsed_s:
        line += f", {duration(round(elapsed_s))} so far"
    return line
