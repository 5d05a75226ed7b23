"""`heatsink door` and `heatsink door keys`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from signal import SIGINT
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from heatsink.errors import InvalidSetting
from heatsink.primitives.clock import SystemClock
from heatsink.server.door.access import KeyFile, parse_scopes
from heatsink.server.door.gate import DoorLimits
from heatsink.server.door.process import DoorSettings, run_door
from heatsink.server.running import set_up, tell
from heatsink.server.supervisor import PROCESSES_MAX
from heatsink.stores.dynamodb.address import DynamoAddress, parse

from .configuration import (
    PORTS,
    WORD,
    WholeRange,
    Word,
    allow_host_option,
    bucket_units_option,
    config_option,
    json_option,
    log_json_option,
    news_option,
)

UPSTREAM = "heatsink"  # a table's name, which addresses need and the door does not use
FILE = click.Path(dir_okay=False, path_type=Path)
keys_option = click.option(
    "--keys",
    type=FILE,
    default="door-keys.json",
    help="File of the door's key pairs. Only its owner may read it.",
)


def limits_of(texts: tuple[str, ...]) -> DoorLimits:
    values: dict[str, Any] = {}
    for text in texts:
        name, _, number = text.partition("=")
        name = name.strip().replace("-", "_")
        if name not in DoorLimits.__struct_fields__:
            names = ", ".join(DoorLimits.__struct_fields__)
            raise InvalidSetting(f"limit {name!r} must be one of {names}", field="limit")
        try:
            values[name] = float(number) if name.endswith("_s") else int(number)
        except ValueError:
            raise InvalidSetting(
                f"limit {name} must be a number, not {number!r}", field="limit"
            ) from None
    return DoorLimits(**values)


def upstream_of(region: str | None, endpoint: str | None, profile: str | None) -> DynamoAddress:
    if not region and not endpoint:
        raise InvalidSetting(
            "name DynamoDB's --region, or the --endpoint of a compatible server", field="region"
        )
    given = {"region": region, "endpoint": endpoint, "profile": profile}
    return parse(UPSTREAM, {name: value for name, value in given.items() if value})


def tls_of(cert: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    if (cert is None) != (key is None):
        raise InvalidSetting("--tls-cert and --tls-key belong together: set both", field="tls_cert")
    return None if cert is None or key is None else (cert, key)


OPTIONS: tuple[Callable[..., Any], ...] = (
    config_option,
    click.option("--region", type=WORD, help="Region of the DynamoDB behind the door."),
    click.option(
        "--endpoint",
        type=WORD,
        help="URL of a compatible server behind the door, in place of AWS's: http://127.0.0.1:8322",
    ),
    click.option("--profile", type=WORD, help="Profile of the AWS configuration to sign with."),
    click.option("--host", type=WORD, default="127.0.0.1", help="Address to listen on."),
    click.option("--port", type=PORTS, default=8324, help="Port to listen on."),
    click.option("--tables", type=FILE, help="TOML file that declares the spread tables."),
    click.option("--store", type=WORD, help="URL of the store for Heatsink's registry."),
    news_option,
    click.option(
        "--coordinator/--no-coordinator",
        default=True,
        help="Run a coordinator, which leads if no other one does.",
    ),
    bucket_units_option,
    click.option("--name", default="", help="Name of this process in the registry."),
    keys_option,
    click.option("--tls-cert", type=FILE, help="PEM file of the certificate, with its chain."),
    click.option("--tls-key", type=FILE, help="PEM file of the certificate's key."),
    click.option(
        "--processes",
        type=WholeRange(1, PROCESSES_MAX),
        default=1,
        help="Number of processes that share the port. SIGHUP replaces them one by one.",
    ),
    click.option(
        "--share-port",
        is_flag=True,
        help="Let another door of this user listen on the same port, to replace this one.",
    ),
    click.option(
        "--metrics-port",
        type=WholeRange(1, 65_535 - PROCESSES_MAX),
        help="Port of /metrics, on this machine only; each further process has the next port.",
    ),
    click.option(
        "--limit",
        multiple=True,
        help="Limit on requests, as NAME=NUMBER; may be repeated. docs/how-to/door.md has the "
        "names.",
    ),
    allow_host_option,
    log_json_option,
)


def door_options(command: Any) -> Any:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def settings_of(options: dict[str, Any]) -> DoorSettings:
    return DoorSettings(
        upstream=upstream_of(options["region"], options["endpoint"], options["profile"]),
        host=options["host"],
        port=options["port"],
        tables=options["tables"],
        store=options["store"],
        news=options["news"],
        coordinate=options["coordinator"],
        bucket_units=options["bucket_units"],
        name=options["name"],
        keys=options["keys"],
        tls=tls_of(options["tls_cert"], options["tls_key"]),
        allow_hosts=options["allow_host"],
        metrics_port=options["metrics_port"],
        processes=options["processes"],
        is_shared=options["share_port"],
        limits=limits_of(options["limit"]),
    )


SERVE = "serve"
VARIABLES = "HEATSINK_DOOR"


class ServesByDefault(click.Group):
    """`heatsink door --region …` is short for `heatsink door serve --region …`."""

    default = SERVE

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in {*self.commands, *ctx.help_option_names}:
            args = [SERVE, *args]
        return super().parse_args(ctx, args)


@click.group(cls=ServesByDefault)
def door() -> None:
    """Serve DynamoDB's protocol in front of DynamoDB, and spread hot keys on the way."""


