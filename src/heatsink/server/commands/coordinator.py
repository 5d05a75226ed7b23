"""`heatsink coordinator`: a process that does nothing but coordinate.

One coordinator leads, others stand by.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from socket import socket
from typing import Any

import click
from prometheus_client.registry import Collector
from starlette.applications import Starlette

from heatsink.bulk import BulkSettings
from heatsink.bulk.scaling.load import WorkerRules
from heatsink.bulk.scaling.policy import POLICIES
from heatsink.client.connect import connect
from heatsink.client.heatsink import Heatsink
from heatsink.client.prometheus import ClusterCollector, QueueCollector, StatusCollector
from heatsink.client.status import Status
from heatsink.client.urls import missing_file, open_stores
from heatsink.errors import InvalidSetting, Unavailable
from heatsink.primitives.clock import Clock, SystemClock
from heatsink.primitives.ids import IdScheme, Uuid7, scheme_named
from heatsink.server.adoption.sweeping import Sweeper, recorded_table, sweeping
from heatsink.server.api.metrics import Metrics
from heatsink.server.api.requests import CallerCheck, token_of
from heatsink.server.commands.configuration import (
    PORTS,
    WORD,
    Number,
    WholeRange,
    Word,
    allow_host_option,
    bucket_units_option,
    config_option,
    log_json_option,
    news_option,
)
from heatsink.server.commands.fsck import existing_table
from heatsink.server.commands.queue_options import cluster_options, cluster_settings
from heatsink.server.running import Ending, run, set_up, tell
from heatsink.server.shell import Endpoint, address_of, health_app
from heatsink.spread.policy import BucketRules
from heatsink.stores.dynamodb import open_table
from heatsink.stores.dynamodb.address import DynamoAddress

logger = logging.getLogger("heatsink")


def check_store(url: str) -> None:
    """Refuse memory://, since no app server can share that store with the coordinator."""
    if url.startswith("memory:"):
        raise InvalidSetting(
            "memory:// is private to its process: give --store the sqlite:// or dynamodb:// "
            "store of your app servers"
        )


def status_app(read: Callable[[], Status], guard: CallerCheck, *others: Collector) -> Starlette:
    """Return the app with /healthz, /readyz (the coordinator's view is fresh) and /metrics."""

    def ready() -> dict[str, object]:
        status = read()
        return {"ready": status.ready, "leads": status.leads, "version": status.version}

    return health_app(ready, Metrics(*others, StatusCollector(read)), guard)


def coordinate(store: str, endpoint: Endpoint, tables: Sequence[str] = (), **settings: Any) -> None:
    """Open the port, then run a coordinator until a signal. `settings` are those of `connect`.

    While the coordinator leads, it sweeps the spread indexes of `tables`.
    """
    with endpoint.listening() as listeners:

        async def start(ending: Ending) -> None:
            file, clock = missing_file(store), SystemClock()
            ids = await ids_of(store, clock)
            swept = [await existing_table(table, store, clock, "--sweep") for table in tables]
            client = connect(store, ids=ids, dedicated=True, **settings)
            if file is not None:
                logger.warning("there was no database %s: a new one is made", file)
            scales_workers = bool(settings.get("queue"))
            await run_coordinator(client, listeners, endpoint, ending, scales_workers, swept)

        run(start)
    tell("stopped", "stopped; if this coordinator led, another one can lead now")


async def ids_of(url: str, clock: Clock, must_exist: bool = False) -> IdScheme:
    """Return the id scheme of a store, or the default scheme if the store is new.

    With `must_exist`, raises `InvalidSetting` if the store's file is missing.
    """
    stores = open_stores(url, clock, must_exist)
    try:
        await stores.open()
        return scheme_named((await stores.registry.meta()).meta.id_scheme)
    except Unavailable:  # no registry yet; `connect` reports any other cause
        return Uuid7()
    finally:
        await stores.close()


