"""`heatsink plan`: how a table would behave under a day's traffic, with and without each remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Any

import click
import msgspec

from heatsink.emulator.capacity.limits import TableCapacity
from heatsink.errors import InvalidSetting
from heatsink.lab.commands import check_own_page, check_page, set_aside, show
from heatsink.primitives.words import counted
from heatsink.server.commands.configuration import Number, WholeRange, config_option
from heatsink.server.commands.progress import progress_bar

from .findings import COST_MEANS, advice, report_of, warnings
from .lane import REMEDIES
from .replay import Replay, ReplayOutcome, replay
from .settings import PlanSettings, Prices
from .traces import SHAPES, WEIGHT_MAX, CsvTrace, SyntheticLoad, SyntheticTrace, Trace

UNITS = Number(0.001, 1e9)
DOLLARS = Number(0, 1e6)
LOAD = SyntheticLoad()
PRICES = Prices()
QUICK = 100_000  # requests to replay
OF_A_LOAD = ("shape", "keys", "skew", "peak", "trough", "read_share", "item_bytes", "hours")
OF_A_SHAPE = ("keys", "skew", "peak", "trough", "read_share", "item_bytes")


def _trace_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option(
            "--sampled",
            type=WholeRange(1, WEIGHT_MAX),
            default=1,
            help="If TRACE is a sample: how many requests each line stands for.",
        ),
        click.option(
            "--shape",
            type=click.Choice(list(SHAPES)),
            help="Generate a load with the parameters of a published one.",
        ),
        click.option(
            "--keys", type=WholeRange(1, 10**12), default=LOAD.keys, help="Number of keys."
        ),
        click.option(
            "--skew",
            type=Number(0, 10),
            default=LOAD.skew,
            help="Exponent of the Zipf distribution of requests over keys; 0: all keys equal.",
        ),
        click.option(
            "--peak", type=Number(0.001, 1e9), default=LOAD.peak, help="Requests/s at noon."
        ),
        click.option(
            "--trough",
            type=Number(0.001, 1),
            default=LOAD.trough,
            help="Requests/s at midnight, as a share of the peak.",
        ),
        click.option(
            "--read-share",
            type=Number(0, 1),
            default=LOAD.read_share,
            help="Share of the requests that are reads.",
        ),
        click.option(
            "--item-bytes",
            type=WholeRange(0, 400 * 1024),
            default=LOAD.item_bytes,
            help="Size of an item in bytes.",
        ),
        click.option(
            "--hours",
            type=Number(0.001, 744),
            default=LOAD.hours,
            help="Length of the generated load in hours; less than 24 are centred on the peak.",
        ),
        click.option(
            "--requests",
            type=WholeRange(1_000, 10**9),
            default=10**6,
            help="Maximum number of generated requests to replay. If the load has more, each "
            "replayed request stands for several.",
        ),
        click.option("--seed", default=1, help="Random seed: the same seed repeats a run."),
    )
    return _all(options, command)


def _table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option(
            "--write-capacity", type=UNITS, help="Provisioned write units/s; default: on demand."
        ),
        click.option(
            "--read-capacity", type=UNITS, help="Provisioned read units/s; default: on demand."
        ),
        click.option(
            "--partitions",
            type=WholeRange(0, 10_000),
            default=0,
            show_default="what the traffic needs",
            help="Number of partitions of the table at the start.",
        ),
        click.option("--consistent", is_flag=True, help="Make all reads strongly consistent."),
        click.option(
            "--by-id",
            is_flag=True,
            help="Make all reads by id: they query one bucket of a spread key instead of all.",
        ),
        click.option(
            "--servers", type=WholeRange(1, 10_000), default=10, help="Number of app servers."
        ),
        click.option(
            "--fresh-for",
            type=Number(0, 3_600),
            default=0.5,
            help="Seconds for which an app server's near cache serves a value without reloading.",
        ),
        click.option(
            "--stale-for",
            type=Number(0, 3_600),
            default=5.0,
            help="Seconds after which the near cache no longer serves a value before reloading it.",
        ),
    )
    return _all(options, command)


def _price_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option(
            "--prices", default=PRICES.whose, help="Source of the prices, shown on the page."
        ),
        click.option(
            "--write-price",
            type=DOLLARS,
            default=PRICES.million_writes,
            help="Dollars per million write units, on demand.",
        ),
        click.option(
            "--read-price",
            type=DOLLARS,
            default=PRICES.million_reads,
            help="Dollars per million read units, on demand.",
        ),
        click.option(
            "--write-hour-price",
            type=DOLLARS,
            default=PRICES.write_unit_hour,
            help="Dollars per hour of a provisioned write unit.",
        ),
        click.option(
            "--read-hour-price",
            type=DOLLARS,
            default=PRICES.read_unit_hour,
            help="Dollars per hour of a provisioned read unit.",
        ),
    )
    return _all(options, command)


def _all(
    options: tuple[Callable[..., Any], ...], command: Callable[..., Any]
) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command


@click.command()
@config_option
@click.argument("trace", required=False, type=click.Path(path_type=Path))
@_trace_options
@_table_options
@_price_options
@click.option(
    "--remedy",
    "remedies",
    multiple=True,
    type=click.Choice([remedy.name for remedy in REMEDIES]),
    show_default="all of them",
    help="Replay the traffic with this remedy only; may be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON and write no page.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    show_default="plan.html; the page of another plan there becomes plan-before.html",
    help="HTML page to write; replaced if it exists.",
)
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    trace: Path | None,
    remedies: tuple[str, ...],
    as_json: bool,
    out: Path | None,
    **options: Any,
) -> None:
    """Replay traffic on virtual time and report throttles, buckets and cost of each remedy.

    TRACE is a CSV file, plain or gzipped, with the columns time, key, operation and bytes. An
    operation is read, write, a name of DynamoDB (GetItem, PutItem, …) or of a cache (get, set, …).
    Without TRACE, plan generates a load from --keys, --skew, --peak and so on, or from --shape.
    """
    chosen = [each for each in REMEDIES if not remedies or each.name in remedies]
    source, settings = _trace(ctx, trace, options), _settings(options)
    page = out or Path("plan.html")
    if not as_json:
        if out is None:
            check_own_page(page, "heatsink plan")
        check_page(page)
        if isinstance(source, SyntheticTrace):
            click.echo(_announced(source, options["requests"], len(chosen)), err=True)
    with progress_bar() as bar:
        task = bar.add_task(f"replaying {source.name}", total=1.0)
        found = replay(
            source, settings, options["seed"], chosen, lambda done: bar.update(task, completed=done)
        )
    if as_json:
        click.echo(_as_json(found))
        return
    before = set_aside(page, _command(ctx)) if out is None else None
    show(report_of(found), page, _command(ctx))
    if before is not None:
        click.echo(f"The page of the plan before is {before} now")
    said = advice(found)
    for text in [*warnings(found), *said, *([COST_MEANS] if len(said) > 1 else [])]:
        click.echo(f"\n{text}")


def _given(ctx: click.Context, names: tuple[str, ...]) -> list[str]:
    """Return the options in `names` that the user has set, by flag or environment variable."""
    default = (click.core.ParameterSource.DEFAULT, click.core.ParameterSource.DEFAULT_MAP)
    return [name for name in names if ctx.get_parameter_source(name) not in default]


def _trace(ctx: click.Context, path: Path | None, options: dict[str, Any]) -> Trace:
    if path is not None:
        _refuse(_given(ctx, (*OF_A_LOAD, "requests")), f"the load comes from TRACE {str(path)!r}")
        return CsvTrace(path, options["sampled"])
    _refuse(_given(ctx, ("sampled",)), "it describes a TRACE, and no TRACE is given")
    if options["shape"] is not None:
        _refuse(_given(ctx, OF_A_SHAPE), f"--shape {options['shape']} sets it")
        load = SHAPES[options["shape"]].load(options["hours"])
        return SyntheticTrace(load, options["requests"], options["seed"], options["shape"])
    load = SyntheticLoad(**{name: options[name] for name in OF_A_LOAD if name != "shape"})
    return SyntheticTrace(load, options["requests"], options["seed"])


def _announced(source: SyntheticTrace, requests: int, remedies: int) -> str:
    """Return a text that announces a plan without a trace, which may take minutes."""
    load = source.load
    text = (
        f"No TRACE, so plan generates a load: {load.hours:g} h, {load.peak:,.10g} requests/s "
        f"at the peak, {counted(load.keys, 'key')}. It replays the load on virtual time under "
        f"{counted(remedies, 'remedy', 'remedies')}."
    )
    is_long = source.weight > 1 and requests > QUICK
    return f"{text} Quicker and coarser: --requests {QUICK}" if is_long else text


def _refuse(names: list[str], why: str) -> None:
    if names:
        flag = f"--{names[0].replace('_', '-')}"
        raise InvalidSetting(f"{flag} cannot be used here: {why}")


def _settings(options: dict[str, Any]) -> PlanSettings:
    if (options["write_capacity"] is None) != (options["read_capacity"] is None):
        raise InvalidSetting("--write-capacity and --read-capacity go together: set both or none")
    if options["stale_for"] < options["fresh_for"]:
        raise InvalidSetting("--stale-for must be at least --fresh-for")
    return PlanSettings(
        capacity=TableCapacity(options["write_capacity"], options["read_capacity"]),
        partitions=options["partitions"],
        servers=options["servers"],
        fresh_for=options["fresh_for"],
        stale_for=options["stale_for"],
        consistent_reads=options["consistent"],
        all_buckets=not options["by_id"],
        prices=Prices(
            whose=options["prices"],
            million_writes=options["write_price"],
            million_reads=options["read_price"],
            write_unit_hour=options["write_hour_price"],
            read_unit_hour=options["read_hour_price"],
        ),
    )


def _as_json(found: Replay) -> str:
    """Return all figures as JSON, except the figures per minute and period, which are many."""
    said = {"warnings": warnings(found), "advice": advice(found)}
    outcomes = [_figures(each) for each in found.outcomes]
    whole = {**msgspec.to_builtins(found), "outcomes": outcomes, **said}
    return msgspec.json.encode(whole).decode()


def _figures(outcome: ReplayOutcome) -> dict[str, Any]:
    figures: dict[str, Any] = msgspec.to_builtins(outcome)
    del figures["minutes"], figures["periods"]
    computed = {"throttled_share": outcome.throttled_share, "cost_factor": outcome.cost_factor}
    return {**figures, **computed}


def _command(ctx: click.Context) -> str:
    """Return the command line that repeats this plan."""
    words = ["heatsink", "plan"]
    for parameter in ctx.command.params:
        name = parameter.name or ""
        default = ctx.get_parameter_source(name) is click.core.ParameterSource.DEFAULT
        if name in ctx.params and name != "out" and not default:
            value = ctx.params[name]
            flag = [] if isinstance(parameter, click.Argument) else [parameter.opts[0]]
            for each in value if isinstance(value, tuple) else [value]:
                text = f"{each:g}" if isinstance(each, float) else str(each)
                words += flag if each is True else [*flag, quote(text)]
    return " ".join(words)