@door.command(SERVE, context_settings={"auto_envvar_prefix": VARIABLES})
@door_options
def serve_door(log_json: bool, **options: Any) -> None:
    """Serve DynamoDB's protocol in front of DynamoDB, for programs in any language.

    In a program on this machine, you change only the endpoint URL, to http://127.0.0.1:8324.
    Requests on tables that --tables declares are adapted to the buckets of their keys. All other
    requests are passed on unchanged, signed with this process's AWS credentials.
    """
    set_up(log_json)
    number = run_door(settings_of(options), SystemClock(), Random)
    tell("stopped", "stopped")
    if number == SIGINT:
        raise KeyboardInterrupt


@door.group("keys")
def keys_group() -> None:
    """Manage the key pairs of a door that other machines can reach."""


@keys_group.command("new")
@click.argument("name", type=WORD)
@click.option(
    "--scope",
    multiple=True,
    type=Word("Name a table, as in --scope chat, --scope chat:read or --scope '*:admin'."),
    required=True,
    help="TABLE, TABLE:read, TABLE:write or TABLE:admin; * stands for all tables; may be repeated.",
)
@keys_option
@json_option
def new_key(name: str, scope: tuple[str, ...], keys: Path, as_json: bool) -> None:
    """Issue a key pair for the program NAME, and print it once."""
    pair = KeyFile(keys).new(name, parse_scopes(scope), SystemClock())
    if as_json:
        click.echo(msgspec.json.encode(pair).decode())
        return
    click.echo(f"AWS_ACCESS_KEY_ID={pair.access_key}\nAWS_SECRET_ACCESS_KEY={pair.secret_key}")


@keys_group.command("list")
@keys_option
@json_option
def list_keys(keys: Path, as_json: bool) -> None:
    """List the key pairs, without their secrets."""
    lines = [
        {"access_key": pair.access_key, "name": pair.name, "scopes": pair.scopes, "made": made}
        for pair in KeyFile(keys).pairs().values()
        for made in [datetime.fromtimestamp(pair.made_s, UTC).isoformat()]
    ]
    if as_json:
        click.echo(msgspec.json.encode(lines).decode())
        return
    table = Table("access key", "name", "scopes", "made", box=None)
    for line in lines:
        scopes = ", ".join(f"{name}:{level}" for name, level in line["scopes"].items())  # type: ignore[attr-defined]
        table.add_row(*map(escape, (line["access_key"], line["name"], scopes, line["made"])))  # type: ignore[arg-type]
    Console().print(table)


@keys_group.command("revoke")
@click.argument("access_key")
@keys_option
@json_option
def revoke_key(access_key: str, keys: Path, as_json: bool) -> None:
    """Revoke a key pair. Running doors refuse it from now on."""
    KeyFile(keys).revoke(access_key)
    click.echo('{"revoked":true}' if as_json else f"{access_key} is revoked.")
