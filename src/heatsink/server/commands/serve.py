"""`heatsink serve` and `heatsink config`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from signal import SIGINT
from typing import Any

import click
import msgspec
from click.core import ParameterSource
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from heatsink.bulk.actions import Actions
from heatsink.errors import InvalidSetting
from heatsink.primitives.checks import shown_url
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.ids import IdScheme, Snowflake, Ulid, Uuid7
from heatsink.server.api.requests import CacheRules, RequestLimits, Token, parse_token
from heatsink.server.dashboard import make_pages
from heatsink.server.process import ServeSettings, serve
from heatsink.server.running import run, set_up, tell
from heatsink.server.shell import fast_loop
from heatsink.server.tracing import tracing_option
from heatsink.spread.policy import BucketRules

from .configuration import (
    PORTS,
    WORD,
    Folder,
    WholeRange,
    allow_host_option,
    bucket_units_option,
    config_option,
    json_option,
    log_json_option,
    news_option,
)
from .queue_options import CLUSTER, SHAPE, cluster_settings, settings_from
from .worker import find_actions

URLS = ("store", "queue", "news", "cluster")
IDS: dict[str, IdScheme] = {"uuid7": Uuid7(), "ulid": Ulid(), "snowflake": Snowflake()}
SECONDS = WholeRange(0, 86_400)
SOURCES = {
    ParameterSource.COMMANDLINE: "flag",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
    ParameterSource.DEFAULT: "default",
}


def _refusing(check: Callable[[tuple[str, ...]], object]) -> Callable[..., tuple[str, ...]]:
    """Return a callback for an option: it refuses the flag's value if `check` raises."""

    def checked(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
        try:
            check(values)
        except InvalidSetting as error:
            raise click.BadParameter(str(error)) from None
        return values

    return checked


def tokens_of(texts: tuple[str, ...]) -> tuple[Token, ...]:
    return tuple(map(parse_token, texts))


def limits_of(texts: tuple[str, ...]) -> RequestLimits:
    values: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        name = name.strip().replace("-", "_")
        if name not in RequestLimits.__struct_fields__:
            raise InvalidSetting(
                f"limit {name!r} must be one of {', '.join(RequestLimits.__struct_fields__)}",
                field="limit",
            )
        try:
            values[name] = float(number) if name.endswith("_s") else int(number)
        except ValueError:
            raise InvalidSetting(
                f"limit {name} must be a number, not {number!r}", field="limit"
            ) from None
    return RequestLimits(**values)  # type: ignore[arg-type]


OPTIONS = (
    config_option,
    click.option(
        "--data",
        default="heatsink-data",
        show_default=True,
        type=Folder(),
        help="Folder of the embedded store and queue.",
    ),
    click.option("--store", type=WORD, help="URL of a data store, instead of the embedded one."),
    click.option(
        "--queue", type=WORD, help="URL of a Redis for the queue, instead of the embedded one."
    ),
    news_option,
    click.option(
        "--host", type=WORD, default="127.0.0.1", show_default=True, help="Address to listen on."
    ),
    click.option("--port", default=8321, show_default=True, type=PORTS, help="Port to listen on."),
    click.option(
        "--actions",
        type=WORD,
        help="Actions that the worker runs, as MODULE:ACTIONS (myapp:actions).",
    ),
    click.option(
        "--coordinator/--no-coordinator",
        default=True,
        help="Run a coordinator, which leads if no other one does.",
    ),
    click.option(
        "--worker/--no-worker", default=True, help="Run a worker for the items of the queue."
    ),
    click.option("--dashboard/--no-dashboard", default=True, help="Serve the dashboard at /."),
    click.option(
        "--token",
        multiple=True,
        callback=_refusing(tokens_of),
        help="Bearer token for callers, as SCOPE:TOKEN with the scope read, work, operate or "
        "admin; may be repeated.",
    ),
    allow_host_option,
    click.option(
        "--ids",
        type=click.Choice(list(IDS)),
        default="uuid7",
        show_default=True,
        help="Format of new ids. An existing store must have the same.",
    ),
    click.option("--name", default="", help="Name of this process in the registry."),
    bucket_units_option,
    click.option(
        "--fresh-for",
        default=1,
        type=SECONDS,
        show_default=True,
        help="Seconds for which browsers and CDNs may cache a read.",
    ),
    click.option(
        "--stale-for",
        default=5,
        type=SECONDS,
        show_default=True,
        help="Further seconds for which they may serve the stale read while they refresh it.",
    ),
    click.option(
        "--limit",
        multiple=True,
        callback=_refusing(limits_of),
        help="Limit on requests, as NAME=NUMBER; may be repeated. docs/how-to/server.md has the "
        "names.",
    ),
    *SHAPE,
    *CLUSTER,
    tracing_option,
    log_json_option,
)


def serve_options(command: Any) -> Any:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def settings_of(options: dict[str, Any], actions: Actions) -> ServeSettings:
    queue = {
        name: options[name]
        for name in ("stage", "partitions", "places", "legacy", "relaxed", "replicas")
    }
    return ServeSettings(
        data=options["data"],
        store=options["store"],
        queue=options["queue"],
        news=options["news"],
        host=options["host"],
        port=options["port"],
        coordinate=options["coordinator"],
        work=options["worker"],
        name=options["name"],
        ids=IDS[options["ids"]],
        rules=BucketRules(bucket_units_s=options["bucket_units"]),
        tokens=tokens_of(options["token"]),
        allow_hosts=options["allow_host"],
        cache=CacheRules(options["fresh_for"], options["stale_for"]),
        limits=limits_of(options["limit"]),
        bulk=settings_from(**queue, webhooks=tuple(actions.webhooks)),
        **cluster_settings(options["cluster"], options["balance_cluster"], options["queue"]),
        tracing=options["tracing"],
    )


@click.command("serve")
@serve_options
def serve_command(actions: str | None, log_json: bool, dashboard: bool, **options: Any) -> None:
    """Run the API, a coordinator, a worker and the dashboard in one process.

    The dashboard is at http://127.0.0.1:8321, the documentation of the API at /docs.
    """
    set_up(log_json)
    table = find_actions(actions) if actions else Actions()
    settings = settings_of(options, table)
    pages = make_pages() if dashboard else {}
    with settings.endpoint.listening() as listeners:
        parts = settings, listeners, table, SystemClock(), Random()
        number = run(lambda ending: serve(*parts, ending, pages), fast_loop())
    tell("stopped", "stopped; the lease is released")
    if number == SIGINT:
        raise KeyboardInterrupt


@click.command("config", context_settings={"ignore_unknown_options": True})
@json_option
@click.argument("flags", nargs=-1, type=click.UNPROCESSED, metavar="[FLAGS OF SERVE]...")
@click.pass_context
def config_command(context: click.Context, as_json: bool, flags: tuple[str, ...]) -> None:
    """Print the settings that `heatsink serve` would use, and where each value comes from."""
    lines = _in_force(serve_command.make_context("serve", list(flags), parent=context.parent))
    if as_json:
        click.echo(msgspec.json.encode(lines).decode())
        return
    table = Table("setting", "value", "from", box=None)
    for line in lines:
        table.add_row(line["setting"], escape(str(line["value"])), line["from"])
    Console().print(table)


def _in_force(context: click.Context) -> list[dict[str, Any]]:
    return [
        {
            "setting": name.replace("_", "-"),
            "value": _shown(name, value),
            "from": SOURCES.get(context.get_parameter_source(name) or ParameterSource.DEFAULT),
        }
        for name, value in sorted(context.params.items())
    ]


def _shown(name: str, value: Any) -> Any:
    """Return the value of a setting as it is printed: without tokens and passwords."""
    if name == "token":
        return [f"{token.partition(':')[0]}:…" for token in value]
    if name in URLS and value is not None:
        return shown_url(value)
    return str(value) if isinstance(value, Path) else value
