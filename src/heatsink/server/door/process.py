"""Runs the door: in this process, or in several that share one port.

With several processes, the first one serves no requests. It starts the others, and restarts a
process that dies. On SIGHUP it replaces the processes one by one: a new process accepts connections
before the old one stops accepting them. The system spreads new connections over the processes
(SO_REUSEPORT).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from random import Random

import msgspec

from heatsink.client.connect import connect
from heatsink.client.heatsink import Heatsink
from heatsink.errors import InvalidSetting, Misconfigured
from heatsink.primitives.checks import check_whole
from heatsink.primitives.clock import Clock
from heatsink.primitives.connections import LOOPBACK_NAMES, listen
from heatsink.server.adoption.sweeping import Sweeper, sweeping
from heatsink.server.running import Ending, run, tell
from heatsink.server.shell import Endpoint, fast_loop, metrics_page, plain_app
from heatsink.server.supervisor import PROCESSES_MAX, Ready, Supervisor
from heatsink.spread.policy import BucketRules
from heatsink.stores.dynamodb import open_table
from heatsink.stores.dynamodb.address import DynamoAddress
from heatsink.stores.dynamodb.client import DynamoClient

from .access import Guard, KeyFile
from .gate import DoorLimits, Gate
from .metrics import metrics_of
from .tables import read_tables
from .upstream import Spreading, Upstream, look_at, missing_at

logger = logging.getLogger("heatsink")
METRICS_HOST = "127.0.0.1"
SILENT_S = 1.0  # how long the door waits for DynamoDB before it says so


class DoorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of `heatsink door`. `upstream` is DynamoDB's address; its table is not used.

    `tables` is the file that declares spread tables, whose registry is in `store`. On an address
    that other machines can reach, the door needs `keys`, the file of its key pairs, and `tls`: the
    files of a certificate and of its key.
    """

    upstream: DynamoAddress
    host: str = "127.0.0.1"
    port: int = 8324
    tables: Path | None = None
    store: str | None = None
    news: str | None = None
    coordinate: bool = True
    bucket_units: int = 800
    name: str = ""
    keys: Path | None = None
    tls: tuple[Path, Path] | None = None
    allow_hosts: tuple[str, ...] = ()
    metrics_port: int | None = None
    processes: int = 1
    is_shared: bool = False
    limits: DoorLimits = DoorLimits()

    def __post_init__(self) -> None:
        check_whole("processes", self.processes, 1, PROCESSES_MAX)
        if self.host not in LOOPBACK_NAMES and (self.keys is None or self.tls is None):
            raise InvalidSetting(
                f"host {self.host!r} can be reached from other machines: set --keys, whose pairs "
                "clients sign with (heatsink door keys new), and --tls-cert with --tls-key; or use "
                "--host 127.0.0.1",
                field="host",
            )
        if self.tables is not None and self.store is None:
            raise InvalidSetting(
                "--tables needs --store: the URL of the store for Heatsink's registry, such as "
                "dynamodb://heatsink?region=eu-west-1",
                field="store",
            )
        if self.tables is not None and self.processes > 1 and self.news is None:
            raise InvalidSetting(
                "several --processes need --news, the URL of a Redis: without it, no process knows "
                "how hot a key is in the others",
                field="news",
            )


def run_door(settings: DoorSettings, clock: Clock, rng: Callable[[], Random]) -> int | None:
    """Run the door until a signal. Returns the signal's number."""
    if settings.processes == 1:
        with listening(settings, settings.is_shared) as listeners:
            return run(
                lambda ending: _serve(settings, listeners, clock, rng(), ending), fast_loop()
            )
    with reserved(settings) as port:
        settings = msgspec.structs.replace(settings, port=port)
        return Supervisor(
            settings.processes,
            lambda child, ready: _child(settings, child.number, ready, clock, rng),
            clock,
            "process of the door",
        ).run(lambda: tell_started(settings, port))


def _child(
    settings: DoorSettings, number: int, ready: Ready, clock: Clock, rng: Callable[[], Random]
) -> None:
    if settings.metrics_port:
        port = settings.metrics_port + number
        settings = msgspec.structs.replace(settings, metrics_port=port)
    with listening(settings, is_shared=True) as listeners:
        run(
            lambda ending: _serve(settings, listeners, clock, rng(), ending, ready, number == 0),
            fast_loop(),
        )


@contextmanager
def listening(settings: DoorSettings, is_shared: bool) -> Iterator[list[socket.socket]]:
    listeners = listen(settings.host, settings.port, is_shared=is_shared)
    with ExitStack() as stack:
        for listener in listeners:
            stack.callback(listener.close)
        yield listeners


@contextmanager
def reserved(settings: DoorSettings) -> Iterator[int]:
    """Reserve the port for the processes that share it, and yield its number.

    The reserving socket is bound but does not listen, so it gets no connection.
    """
    if not settings.is_shared:
        with listening(settings, is_shared=False) as listeners:  # refuses a port that is in use
            port = int(listeners[0].getsockname()[1])
    else:
        port = settings.port
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            holder.bind((settings.host, port))
        except OSError as error:
            raise Misconfigured(
                f"cannot listen on {settings.host!r}, port {port} ({error.strerror}): choose "
                "another --host or --port"
            ) from None
        yield int(holder.getsockname()[1])


