"""Memory, measured where nothing else has touched it."""

from __future__ import annotations

import resource
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

STATM = Path("/proc/self/statm")
Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


def apart(
    function: Callable[Parameters, Returned], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Returned:
    """Call it in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args, **kwargs).result()


def resident_bytes() -> int:
    """What this process has in memory now; at its peak, on a system that does not tell that."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
