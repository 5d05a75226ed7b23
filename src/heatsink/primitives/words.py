"""Words for messages: counts and durations, articles, and the name that was probably meant.

This is how all messages say "1 query", "an Actions" and "did you mean".
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from difflib import get_close_matches


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number and a noun, in the singular or plural: "1 query", "2,000 queries".

    `many` is the plural. By default it is `one` with an "s".
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """Return a duration for a person, in a suitable unit: "20 s", "12 min", "3.5 h", "7 days"."""
    for unit, unit_s, below_s in (("s", 1, 120), ("min", 60, 7_200), ("h", 3_600, 2 * 86_400)):
        if seconds < below_s:
            return f"{_three_digits(seconds / unit_s)} {unit}"
    return f"{_three_digits(seconds / 86_400)} days"


def data_size(size: float) -> str:
    """Return a number of bytes for a person, in a suitable unit: "0 kB", "4.2 kB", "53 MB"."""
    for unit, unit_bytes in (("kB", 1e3), ("MB", 1e6)):
        if size < 1_000 * unit_bytes:
            return f"{_three_digits(size / unit_bytes)} {unit}"
    return f"{_three_digits(size / 1e9)} GB"


def _three_digits(number: float) -> str:
    return f"{number:.3g}" if number < 100 else f"{number:,.0f}"


def with_article(noun: str) -> str:
    """Return `noun` with "a" or "an" before it, by its first letter."""
    return f"{'an' if noun[:1].lower() in ('a', 'e', 'i', 'o') else 'a'} {noun}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean …?" with a similar known name, or a list of all known names."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(names)}"


def pip_install(extra: str) -> str:
    """Return the command that installs an extra for this process, and say where to run it.

    Heatsink is not on PyPI: a package of that name there would not be ours.
    """
    python = shlex.quote(sys.executable) if sys.executable else "python3"
    return f"in Heatsink's folder, run {python} -m pip install '.[{extra}]'"
