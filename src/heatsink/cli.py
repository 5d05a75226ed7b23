"""The command line: `heatsink --help`."""

from __future__ import annotations

import asyncio
from importlib import import_module
from random import Random
from typing import Any, NoReturn

from heatsink.primitives.words import pip_install

try:  # other packages may have installed some of these, most often click
    for package in ("click", "httptools", "prometheus_client", "rich", "starlette", "uvicorn"):
        import_module(package)
except ImportError as missing:
    raise SystemExit(
        f"heatsink: the command line needs {missing.name}: {pip_install('server')}"
    ) from None

import click
import msgspec

from heatsink.bulk.scaling.load import WorkerRules
from heatsink.bulk.scaling.policy import POLICIES
from heatsink.emulator.settings import PARTITIONS_MAX, SECONDS_MAX, UNITS_MAX, UNITS_MIN
from heatsink.errors import HeatsinkError, InvalidSetting, answer_of
from heatsink.lab.bench import bench
from heatsink.lab.commands import lab
from heatsink.lab.demo.command import demo
from heatsink.lab.plan.command import plan
from heatsink.primitives.clock import SystemClock
from heatsink.server.commands.bulk import bulk
from heatsink.server.commands.configuration import (
    PORTS,
    PREFIX,
    WORD,
    Number,
    WholeRange,
    Word,
    allow_host_option,
    bucket_units_option,
    completion,
    config_option,
    json_option,
    log_json_option,
    name_the_source,
    news_option,
)
from heatsink.server.commands.doctor import doctor
from heatsink.server.commands.operator import decisions, explain, hot, pin, unpin
from heatsink.server.commands.serve import config_command, serve_command
from heatsink.server.commands.settings import settings
from heatsink.server.commands.timelines import timelines
from heatsink.server.commands.top import top
from heatsink.server.commands.worker import worker
from heatsink.server.shell import Endpoint, announce, run_service, set_up, terminated_as_interrupted

from . import __version__

NOT_DONE, INTERRUPTED, TERMINATED = 1, 130, 143
PROVISIONED_MAX = 10**12 // 3  # DynamoDB's maximum is 10**12; the table gets 3 times as many reads


class Commands(click.Group):
    """The root command: it prints an error in one line, and nothing after Ctrl-C or SIGTERM.

    After Ctrl-C or SIGTERM a command can clean up. Services, which run until a signal, handle both
    signals themselves.
    """

    def invoke(self, ctx: click.Context) -> Any:
        with terminated_as_interrupted() as terminated:
            try:
                return super().invoke(ctx)
            except HeatsinkError as error:
                _give_up(ctx, error)
            except click.BadParameter as error:
                name_the_source(error)
                raise
            except KeyboardInterrupt:
                ctx.exit(TERMINATED if terminated else INTERRUPTED)
            except ExceptionGroup as group:
                ours, others = group.split(HeatsinkError)
                if ours is None or others is not None:
                    raise
                _give_up(ctx, ours)


def _give_up(ctx: click.Context, error: Exception) -> NoReturn:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    click.echo(f"heatsink: {error}", err=True)
    ctx.exit(answer_of(error).exit_code if isinstance(error, HeatsinkError) else NOT_DONE)


CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "auto_envvar_prefix": PREFIX,
    "show_default": True,
}


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="heatsink")
def main() -> None:
    """Heatsink keeps hot keys and spike loads from melting a partitioned system."""


@main.command()
@click.argument("url")
@click.option(
    "--rebuild",
    is_flag=True,
    help="Restore lost epochs of the registry from the rows. Reconnect all clients afterwards.",
)
@click.option(
    "--reset-closed-time",
    "reset",
    is_flag=True,
    help="Set the closed time back to now, after a wrong clock has moved it far ahead. Only for "
    "SQLite. Stop all processes that use the store first.",
)
@json_option
def fsck(url: str, rebuild: bool, reset: bool, as_json: bool) -> None:
    """Check that every row of the store at URL is in the partition where readers look for it."""
    from heatsink.server.commands.fsck import run_fsck, run_reset
    from heatsink.server.commands.progress import progress_bar

    if rebuild and reset:
        raise InvalidSetting(
            "--rebuild and --reset-closed-time cannot be combined: run one after the other"
        )

    with progress_bar(count="rows checked") as bar:
        rows = bar.add_task("", total=None)
        clock, tick = SystemClock(), lambda: bar.advance(rows)
        run = run_reset(url, clock, tick) if reset else run_fsck(url, rebuild, clock, tick)
        outcome = asyncio.run(run)
    click.echo(outcome.as_json() if as_json else str(outcome))
    if not outcome.findings.clean:
        click.get_current_context().exit(1)


