"""`heatsink cluster look` and `balance`: the heat of a Redis or Valkey Cluster, and its cure."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from random import Random
from typing import Any

import click
import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from heatsink.bulk.settings import PARTITIONS_MAX
from heatsink.cluster.answers import SETTING, NoSlotStatistics, Server, Topology
from heatsink.cluster.balance import (
    LEASE_MS,
    Balancer,
    ClusterLease,
    ClusterMeter,
    check_able,
    decision_of,
    measured,
)
from heatsink.cluster.keys import queue_slots
from heatsink.cluster.load import WINDOWS, ClusterLoad, SlotLoad, usage_of
from heatsink.cluster.mover import (
    MoveReport,
    SlotMover,
    carry_out_each,
    commands_for,
)
from heatsink.cluster.nodes import ClusterNodes
from heatsink.cluster.policy import Plan, SlotPolicy, plan_moves
from heatsink.cluster.rules import MoveLimits, SlotRules, parse_cores, parse_hours
from heatsink.cluster.sampled import SampledCluster
from heatsink.cluster.slots import parse_slots, ranges_of
from heatsink.errors import HeatsinkError, InvalidSetting, NoAccess, Retryable, Unavailable
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.words import counted, data_size
from heatsink.registry.decisions import Decision
from heatsink.stores.redis.address import RedisAddress

from .configuration import WORD, Number, WholeRange, json_option
from .coordinator import check_store, ids_of
from .operator import shown
from .progress import progress_bar
from .store import publish_in

HOTTEST = 10
KEYS = 3
SLOTS_SHOWN = 60  # characters in a line
INTERRUPTED = (
    "heatsink: interrupted. The servers finish or undo a migration that is running by themselves. "
    "To go on, run the command again."
)


class Parsed(click.ParamType[Any]):
    """A value that `parse` reads from a text, or refuses with `InvalidSetting`."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, *_: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except InvalidSetting as error:
            self.fail(str(error))


@click.group()
def cluster() -> None:
    """Look at the heat of a Redis or Valkey Cluster, and balance it by moving slots."""


URL = click.argument("url")
WINDOW = click.option(
    "--window", type=Number(0.1, 600), default=2.0, help="Seconds of one measurement."
)
ENABLE = click.option(
    "--enable",
    is_flag=True,
    help="Turn the statistics of slots on, on all nodes, if they are off.",
)
CORES = click.option(
    "--cores",
    type=Parsed("node=cores", parse_cores),
    multiple=True,
    help="CPU capacity of a node, as in 10.0.0.1:6379=2; may be repeated. Others have 1; 0 drains.",
)


@cluster.command()
@URL
@WINDOW
@ENABLE
@CORES
@click.option("--live", is_flag=True, help="Keep measuring, and show the newest values.")
@json_option
def look(
    url: str, window: float, enable: bool, cores: tuple[Any, ...], live: bool, as_json: bool
) -> None:
    """Show nodes, and the hottest slots and their keys, of the cluster at URL.

    URL is redis+cluster://host:port with one or more nodes.
    """
    if live and as_json:
        raise InvalidSetting("--live draws a view for people: leave out --json")
    with _errors_only():
        asyncio.run(_look(url, window, enable, dict(cores), live, as_json))


@contextmanager
def _errors_only() -> Iterator[None]:
    """Log no warnings during the block: the command itself says what went wrong, in one line."""
    logger = logging.getLogger("heatsink")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


async def _look(
    url: str, window_s: float, enable: bool, cores: dict[str, float], live: bool, as_json: bool
) -> None:
    clock = SystemClock()
    nodes = ClusterNodes(url, clock, Random())
    try:
        check_cores(cores, await nodes.topology())
        cluster = await _measured(nodes, enable)
        meter = ClusterMeter(cluster, clock, cores)
        load = await _measure(meter, window_s, "measuring")
        assert meter.topology is not None
        if as_json:
            shown(await _as_json(cluster, meter.topology, load))
            return
        console = Console()
        first = await _view(cluster, meter.topology, load)
        if not live or not console.is_terminal:
            console.print(first)
            return
        with Live(first, console=console, auto_refresh=False) as screen:
            while True:
                try:
                    load = await meter.measure(window_s, 1)
                    first = await _view(cluster, meter.topology, load)
                    screen.update(first, refresh=True)
                except (Unavailable, NoSlotStatistics) as error:
                    why = Text(f"Not measured: {error}", style="bold")
                    screen.update(Group(first, "", why), refresh=True)
                    await clock.sleep(window_s)
    finally:
        await nodes.close()


