"""What an act of the demo is: words, a run with real traffic, and a verdict."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import msgspec

from .traffic import Plan
from .world import World

Cell = int | str


Replays = tuple[tuple[str, str], ...]
AGAIN = (("", "Play it again"),)


class About(msgspec.Struct, frozen=True):
    """An act in words. `look` says where to look, `small_print` what is true of this run alone.

    `replays` are the ways to play it again: shapes of its traffic, and what to call them.
    """

    name: str
    title: str
    sentences: tuple[str, str, str]
    look: str
    small_print: str
    replays: Replays


def about(name: str, title: str, words: str, replays: Replays = AGAIN) -> About:
    """From five paragraphs: three sentences, where to look, the small print."""
    first, second, third, look, small_print = (" ".join(p.split()) for p in words.split("\n\n"))
    return About(name, title, (first, second, third), look, small_print, replays)


class Snapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """`second` seconds into the run; `leg` is the part of it that is under way."""

    second: float
    leg: str

    def cells(self) -> dict[str, Cell]:
        """The figures by their names, for a line of a table."""
        return {}


class Finding(msgspec.Struct, frozen=True):
    """Good, bad, or (None) neither: a number that nothing is promised about."""

    good: bool | None
    text: str


class Verdict(msgspec.Struct, frozen=True, tag="verdict"):
    """How a run ended: `line` in one sentence with its figures, `findings` one by one.

    `kept_everything`: nothing that Heatsink acknowledged is missing, doubled or wrong.
    """

    line: str
    kept_everything: bool
    findings: list[Finding]


@dataclass(frozen=True)
class Watcher:
    """Who is told how it goes, and how often."""

    tell: Callable[[Snapshot], None]
    every_s: float


class Act(Protocol):
    name: str

    def about(self, plan: Plan) -> About: ...

    def seconds(self, plan: Plan) -> float:
        """About how long a run takes, for scales."""

    async def run(self, world: World, plan: Plan, watcher: Watcher) -> Verdict: ...
