"""The progress display of commands that take a while: what is done, and the time left.

On a terminal it is a bar. If stderr is a file or a pipe, it is a plain line every few seconds.
"""

from __future__ import annotations

import sys
from threading import Event, Thread
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from heatsink.primitives.words import duration

PART_OF_A_WHOLE = (
    TextColumn("{task.description}"),
    BarColumn(),
    TaskProgressColumn(),
    TimeRemainingColumn(),
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
        while not self._ended.wait(self._every_s):
            if self.tasks:
                click.echo(line_of(self.tasks[-1], self._count), err=True)


def line_of(task: Task, count: str = "") -> str:
    """Return a task's state in one line: `replaying: 25 %, about 90 s left`."""
    if count:
        return f"{task.completed:,.0f} {count}"
    line = task.description
    if task.total:
        line += f": {task.percentage:.0f} %"
    if task.time_remaining:
        line += f", about {duration(task.time_remaining)} left"
    elif task.elapsed:
        line += f", {duration(round(task.elapsed))} so far"
    return line
