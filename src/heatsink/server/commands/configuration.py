"""Options that commands share, the configuration file, and `heatsink completion`.

A flag takes precedence over the environment, and the environment over the file. click itself
implements this order: the file's values become the defaults of click's options.
"""

from __future__ import annotations

import tomllib
from math import isnan
from pathlib import Path
from typing import Any

import click
import msgspec
from click.shell_completion import get_completion_class

from heatsink.primitives.words import did_you_mean

PREFIX = "HEATSINK"
DEFAULT_FILE = "heatsink.toml"
FILE = "heatsink.file"  # in the context's `meta`: the configuration file that was read


class WholeRange(click.IntRange):
    """A range of whole numbers, with a clear error for text that is no number.

    click's own message would be "not a valid integer range".
    """

    name = "integer"


class Number(click.FloatRange):
    """A float in a range. It refuses NaN, which passes every comparison that click makes."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value!r} is not a number.", param, ctx)
        return number


EMPTY = "the value is empty: set a value, or leave the option out."


class Word(click.types.StringParamType):
    """A text that is not empty. If a required option is absent, the error says `missing`."""

    def __init__(self, missing: str = "") -> None:
        self._missing = missing

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str | None:  # noqa: ARG002
        return self._missing or None

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text: str = super().convert(value, param, ctx)
        if not text.strip():
            self.fail(EMPTY, param, ctx)
        return text


class Folder(click.Path):
    """A folder. It refuses an empty path, which would be the working directory."""

    def __init__(self) -> None:
        super().__init__(file_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).strip():
            self.fail(EMPTY, param, ctx)
        return super().convert(value, param, ctx)


WORD = Word()
PORTS = WholeRange(0, 65_535)


def load_file(ctx: click.Context, _: click.Parameter, value: str | None) -> str | None:
    """Make a TOML file's values the defaults of the command's flags; refuse unknown names.

    Without --config, `heatsink.toml` in the working directory is read if it exists. All commands
    share the file. It can have one table per command, named after the command.
    """
    file = value or (DEFAULT_FILE if Path(DEFAULT_FILE).is_file() else None)
    if file is None:
        return None
    try:
        values: dict[str, Any] = tomllib.loads(Path(file).read_bytes().decode())
    except (OSError, ValueError) as error:  # not UTF-8, or not TOML
        raise click.BadParameter(f"{file} cannot be read: {error}") from None
    known = {parameter.name for parameter in ctx.command.params}
    named = {name.replace("-", "_"): each for name, each in _of_command(ctx, values).items()}
    for name in sorted(set(named) - known):
        raise click.BadParameter(_unknown(ctx, file, name, isinstance(named[name], dict)))
    for parameter in ctx.command.params:
        if parameter.name in named and (wanted := _misfit(parameter, named[parameter.name])):
            raise click.BadParameter(f"{file}: {parameter.name} must be {wanted}")
    ctx.meta[FILE] = file
    ctx.default_map = {**(ctx.default_map or {}), **named}
    return value


def _unknown(ctx: click.Context, file: str, name: str, is_table: bool) -> str:
    if is_table:
        commands = getattr(ctx.find_root().command, "commands", {})
        return f"{file} has the unknown table [{name}]: {did_you_mean(name, commands)}"
    known = (each.name for each in ctx.command.params if each.name and each.expose_value)
    command = ctx.command_path
    return f"{file} has {name!r}, which {command!r} does not know: {did_you_mean(name, known)}"


def name_the_source(error: click.BadParameter) -> None:
    """Change the error of a value that is not from a flag: name its variable, or its file."""
    ctx, param = error.ctx, error.param
    if ctx is None or param is None or param.name is None:
        return
    source = ctx.get_parameter_source(param.name)
    if source is click.core.ParameterSource.DEFAULT_MAP and FILE in ctx.meta:
        error.param_hint = f"{param.name!r} in {ctx.meta[FILE]}"
    if source is not click.core.ParameterSource.ENVIRONMENT:
        return
    has_own = click.Parameter.resolve_envvar_value(param, ctx) is not None
    name = param.envvar if has_own else f"{ctx.auto_envvar_prefix}_{param.name.upper()}"
    error.param_hint = f"the variable {name}"


def _of_command(ctx: click.Context, values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the command's own table, and the values that all commands share."""
    commands = getattr(ctx.find_root().command, "commands", {})
    tables = {name for name, each in values.items() if name in commands and isinstance(each, dict)}
    ours = {name: each for name, each in values.items() if name not in tables}
    return {**ours, **values[ctx.info_name]} if ctx.info_name in tables else ours


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
log_json_option = click.option("--log-json", is_flag=True, help="Log one JSON object per line.")

allow_host_option = click.option(
    "--allow-host",
    multiple=True,
    help="Host name to accept besides this machine's, for example a proxy's; may be repeated.",
)

news_option = click.option(
    "--news",
    type=WORD,
    help="URL of the Redis that carries heat reports and registry changes between processes.",
)

bucket_units_option = click.option(
    "--bucket-units",
    type=WholeRange(1, 10**9),
    default=800,
    show_default=True,
    help="Write units/s that one bucket should carry: 80 % of a partition's limit.",
)

config_option = click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False),
    is_eager=True,
    expose_value=False,
    callback=load_file,
    help="TOML file with these options; default: ./heatsink.toml, if it exists.",
)


def _misfit(parameter: click.Parameter, value: Any) -> str | None:
    """Return what the value of a setting must be, in words. Returns None if the value is right.

    click itself would convert a wrong type silently, or crash.
    """
    if getattr(parameter, "multiple", False):
        return None if isinstance(value, list) else "a list"
    if getattr(parameter, "is_flag", False):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(value, bool | list | dict):
        return "one text or number"
    if isinstance(parameter.type, click.Path | click.Choice | click.types.StringParamType):
        return None if isinstance(value, str) else "a text"
    if isinstance(parameter.type, click.types.IntParamType) and isinstance(value, float):
        return "a whole number"
    return None


SHELLS = ("bash", "zsh", "fish")
PROGRAM = "heatsink"
VARIABLE = "_HEATSINK_COMPLETE"


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
@json_option
@click.pass_context
def completion(context: click.Context, shell: str, as_json: bool) -> None:
    """Print the script that completes commands and flags in your shell.

    For bash, add this line to ~/.bashrc: eval "$(heatsink completion bash)". For zsh, add the same
    line with zsh to ~/.zshrc. For fish, run: heatsink completion fish | source.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(context.find_root().command, {}, PROGRAM, VARIABLE)
    script = made.source_template % made.source_vars()
    if as_json:
        script = msgspec.json.encode({"shell": shell, "script": script}).decode()
    click.echo(script)
