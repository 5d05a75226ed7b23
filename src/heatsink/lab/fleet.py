"""Fleets of up to 10,000 app servers around one leader: what they cost, and how fast they react.

With `--live`, 400 real reporters also run on a real Redis with a real coordinator, beside the
simulation of the same fleet.
"""

from __future__ import annotations

from collections.abc import Callable

from .fleet_live import SERVERS as LIVE_SERVERS
from .fleet_live import run_live
from .fleet_world import HOT, HOT_SHARE, LASTS_S, WARM_UP_S, WRITES_S, Measured, RedisCosts, play
from .report import Cell, Chart, Figure, LabReport, ReportTable, Series
from .runs import run_all, simulated

SERVERS = 10_000
SHARES = (0.01, 0.04, 0.1, 0.4, 1.0)
SERVERS_MIN = 100
COSTS = RedisCosts()
COMPARED: dict[str, tuple[Callable[[Measured], float], float | None]] = {
    "leader, CPU s/s": (lambda each: each.leader_cpu, None),
    "leader, MB": (lambda each: each.leader_mb, 1.5),
    "Redis, CPU s/s": (lambda each: each.redis_cpu, None),
    "Redis, commands a report": (lambda each: each.commands / each.reports, 1.25),
    "Redis, bytes in a report": (lambda each: each.redis_in / each.reports, 1.25),
    "Redis, bytes out a report": (lambda each: each.redis_out / each.reports, 1.5),
    "reads of META/s": (lambda each: each.meta_reads, None),
    "keys a report": (lambda each: each.entries, 1.25),
}
"""What is compared with a live run, and by which factor the simulation may be off."""
MADE_LIVE = "Simulated on virtual time, and run on a real Redis. Made by"

STORY = f"""\
Every server has {WRITES_S} writes a second over a million keys (Zipf, s = 1). After
{WARM_UP_S:g} s, {HOT} keys step to {HOT_SHARE:g} times the load of a bucket. All servers see them:
in the largest fleet, each of them at one write in ten seconds.

Servers and leader run the production code: trackers, reporters, sums, policy, registry and news.
Redis and the data store are models. The CPU time of the leader is measured, that of Redis is
computed from costs that we fitted to the total of a ten-minute run on a real one."""
NOTES = (
    f"In the model, Redis takes {COSTS.command:g} µs of CPU for a command, {COSTS.message:g} µs "
    f"for each process that gets a message, and {COSTS.entry:g} µs for a report that the leader "
    f"reads. The leader's driver takes {COSTS.leader_entry:g} µs to read a report. We fitted these "
    "costs to the total of a ten-minute run, and did not measure them one by one. With --live, 400 "
    "real reporters run, too, so that you can compare. Redis answers "
    f"the leader after 1 ms, the data store after 5 ms. Rates are means over {LASTS_S:g} s. The "
    "CPU time of the leader depends on your machine, so it is the only figure that differs between "
    "two runs."
)


def sizes(servers: int) -> list[int]:
    """Return the sizes of the simulated fleets, up to `servers`."""
    return sorted({max(round(servers * share), min(SERVERS_MIN, servers)) for share in SHARES})


def experiment(servers: int = SERVERS, seed: int = 1, is_live: bool = False) -> LabReport:
    wanted = sizes(servers)
    if is_live and LIVE_SERVERS not in wanted:
        wanted.append(LIVE_SERVERS)
    largest_first = sorted(wanted, reverse=True)
    found = run_all([simulated(play, size, seed) for size in largest_first])
    by_size: dict[int, Measured] = {each.servers: each for each in found}
    fleets = [by_size[size] for size in sizes(servers)]
    tables = [_speed_table(fleets), _cost_table(fleets)]
    if is_live:
        tables.insert(0, _live_table(by_size[LIVE_SERVERS], run_live(seed)))
    report = LabReport(
        name="fleet",
        title=f"A fleet of {servers:,} app servers",
        story=STORY,
        figures=_figures(fleets[-1]),
        tables=tables,
        charts=_charts(fleets),
        notes=NOTES,
    )
    if not is_live:
        return report
    return LabReport(
        **{name: getattr(report, name) for name in report.__struct_fields__ if name != "made"},
        made=MADE_LIVE,
    )


def _figures(largest: Measured) -> list[Figure]:
    missing = HOT - len(largest.spread_s)
    spread = f"{largest.spread_s[-1]:.1f} s" if not missing else f"{missing} of {HOT} not spread"
    return [
        Figure("until all servers use new buckets", spread, "the slowest of 10 keys"),
        Figure("leader", f"{largest.leader_cpu:.2f} CPU s/s", f"{largest.leader_mb:.0f} MB"),
        Figure("Redis", f"{largest.redis_cpu:.2f} CPU s/s", f"{largest.commands:,.0f} commands/s"),
        Figure(
            "Redis traffic",
            f"{largest.redis_in / 1e6:.1f} MB/s in",
            f"{largest.redis_out / 1e6:.1f} MB/s out",
        ),
        Figure("reads of META", f"{largest.meta_reads:,.0f}/s", "of all servers together"),
    ]


