"""`heatsink dynamo`: the DynamoDB emulator as a process."""

from __future__ import annotations

from random import Random
from typing import Any

import click
from click.core import ParameterSource

from heatsink.emulator.server import serve
from heatsink.emulator.settings import (
    PARTITIONS_MAX,
    SECONDS_MAX,
    UNITS_MAX,
    UNITS_MIN,
    EngineSettings,
)
from heatsink.primitives.clock import SystemClock
from heatsink.server.commands.configuration import (
    PORTS,
    WORD,
    Number,
    WholeRange,
    allow_host_option,
    config_option,
    log_json_option,
)
from heatsink.server.running import announce, run_service, set_up

UNITS = Number(UNITS_MIN, UNITS_MAX)
SECONDS = Number(0, SECONDS_MAX)
SHOW = 0  # `--partitions` without a number


@click.command()
@config_option
@click.option("--host", type=WORD, default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=PORTS, default=8322, help="Port of the emulator.")
@click.option(
    "--token",
    type=WORD,
    help="Accept only requests that are signed with this as the secret key, or that have it in the "
    "header Authorization: Bearer. Needed to listen on an address that other machines can reach.",
)
@click.option(
    "--data",
    type=click.Path(dir_okay=False),
    help="File in which the emulator keeps all tables. They survive restarts and kill -9.",
)
@click.option("--in-memory", is_flag=True, help="Keep no file (the default).")
@click.option("--seed", type=int, help="Seed of everything random in the emulator; default: none.")
@click.option(
    "--write-limit", type=UNITS, default=1e3, help="Maximum write units/s of a partition."
)
@click.option("--read-limit", type=UNITS, default=3e3, help="Maximum read units/s of a partition.")
@click.option(
    "--burst-seconds",
    type=SECONDS,
    default=300.0,
    help="Seconds of unused throughput that a partition can save up.",
)
@click.option(
    "--full-burst/--empty-burst",
    default=True,
    help="Whether a new provisioned table has already saved up --burst-seconds of its throughput.",
)
@click.option(
    "--partitions",
    type=WholeRange(SHOW, PARTITIONS_MAX),
    default=4,
    is_flag=False,
    flag_value=SHOW,
    help="Number of partitions of a new on-demand table. Without a number: show the partitions of "
    "the emulator that runs on --port.",
)
@click.option(
    "--explain",
    is_flag=True,
    help="Say which partitions of tables and indexes are hot in the emulator that runs on --port.",
)
@click.option(
    "--adaptive/--no-adaptive",
    default=True,
    help="Lend unused throughput to hot partitions and split them, as DynamoDB does.",
)
@click.option(
    "--split-after",
    type=SECONDS,
    default=600.0,
    help="Seconds that a partition must stay hot before the emulator splits it.",
)
@click.option(
    "--cool-down",
    type=SECONDS,
    default=60.0,
    help="Seconds after a split in which the emulator does not change the new partitions.",
)
@click.option(
    "--merge-after",
    type=SECONDS,
    help="Seconds that two neighbours must stay calm before they are merged; default: never.",
)
@click.option(
    "--replica-lag",
    type=SECONDS,
    default=0.0,
    help="Seconds by which eventually consistent reads are stale.",
)
@click.option(
    "--index-lag",
    type=SECONDS,
    default=0.0,
    help="Reads of a global index lag behind the table by a random time: at most this many "
    "seconds.",
)
@click.option(
    "--ttl-lag",
    type=SECONDS,
    default=10.0,
    help="Seconds between the end of an item's time to live and its deletion.",
)
@click.option(
    "--latency",
    type=Number(0, SECONDS_MAX * 1000),
    default=0.0,
    help="Milliseconds added to the response time of each request.",
)
@allow_host_option
@log_json_option
def dynamo(port: int, partitions: int, latency: float, log_json: bool, **options: Any) -> None:
    """Run a DynamoDB emulator in memory, with partitions that throttle and split as DynamoDB's do.

    The emulator is for development. It loses all data when it stops, unless --data names a file. To
    watch its partitions, open its address in a browser, or run `heatsink dynamo --partitions` in a
    second terminal. `heatsink dynamo --explain` says in words what is hot.
    """
    if partitions == SHOW:
        from heatsink.server.commands.partitions import show_partitions

        show_partitions(f"http://127.0.0.1:{port}", options["token"], SystemClock())
        return

    if options["explain"]:
        from heatsink.server.commands.partitions import explain_partitions

        explain_partitions(f"http://127.0.0.1:{port}", options["token"])
        return

    source = click.get_current_context().get_parameter_source
    if all(source(name) is ParameterSource.COMMANDLINE for name in ("data", "in_memory")):
        raise click.UsageError("--data and --in-memory exclude each other: leave one out.")
    settings = EngineSettings(
        host=options["host"],
        port=port,
        token=options["token"],
        data=None if options["in_memory"] else options["data"],
        write_limit=options["write_limit"],
        read_limit=options["read_limit"],
        burst_s=options["burst_seconds"],
        full_burst=options["full_burst"],
        partitions=partitions,
        adaptive=options["adaptive"],
        split_after_s=options["split_after"],
        cool_down_s=options["cool_down"],
        merge_after_s=options["merge_after"],
        replica_lag_s=options["replica_lag"],
        index_lag_s=options["index_lag"],
        ttl_lag_s=options["ttl_lag"],
        latency_s=latency / 1000,
        allow_hosts=options["allow_host"],
    )

    def started(url: str) -> None:
        text = f"DynamoDB emulator on {url} (Ctrl-C stops it)"
        announce(log_json, "started", text, port=int(url.rpartition(":")[2]))

    set_up(log_json)
    run_service(lambda _: serve(settings, SystemClock(), Random(options["seed"]), started))
