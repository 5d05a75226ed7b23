"""Options that commands share, the configuration file, and `heatsink completion`.

A flag takes precedence over the environment, and the environment over the file. click itself
implements this order: the file's values become the defaults of click's options.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
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
    """A number in a range. NaN is refused: click's own comparisons would accept it."""

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
    """A text that is not empty. `missing` is the error for a required option that is not set."""

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
    """Name the variable or the file in the error, if a wrong value does not come from a flag."""
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
    table = _table_of(ctx)
    return {**ours, **values[table]} if table in tables else ours


def _table_of(ctx: click.Context) -> str | None:
    """Return the name of the command's table: `heatsink door serve` reads the table [door]."""
    is_default = ctx.parent is not None and ctx.info_name == default_of(ctx.parent.command)
    return ctx.parent.info_name if ctx.parent and is_default else ctx.info_name


def default_of(command: click.Command) -> str | None:
    """Return the subcommand that runs if none is named; None for most groups."""
    return getattr(command, "default", None)


def unused_variables(
    command: click.Command, prefix: str, args: Sequence[str], environ: Mapping[str, str]
) -> Iterator[str]:
    """Yield a warning for each variable that was probably meant for `command`, which ignores it.

    `prefix` is that of the command's variables, such as HEATSINK_SERVE, and `args` are the words
    after the command. A variable whose flag is set in `args` needs no warning.
    """
    while isinstance(command, click.Group):
        name = args[0] if args and args[0] in command.commands else default_of(command)
        if name is None:
            return
        args = args[1:] if args and args[0] == name else args
        command = command.commands[name]
        prefix = command.context_settings.get("auto_envvar_prefix") or _variable(prefix, name)
    own = _variables_of(command, prefix)
    for name in sorted(name for name in environ if name.startswith(f"{PREFIX}_")):
        if name in own or ("://" in environ[name] and name.startswith(f"{PREFIX}_PORT")):
            continue  # Kubernetes sets HEATSINK_PORT for a service that is called heatsink
        meant = _meant(name, own, prefix)
        if meant and meant not in environ and not _is_set(own[meant], args):
            yield f"the variable {name} is ignored here: did you mean {meant}?"
        elif meant is None and name.startswith(f"{prefix}_"):
            yield f"the variable {name} is ignored: the command has no such option"


def _variable(prefix: str, name: str) -> str:
    return f"{prefix}_{name}".upper().replace("-", "_")


def _variables_of(command: click.Command, prefix: str) -> dict[str, click.Parameter]:
    """Return the parameters of a command by their environment variables."""
    found: dict[str, click.Parameter] = {}
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name:
            found[_variable(prefix, parameter.name)] = parameter
            given = parameter.envvar or ()
            found |= dict.fromkeys([given] if isinstance(given, str) else given, parameter)
    return found


OF_CLIENTS = ("HEATSINK_SERVER", "HEATSINK_TOKEN")  # often set beside a server's own variables


def _meant(name: str, own: Mapping[str, click.Parameter], prefix: str) -> str | None:
    """Return which of the command's variables was probably meant by `name`.

    The command's own words may be missing in `name`, or be misspelt too.
    """
    if name in OF_CLIENTS:
        return None
    words = {each.removeprefix(f"{prefix}_"): each for each in own}
    words |= {each.removeprefix(f"{PREFIX}_"): each for each in own}
    near = get_close_matches(name.removeprefix(f"{PREFIX}_"), words, n=1, cutoff=0.75)
    return words[near[0]] if near else None


def _is_set(parameter: click.Parameter, args: Sequence[str]) -> bool:
    flags = [*parameter.opts, *parameter.secondary_opts]
    return any(arg.partition("=")[0] in flags for arg in args)


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
