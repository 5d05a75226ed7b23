"""`heatsink demo`: runs the acts on a page or in a terminal."""

from __future__ import annotations

import asyncio
from random import Random
from signal import SIGINT
from typing import Any

import click

from heatsink.primitives.clock import SystemClock
from heatsink.server.commands.configuration import PORTS

from .acts import ACTS, NAMES, find_act
from .traffic import LIMIT, PEAK, SHAPES, TrafficPlan

HOST = "127.0.0.1"
PORT = 8321
SHUTDOWN_S = 2
ALL = "all"
NUMBERS = [str(number) for number in range(1, len(ACTS) + 1)]


@click.command()
@click.option("--headless", is_flag=True, help="Print a table instead of serving a page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead of serving a page.")
@click.option(
    "--act",
    "act_name",
    default="1",
    type=click.Choice([*NUMBERS, *NAMES, ALL]),
    help="Act to play, by number or name. On the page, the act that starts first.",
)
@click.option("--brief", is_flag=True, help="Play shorter acts with less traffic.")
@click.option(
    "--shape",
    type=click.Choice(list(SHAPES)),
    default="ramp",
    help="Traffic of the first act: a slow rise or a sudden jump.",
)
@click.option(
    "--peak", type=click.IntRange(*PEAK), default=4_000, help="Calls per second at the peak."
)
@click.option(
    "--limit",
    type=click.IntRange(*LIMIT),
    default=1_000,
    help="Maximum writes per second of a partition.",
)
@click.option("--port", type=PORTS, default=PORT, help="Port of the page; 0 takes any free port.")
def demo(headless: bool, as_json: bool, act_name: str, port: int, **options: Any) -> None:
    """Show five acts of real traffic, each without and with Heatsink, side by side."""
    plan = TrafficPlan(**options)
    if headless or as_json:
        _demo_in_terminal(plan, act_name, as_json)
    else:
        _demo_on_page(plan, act_name, port)


def _demo_in_terminal(plan: TrafficPlan, act_name: str, as_json: bool) -> None:
    from .headless import make_console, run_as_json, run_as_table

    clock, rng = SystemClock(), Random()
    acts = ACTS if act_name == ALL else (find_act(act_name),)
    if as_json:
        kept = asyncio.run(run_as_json(acts, plan, clock, rng, click.echo))
    else:
        kept = asyncio.run(run_as_table(acts, plan, clock, rng, make_console()))
        if act_name != ALL:
            click.echo("All five acts: --act all. On a live page: without --headless.")
    if not kept:
        click.get_current_context().exit(1)


def _demo_on_page(plan: TrafficPlan, act_name: str, port: int) -> None:
    from heatsink.server.api.requests import RequestLimits
    from heatsink.server.shell import Ending, Endpoint, address_of, run

    from .page import PATH, serve
    from .stage import Stage
    from .world import open_world

    opening = find_act("1" if act_name == ALL else act_name)
    endpoint = Endpoint(HOST, port, limits=RequestLimits(), grace_s=SHUTDOWN_S)
    with endpoint.listening() as listeners:
        url = address_of(*listeners[0].getsockname()) + PATH

        async def play(ending: Ending) -> None:
            async with open_world(plan, SystemClock(), Random()) as world:
                await world.hs.bulk.open()  # starting its server later would delay a running act
                click.echo(f"Open {url} to watch. The first act starts with the first viewer.")
                click.echo("Ctrl-C stops the demo.")
                await serve(world, Stage(world, plan, opening), endpoint, listeners, ending)

        if run(play) == SIGINT:
            raise KeyboardInterrupt