async def _measured(nodes: ClusterNodes, enable: bool) -> ClusterNodes | SampledCluster:
    """Return what measures the cluster: its statistics of slots, or samples of its commands.

    Statistics that are off are turned on if `enable` is set, or if the person at the terminal
    agrees. Raises `NoSlotStatistics` otherwise.
    """
    nodes.enables = enable
    topology = await nodes.topology()
    try:
        await nodes.snapshot(topology, {})
    except NoSlotStatistics as missing:
        if not missing.can_enable:
            click.echo(f"heatsink: {missing}. Commands are sampled instead (MONITOR).", err=True)
            return SampledCluster(nodes, SystemClock())
        if not _agrees():
            raise
        nodes.enables = True
    return nodes


def check_cores(cores: Mapping[str, float], topology: Topology) -> None:
    """Raise `InvalidSetting` if a node of `--cores` is not in the cluster."""
    known = {node.address for node in topology.nodes}
    for address in cores.keys() - known:
        raise InvalidSetting(
            f"--cores names {address}, which is no node of this cluster: use one of "
            f"{', '.join(sorted(known))}"
        )


def _agrees() -> bool:
    question = f"Slots are not measured. Turn {SETTING} on, on all nodes, until they restart?"
    return sys.stdin.isatty() and sys.stderr.isatty() and click.confirm(question, err=True)


def _hottest(load: ClusterLoad) -> list[SlotLoad]:
    used = (slot for slot in load.slots if slot.heat or slot.net_s)
    return sorted(used, key=lambda slot: (-slot.heat, -slot.net_s, slot.slot))[:HOTTEST]


async def _view(
    cluster: ClusterNodes | SampledCluster, topology: Topology, load: ClusterLoad
) -> Group:
    plan = plan_moves(load, SlotRules())
    table = Table(box=None)
    table.add_column("node", no_wrap=True)
    for title in ("replicas", "slots", "CPU", "network", "memory", "÷ mean"):
        table.add_column(title, justify="right")
    for row in _node_rows(load):
        table.add_row(
            row["node"],
            f"{row['replicas']}",
            f"{row['slots']:,}",
            f"{row['cpu']:.1%}",
            f"{row['network_s'] / 1e6:,.2f} MB/s",
            data_size(row["memory"]),
            f"{row['ratio']:.2f} ×",
        )
    slots = Table(box=None)
    for title in ("slot", "node"):
        slots.add_column(title, no_wrap=True)
    for title in ("CPU", "network", "keys"):
        slots.add_column(title, justify="right")
    hottest = _hottest(load)
    found = [await cluster.keys_of(slot.slot, topology, KEYS) for slot in hottest]
    are_hottest = bool(found) and all(keys.are_hottest for keys in found)
    slots.add_column("hottest keys" if are_hottest else "some keys", overflow="fold")
    names = addresses_of(load)
    for slot, keys in zip(hottest, found, strict=True):
        slots.add_row(
            f"{slot.slot}",
            names[slot.node],
            f"{slot.heat:.2%}",
            f"{slot.net_s / 1e6:,.2f} MB/s",
            f"{slot.keys:,}",
            escape(", ".join(keys.names)),
        )
    return Group(table, "", slots, "", escape(_verdict(topology, plan)))


def _verdict(topology: Topology, plan: Plan) -> str:
    lines = [f"The busiest node has {plan.before:.2f} × the mean load."]
    if topology.trouble:
        lines.append(f"No slot can move now: {topology.trouble}.")
    if plan.ceiling:
        lines.append(f"Ceiling: {plan.ceiling.words}.")
    lines += _unlike_words(plan)
    if plan.moves:
        text = f"{counted(plan.slots, 'slot')} to move would make it {plan.after:.2f} ×"
        lines.append(f"{text}: heatsink cluster balance.")
    elif not plan.ceiling:
        lines.append(f"Nothing to move: {plan.why}.")
    return " ".join(lines)


