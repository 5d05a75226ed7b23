"""Figures of benchmarks, from the last run that was recorded (`./dev bench --record`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.harness import figure

from docs.generate.markdown import paragraphs, table

RECORDED = Path(__file__).parents[2] / "benchmarks" / "recorded.json"
COLUMNS = ["figure", "Heatsink", "alternative", "ratio", "target"]


def markdown(*names: str) -> str:
    """The tables of these benchmarks. Without names, all that were recorded, each as a section."""
    recorded = json.loads(RECORDED.read_text())
    if names:
        return paragraphs(*(_section(name, recorded.get(name)) for name in names))
    return paragraphs(*(f"## {name}\n\n{_section(name, run)}" for name, run in recorded.items()))


def _section(name: str, run: dict[str, Any] | None) -> str:
    if run is None:
        return f"*No run is recorded yet: `./dev bench {name} --record` makes this table.*"
    extent = "a quick run" if run["quick"] else "a full run"
    return paragraphs(
        f"`./dev bench {name}`: {extent} on {run['date']}, Python {run['python']}, "
        f"{run['processors']} processors, load {run['load']:.0f}. Medians, with quartiles in "
        "parentheses.",
        table(COLUMNS, [_row(result) for result in run["results"]]),
    )


def _row(result: dict[str, Any]) -> list[str]:
    unit, other = result["unit"], result["alternative"]
    ours = f"{figure(result['value'])} {unit}{_spread(result['spread'])}"
    theirs = f"{other['what']}: {figure(other['value'])} {unit}" if other else ""
    ratio = ""
    if result["ratio"] is not None:
        ratio = f"{figure(result['ratio'])} ×{_spread(result['ratio_spread'])}"
    target = result["target"] or ""
    if result["met"] is False:
        target = f"**{target}, missed**"
    return [result["metric"], ours, theirs, ratio, target]


def _spread(spread: list[float] | None) -> str:
    if spread is None or spread[0] == spread[1]:
        return ""
    return f" ({figure(spread[0])}–{figure(spread[1])})"
