"""From values to places, with ticks at round numbers."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
TICKS_MAX = 6
Span = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    low: float
    high: float
    span: Span
    ticks: list[float]
    is_log: bool = False

    def place(self, value: float) -> float:
        if self.is_log:
            share = log10(value / self.low) / log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        start, end = self.span
        return start + share * (end - start)


def linear(low: float, high: float, span: Span, tight: bool = False) -> Axis:
    """`tight`: ends where the values do, not at the next round number."""
    step = _step(high - low)
    top = high if tight else step * ceil(high / step)
    first, last = ceil(low / step), floor(top / step + 1e-9)
    return Axis(low, top, span, [step * n for n in range(first, last + 1)])


def logarithmic(low: float, high: float, span: Span) -> Axis:
    decades = range(round(log10(low)), round(log10(high)) + 1)
    return Axis(low, high, span, [10.0**decade for decade in decades], is_log=True)


def _step(length: float) -> float:
    rough = length / TICKS_MAX
    power = 10.0 ** floor(log10(rough))
    return next(step * power for step in STEPS if step * power >= rough)