def addresses_of(load: ClusterLoad) -> dict[str, str]:
    """Return the addresses of the primaries by their ids."""
    return {node.id: node.address for node in load.nodes}


def _node_rows(load: ClusterLoad) -> list[dict[str, Any]]:
    return [
        {
            "id": node.id,
            "node": node.address,
            "replicas": node.replicas,
            "slots": node.slots,
            "cpu": node.cpu,
            "network_s": node.net_s,
            "memory": node.memory,
            "cores": node.cores,
            "ratio": node.ratio,
        }
        for node in usage_of(load)
    ]


async def _as_json(
    cluster: ClusterNodes | SampledCluster, topology: Topology, load: ClusterLoad
) -> dict[str, Any]:
    plan = plan_moves(load, SlotRules())
    names, hottest = addresses_of(load), []
    for slot in _hottest(load):
        keys = await cluster.keys_of(slot.slot, topology, KEYS)
        named = {"node": names[slot.node], "key_names": keys.names, "are_hottest": keys.are_hottest}
        hottest.append(msgspec.structs.asdict(slot) | named)
    return {
        "nodes": _node_rows(load),
        "slots": hottest,
        "trouble": topology.trouble,
        "busiest_to_mean": plan.before,
        "balanced_to_mean": plan.after,
        "ceiling": plan.ceiling,
        "why": plan.why,
    }


@cluster.command()
@URL
@WINDOW
@ENABLE
@CORES
@click.option("--apply", is_flag=True, help="Move the slots. Without it, only show the plan.")
@click.option("--watch", is_flag=True, help="Keep balancing until Ctrl-C. Needs --apply.")
@click.option(
    "--store", type=WORD, envvar="HEATSINK_STORE", help="Also write moves to its history."
)
@click.option("--start", type=Number(1, 10), default=1.25, help="Busiest ÷ mean to begin at.")
@click.option(
    "--idle",
    type=Number(0, 1),
    default=0.02,
    help="Do nothing while the busiest node uses less than this share of its CPU.",
)
@click.option("--stop", type=Number(1, 10), default=1.10, help="Busiest ÷ mean to stop at.")
@click.option("--pinned", type=Parsed("slots", parse_slots), help="Slots that never move: 5,7-9.")
@click.option(
    "--keys-max",
    type=WholeRange(1, 10**12),
    default=1_000_000,
    help="A slot with more keys never moves.",
)
@click.option("--rate", type=Number(0.001, 1e6), default=50.0, help="Most megabytes a second.")
@click.option(
    "--slots-per-hour", type=WholeRange(1, 10**6), default=4_096, help="Most slots in an hour."
)
@click.option(
    "--leave-queue",
    type=WholeRange(1, PARTITIONS_MAX),
    help="Pin the slots of Heatsink's queue; the number is that of its partitions.",
)
@click.option(
    "--measure-cores",
    is_flag=True,
    help="Measure the speed of each node with a short script, instead of --cores.",
)
@click.option(
    "--node-memory",
    type=Number(1, 1e9),
    help="Megabytes of a node without maxmemory, such as the limit of its container.",
)
@click.option("--commands", is_flag=True, help="Also print the commands that move the slots.")
@click.option(
    "--hours", type=Parsed("hours", parse_hours), help="When slots may move, in UTC: 22:00-06:00."
)
@json_option
def balance(url: str, as_json: bool, **options: Any) -> None:
    """Plan which slots of the cluster at URL should move, and with --apply move them.

    With --watch, you may run this command in several places: one process balances, the others wait.
    With --store, every move is a decision in the history of the registry (`heatsink decisions
    --store`).
    """
    if options["watch"] and as_json:
        raise InvalidSetting("--watch prints lines for people: leave out --json")
    if options["watch"] and not options["apply"]:
        raise InvalidSetting("--watch moves slots: pass --apply too, or leave out --watch")
    with _errors_only():
        asyncio.run(_balance(url, as_json, options))


