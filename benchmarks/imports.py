"""What starting a program costs: `import heatsink`, and the command `heatsink --version`.

Each start is a new process; its CPU time is that of the process, with the interpreter's own start.
How long a bare interpreter takes is shown, too. Modules are compiled beforehand, as after an
installation. To compare with an earlier commit, check it out: `git worktree add --detach
.tools/before COMMIT`.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from .environments import TOOLS
from .harness import Bench, Scale, interleave, ratio_at_most

BEFORE = TOOLS / "before" / "src"
BARE = ("-c", "pass")
STARTS = {
    "import heatsink": ("-c", "import heatsink"),
    "heatsink --version": ("-m", "heatsink", "--version"),
}
SHARE_MAX = 0.5  # of the CPU time of the commit before


def children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


async def started(words: Sequence[str], source: Path | None) -> float:
    """The CPU time of a process that starts and ends. No other child may end meanwhile."""
    environment = {**os.environ, "PYTHONPATH": str(source)} if source else dict(os.environ)
    before_s = children_s()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *words), stdout=asyncio.subprocess.DEVNULL, env=environment
    )
    if await process.wait():
        raise RuntimeError(f"python {' '.join(words)} failed")
    return children_s() - before_s


async def run(bench: Bench, scale: Scale) -> None:
    has_before = BEFORE.exists()
    for name, words in STARTS.items():
        contenders = [partial(started, words, None), partial(started, BARE, None)]
        if has_before:
            contenders.append(partial(started, words, BEFORE))
        ours, bare, *theirs = await interleave(scale(5, 21), *contenders)
        target = ratio_at_most(SHARE_MAX) if has_before else None
        other = ("ms of the commit before", theirs[0]) if has_before else None
        bench.add(f"{name}, CPU", "ms", ours, target, other)
        bench.add(f"{name}: of this, a bare interpreter", "ms", bare)
