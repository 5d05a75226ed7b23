"""The command line: `heatsink --help`.

A command's module is imported when the command is used. So `heatsink --version` and the completion
of a command's name need neither a web server nor a plotting library.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from typing import Any, NoReturn

from heatsink.primitives.words import pip_install

try:  # other packages may have installed some of these, most often click
    is_ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours := is_ours and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C now prints no traceback
    for package in ("click", "httptools", "prometheus_client", "rich", "starlette", "uvicorn"):
        if find_spec(package) is None:
            raise ImportError(name=package)
except ImportError as missing:
    raise SystemExit(
        f"heatsink: the command line needs {missing.name}: {pip_install('server')}"
    ) from None

import click

from heatsink.errors import HeatsinkError, answer_of

from . import __version__

if is_ours:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NOT_DONE, INTERRUPTED, TERMINATED = 1, 130, 143
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
PLACES = {
    "adopt": "server.commands.adopt:adopt",
    "bench": "lab.bench:bench",
    "bulk": "server.commands.bulk:bulk",
    "cluster": "server.commands.cluster:cluster",
    "completion": "server.commands.configuration:completion",
    "config": "server.commands.serve:config_command",
    "coordinator": "server.commands.coordinator:coordinator",
    "decisions": "server.commands.operator:decisions",
    "demo": "lab.demo.command:demo",
    "doctor": "server.commands.doctor:doctor",
    "door": "server.commands.door:door",
    "dynamo": "server.commands.dynamo:dynamo",
    "explain": "server.commands.operator:explain",
    "fsck": "server.commands.fsck:fsck",
    "hot": "server.commands.operator:hot",
    "lab": "lab.commands:lab",
    "pin": "server.commands.operator:pin",
    "plan": "lab.plan.command:plan",
    "schedules": "server.commands.schedules:schedules",
    "serve": "server.commands.serve:serve_command",
    "settings": "server.commands.settings:settings",
    "table": "server.commands.fsck:table",
    "timelines": "server.commands.timelines:timelines",
    "top": "server.commands.top:top",
    "unpin": "server.commands.operator:unpin",
    "verify": "server.commands.verify:verify",
    "worker": "server.commands.worker:worker",
}
"""The commands: the module of each, below `heatsink`, and its name there."""


class ImportedOnUse(MutableMapping[str, click.Command]):
    """The commands by their names. Only a command that is looked up is imported."""

    def __init__(self, places: dict[str, str]) -> None:
        self._places = places
        self._found: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._found:
            module, _, command = self._places[name].partition(":")
            self._found[name] = getattr(import_module(f"heatsink.{module}"), command)
        return self._found[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._found[name] = command
        self._places[name] = ""

    def __delitem__(self, name: str) -> None:
        del self._places[name]
        self._found.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class Commands(click.Group):
    """The root command. It prints errors in one line, and prints nothing after Ctrl-C or SIGTERM.

    After Ctrl-C or SIGTERM a command can clean up. Services, which run until a signal, handle both
    signals themselves.
    """

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **options)
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and command is not None and not ctx.resilient_parsing:
            _warn_of_variables(self, name, command, rest)
        return name, command, rest

    def main(self, *args: Any, **extra: Any) -> Any:
        for name in ("stdout", "stderr"):
            if getattr(sys, name) is None:  # the shell closed it: heatsink … >&-
                setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        for stream in (sys.stdout, sys.stderr):  # an ASCII terminal shows ? for other characters
            if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
                stream.reconfigure(errors="replace")
        try:
            return super().main(*args, **extra)
        except OSError as error:
            if error.errno not in FULL:
                raise
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the last flush
            click.echo(f"heatsink: the output cannot be written: {error.strerror}", err=True)
            raise SystemExit(NOT_DONE) from None

    def invoke(self, ctx: click.Context) -> Any:
        with terminated_as_interrupted() as terminated:
            try:
                answer = super().invoke(ctx)
                sys.stdout.flush()  # the disk may be full
                return answer
            except HeatsinkError as error:
                _give_up(ctx, error)
            except click.BadParameter as error:
                from heatsink.server.commands.configuration import name_the_source

                name_the_source(error)
                raise
            except KeyboardInterrupt:
                ctx.exit(TERMINATED if terminated else INTERRUPTED)
            except ExceptionGroup as group:
                ours, others = group.split(HeatsinkError)
                if ours is None or others is not None:
                    raise
                _give_up(ctx, ours)


def _warn_of_variables(
    commands: click.Group, name: str, command: click.Command, rest: list[str]
) -> None:
    """Warn on stderr of variables that were probably meant for this command."""
    if not any(each.startswith("HEATSINK_") for each in os.environ):
        return
    from json import dumps

    from heatsink.server.commands.configuration import unused_variables

    read = "serve" if name == "config" else name  # `config` shows the settings of `serve`
    if read != name:
        command = commands.commands[read]
    prefix = f"HEATSINK_{read}".upper()
    others = tuple(f"HEATSINK_{each}_".upper() for each in commands.commands if each != read)
    environ = {each: text for each, text in os.environ.items() if not each.startswith(others)}
    for text in unused_variables(command, prefix, rest, environ):
        line = {"level": "warning", "event": "log", "message": text}
        click.echo(dumps(line) if "--log-json" in rest else f"heatsink: {text}", err=True)


@contextmanager
def terminated_as_interrupted() -> Iterator[Sequence[int]]:
    """Treat SIGTERM like Ctrl-C during the block, so that the block cleans up.

    Yields a list that collects the SIGTERM signals.
    """
    terminated: list[int] = []

    def interrupt(number: int, _: object) -> None:
        terminated.append(number)
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    if threading.current_thread() is not threading.main_thread():
        yield terminated  # for example a test: other threads get no signals
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield terminated
    finally:
        signal.signal(signal.SIGTERM, before)


def _give_up(ctx: click.Context, error: Exception) -> NoReturn:
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    click.echo(f"heatsink: {error}", err=True)
    ctx.exit(answer_of(error).exit_code if isinstance(error, HeatsinkError) else NOT_DONE)


CONTEXT = {
    "help_option_names": ["-h", "--help"],
    "auto_envvar_prefix": "HEATSINK",
    "show_default": True,
}


@click.group(cls=Commands, context_settings=CONTEXT, commands=ImportedOnUse(PLACES))
@click.version_option(__version__, prog_name="heatsink")
def main() -> None:
    """Heatsink keeps hot keys and spike loads from melting a partitioned system."""