async def _balance(url: str, as_json: bool, options: Mapping[str, Any]) -> None:
    clock = SystemClock()
    queue = queue_slots(options["leave_queue"]) if options["leave_queue"] else frozenset()
    rules = SlotRules(
        start=options["start"],
        stop=options["stop"],
        idle=options["idle"],
        pinned=(options["pinned"] or frozenset()) | queue,
        keys_max=options["keys_max"],
    )
    limits = MoveLimits(
        bytes_s=options["rate"] * 1e6,
        slots_per_hour=options["slots_per_hour"],
        hours=options["hours"],
    )
    if options["store"]:
        check_store(options["store"])
        await ids_of(options["store"], clock, must_exist=True)
    nodes = ClusterNodes(url, clock, Random(), round(1e6 * (options["node_memory"] or 0)))
    try:
        if options["apply"]:
            server = await check_able(nodes)
        else:
            server = await nodes.server(await nodes.topology())
        cores = dict(options["cores"])
        check_cores(cores, await nodes.topology())
        if options["measure_cores"]:
            cores = await nodes.speeds(await nodes.topology()) | cores
        meter = ClusterMeter(await _measured(nodes, options["enable"]), clock, cores)
        mover = SlotMover(nodes, limits, clock)
        if options["watch"]:
            await _watch(nodes, meter, mover, rules, options)
        else:
            await _once(meter, mover, rules, options, as_json, server, nodes.address)
    finally:
        await nodes.close()


async def _once(
    meter: ClusterMeter,
    mover: SlotMover,
    rules: SlotRules,
    options: Mapping[str, Any],
    as_json: bool,
    server: Server,
    login: RedisAddress,
) -> None:
    clock = SystemClock()
    load = await _measure(meter, options["window"], "measuring")
    topology = meter.topology
    assert topology is not None, "the meter has measured"
    plan = await _planned(mover, load, topology, rules, options["apply"])
    show_commands = options["commands"] or server.way != "migrateslots"
    orders = [commands_for(move, topology, server, login) for move in plan.moves if show_commands]
    if not as_json:
        click.echo(_plan_words(plan, load))
        if topology.trouble:
            click.echo(f"No slot can move now: {topology.trouble}.")
        click.echo(_order_words(orders, login), nl=False)
    if not options["apply"]:
        if as_json:
            named = {"nodes": addresses_of(load), "commands": orders, "trouble": topology.trouble}
            shown(msgspec.to_builtins(plan) | named)
        return
    reports: list[MoveReport] = []
    with _says_what_moved(reports), progress_bar() as bar:
        task = bar.add_task("moving slots", total=None)
        async for report in carry_out_each(mover, plan.moves, clock):
            reports.append(report)
            bar.update(task, description=f"moving slots ({counted(len(reports), 'migration')})")
            if not as_json:
                click.echo(_report_words(report))
            if not report.error:
                await _record(options["store"], [decision_of(report)])
    with _says_what_moved(reports):
        now = plan_moves(await _measure(meter, options["window"], "measuring again"), rules)
    if as_json:
        names = addresses_of(load)
        shown({"plan": plan, "reports": reports, "nodes": names, "busiest_to_mean": now.before})
    else:
        click.echo(f"The busiest node has {now.before:.2f} × the mean load now.")
    if any(report.error for report in reports):
        click.get_current_context().exit(1)


@contextmanager
def _says_what_moved(reports: list[MoveReport]) -> Iterator[None]:
    """If the block fails or is interrupted after migrations have begun, say what has moved."""
    try:
        yield
    except asyncio.CancelledError:
        click.echo(INTERRUPTED, err=True)
        raise
    except Retryable as error:
        slots = sum(len(report.job.slots) for report in reports if not report.error)
        raise Unavailable(
            f"{error}. Before this error, {counted(slots, 'slot')} moved, and a migration that was "
            "under way may have ended since: `heatsink cluster look` shows where slots are"
        ) from error


async def _planned(
    mover: SlotMover, load: ClusterLoad, topology: Topology, rules: SlotRules, must_measure: bool
) -> Plan:
    """Plan moves.

    If the user may measure slots, plan with the measured sizes of those that would move.
    """
    plan = plan_moves(load, rules)
    try:
        return await measured(mover, load, plan, topology, lambda load: plan_moves(load, rules))
    except NoAccess as error:
        if must_measure:
            raise
        click.echo(f"heatsink: {error}. The sizes in this plan are estimates.", err=True)
        return plan


