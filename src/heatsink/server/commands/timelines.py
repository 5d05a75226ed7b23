"""`heatsink timelines`: whose posts are pushed or pulled, and an operator's choice."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from heatsink.primitives.words import counted
from heatsink.server.running import one_line

from .configuration import Word
from .operator import LINES, shown
from .remote import Remote, remote_options


@click.group()
def timelines() -> None:
    """Show and fix whether posts of an author are pushed to followers or pulled by them.

    `heatsink settings set timelines.threshold N` sets the number of followers from which posts are
    pulled.
    """


@timelines.command("list")
@click.option("--limit", type=LINES, default=50, show_default=True, help="Maximum number of lines.")
@remote_options
def list_authors(limit: int, server: str, token: str | None, as_json: bool) -> None:
    """List the authors whose mode was ever changed. Posts of all other authors are pushed."""
    authors = Remote(server, token).get("v1", "timelines", limit=limit)["authors"]
    if as_json:
        shown(authors)
        return
    table = Table("author", "mode", "since", "reason", box=None)
    for line in authors:
        words = (line["author"][:60], line["mode"], str(line["since"])[:19], line["reason"])
        table.add_row(*(escape(one_line(word)) for word in words))
    Console().print(table if authors else "Every author is pushed.")


@timelines.command()
@click.argument("author")
@remote_options
def explain(author: str, server: str, token: str | None, as_json: bool) -> None:
    """Explain whether posts of AUTHOR are pushed or pulled, and why."""
    _show(Remote(server, token).get("v1", "timelines", author, "mode"), as_json)


@timelines.command()
@click.argument("author")
@click.argument("mode", metavar="MODE", type=click.Choice(["push", "pull"]))
@click.option(
    "--reason",
    type=Word('Say why, as in --reason "on television tonight".'),
    required=True,
    help="Reason, shown by `heatsink timelines explain`.",
)
@remote_options
def pin(author: str, mode: str, reason: str, server: str, token: str | None, as_json: bool) -> None:
    """Fix the MODE of AUTHOR, push or pull, whatever the number of followers and the cost."""
    body = {"mode": mode, "reason": reason}
    _show(Remote(server, token).put("v1", "timelines", author, "mode", body=body), as_json)


@timelines.command()
@click.argument("author")
@remote_options
def unpin(author: str, server: str, token: str | None, as_json: bool) -> None:
    """Remove the pin of AUTHOR: the number of followers and the cost decide the mode again."""
    _show(Remote(server, token).delete("v1", "timelines", author, "mode"), as_json)


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        shown(found)
        return
    followers = counted(found["followers"], "follower")
    click.echo(one_line(f"{found['author']} ({followers}): {found['explanation']}"))