@main.command()
@config_option
@click.option(
    "--store",
    type=Word("Use the sqlite:// or dynamodb:// URL of your app servers."),
    required=True,
    help="URL of the data store.",
)
@news_option
@click.option("--host", type=WORD, default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=PORTS, default=8323, help="Port of /healthz, /readyz and /metrics.")
@click.option(
    "--token",
    help="Bearer token that /metrics requires. Set one if other machines can reach --host.",
)
@allow_host_option
@click.option(
    "--name",
    default="",
    show_default="host name",
    help="Name of this coordinator in the registry.",
)
@bucket_units_option
@click.option(
    "--cool-down",
    type=Number(0, 1e9),
    default=300.0,
    help="Seconds of low load before a key gets fewer buckets.",
)
@click.option("--queue", type=WORD, help="URL of the queue whose workers the coordinator scales.")
@click.option(
    "--stage",
    default="default",
    help="Stage of the queue: a name that separates deployments on one Redis.",
)
@click.option(
    "--scaling",
    type=click.Choice(list(POLICIES)),
    default="littles_law",
    help="Policy that sets the number of workers.",
)
@click.option(
    "--workers-max",
    type=WholeRange(8, 10_000),
    default=256,
    help="Maximum number of workers per partition.",
)
@click.option(
    "--fleet-max",
    type=WholeRange(1, 10**6),
    default=10_000,
    help="Maximum number of workers of all partitions.",
)
@log_json_option
def coordinator(
    store: str, host: str, port: int, token: str | None, queue: str | None, **options: Any
) -> None:
    """Run a coordinator, which sets the number of buckets of each key for all app servers.

    With --queue it also sets the number of workers. Run two coordinators: one leads, the other
    takes over if the leader fails.
    """
    from heatsink.bulk import BulkSettings
    from heatsink.server.api.requests import token_of
    from heatsink.server.commands.coordinator import check_store, coordinate

    from . import BucketRules

    set_up(options["log_json"])
    check_store(store)
    tokens = (token_of("read", token),) if token else ()
    endpoint = Endpoint(host, port, tokens, options["allow_host"])
    settings = {
        "news": options["news"],
        "name": options["name"],
        "rules": BucketRules(
            bucket_units_s=options["bucket_units"], cool_down_s=options["cool_down"]
        ),
        "queue": queue,
        "bulk": BulkSettings(stage=options["stage"], durability="relaxed"),
        "scaling": options["scaling"],
        "workers": WorkerRules(workers_max=options["workers_max"], fleet_max=options["fleet_max"]),
    }
    coordinate(store, endpoint, **settings)


UNITS = Number(UNITS_MIN, UNITS_MAX)
SECONDS = Number(0, SECONDS_MAX)
SHOW = 0  # `--partitions` without a number


