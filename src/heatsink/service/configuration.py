"""Settings from flags, the environment and a file, in that order: click does it, given the file."""

from __future__ import annotations

import tomllib
from math import isnan
from pathlib import Path
from typing import Any

import click

PREFIX = "HEATSINK"
PORTS = click.IntRange(0, 65_535)


class Number(click.FloatRange):
    """A float in a range, and a number: NaN passes every comparison that click makes."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


def load_file(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    """Make a TOML file's values the defaults of the command's flags; unknown names are refused."""
    if value is None:
        return None
    try:
        values: dict[str, Any] = tomllib.loads(Path(value).read_bytes().decode())
    except (OSError, ValueError) as error:  # not UTF-8, or not TOML
        raise click.BadParameter(f"{value} cannot be read: {error}") from None
    known = {parameter.name for parameter in ctx.command.params}
    named = {name.replace("-", "_"): each for name, each in values.items()}
    unknown = sorted(set(named) - known)
    if unknown:
        raise click.BadParameter(f"{value} has unknown settings: {', '.join(unknown)}")
    ctx.default_map = {**(ctx.default_map or {}), **named}
    return value


config_option = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=load_file,
    help="A TOML file with the names of these flags.",
)
