"""Says in plain words which partitions are hot, why, and which requests are throttled.

The page of the emulator, GET /explain and `heatsink dynamo --explain` show the same sentences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .adaptation import PartitionReport, TableReport
from .capacity.partition import PartitionState

HOT_LOAD = 0.9
SHARE_MIN = 0.05
KEY_SHOWN = 40
NO_TABLES = "The emulator has no tables yet."
CALM = "No partition is hot: none throttles, and none is above 90 % of its limit."
ADVICE = "Spread the value over several, or leave the attribute out of items that nobody looks for."


def explain(reports: Iterable[TableReport]) -> list[str]:
    """Return one or more sentences for each hot partition, or a sentence that none is hot.

    A global index comes before its table: its hot partitions throttle writes to the table.
    """
    known = sorted(reports, key=lambda one: (one.table, one.index is None, one.index or ""))
    if not known:
        return [NO_TABLES]
    tables = {one.table: one for one in known if one.index is None}
    lines = [
        line
        for report in known
        for partition in report.partitions
        if _is_hot(partition.state)
        for line in _lines(report, partition, tables[report.table])
    ]
    return lines or [CALM]


def _is_hot(state: PartitionState) -> bool:
    return state.throttles_s > 0 or state.load >= HOT_LOAD


def _lines(report: TableReport, partition: PartitionReport, table: TableReport) -> Iterator[str]:
    state = partition.state
    name = f"Table {report.table}"
    if report.index is not None:
        name = f"Index {report.index} of table {report.table}"
    does = "is close to its limit"
    if state.throttles_s > 0:
        does = f"throttles {max(state.throttles_s, 1):,.0f} requests a second"
    yield f"{name}: partition {state.number} {does}. {_load(report, partition)}"
    if report.index is not None and state.refused_writes_s > 0:
        yield (
            f"So writes to table {report.table} that change this index are throttled, although the "
            f"table's own partitions are at {_percent(_most(table))} of their limits at most. The "
            f"errors name the index: …/index/{report.index}. {ADVICE}"
        )
    if state.stuck:
        yield f"The emulator cannot relieve this partition: {state.stuck}."


def _load(report: TableReport, partition: PartitionReport) -> str:
    state = partition.state
    writes_s = state.writes_s + state.refused_writes_s
    reads_s = state.reads_s + state.refused_reads_s
    rates = [
        f"{rate_s:,.0f} {kind} units/s"
        for rate_s, kind in ((writes_s, "write"), (reads_s, "read"))
        if rate_s > 0
    ]
    text = f"It gets {' and '.join(rates) or 'no units'}, {_percent(state.load)} of its limit"
    if partition.hottest is None or state.hottest_share < SHARE_MIN:
        return f"{text}."
    hottest = partition.hottest
    shown = hottest if len(hottest) <= KEY_SHOWN else f"{hottest[:KEY_SHOWN]}…"
    kind = "key" if report.index is None else "value"
    return f"{text}; {_percent(state.hottest_share)} of that goes to the {kind} {shown!r}."


def _most(table: TableReport) -> float:
    return max((one.state.load for one in table.partitions), default=0.0)


def _percent(share: float) -> str:
    return f"{share * 100:,.0f} %"
