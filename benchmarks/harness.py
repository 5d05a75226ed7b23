"""Taking turns, repeating, summing up and printing: what all benchmarks share."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterable, Sequence
from statistics import median, quantiles

import msgspec

Contender = Callable[[], Awaitable[float]]
Samples = list[float]

PER_SECOND = {"ns": 1e9, "µs": 1e6, "ms": 1e3}
COLUMNS = ("benchmark", "metric", "median", "quartiles", "alternative", "ratio", "target", "")
CHANGES = ("benchmark", "metric", "before", "after", "after ÷ before", "target", "")


class Scale(msgspec.Struct, frozen=True):
    """How much to measure: a look, or enough to trust the numbers; and beside whom."""

    quick: bool = False
    peers: tuple[str, ...] = ()

    def __call__(self, quick: int, full: int) -> int:
        return quick if self.quick else full


class Target(msgspec.Struct, frozen=True):
    """What was promised, of the value itself or of its ratio to the alternative."""

    limit: float
    of_ratio: bool = False
    at_least: bool = False

    def text(self, unit: str) -> str:
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {figure(self.limit)}" + (" ×" if self.of_ratio else f" {unit}")

    def is_met(self, value: float, ratio: float | None) -> bool:
        reached = ratio if self.of_ratio else value
        if reached is None:
            raise ValueError("a target for a ratio needs an alternative")
        return reached >= self.limit if self.at_least else reached <= self.limit


def at_most(limit: float) -> Target:
    return Target(limit)


def at_least(limit: float) -> Target:
    return Target(limit, at_least=True)


def ratio_at_most(limit: float) -> Target:
    return Target(limit, of_ratio=True)


def ratio_at_least(limit: float) -> Target:
    return Target(limit, of_ratio=True, at_least=True)


class Alternative(msgspec.Struct, frozen=True):
    what: str
    value: float


class Result(msgspec.Struct, frozen=True):
    """One line of the table. Spreads are the quartiles; the ratio is ours to the alternative."""

    name: str
    metric: str
    value: float
    unit: str
    target: str | None
    met: bool | None
    spread: tuple[float, float]
    alternative: Alternative | None
    ratio: float | None
    ratio_spread: tuple[float, float] | None


class Bench:
    """Collects the results of one benchmark."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.results: list[Result] = []

    def add(
        self,
        metric: str,
        unit: str,
        ours: Samples,
        target: Target | None = None,
        other: tuple[str, Samples] | None = None,
        middle: Callable[[Samples], float] = median,
    ) -> None:
        """Samples of seconds are shown in `unit` if that is one of time.

        `other` is the alternative: its name, and its samples of the same rounds as ours.
        `middle` sums the samples up: their mean or maximum where a target is about that.
        """
        factor = PER_SECOND.get(unit, 1.0)
        value = middle(ours) * factor
        low, high = quartiles(ours)
        alternative = ratio = ratio_spread = None
        if other is not None:
            alternative = Alternative(other[0], middle(other[1]) * factor)
            ratios = [one / two for one, two in zip(ours, other[1], strict=True)]
            ratio, ratio_spread = middle(ratios), quartiles(ratios)
        self.results.append(
            Result(
                name=self.name,
                metric=metric,
                value=value,
                unit=unit,
                target=target.text(unit) if target else None,
                met=target.is_met(value, ratio) if target else None,
                spread=(low * factor, high * factor),
                alternative=alternative,
                ratio=ratio,
                ratio_spread=ratio_spread,
            )
        )


def quartiles(samples: Samples) -> tuple[float, float]:
    if len(samples) < 2:
        return samples[0], samples[0]
    cuts = quantiles(samples, n=4, method="inclusive")
    return cuts[0], cuts[2]


async def interleave(rounds: int, *contenders: Contender, warm_up: int = 1) -> list[Samples]:
    """Samples of each contender. They take turns, and who begins takes turns too.

    A first turn of each warms up and does not count. Garbage of one is not collected at the
    expense of the next, but collection stays on: what a contender leaves behind is its own cost.
    """
    samples: list[Samples] = [[] for _ in contenders]
    for turn in range(rounds + warm_up):
        order = list(zip(contenders, samples, strict=True))
        for contender, taken in order if turn % 2 else reversed(order):
            gc.collect()
            taken.append(await contender())
    return [taken[warm_up:] for taken in samples]


def figure(number: float) -> str:
    """Three significant digits, thousands apart."""
    if number == 0 or abs(number) >= 100:
        return f"{number:,.0f}"
    return f"{number:.3g}" if abs(number) < 1 else f"{number:.{2 if abs(number) < 10 else 1}f}"


def cells(result: Result) -> tuple[str, ...]:
    low, high = result.spread
    alternative, ratio = result.alternative, ""
    if result.ratio is not None:
        ratio = f"{result.ratio:.2f} ×"
    if result.ratio_spread is not None and result.ratio_spread[0] != result.ratio_spread[1]:
        ratio += f" ({result.ratio_spread[0]:.2f}–{result.ratio_spread[1]:.2f})"
    return (
        result.name,
        result.metric,
        f"{figure(result.value)} {result.unit}",
        "" if low == high else f"{figure(low)}–{figure(high)}",
        f"{figure(alternative.value)} {alternative.what}" if alternative else "",
        ratio,
        result.target or "",
        {True: "met", False: "MISSED", None: ""}[result.met],
    )


def table(results: Iterable[Result]) -> str:
    return _lines([COLUMNS, *map(cells, results)])


def changes(before: Iterable[Result], after: Iterable[Result]) -> str:
    """A table of the figures that both runs have, and of new figures that have a target.

    Of a figure with an alternative it shows the ratio to that, which a busy machine changes less,
    unless the target is one of the figure itself.
    """
    earlier = {_measured(result): result for result in before}
    rows: list[tuple[str, ...]] = [CHANGES]
    for result in after:
        known = earlier.get(_measured(result))
        if known is not None or result.target is not None:
            rows.append(_change(known, result))
    return _lines(rows)


def _measured(result: Result) -> tuple[str, str, str | None]:
    return result.name, result.metric, result.alternative.what if result.alternative else None


def _change(before: Result | None, after: Result) -> tuple[str, ...]:
    is_ratio = after.ratio is not None and "×" in (after.target or "×")

    def shown(result: Result) -> tuple[float, str]:
        if is_ratio and result.ratio is not None and result.alternative is not None:
            return result.ratio, f"{figure(result.ratio)} × {result.alternative.what}"
        return result.value, f"{figure(result.value)} {result.unit}"

    value, text = shown(after)
    then, old = shown(before) if before else (0.0, "")
    factor = f"{value / then:.2f} ×" if then else ""
    return after.name, after.metric, old, text, factor, after.target or "", cells(after)[-1]


def _lines(rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rows.insert(1, tuple("─" * width for width in widths))
    return "\n".join(_line(row, widths) for row in rows)


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
