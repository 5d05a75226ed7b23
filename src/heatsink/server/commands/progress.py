"""The progress bar of all commands that take a while: it shows what is done and the time left.

The bar appears on stderr, and only if stderr is a terminal.
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

PART_OF_A_WHOLE = (
    TextColumn("{task.description}"),
    BarColumn(),
    TaskProgressColumn(),
    TimeRemainingColumn(),
    TextColumn("left"),
)
COUNTED = (TimeElapsedColumn(), TextColumn("{task.completed:,}"))


def progress_bar(count: str = "") -> Progress:
    """Return a progress bar for a `with` block, which adds its tasks by `add_task`.

    The bar vanishes at the end. `count` says what is counted if the total is unknown. If stdout is
    a file or a pipe, rich does not redirect it, so that the block's output reaches the file or
    pipe.
    """
    console = Console(stderr=True)
    return Progress(
        *(COUNTED if count else PART_OF_A_WHOLE),
        *([TextColumn(count)] if count else []),
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        disable=not console.is_terminal,
    )