@main.command()
@config_option
@click.option("--host", type=WORD, default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=PORTS, default=8322, help="Port of the emulator.")
@click.option(
    "--token",
    type=WORD,
    help="Accept only requests that are signed with this as the secret key, or that have it in the "
    "header Authorization: Bearer. Needed to listen on an address that other machines can reach.",
)
@click.option(
    "--data",
    type=click.Path(dir_okay=False),
    help="File that keeps all tables: it survives restarts and kill -9.",
)
@click.option("--in-memory", is_flag=True, help="Keep no file, which is the default.")
@click.option("--seed", type=int, help="Seed of everything random in the emulator; default: none.")
@click.option(
    "--write-limit", type=UNITS, default=1e3, help="Maximum write units/s of a partition."
)
@click.option("--read-limit", type=UNITS, default=3e3, help="Maximum read units/s of a partition.")
@click.option(
    "--burst-seconds",
    type=SECONDS,
    default=300.0,
    help="Seconds of unused throughput that a partition can save up.",
)
@click.option(
    "--full-burst/--empty-burst",
    default=True,
    help="Whether a new provisioned table has already saved up --burst-seconds of its throughput.",
)
@click.option(
    "--partitions",
    type=WholeRange(SHOW, PARTITIONS_MAX),
    default=4,
    is_flag=False,
    flag_value=SHOW,
    help="Number of partitions of a new on-demand table. Without a number: show the partitions of "
    "the emulator that runs on --port.",
)
@click.option(
    "--adaptive/--no-adaptive",
    default=True,
    help="Lend unused throughput to hot partitions and split them, as DynamoDB does.",
)
@click.option(
    "--split-after",
    type=SECONDS,
    default=600.0,
    help="Seconds that a partition must stay hot before the emulator splits it.",
)
@click.option(
    "--cool-down",
    type=SECONDS,
    default=60.0,
    help="Seconds after a split in which the emulator does not change the new partitions.",
)
@click.option(
    "--merge-after",
    type=SECONDS,
    help="Seconds that two neighbours must stay calm before they are merged; default: never.",
)
@click.option(
    "--replica-lag",
    type=SECONDS,
    default=0.0,
    help="Seconds by which eventually consistent reads are stale.",
)
@click.option(
    "--index-lag",
    type=SECONDS,
    default=0.0,
    help="Maximum seconds by which reads of a global index lag behind the table; random.",
)
@click.option(
    "--ttl-lag",
    type=SECONDS,
    default=10.0,
    help="Seconds between the end of an item's time to live and its deletion.",
)
@click.option(
    "--latency",
    type=Number(0, SECONDS_MAX * 1000),
    default=0.0,
    help="Milliseconds added to the response time of each request.",
)
@allow_host_option
@log_json_option
def dynamo(port: int, partitions: int, latency: float, log_json: bool, **options: Any) -> None:
    """Run a DynamoDB emulator in memory, with partitions that throttle and split as DynamoDB's do.

    The emulator is for development. It loses all data when it stops, unless --data names a file. To
    watch its partitions, open its address in a browser, or run `heatsink dynamo --partitions` in a
    second terminal.
    """
    if partitions == SHOW:
        from heatsink.server.commands.partitions import show_partitions

        show_partitions(f"http://127.0.0.1:{port}", SystemClock())
        return

    from heatsink.emulator.server import serve
    from heatsink.emulator.settings import EngineSettings

    settings = EngineSettings(
        host=options["host"],
        port=port,
        token=options["token"],
        data=None if options["in_memory"] else options["data"],
        write_limit=options["write_limit"],
        read_limit=options["read_limit"],
        burst_s=options["burst_seconds"],
        full_burst=options["full_burst"],
        partitions=partitions,
        adaptive=options["adaptive"],
        split_after_s=options["split_after"],
        cool_down_s=options["cool_down"],
        merge_after_s=options["merge_after"],
        replica_lag_s=options["replica_lag"],
        index_lag_s=options["index_lag"],
        ttl_lag_s=options["ttl_lag"],
        latency_s=latency / 1000,
        allow_hosts=options["allow_host"],
    )

    def started(url: str) -> None:
        text = f"DynamoDB emulator on {url} (Ctrl-C stops it)"
        announce(log_json, "started", text, port=int(url.rpartition(":")[2]))

    set_up(log_json)
    run_service(lambda _: serve(settings, SystemClock(), Random(options["seed"]), started))


@main.group()
def table() -> None:
    """Manage DynamoDB tables for Heatsink."""


@table.command("create")
@click.argument("url")
@click.option(
    "--write-units",
    type=WholeRange(1, PROVISIONED_MAX),
    help="Provisioned write units/s; read units are three times as many. Default: on demand.",
)
@json_option
def create_table(url: str, write_units: int | None, as_json: bool) -> None:
    """Create the table that URL names: dynamodb://messages?region=eu-west-1."""
    from heatsink.server.commands.fsck import create

    asyncio.run(create(url, write_units, SystemClock()))
    click.echo('{"made":true}' if as_json else "The table is created.")


@main.command()
@click.argument("url")
@click.argument("table_name", metavar="TABLE")
@click.option(
    "--complete",
    is_flag=True,
    help="Confirm that no program writes TABLE without Heatsink any more.",
)
@json_option
def adopt(url: str, table_name: str, complete: bool, as_json: bool) -> None:
    """Show, or change, whether reads of your TABLE still look for rows written without Heatsink.

    URL is the store that holds Heatsink's registry. TABLE is the name of a table in the same
    region, or the URL of a table elsewhere: dynamodb://chat?region=eu-west-1. Pass --complete once
    no program writes the table without Heatsink; rows that such programs wrote stay readable.
    """
    from heatsink.boto.places import adopt as adopt_table
    from heatsink.server.commands.fsck import name_of_existing

    async def run() -> tuple[str, float]:
        name = await name_of_existing(table_name, url, SystemClock())
        return name, await adopt_table(url, name, complete, SystemClock())

    name, since_ms = asyncio.run(run())
    if as_json:
        since = None if since_ms == float("inf") else int(since_ms)
        click.echo(msgspec.json.encode({"table": name, "complete_from_ms": since}).decode())
    elif since_ms == float("inf"):
        click.echo(
            f"{name}: adoption is not complete. Reads also look for rows written without Heatsink."
        )
    else:
        click.echo(
            f"{name}: adoption is complete for rows from {int(since_ms)} (ms since 1970) on."
        )


for command in (demo, bulk, lab, plan, worker, serve_command, config_command, bench):
    main.add_command(command)
for command in (top, hot, explain, pin, unpin, decisions, settings, timelines, doctor, completion):
    main.add_command(command)