def tell_started(settings: DoorSettings, port: int) -> None:
    scheme = "http" if settings.tls is None else "https"
    many = f", {settings.processes} processes" if settings.processes > 1 else ""
    address = f"{scheme}://{settings.host}:{port}"
    tell("started", f"heatsink door: {address} → {settings.upstream.endpoint}{many}", port=port)


async def _check_upstream(client: DynamoClient, endpoint: str) -> None:
    """Log which operations the server behind the door does not have."""
    text = f"waiting for {endpoint} to answer"
    waiting = asyncio.get_running_loop().call_later(SILENT_S, tell, "waiting", text)
    try:
        missing = await missing_at(client)
    finally:
        waiting.cancel()
    if missing:
        named = " and no ".join(missing)
        logger.warning("%s has no %s: requests that need them fail there", endpoint, named)


def skip_in_collections() -> None:
    """Let garbage collections skip all present objects, since these stay until the process ends."""
    gc.collect()
    gc.freeze()


def tell_dry_runs(spread: Spreading) -> None:
    for table, command in spread.dry_runs():
        text = f"table {table} is in a dry run: no key of it is spread before `{command}`"
        tell("dry-run", text, table=table)


async def _serve(
    settings: DoorSettings,
    listeners: Sequence[socket.socket],
    clock: Clock,
    rng: Random,
    ending: Ending,
    ready: Ready | None = None,
    is_first: bool = True,
) -> None:
    async with AsyncExitStack() as stack:
        client = open_table(settings.upstream, clock)[1]
        stack.push_async_callback(client.close)
        await _check_upstream(client, settings.upstream.endpoint)
        hs, spread = None, None
        if settings.tables is not None:
            hs, spread = await _open_tables(settings, settings.tables, client, clock, rng, stack)
            if is_first:
                tell_dry_runs(spread)
        guard = None
        if settings.host not in LOOPBACK_NAMES and settings.keys is not None:
            guard = Guard(KeyFile(settings.keys), clock)
        upstream = Upstream(client, spread)
        stack.push_async_callback(upstream.close)
        gate = Gate(upstream, settings.limits, clock, rng, guard, settings.allow_hosts)
        _add_pages(gate, hs, is_local=guard is None)
        if settings.metrics_port is not None:
            endpoint = Endpoint(
                METRICS_HOST,
                settings.metrics_port,
                flag="--metrics-port",
                is_shared=ready is not None,  # with the process that this one replaces
            )
            await _serve_metrics(endpoint, gate, hs, stack)
        stopped = asyncio.Event()
        await gate.start(listeners, tls_of(settings.tls))
        stack.push_async_callback(gate.end)
        port = int(listeners[0].getsockname()[1])
        skip_in_collections()
        if ready is None:
            tell_started(settings, port)
        else:
            ready(port)
        ending.stop = stopped.set
        await stopped.wait()
        tell("stopping", "stopping: finishing the requests in progress, accepting no new ones")


async def _open_tables(
    settings: DoorSettings,
    file: Path,
    client: DynamoClient,
    clock: Clock,
    rng: Random,
    stack: AsyncExitStack,
) -> tuple[Heatsink, Spreading]:
    """Open what a door with declared tables needs: a client, the tables, and a sweeper of them."""
    assert settings.store is not None
    tables = await look_at(read_tables(file), client, settings.upstream.endpoint)
    opening = connect(
        settings.store,
        news=settings.news,
        name=settings.name,
        coordinate=settings.coordinate,
        rules=BucketRules(bucket_units_s=settings.bucket_units),
        clock=clock,
        rng=rng,
    )
    hs = await stack.enter_async_context(opening)
    spread = Spreading(tables, hs, client, clock, rng, settings.store)
    await spread.open()
    await stack.enter_async_context(sweeping([Sweeper(hs, client, lambda: tables, clock)]))
    return hs, spread


def _add_pages(gate: Gate, hs: Heatsink | None, is_local: bool) -> None:
    def readyz() -> tuple[int, bytes]:
        is_ready = (hs is None or hs.status().ready) and not gate.is_ending
        return (200, b"ready\n") if is_ready else (503, b"not ready\n")

    gate.pages["/healthz"] = lambda: (200, b"ok\n")
    gate.pages["/readyz"] = readyz
    if is_local:
        metrics = metrics_of(gate, hs)
        gate.pages["/metrics"] = lambda: (200, metrics.text())


async def _serve_metrics(
    endpoint: Endpoint, gate: Gate, hs: Heatsink | None, stack: AsyncExitStack
) -> None:
    listeners = stack.enter_context(endpoint.listening())
    pages = {"/metrics": (None, metrics_page(metrics_of(gate, hs)))}
    server = endpoint.server(plain_app(pages, endpoint.guard))
    serving = asyncio.ensure_future(server.serve(listeners))

    async def end() -> None:
        server.end()
        await serving

    stack.push_async_callback(end)


def tls_of(files: tuple[Path, Path] | None) -> ssl.SSLContext | None:
    """Return the context for TLS with this certificate and key."""
    if files is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(*files)
    except (OSError, ssl.SSLError) as error:
        raise InvalidSetting(
            f"--tls-cert {files[0]} and --tls-key {files[1]} cannot be used: {error}",
            field="tls_cert",
        ) from None
    return context
