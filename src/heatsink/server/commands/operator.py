"""`heatsink hot`, `explain`, `pin`, `unpin` and `decisions`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from heatsink.coordinator.explainer import not_known
from heatsink.coordinator.lease import CURE
from heatsink.primitives.subjects import subject_words
from heatsink.primitives.words import counted
from heatsink.server.running import one_line

from .configuration import WholeRange, Word
from .remote import Remote, remote_options
from .store import decisions_in, store_option

LINES = WholeRange(1, 1_000)


def shown(value: Any) -> None:
    click.echo(msgspec.json.encode(value).decode())


@click.command()
@remote_options
@click.option("--limit", type=LINES, default=20, show_default=True, help="Maximum number of keys.")
def hot(server: str, token: str | None, as_json: bool, limit: int) -> None:
    """List the keys with the most load, counted over all servers."""
    heat = Remote(server, token).get("v1", "heat", limit=limit)
    if as_json:
        shown(heat)
        return
    Console().print(heat_table(heat))


def heat_table(heat: dict[str, Any]) -> Table | str:
    if heat["window"] is None:
        if heat["nobody_leads"]:
            return f"Heat is not known: {escape(heat['nobody_leads'])}. {CURE.capitalize()}."
        return f"Heat is {escape(not_known(heat['leads'], heat['leader'], None))}."
    if not heat["keys"] and heat["unreported_s"] is None:
        whom = "" if heat["leads"] else f"; ask the leader, {escape(heat['leader'])}"
        return f"Heat is not known: reports of heat are missing or late{whom}."
    if not heat["keys"]:
        return f"No key is hot: no key uses more than {heat['unreported_s']:,.0f} units a second."
    table = Table("key", box=None)
    for title in ("buckets", "writes/s", "units/s", "reads/s", "throttled/s", "± at most"):
        table.add_column(title, justify="right")
    for key in heat["keys"]:
        rates = ("writes_s", "write_units_s", "reads_s", "throttles_s", "bound_s")
        table.add_row(
            escape(one_line(subject_words(key["kind"], key["key"])[:60])),
            str(key["buckets"]),
            *(_rate(key[rate]) for rate in rates),
        )
    return table


def _rate(per_s: float | None) -> str:
    return "unknown" if per_s is None else f"{per_s:,.0f}"


@click.command()
@click.argument("key")
@remote_options
def explain(key: str, server: str, token: str | None, as_json: bool) -> None:
    """Explain why KEY has its number of buckets, and how many queries a read takes."""
    found = Remote(server, token).get("v1", "keys", key)
    if as_json:
        shown(found)
        return
    click.echo("\n".join(map(one_line, found["lines"])))


@click.command()
@click.argument("key")
@click.argument("buckets", type=WholeRange(1, 10_000))
@click.option(
    "--reason",
    type=Word('Say why, as in --reason "launch at noon".'),
    required=True,
    help="Reason for the pin, shown by `heatsink explain`.",
)
@remote_options
def pin(key: str, buckets: int, reason: str, server: str, token: str | None, as_json: bool) -> None:
    """Give KEY a fixed number of BUCKETS, whatever its load. `heatsink unpin` undoes it."""
    body = {"buckets": buckets, "reason": reason}
    done = Remote(server, token).put("v1", "keys", key, "pin", body=body)
    if as_json:
        shown(done)
    else:
        click.echo(one_line(f"{key}: pinned to {counted(buckets, 'bucket')}; {_when(done)}"))


@click.command()
@click.argument("key")
@remote_options
def unpin(key: str, server: str, token: str | None, as_json: bool) -> None:
    """Remove the pin of KEY: the bucket policy sets its number of buckets again."""
    done = Remote(server, token).delete("v1", "keys", key, "pin")
    if as_json:
        shown(done)
    elif not done.get("changed", True):
        click.echo(one_line(f"{key}: there is no pin to remove"))
    else:
        when = f"; {_when(done)}" if done["nobody_leads"] else ""
        click.echo(one_line(f"{key}: the policy sets the number of buckets again{when}"))


def _when(done: dict[str, Any]) -> str:
    """Return in words when the decision takes effect."""
    if done["nobody_leads"]:
        return f"not in force yet: {done['nobody_leads']}: {CURE}"
    return "in force within a second"


@click.command()
@remote_options
@store_option
@click.option(
    "--limit", type=LINES, default=20, show_default=True, help="Maximum number of decisions."
)
@click.option("--follow", is_flag=True, help="Keep running and print each new decision.")
def decisions(
    server: str, token: str | None, store: str | None, as_json: bool, limit: int, follow: bool
) -> None:
    """List the newest decisions of the coordinators and operators, with their reasons.

    Decisions on numbers of workers are included. With --store no server is needed.
    """
    from_store = decisions_in(store, limit, follow) if store else None
    lines = from_store or _from_server(Remote(server, token), limit, follow)
    found = next(lines)
    if not follow:
        if as_json:
            shown(found)
        else:
            Console().print(decisions_table(found))
        return
    for line in reversed(found):
        _say(line, as_json)
    for line in chain.from_iterable(lines):
        _say(line, as_json)


def _from_server(remote: Remote, limit: int, follow: bool) -> Iterator[list[dict[str, Any]]]:
    """Yield the newest decisions, newest first. With `follow`, then yield each new decision."""
    found = remote.get("v1", "decisions", limit=limit)["decisions"]
    yield found
    newest = max((line["version"] for line in found), default=0)
    for name, line in remote.events(after=newest) if follow else ():
        if name == "decision" and line["version"] > newest:
            yield [line]


def _say(line: dict[str, Any], as_json: bool) -> None:
    if as_json:
        shown(line)
    else:
        words = (
            _time(line),
            f"{subject_words(**line['subject'])}:",
            line["words"],
            f"({line['reason']})",
        )
        click.echo(one_line(" ".join(words)))


def decisions_table(lines: list[dict[str, Any]]) -> Table:
    table = Table("version", "time", "subject", "decision", "reason", box=None)
    for line in lines:
        words = (subject_words(**line["subject"])[:60], line["words"], line["reason"])
        table.add_row(
            str(line["version"]), _time(line), *(escape(one_line(word)) for word in words)
        )
    return table


def _time(line: dict[str, Any]) -> str:
    return str(line["time"])[:19].replace("T", " ")
