"""`heatsink verify`: checks on a real DynamoDB what Heatsink assumes about it."""

from __future__ import annotations

import asyncio
import sys
from random import Random
from urllib.parse import urlsplit

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from heatsink.errors import InvalidSetting
from heatsink.primitives.clock import Clock, SystemClock
from heatsink.primitives.words import counted
from heatsink.stores.dynamodb import open_table
from heatsink.stores.dynamodb.address import EXAMPLE, DynamoAddress, parse_url
from heatsink.stores.dynamodb.verify.assumptions import Estimate, Finding, estimate, findings
from heatsink.stores.dynamodb.verify.ground import PREFIX, Ground, ground_at

from .configuration import Number, json_option
from .progress import progress_bar

STYLES = {"same": "green", "different": "red", "unknown": "yellow"}
DOLLARS_MAX = 1_000.0


class VerifyReport(msgspec.Struct, frozen=True):
    """What a run found. `left` are tables of earlier runs that could not delete them."""

    endpoint: str
    estimated_dollars: float
    spent_dollars: float
    findings: list[Finding]
    left: list[str]


def address_of(url: str) -> DynamoAddress:
    parts = urlsplit(url)
    if parts.scheme != "dynamodb":
        raise InvalidSetting(f"URL must be DynamoDB's: use {EXAMPLE}", field="url")
    return parse_url(parts)


async def verify_at(
    address: DynamoAddress,
    plan: Estimate,
    most_dollars: float,
    clock: Clock,
    rng: Random,
    clean: bool = False,
) -> VerifyReport:
    """Run the checks of `plan`. With `clean`, delete the tables of earlier runs instead."""
    client = open_table(address, clock)[1]
    found: list[Finding] = []
    async with ground_at(client, clock, rng, most_dollars) as ground:
        left = await ground.left()
        if clean:
            await ground.delete(left)
        else:
            found = await _with_progress(ground, plan)
        return VerifyReport(address.endpoint, plan.dollars, round(ground.spent, 4), found, left)


async def _with_progress(ground: Ground, plan: Estimate) -> list[Finding]:
    found = []
    with progress_bar() as bar:
        task = bar.add_task("assumptions", total=len(plan.checks) + len(plan.left_out))
        async for one in findings(ground, plan):
            found.append(one)
            bar.update(task, advance=1, description=one.assumption)
        bar.update(task, description="deleting the tables")
        await ground.close()
    return found


def _table(found: list[Finding]) -> Table:
    table = Table()
    for name in ("", "assumption", "observed", "what Heatsink assumes", "where it matters"):
        table.add_column(name, overflow="fold")
    for one in found:
        state = f"[{STYLES[one.state]}]{one.state}[/]"
        table.add_row(state, *map(escape, (one.assumption, one.observed, one.assumed, one.matters)))
    return table


def _in_full(one: Finding) -> str:
    """Return a finding in lines that no narrow terminal cuts, to be copied into a report."""
    return (
        f"{one.state}: {one.assumption}\n"
        f"  observed: {one.observed}\n"
        f"  Heatsink assumes: {one.assumed}\n"
        f"  where it matters: {one.matters}"
    )


def _print(report: VerifyReport, clean: bool, is_local: bool) -> None:
    left = ", ".join(report.left)
    if clean:
        click.echo(f"Deleted: {left}" if left else "No tables of earlier runs are left.")
        return
    Console().print(_table(report.findings))
    for one in report.findings:
        if one.state != "same":
            click.echo(_in_full(one))
    states = [one.state for one in report.findings]
    counts = ", ".join(f"{states.count(state)} {state}" for state in STYLES)  # type: ignore[arg-type]
    costs = f"about {report.spent_dollars:.3f} $"
    costs = f"none here; {costs} on AWS" if is_local else costs
    click.echo(f"{counts}. Cost: {costs}. All tables are deleted.")
    if left:
        click.echo(f"An earlier run left tables: {left}. Delete them with --clean.")


def _ask(address: DynamoAddress, plan: Estimate) -> None:
    """Ask the person at the terminal whether to run the checks.

    Without a terminal, refuse any endpoint that may cost money: all but those on this machine.
    """
    checks = f"{counted(len(plan.checks), 'check')} on tables {PREFIX}… at {address.endpoint}"
    costs = f"cost at most about {plan.dollars:.2f} $"
    if sys.stdin.isatty():
        costs = "cost nothing, since it is on this machine," if address.is_local else costs
        click.confirm(f"{checks} {costs} and take some minutes. Go ahead?", abort=True, err=True)
    elif not address.is_local:
        raise InvalidSetting(
            f"{checks} {costs}, and there is no terminal to ask at: add --yes to agree", field="yes"
        )


@click.command()
@click.argument("url")
@click.option(
    "--max-cost",
    type=Number(0.001, DOLLARS_MAX),
    default=0.5,
    help="Cap on the cost, in US dollars. Checks that do not fit are left out.",
)
@click.option("--yes", is_flag=True, help="Do not ask before the checks begin.")
@click.option(
    "--clean", is_flag=True, help="Only delete the tables that a killed run has left behind."
)
@json_option
def verify(url: str, max_cost: float, yes: bool, clean: bool, as_json: bool) -> None:
    """Check, with your credentials, whether DynamoDB does what Heatsink assumes about it.

    URL is dynamodb://NAME?region=eu-west-1; its NAME is not used. The checks create tables named
    heatsink-verify-… and delete them at the end, also after Ctrl-C. The exit code is 1 if an
    assumption does not hold.

    The command says what the checks may cost, and asks before they begin. Without a terminal it
    needs --yes, except for an endpoint on this machine (127.0.0.1, localhost), which is free.
    """
    address, plan = address_of(url), estimate(max_cost)
    if not (yes or clean):
        _ask(address, plan)
    report = asyncio.run(verify_at(address, plan, max_cost, SystemClock(), Random(), clean))
    if as_json:
        click.echo(msgspec.json.encode(report).decode())
    else:
        _print(report, clean, address.is_local)
    if any(one.state == "different" for one in report.findings):
        click.get_current_context().exit(1)
