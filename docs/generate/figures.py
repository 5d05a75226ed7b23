"""Figures of benchmarks, from the last run that was recorded (`./dev bench --record`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.harness import figure

from docs.generate.markdown import paragraphs, table
from heatsink.lab.fleet_world import RedisCosts

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


def fleet_costs() -> str:
    """What a report and a message cost the leader and Redis, from the last recorded run."""
    run, costs = _recorded("fleet"), RedisCosts()
    reports, keys, leader = run["reports sent"], run["keys in a report"], run["leader, CPU"]
    messages = run["news that the leader published"] * run["Redis, of these subscribed to news"]
    redis = (reports * costs.command + messages * costs.message) / 1e6
    return (
        f"- In this run, the leader needed {leader / reports * 1e6:.0f} µs of CPU for a report "
        f"with {keys:.0f} keys: {leader:.2f} s a second for {figure(reports)} reports.\n"
        f"- Redis needs about {costs.command:g} µs for a report, and {costs.message:g} µs for each "
        "message that a server gets. The leader sends news so rarely that all servers together get "
        "about 25,000 messages a second, and a few more when news is urgent. In this run that is "
        f"{figure(reports)} × {costs.command:g} µs + {figure(messages)} × {costs.message:g} µs = "
        f"{redis:.2f} s a second, besides the leader's own reads; Redis used "
        f"{run['Redis, CPU']:.2f} s a second in all. (The costs of one report and of one message "
        "are fitted to the total of such a run. `heatsink lab fleet --live` compares the "
        "simulation with 400 real reporters on your machine.)"
    )


def fleet_memory() -> str:
    run = _recorded("fleet")
    return (
        f"In the run above, {figure(run['Redis, connections'])} connections and the reports took "
        f"{figure(run['Redis, memory'])} MB of Redis's memory."
    )


def limit_costs() -> str:
    """What a million keys of a limit cost, from the last recorded run."""
    if "limit_keys" not in json.loads(RECORDED.read_text()):
        return _section("limit_keys", None)
    run = _recorded("limit_keys")

    def of(what: str) -> float:
        [found] = [value for name, value in run.items() if "batches" in name and what in name]
        return found

    return (
        f"A million keys with one item each are 50 batches or more. While all of them wait, Redis "
        f"needs {of('memory'):.1f} GB for them. To submit them takes "
        f"{of('submit') * 1e6 / 60_000:.0f} minutes of CPU time, and to run them "
        f"{of('run') * 1e6 / 60_000:.0f} minutes, of all processes and Redis together: "
        f"{of('submit') + of('run'):.1f} ms for each key. (Computed from the last run of `./dev "
        "bench limit_keys`, which has thousands of keys. While a batch runs, workers and `wait` "
        "look at all its keys now and then. If the batch takes longer, this costs more.)"
    )


def _recorded(name: str) -> dict[str, float]:
    """The values of a recorded run, by metric."""
    results = json.loads(RECORDED.read_text())[name]["results"]
    return {result["metric"]: result["value"] for result in results}
