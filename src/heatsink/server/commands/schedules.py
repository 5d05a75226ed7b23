"""`heatsink schedules`: batches that start at certain times, through the store or a server."""

from __future__ import annotations

import sys
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
from heatsink.errors import InvalidSetting, NotFound
from heatsink.server.api.calls.schedules import ScheduleLine, details_of, line_of
from heatsink.server.running import one_line

from .configuration import WORD
from .operator import shown
from .remote import Remote
from .settings import settings_options
from .store import opened

PIPED_WIDTH = 500  # columns where no terminal sets a limit: a program reads the ids
KEPT = ("action", "items_from", "cron", "missed", "tenant", "priority", "rate")
INSTEAD = (  # each of these options replaces the others
    ("every", ("cron", "zone")),
    ("cron", ("every",)),
    ("items", ("items_from",)),
    ("items_from", ("items",)),
)


class ThroughServer:
    """The schedules of a deployment, read and changed through the HTTP API of a running server."""

    def __init__(self, server: str, token: str | None) -> None:
        self._remote = Remote(server, token)

    def all(self) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = self._remote.get("v1", "schedules")["schedules"]
        return lines

    def get(self, name: str) -> dict[str, Any]:
        line: dict[str, Any] = self._remote.get("v1", "schedules", name)
        return line

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

    def get(self, name: str) -> dict[str, Any]:
        return _plain(details_of(self._with(lambda found: found.get(name), may_found=True)))

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
    table = Table(box=None)
    for column in ("schedule", "action", "when", "next (UTC)", "last batch"):
        table.add_column(column, overflow="fold")
    for line in lines:
        following = "paused" if line["paused"] else _minute(line["next"])
        words = (line["name"], line["action"], _when(line), following, line["last_batch"])
        table.add_row(*(escape(one_line(word)) for word in words))
    console = Console() if sys.stdout.isatty() else Console(width=PIPED_WIDTH)
    console.print(table if lines else "There are no schedules.")


def _minute(time: str | None) -> str:
    return "" if time is None else time[:16].replace("T", " ")


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
    show_default="skip",
    help="After an outage: skip missed times, or start one batch for all of them.",
)
@click.option("--items", help="Items of each batch, as a JSON array.")
@click.option("--items-from", help="Action that returns the items, as a list.")
@click.option("--tenant", show_default="default", help="Tenant of the batches.")
@click.option("--priority", type=int, show_default="0", help="Priority of the batches.")
@click.option("--rate", help="Maximum rate at which items start, such as 500/s.")
@click.option("--reason", type=WORD, default="set", help="Reason, kept in the history.")
@click.option(
    "--replace", is_flag=True, help="Reset options that are not given, instead of keeping them."
)
@settings_options
def set_schedule(
    name: str,
    items: str | None,
    replace: bool,
    store: str | None,
    server: str,
    token: str | None,
    as_json: bool,
    **order: Any,
) -> None:
    """Start ACTION at certain times. If there is a schedule NAME, only the given options change."""
    given = {key: of for key, of in order.items() if of is not None}
    if items is not None:
        given["items"] = _items(items)
    given["by"] = f"{getuser()}@{gethostname()}"
    schedules = _schedules_of(store, server, token)
    known = {} if replace else _order_of(schedules, name)
    line = schedules.set(name, **_changed(known, given))
    if as_json:
        shown(line)
    else:
        click.echo(one_line(f"{name} runs {line['action']} ({_when(line)}), next {line['next']}"))


def _order_of(schedules: ThroughStore | ThroughServer, name: str) -> dict[str, Any]:
    """Return the options that set a schedule as it is; none if there is no such schedule."""
    try:
        line = schedules.get(name)
    except NotFound:
        return {}
    order = {option: line[option] for option in KEPT} | {"every": line["every_s"]}
    found = {option: of for option, of in order.items() if of}
    if line["cron"]:
        found["zone"] = line["zone"]
    if line["item_values"] is not None:
        found["items"] = line["item_values"]
    return found


def _changed(known: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    replaced = {other for option, others in INSTEAD if option in given for other in others}
    return {option: of for option, of in known.items() if option not in replaced} | given


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
