"""`heatsink schedules`: batches that start at certain times, through the store or a server."""

from __future__ import annotations

from collections.abc import Callable
from getpass import getuser
from socket import gethostname
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from heatsink.client.blocking_calls import BlockingSchedules
from heatsink.errors import InvalidSetting
from heatsink.server.api.calls.schedules import ScheduleLine, line_of
from heatsink.server.running import one_line

from .configuration import WORD
from .operator import shown
from .remote import Remote
from .settings import settings_options
from .store import opened


class ThroughServer:
    """The schedules of a deployment, read and changed through the HTTP API of a running server."""

    def __init__(self, server: str, token: str | None) -> None:
        self._remote = Remote(server, token)

    def all(self) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = self._remote.get("v1", "schedules")["schedules"]
        return lines

    def set(self, name: str, **order: Any) -> dict[str, Any]:
        line: dict[str, Any] = self._remote.put("v1", "schedules", name, body=order)
        return line

    def steer(self, name: str, verb: str) -> None:
        if verb == "remove":
            self._remote.delete("v1", "schedules", name)
        else:
            self._remote.post("v1", "schedules", name, verb)


class ThroughStore:
    """The same, in the data store itself."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _with(self, work: Callable[[BlockingSchedules], Any], may_found: bool = False) -> Any:
        with opened(self._url, may_found) as hs:
            return work(hs.schedules)

    def all(self) -> list[dict[str, Any]]:
        return [_plain(line_of(each)) for each in self._with(lambda found: found.all())]

    def set(self, name: str, **order: Any) -> dict[str, Any]:
        return _plain(line_of(self._with(lambda found: found.set(name, **order), may_found=True)))

    def steer(self, name: str, verb: str) -> None:
        self._with(lambda found: getattr(found, verb)(name))


def _plain(line: ScheduleLine) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(line)
    return plain


def _schedules_of(
    store: str | None, server: str, token: str | None
) -> ThroughStore | ThroughServer:
    return ThroughStore(store) if store else ThroughServer(server, token)


@click.group()
def schedules() -> None:
    """List, set, pause and remove schedules: batches that start at certain times."""


@schedules.command("list")
@settings_options
def list_schedules(store: str | None, server: str, token: str | None, as_json: bool) -> None:
    """List the schedules, with their last and next starts."""
    lines = _schedules_of(store, server, token).all()
    if as_json:
        shown(lines)
        return
    table = Table("schedule", "action", "when", "next", "last batch", box=None)
    for line in lines:
        following = "paused" if line["paused"] else line["next"] or ""
        words = (line["name"], line["action"], _when(line), following, line["last_batch"])
        table.add_row(*(escape(one_line(word)) for word in words))
    Console().print(table if lines else "There are no schedules.")


def _when(line: dict[str, Any]) -> str:
    if line["every_s"]:
        return f"every {line['every_s']} s"
    return f"{line['cron']} {line['zone']}"


@schedules.command("set")
@click.argument("name")
@click.argument("action")
@click.option("--every", type=float, help="Whole seconds between two starts.")
@click.option("--cron", help="Times as five fields, such as '0 9 * * MON-FRI'.")
@click.option("--zone", help="Time zone of --cron, such as Europe/Berlin; UTC without it.")
@click.option(
    "--missed",
    type=click.Choice(["skip", "once"]),
    default="skip",
    show_default=True,
    help="After an outage: skip missed times, or start one batch for all of them.",
)
@click.option("--items", help="Items of each batch, as a JSON array.")
@click.option("--items-from", help="Action that returns the items, as a list.")
@click.option("--tenant", default="default", show_default=True, help="Tenant of the batches.")
@click.option("--priority", type=int, default=0, show_default=True, help="Priority of the batches.")
@click.option("--rate", help="Maximum rate at which items start, such as 500/s.")
@click.option("--reason", type=WORD, default="set", help="Reason, kept in the history.")
@settings_options
def set_schedule(
    name: str,
    items: str | None,
    store: str | None,
    server: str,
    token: str | None,
    as_json: bool,
    **order: Any,
) -> None:
    """Start ACTION at certain times. A schedule with the same NAME is replaced."""
    given = {key: of for key, of in order.items() if of is not None}
    if items is not None:
        given["items"] = _items(items)
    given["by"] = f"{getuser()}@{gethostname()}"
    line = _schedules_of(store, server, token).set(name, **given)
    if as_json:
        shown(line)
    else:
        click.echo(one_line(f"{name} runs {line['action']} ({_when(line)}), next {line['next']}"))


def _items(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidSetting(f"--items must be a JSON array: {error}", field="items") from None


def _steering(verb: str, said: str, text: str) -> None:
    @schedules.command(verb, help=text)
    @click.argument("name")
    @settings_options
    def steer(name: str, store: str | None, server: str, token: str | None, as_json: bool) -> None:
        _schedules_of(store, server, token).steer(name, verb)
        if as_json:
            shown({"name": name, "done": verb})
        else:
            click.echo(one_line(f"{name}: {said}"))


_steering("pause", "paused", "Start no more batches of NAME until `schedules resume`.")
_steering("resume", "goes on from now on", "Resume NAME after `schedules pause`.")
_steering("remove", "removed; its batches stay", "Remove the schedule NAME.")