async def _measure(meter: ClusterMeter, window_s: float, what: str) -> ClusterLoad:
    with progress_bar() as bar:
        task = bar.add_task(what, total=WINDOWS)
        return await meter.measure(window_s, tick=lambda: bar.advance(task))


def _plan_words(plan: Plan, load: ClusterLoad) -> str:
    lines = [f"The busiest node has {plan.before:.2f} × the mean load."]
    if plan.ceiling:
        lines.append(f"Ceiling: {plan.ceiling.words}.")
    lines += _unlike_words(plan)
    if not plan.moves:
        is_said = plan.ceiling is not None and plan.why == plan.ceiling.words
        lines.append("Nothing to move." if is_said else f"Nothing to move: {plan.why}.")
        return "\n".join(lines)
    names = addresses_of(load)
    for move in plan.moves:
        what = f"{counted(len(move.slots), 'slot')} ({ranges_of(move.slots, SLOTS_SHOWN)})"
        size = f"about {data_size(move.size)}"
        if move.most > 2 * move.size + 1e6:
            size += f", up to {data_size(move.most)}"
        lines.append(f"  {what}, {size}, to {names[move.target]}: {move.reason}")
    lines.append(f"After these moves, the busiest node has {plan.after:.2f} × the mean load.")
    return "\n".join(lines)


def _order_words(orders: list[str], login: RedisAddress) -> str:
    """Return the commands that move slots, as a script for a shell."""
    first = "export REDISCLI_AUTH  # set it to the password in URL first"
    return "\n".join(["", *([first] if login.password else []), *orders, ""]) if orders else ""


def _unlike_words(plan: Plan) -> list[str]:
    if not plan.unlike:
        return []
    nodes = ", ".join(plan.unlike)
    text = f"Modules, functions or users of {nodes} differ from those of the other nodes"
    return [f"{text}: no slot moves between them."]


def _report_words(report: MoveReport) -> str:
    what = f"{counted(len(report.job.slots), 'slot')} ({ranges_of(report.job.slots, SLOTS_SHOWN)})"
    if report.error:
        return f"  {what}: {report.error}"
    return f"  moved {what}, {data_size(report.moved)}, in {report.took_s:.1f} s"


async def _record(store: str | None, decisions: list[Decision]) -> list[Decision]:
    """Write decisions to the history of the registry, if there is one."""
    if store and decisions:
        await publish_in(store, decisions)
    return decisions


async def _watch(
    nodes: ClusterNodes,
    meter: ClusterMeter,
    mover: SlotMover,
    rules: SlotRules,
    options: Mapping[str, Any],
) -> None:
    """Balance until Ctrl-C, while this process holds the lease."""
    clock, name = SystemClock(), f"{socket.gethostname()}-{os.getpid()}"
    lease, told, failures = ClusterLease(nodes, name, clock), "", 0

    async def publish(decisions: list[Decision]) -> list[Decision]:
        for decision in decisions:
            click.echo(f"moved slots {decision.subject.name}: {decision.reason}")
        return await _record(options["store"], decisions)

    balancer = Balancer(meter, SlotPolicy(rules), mover, publish, clock, options["window"])
    try:
        while True:
            moved: list[Decision] = []
            is_due = balancer.is_due
            try:
                kind = said = ""
                if not await lease.take():
                    kind = said = "another process balances this cluster"
                elif is_due:
                    async with lease.kept():
                        moved = await balancer.run_once(leads=lambda: lease.is_held)
                    kind, said = _state_words(balancer, failures)
            except HeatsinkError as error:
                kind = said = str(error)
            failures = balancer.totals.failures
            told = "" if moved else told
            if said and kind != told:
                click.echo(said)
                told = kind
            await clock.sleep(min(options["window"] / 4, LEASE_MS / 3_000))
    finally:
        await lease.end()


def _state_words(balancer: Balancer, failures: int) -> tuple[str, str]:
    """Return a balancer's report and its kind. If only figures change, the report is not new."""
    state = balancer.state
    if state is None:
        return "", ""
    if balancer.totals.failures > failures and state.reports:
        error = state.reports[-1].error
        return error, error
    if state.plan.moves:
        return "", ""
    return f"calm, {'at' if state.plan.ceiling else 'below'} the ceiling", state.plan.why
