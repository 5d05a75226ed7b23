"""`heatsink settings`: the settings of a whole deployment, through its store or a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from getpass import getuser
from socket import gethostname
from typing import Any, Protocol

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from heatsink.client.blocking_calls import BlockingDeploymentSettings
from heatsink.client.deployment import SettingInForce, meaning_of
from heatsink.errors import InvalidSetting, NotFound
from heatsink.server.api.calls.operations import is_control
from heatsink.server.api.shapes import SettingLine
from heatsink.server.running import one_line

from .configuration import WORD, Word
from .operator import shown
from .remote import Remote, remote_options
from .store import opened, store_option


class Deployment(Protocol):
    """The settings of a deployment, as lines of the HTTP API."""

    def all(self) -> list[dict[str, Any]]: ...

    def get(self, name: str) -> dict[str, Any]: ...

    def set(self, name: str, value: str, reason: str, by: str) -> dict[str, Any]: ...

    def unset(self, name: str, reason: str) -> dict[str, Any]: ...


class ThroughServer:
    def __init__(self, server: str, token: str | None) -> None:
        self._remote = Remote(server, token)

    def all(self) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = self._remote.get("v1", "settings")["settings"]
        return lines

    def get(self, name: str) -> dict[str, Any]:
        line: dict[str, Any] = self._remote.get("v1", "settings", name)
        return line

    def set(self, name: str, value: str, reason: str, by: str) -> dict[str, Any]:
        body = {"value": value, "reason": reason, "by": by}
        line: dict[str, Any] = self._remote.put("v1", "settings", name, body=body)
        return line

    def unset(self, name: str, reason: str) -> dict[str, Any]:  # noqa: ARG002 - audited there
        line: dict[str, Any] = self._remote.delete("v1", "settings", name)
        return line


class ThroughStore:
    def __init__(self, url: str) -> None:
        self._url = url

    def _with(
        self, work: Callable[[BlockingDeploymentSettings], Any], may_found: bool = False
    ) -> Any:
        with opened(self._url, may_found) as hs:
            return work(hs.settings)

    def all(self) -> list[dict[str, Any]]:
        return [_line(each) for each in self._with(lambda settings: settings.all())]

    def get(self, name: str) -> dict[str, Any]:
        return _line(self._with(lambda settings: settings.get(name)))

    def set(self, name: str, value: str, reason: str, by: str) -> dict[str, Any]:
        found = self._with(lambda of: of.set(name, value, reason=reason, by=by), may_found=True)
        return _line(found)

    def unset(self, name: str, reason: str) -> dict[str, Any]:
        return _line(self._with(lambda settings: settings.unset(name, reason=reason)))


def changed_in(url: str) -> list[SettingLine]:
    """Return what operators have changed for tenants, actions and limits, by the store at `url`."""
    lines = msgspec.convert(ThroughStore(url).all(), list[SettingLine])
    return [line for line in lines if is_control(line.name, line.source)]


def _line(setting: SettingInForce) -> dict[str, Any]:
    """Return the setting as the HTTP API shows it."""
    line: dict[str, Any] = msgspec.to_builtins(setting)
    changed_ms = line.pop("changed_ms")
    changed = None if changed_ms is None else datetime.fromtimestamp(changed_ms / 1000, UTC)
    about = meaning_of(setting.name)
    return {**line, "changed": changed and changed.isoformat(), "about": about}


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option `--store` and the options of a server to a command."""
    return remote_options(store_option(command))


@contextmanager
def _wrong_name_is_a_wrong_command() -> Iterator[None]:
    """In the block, let the name of an unknown setting end the command with exit code 2.

    This is the code for a wrong command: unlike other things that are not found, an unknown setting
    will never exist.
    """
    try:
        yield
    except NotFound as error:
        raise InvalidSetting(str(error), field="name") from None


def deployment_of(store: str | None, server: str, token: str | None) -> Deployment:
    return ThroughStore(store) if store else ThroughServer(server, token)


@click.group()
def settings() -> None:
    """Show and change the settings that all processes of a deployment follow."""


@settings.command("list")
@click.option("--changed", is_flag=True, help="Only settings that are not at their default.")
@settings_options
def list_settings(
    changed: bool, store: str | None, server: str, token: str | None, as_json: bool
) -> None:
    """List the settings in force, and where each comes from."""
    lines = deployment_of(store, server, token).all()
    lines = [line for line in lines if not changed or line["source"] != "default"]
    if as_json:
        shown(lines)
        return
    table = Table("setting", "value", "from", box=None)
    for line in lines:
        table.add_row(line["name"], shown_value(line["value"]), escape(one_line(_origin(line))))
    Console().print(table if lines else "Every setting is at its default.")


@settings.command()
@click.argument("name")
@settings_options
def get(name: str, store: str | None, server: str, token: str | None, as_json: bool) -> None:
    """Show the setting NAME, where its value comes from, and what it means."""
    with _wrong_name_is_a_wrong_command():
        line = deployment_of(store, server, token).get(name)
    _show(line, as_json)
    if not as_json:
        click.echo(line["about"])


@settings.command("set")
@click.argument("name")
@click.argument("value")
@click.option(
    "--reason",
    type=Word('Say why, as in --reason "pages cost too many queries".'),
    required=True,
    help="Reason for the change, kept in the history.",
)
@settings_options
def set_setting(
    name: str,
    value: str,
    reason: str,
    store: str | None,
    server: str,
    token: str | None,
    as_json: bool,
) -> None:
    """Set NAME to VALUE for all processes, which follow within a second."""
    by = f"{getuser()}@{gethostname()}"
    with _wrong_name_is_a_wrong_command():
        _show(deployment_of(store, server, token).set(name, value, reason, by), as_json)


@settings.command()
@click.argument("name")
@click.option("--reason", type=WORD, default="unset", help="Reason, kept in the history.")
@settings_options
def unset(
    name: str, reason: str, store: str | None, server: str, token: str | None, as_json: bool
) -> None:
    """Remove the setting NAME: every process uses its own value or the default again."""
    with _wrong_name_is_a_wrong_command():
        _show(deployment_of(store, server, token).unset(name, reason), as_json)


def _show(line: dict[str, Any], as_json: bool) -> None:
    if as_json:
        shown(line)
    else:
        click.echo(one_line(f"{line['name']} = {shown_value(line['value'])} ({_origin(line)})"))


def shown_value(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _origin(line: dict[str, Any]) -> str:
    if line["source"] == "deployment":
        return f"set by {line['by']} at {line['changed']}: {line['reason']}"
    return "default" if line["source"] == "default" else "of the process that answered"