async def run_coordinator(
    client: Heatsink,
    listeners: list[socket],
    endpoint: Endpoint,
    ending: Ending,
    scales_workers: bool = False,
    swept: Sequence[DynamoAddress] = (),
) -> None:
    """Run a coordinator until a signal. Then release its lease, so that a standby can lead."""
    async with AsyncExitStack() as stack:
        heatsink = await stack.enter_async_context(client)
        await stack.enter_async_context(sweeping(_sweepers(heatsink, swept, stack)))
        if scales_workers:
            await heatsink.bulk.open()
        watch = heatsink.queue_watch
        others: list[Collector] = [QueueCollector(lambda: watch.latest)] if watch else []
        others.append(ClusterCollector(lambda: heatsink.cluster_watch))
        server = endpoint.server(status_app(heatsink.status, endpoint.guard, *others))
        ending.stop = server.end
        for listener in listeners:
            _tell_where(*listener.getsockname()[:2])
        await server.serve(listeners)


def _sweepers(
    heatsink: Heatsink, swept: Sequence[DynamoAddress], stack: AsyncExitStack
) -> list[Sweeper]:
    clock, view, sweepers = SystemClock(), heatsink.parts.registry.view, []
    for address in swept:
        client = open_table(address, clock)[1]
        stack.push_async_callback(client.close)
        sweepers.append(
            Sweeper(heatsink, client, partial(recorded_table, view, address.table), clock)
        )
    return sweepers


def _tell_where(host: str, port: int) -> None:
    where = f"/healthz, /readyz and /metrics are at {address_of(host, port)}"
    tell("started", f"this coordinator stands by; {where}", port=port)


@click.command()
@config_option
@click.option(
    "--store",
    type=Word("Use the sqlite:// or dynamodb:// URL of your app servers."),
    required=True,
    help="URL of the data store.",
)
@news_option
@click.option("--host", type=WORD, default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=PORTS, default=8323, help="Port of /healthz, /readyz and /metrics.")
@click.option(
    "--token",
    help="Bearer token that /metrics requires. Set one if other machines can reach --host.",
)
@allow_host_option
@click.option(
    "--name",
    default="",
    show_default="host name",
    help="Name of this coordinator in the registry.",
)
@bucket_units_option
@click.option(
    "--cool-down",
    type=Number(0, 1e9),
    default=300.0,
    help="Seconds of low load before a key gets fewer buckets.",
)
@click.option("--queue", type=WORD, help="URL of the queue whose workers the coordinator scales.")
@click.option(
    "--stage",
    default="default",
    help="Stage of the queue: a name that separates deployments on one Redis.",
)
@click.option(
    "--scaling",
    type=click.Choice(list(POLICIES)),
    default="littles_law",
    help="Policy that sets the number of workers.",
)
@click.option(
    "--workers-max",
    type=WholeRange(8, 10_000),
    default=256,
    help="Maximum number of workers per partition.",
)
@click.option(
    "--fleet-max",
    type=WholeRange(1, 10**6),
    default=10_000,
    help="Maximum number of workers of all partitions.",
)
@click.option(
    "--sweep",
    "tables",
    type=WORD,
    multiple=True,
    help="Table whose spread indexes the leader sweeps: its name, or its URL if it is in another "
    "region. May be repeated.",
)
@cluster_options
@log_json_option
def coordinator(
    store: str, host: str, port: int, token: str | None, queue: str | None, **options: Any
) -> None:
    """Run a coordinator, which sets the number of buckets of each key for all app servers.

    With --queue it also sets the number of workers. Run two coordinators: one leads, the other
    takes over if the leader fails.
    """
    set_up(options["log_json"])
    check_store(store)
    tokens = (token_of("read", token),) if token else ()
    endpoint = Endpoint(host, port, tokens, options["allow_host"])
    settings = {
        "news": options["news"],
        "name": options["name"],
        "rules": BucketRules(
            bucket_units_s=options["bucket_units"], cool_down_s=options["cool_down"]
        ),
        "queue": queue,
        "bulk": BulkSettings(stage=options["stage"], durability="relaxed"),
        **cluster_settings(options["cluster"], options["balance_cluster"], queue),
        "scaling": options["scaling"],
        "workers": WorkerRules(workers_max=options["workers_max"], fleet_max=options["fleet_max"]),
    }
    coordinate(store, endpoint, tables=options["tables"], **settings)