def _speed_table(fleets: list[Measured]) -> ReportTable:
    rows: list[list[Cell]] = [
        [
            each.servers,
            each.writes_s,
            _times(each.decided_s),
            _times(each.spread_s),
            round(each.entries, 1),
            each.term_changes,
        ]
        for each in fleets
    ]
    columns = ["servers", "writes/s", "decided, s", "spread, s", "keys a report", "terms lost"]
    note = (
        "Times since a key got hot, median and maximum: until the leader has decided, and until "
        "all servers place its new ids in its new buckets."
    )
    return ReportTable("How fast", columns, rows, note)


def _cost_table(fleets: list[Measured]) -> ReportTable:
    rows: list[list[Cell]] = [
        [
            each.servers,
            f"{each.leader_cpu:.3f}",
            round(each.leader_mb),
            f"{each.redis_cpu:.3f}",
            round(each.commands),
            f"{each.redis_in / 1e6:.2f} / {each.redis_out / 1e6:.2f}",
            round(each.meta_reads),
        ]
        for each in fleets
    ]
    columns = ["servers", "leader", "MB", "Redis", "commands/s", "MB/s in / out", "META/s"]
    note = "Leader and Redis: CPU seconds a second. META/s: reads of the data store's META."
    return ReportTable("What it costs", columns, rows, note)


def _times(times_s: list[float]) -> str:
    if not times_s:
        return "never"
    return f"{times_s[len(times_s) // 2]:.1f}, {times_s[-1]:.1f}"


def _live_table(model: Measured, live: Measured) -> ReportTable:
    rows: list[list[Cell]] = [
        ["decided, s (median, maximum)", _times(model.decided_s), _times(live.decided_s)],
        ["spread, s (median, maximum)", _times(model.spread_s), _times(live.spread_s)],
    ]
    rows = [[*row, "", ""] for row in rows]
    for what, (of, _) in COMPARED.items():
        compared = f"{of(model):,.3g}", f"{of(live):,.3g}"
        rows.append(
            [what, *compared, f"{ratio(what, model, live):.2f} ×", _verdict(what, model, live)]
        )
    note = (
        f"{live.servers} real reporters and followers with two connections each, a real Redis, and "
        "a real coordinator on SQLite. They share this machine, so a busy one is slower, and "
        "servers that get news late read META more often. Ratios are live ÷ simulated. CPU times "
        "depend on the machine, so they have no tolerance."
    )
    columns = ["measure", "simulated", "live", "ratio", "tolerance"]
    return ReportTable("Simulated and live", columns, rows, note)


def ratio(what: str, model: Measured, live: Measured) -> float:
    """Return how many times larger a figure is live than in the simulation."""
    of, _ = COMPARED[what]
    return of(live) / max(of(model), 1e-9)


def is_within(what: str, model: Measured, live: Measured) -> bool:
    """Return whether the simulation agrees with the live run as well as it claims to."""
    _, factor = COMPARED[what]
    return factor is None or 1 / factor <= ratio(what, model, live) <= factor


def _verdict(what: str, model: Measured, live: Measured) -> str:
    _, factor = COMPARED[what]
    if factor is None:
        return ""
    kept = "kept" if is_within(what, model, live) else "MISSED"
    return f"× {1 / factor:.2f} to {factor:g}, {kept}"


def _charts(fleets: list[Measured]) -> list[Chart]:
    x = [float(each.servers) for each in fleets]

    def chart(title: str, unit: str, note: str, **lines: Callable[[Measured], float]) -> Chart:
        series = [
            Series(name.replace("_", " "), x, [round(of(each), 4) for each in fleets], colour=n)
            for n, (name, of) in enumerate(lines.items())
        ]
        return Chart(title, unit, series, x_title="servers", note=note)

    return [
        chart(
            "Time to spread",
            "seconds",
            "The slowest of the hot keys. Larger fleets get news less often.",
            decided=lambda each: each.decided_s[-1] if each.decided_s else 0.0,
            used_by_all_servers=lambda each: each.spread_s[-1] if each.spread_s else 0.0,
        ),
        chart(
            "CPU",
            "CPU seconds a second",
            "Follows the writes of the fleet, not its number of keys.",
            leader=lambda each: each.leader_cpu,
            Redis=lambda each: each.redis_cpu,
        ),
        chart(
            "Memory of the coordinator",
            "MB",
            "The latest report of every server, and the sums.",
            coordinator=lambda each: each.leader_mb,
        ),
        chart(
            "Redis traffic",
            "MB a second",
            "In: reports. Out: reports that the leader reads, and news to every server.",
            received=lambda each: each.redis_in / 1e6,
            sent=lambda each: each.redis_out / 1e6,
        ),
        chart(
            "Reads of META",
            "reads a second",
            "A server that hears news reads the data store every 30 s, or less often.",
            all_servers=lambda each: each.meta_reads,
        ),
        chart(
            "Redis commands",
            "commands a second",
            "One report of each server a second; news is pushed.",
            commands=lambda each: each.commands,
        ),
    ]
