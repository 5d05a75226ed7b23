"""The command line: `heatsink --help`."""

from __future__ import annotations

import asyncio
import logging
from random import Random
from typing import Any, NoReturn

try:
    import click
except ImportError as missing:
    raise SystemExit(
        f"heatsink: the command line needs {missing.name}: pip install 'heatsink[server]'"
    ) from None

from heatsink import __version__
from heatsink.clock import SystemClock
from heatsink.errors import HeatsinkError

from .bulk import bulk
from .configuration import PREFIX, config_option
from .demo.traffic import SHAPES, Plan
from .operator.commands import decisions, explain, hot, pin, unpin
from .operator.doctor import doctor
from .operator.top import top
from .serve.command import config_command, serve_command
from .worker import worker

INTERRUPTED = 130
PORT = 8321


class Commands(click.Group):
    """Says what went wrong in one line, and nothing at all on Ctrl-C."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HeatsinkError as error:
            _give_up(ctx, error)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except ExceptionGroup as group:
            ours, others = group.split(HeatsinkError)
            if ours is None or others is not None:
                raise
            _give_up(ctx, ours)


def _give_up(ctx: click.Context, error: Exception) -> NoReturn:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    click.echo(f"heatsink: {error}", err=True)
    ctx.exit(1)


CONTEXT = {"help_option_names": ["-h", "--help"], "auto_envvar_prefix": PREFIX}


@click.group(cls=Commands, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="heatsink")
def main() -> None:
    """Heatsink keeps hot keys and spike loads from melting a partitioned system."""


@main.command()
@click.option("--headless", is_flag=True, help="Print a table instead of serving a page.")
@click.option("--json", "as_json", is_flag=True, help="Print lines of JSON, without a page.")
@click.option(
    "--shape",
    type=click.Choice(list(SHAPES)),
    default="ramp",
    show_default=True,
    help="How the traffic grows: slowly, or all at once.",
)
@click.option("--peak", default=4_000, show_default=True, help="Writes a second at the top.")
@click.option(
    "--limit", default=1_000, show_default=True, help="Writes a second a partition takes."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    help="Port of the page; 0 takes any that is free.",
)
def demo(headless: bool, as_json: bool, shape: str, peak: int, limit: int, port: int) -> None:
    """Watch one conversation get hot, on a plain store and on Heatsink side by side."""
    plan = Plan(shape, peak, limit)
    if headless or as_json:
        _demo_in_terminal(plan, as_json)
    else:
        _demo_on_page(plan, port)


def _demo_in_terminal(plan: Plan, as_json: bool) -> None:
    from .demo.headless import make_console, run_as_json, run_as_table

    clock, rng = SystemClock(), Random()
    if as_json:
        verdict = asyncio.run(run_as_json(plan, clock, rng, click.echo))
    else:
        verdict = asyncio.run(run_as_table(plan, clock, rng, make_console()))
    if not verdict.kept_everything:
        click.get_current_context().exit(1)


def _demo_on_page(plan: Plan, port: int) -> None:
    from .demo.page import listen, serve
    from .demo.stage import Stage

    listener = listen(port)
    host, actual_port = listener.getsockname()
    click.echo(f"Open http://{host}:{actual_port} to watch. The run starts with the first look.")
    click.echo("Ctrl-C stops the demo.")

    async def run() -> None:
        await serve(Stage(plan, SystemClock(), Random()), listener)

    asyncio.run(run())


@main.command()
@click.argument("url")
@click.option("--rebuild", is_flag=True, help="Make lost epochs anew from the rows.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def fsck(url: str, rebuild: bool, as_json: bool) -> None:
    """Verify that every row of the store at URL is where its layout puts it."""
    from .fsck import run_fsck

    outcome = asyncio.run(run_fsck(url, rebuild, SystemClock()))
    click.echo(outcome.as_json() if as_json else str(outcome))
    if not outcome.findings.clean:
        click.get_current_context().exit(1)


@main.command()
@config_option
@click.option("--store", required=True, help="URL of the data store.")
@click.option("--news", help="URL of the Redis that carries heat and news.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of the endpoints.")
@click.option("--port", default=8323, show_default=True, help="Port of /healthz and /metrics.")
@click.option("--token", help="Bearer token for /metrics; a must beyond this machine.")
@click.option("--name", default="", help="What this coordinator is called in the registry.")
@click.option("--bucket-units", default=800, show_default=True, help="Write units/s of a bucket.")
@click.option("--cool-down", default=300.0, show_default=True, help="Calm before N comes down, s.")
def coordinator(
    store: str,
    news: str | None,
    host: str,
    port: int,
    token: str | None,
    name: str,
    bucket_units: int,
    cool_down: float,
) -> None:
    """Decide for a fleet of app servers. Run two: one leads, the other stands by."""
    from heatsink import BucketRules, connect

    from .coordinator import check_address, run_coordinator

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    check_address(host, token)
    rules = BucketRules(bucket_units_s=bucket_units, cool_down_s=cool_down)
    client = connect(store, news=news, name=name, rules=rules)
    asyncio.run(run_coordinator(client, host, port, token))


@main.command()
@config_option
@click.option("--port", default=8322, show_default=True, help="Port on this machine.")
@click.option("--write-limit", default=1_000.0, show_default=True, help="Units/s of a partition.")
@click.option("--read-limit", default=3_000.0, show_default=True, help="Units/s of a partition.")
@click.option("--burst-seconds", default=300.0, show_default=True, help="What may be saved up.")
@click.option("--partitions", default=4, show_default=True, help="Partitions of a table.")
@click.option("--replica-lag", default=0.0, show_default=True, help="Staleness of weak reads, s.")
@click.option("--latency", default=0.0, show_default=True, help="Added to every answer, ms.")
def dynamo(
    port: int,
    write_limit: float,
    read_limit: float,
    burst_seconds: float,
    partitions: int,
    replica_lag: float,
    latency: float,
) -> None:
    """A DynamoDB-compatible engine in memory that throttles hot partitions: for development."""
    from heatsink.dynamo.server import serve
    from heatsink.dynamo.settings import EngineSettings

    settings = EngineSettings(
        port=port,
        write_limit=write_limit,
        read_limit=read_limit,
        burst_s=burst_seconds,
        partitions=partitions,
        replica_lag_s=replica_lag,
        latency_s=latency / 1000,
    )
    click.echo(f"DynamoDB-compatible engine on http://127.0.0.1:{port} (Ctrl-C stops it)")
    asyncio.run(serve(settings, SystemClock(), Random()))


@main.group()
def table() -> None:
    """DynamoDB tables for Heatsink."""


@table.command("create")
@click.argument("url")
@click.option("--write-units", type=click.IntRange(1), help="Provision so many; else on demand.")
def create_table(url: str, write_units: int | None) -> None:
    """Make the table that URL names: dynamodb://messages?region=eu-west-1."""
    from .tables import create

    asyncio.run(create(url, write_units, SystemClock()))
    click.echo("The table is made.")


@main.command()
@click.argument("url")
@click.argument("table_name", metavar="TABLE")
@click.option("--complete", is_flag=True, help="Nobody writes TABLE without Heatsink any more.")
def adopt(url: str, table_name: str, complete: bool) -> None:
    """Whether reads of TABLE, a table of yours, still look for rows written without Heatsink.

    URL names the store of Heatsink's registry. Say --complete when the last program that writes
    the table without Heatsink is gone; rows that it wrote stay readable.
    """
    from heatsink.boto.adoption import adopt as adopt_table

    since_ms = asyncio.run(adopt_table(url, table_name, complete, SystemClock()))
    if since_ms == float("inf"):
        click.echo(f"{table_name}: adoption is not complete; reads ask the bare keys too.")
    else:
        click.echo(f"{table_name}: adoption is complete for rows from {int(since_ms)} ms on.")


for command in (bulk, worker, serve_command, config_command):
    main.add_command(command)
for command in (top, hot, explain, pin, unpin, decisions, doctor):
    main.add_command(command)
