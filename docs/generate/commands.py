"""The command line, from click: every command with its arguments, flags and variables."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc

import click

from docs.generate.markdown import code, paragraphs, table
from heatsink.cli import main
from heatsink.server.commands.configuration import PREFIX


def markdown() -> str:
    return paragraphs(*(_section(path, command) for path, command in leaves(("heatsink",), main)))


def leaves(
    path: tuple[str, ...], command: click.Command
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that can be run, in the order in which `--help` shows them."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name, inner in sorted(command.commands.items()):
        yield from leaves((*path, name), inner)


def _section(path: tuple[str, ...], command: click.Command) -> str:
    context = _context(path, command)
    usage = " ".join(command.collect_usage_pieces(context))
    options = [each for each in command.params if isinstance(each, click.Option)]
    rows = [_row(path, option, context) for option in options if not option.hidden]
    return paragraphs(
        f"## {' '.join(path)}",
        cleandoc(command.help or ""),
        f"```text\n{' '.join(path)} {usage}\n```",
        table(["flag", "default", "", "variable"], rows) if rows else "",
    )


def _context(path: tuple[str, ...], command: click.Command) -> click.Context:
    parent = click.Context(main, info_name=path[0], **main.context_settings)
    for name in path[1:-1]:
        inner = parent.command
        assert isinstance(inner, click.Group)
        parent = click.Context(inner.commands[name], parent=parent, info_name=name)
    return click.Context(command, parent=parent, info_name=path[-1])


def _row(path: tuple[str, ...], option: click.Option, context: click.Context) -> list[str]:
    flags = ", ".join(map(code, [*option.opts, *option.secondary_opts]))
    kind = "" if option.is_flag else f" {option.make_metavar(context)}"
    return [
        f"{flags}{kind}",
        _default(option, context),
        option.help or "",
        _variable(path, option, context),
    ]


def _default(option: click.Option, context: click.Context) -> str:
    if option.required:
        return "*required*"
    if isinstance(option.show_default, str):
        return option.show_default
    default = option.get_default(context, call=False)
    shown = not option.is_flag and isinstance(default, str | int | float) and default != ""
    return code(f"{default:g}" if isinstance(default, float) else str(default)) if shown else ""


def _variable(path: tuple[str, ...], option: click.Option, context: click.Context) -> str:
    if isinstance(option.envvar, str):
        return code(option.envvar)
    if option.name in ("help", "config") or not option.expose_value:
        return ""
    own = context.command.context_settings.get("auto_envvar_prefix")
    words = [own] if own else [PREFIX, *path[1:]]
    words.append(str(option.name))
    return code("_".join(words).upper().replace("-", "_"))
