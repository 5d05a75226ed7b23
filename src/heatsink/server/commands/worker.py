"""`heatsink worker`: runs an application's actions on the items of the queue."""

from __future__ import annotations

import asyncio
import importlib
import logging
import signal
import sys
import traceback
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Any

import click

from heatsink.bulk.actions import Actions
from heatsink.bulk.settings import HANDLER_PROCESSES_MAX, WORKERS_MAX, BulkSettings
from heatsink.bulk.work.consumer import Consumer
from heatsink.client import connect
from heatsink.client.prometheus import WorkCollector
from heatsink.client.queue import Queue, connect_queue
from heatsink.client.urls import missing_file
from heatsink.errors import InvalidSetting, Retryable
from heatsink.primitives.chance import fresh_secret
from heatsink.primitives.clock import Clock, SystemClock
from heatsink.primitives.hooks import Hook
from heatsink.server.api.metrics import Metrics
from heatsink.server.api.requests import token_of
from heatsink.server.running import (
    Ending,
    announce,
    default_signals,
    run,
    run_service,
    set_up,
    tell,
)
from heatsink.server.shell import Endpoint, health_app
from heatsink.server.supervisor import PROCESSES_MAX, Child, Ready, Supervisor
from heatsink.server.tracing import tracing_hooks, tracing_option

from .configuration import (
    PORTS,
    WORD,
    Number,
    WholeRange,
    allow_host_option,
    config_option,
    log_json_option,
)
from .queue_options import absent_queue, queue_options, settings_from

logger = logging.getLogger("heatsink")
PATIENCE_S = 10.0
PAUSE_S = 0.5
PORT_MAX = 65_535
Service = Callable[[Ending], Awaitable[None]]

WORKERS = WholeRange(1, WORKERS_MAX)


@click.command()
@config_option
@click.argument("actions", metavar="MODULE:ACTIONS")
@queue_options
@click.option(
    "--store",
    type=WORD,
    help="URL of the data store. Without it, the process does not follow pauses, weights and "
    "limits that operators change, and handlers cannot call context.once().",
)
@click.option(
    "--workers",
    type=WORKERS,
    default=8,
    show_default=True,
    help="Number of workers per partition, until a coordinator scales them.",
)
@click.option(
    "--workers-max",
    type=WORKERS,
    default=256,
    show_default=True,
    help="Maximum number of workers per partition.",
)
@click.option(
    "--lease",
    type=Number(0.1, 3_600),
    default=10.0,
    show_default=True,
    help="Seconds after which other processes take over the items of a process that died.",
)
@click.option(
    "--name", default="", show_default="host name", help="Name of this process in the queue."
)
@click.option(
    "--concurrency",
    type=WORKERS,
    help="Maximum number of handlers that run at once in a process, over all its partitions.",
)
@click.option(
    "--handler-processes",
    type=WholeRange(1, HANDLER_PROCESSES_MAX),
    show_default="one for each CPU",
    help="Maximum number of processes for handlers that have process=True.",
)
@click.option(
    "--processes",
    type=WholeRange(1, PROCESSES_MAX),
    default=1,
    help="Number of worker processes. A parent restarts those that die.",
)
@click.option(
    "--host",
    "--metrics-host",
    "host",
    type=WORD,
    default="127.0.0.1",
    help="Address of /healthz, /readyz and /metrics.",
)
@click.option(
    "--port",
    "--metrics-port",
    "port",
    type=PORTS,
    help="Port of /healthz, /readyz and /metrics; the next process listens on the next port.",
)
@click.option(
    "--token",
    help="Bearer token that /metrics requires. Set one if other machines can reach --host.",
)
@allow_host_option
@tracing_option
@log_json_option
def worker(
    actions: str,
    queue: str,
    store: str | None,
    processes: int,
    tracing: bool,
    log_json: bool,
    **options: Any,
) -> None:
    """Run the items of the queue with your actions.

    MODULE:ACTIONS names the `heatsink.bulk.Actions` object in an importable module: myapp:actions.
    """
    set_up(log_json)
    names = ("workers", "workers_max", "name", "concurrency", "handler_processes")
    consumer = {name: options.pop(name) for name in names}
    consumer["lease_s"] = options.pop("lease")
    consumer["member_s"] = consumer["lease_s"] / 2
    endpoint = _endpoint(*(options.pop(name) for name in ("host", "port", "token", "allow_host")))
    settings = settings_from(**options)

    def service(endpoint: Endpoint | None, ready: Ready | None, mark: str = "") -> Service:
        """Import the application, and return its worker. Each process does this for itself."""
        table, hooks = find_actions(actions), tracing_hooks(tracing)
        marked = {**consumer, "mark": mark}
        opening = partial(_open, table, queue, store, settings, marked, hooks)
        return partial(_run, opening, sorted(table), endpoint, log_json, ready)

    if processes == 1:
        run_service(service(endpoint, None))
    else:
        freeing = partial(_free, queue, settings, consumer["name"])
        _supervise(processes, actions, service, endpoint, log_json, freeing)


def _endpoint(
    host: str, port: int | None, token: str | None, allow_hosts: tuple[str, ...]
) -> Endpoint | None:
    if port is None:
        return None
    return Endpoint(host, port, (token_of("read", token),) if token else (), allow_hosts)


def _supervise(
    processes: int,
    actions: str,
    service: Callable[[Endpoint | None, Ready, str], Service],
    endpoint: Endpoint | None,
    log_json: bool,
    free: Callable[[str], None],
) -> None:
    """Run several worker processes until a signal. `free` frees what a dead process had."""
    family = fresh_secret().hex()[:16]
    endpoints = [_endpoint_of(endpoint, number) for number in range(processes)]
    for each in endpoints:
        if each is not None:
            with each.listening():  # refuses a port that is in use
                pass

    def mark(child: Child) -> str:
        """Return a start for the ids of a child's leases: containers may share a host name."""
        return f"{family}{child.earlier:08x}"

    def work(child: Child, ready: Ready) -> None:
        each = endpoints[child.number]
        shared = None if each is None else replace(each, is_shared=True)
        run(service(shared, ready, mark(child)))

    def started() -> None:
        text = f"{processes} worker processes run {actions} (Ctrl-C stops them)"
        port = endpoint.port if endpoint else None
        announce(log_json, "started", text, processes=processes, port=port)

    def died(child: Child) -> None:
        free(mark(child))

    supervisor = Supervisor(processes, work, SystemClock(), "worker process", died)
    if supervisor.run(started) == signal.SIGINT:
        raise KeyboardInterrupt


def _free(queue: str, settings: BulkSettings, name: str, mark: str) -> None:
    """Free what a dead worker process had. If this fails, its leases end by themselves."""

    async def free() -> None:
        async with connect_queue(queue, settings) as client:
            await client.free(mark, name)

    asyncio.run(free())


def _endpoint_of(first: Endpoint | None, number: int) -> Endpoint | None:
    """Return where process `number` listens: each process has a port of its own."""
    if first is None or first.port == 0:
        return first
    if first.port + number > PORT_MAX:
        raise InvalidSetting(
            f"--port {first.port} leaves no port for process {number}: choose a lower one",
            field="port",
        )
    return replace(first, port=first.port + number)


def find_actions(spec: str) -> Actions:
    """Import and return the `Actions` object that `module:attribute` names.

    Python looks for the module in the current folder first.
    """
    module_name, colon, attribute = spec.partition(":")
    if not colon or not attribute or not module_name or module_name.startswith("."):
        raise InvalidSetting(
            f"actions must be MODULE:ACTIONS (myapp:actions), not {spec!r}", field="actions"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        if not _is_absent(module_name, error):
            raise _broken(module_name, error) from None
        cure = "check MODULE:ACTIONS and the current folder"
        if module_name.endswith(".py"):
            cure = f"name it without .py, as in {module_name.removesuffix('.py')}:{attribute}"
        raise InvalidSetting(f"there is no module {module_name!r}: {cure}") from None
    found = getattr(module, attribute, None)
    if not isinstance(found, Actions):
        raise InvalidSetting(f"{spec} is not a heatsink.bulk.Actions: check MODULE:ACTIONS")
    return found


def _is_absent(module_name: str, error: BaseException) -> bool:
    """Return whether the module itself is missing, and not a module that it imports."""
    names = (module_name, module_name.partition(".")[0])
    return isinstance(error, ModuleNotFoundError) and error.name in names


def _broken(module_name: str, error: BaseException) -> InvalidSetting:
    """Return the error for a module that raises `error` on import, and log where it did so.

    The log has the module's own lines and those that it called, not the lines of Heatsink and of
    Python's import system.
    """
    frames = error.__traceback__
    while frames is not None and _is_of_import(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    logger.error("%s failed on import", module_name, exc_info=(type(error), error, frames))
    said = traceback.format_exception_only(type(error), error)[-1].strip()
    return InvalidSetting(
        f"the module {module_name!r} cannot be imported: {said}. Correct the module; `python -c "
        f"'import {module_name}'` must work in this folder",
        field="actions",
    )


def _is_of_import(file: str) -> bool:
    return file.startswith("<frozen importlib") or file in (__file__, importlib.__file__)


async def _open(
    table: Actions,
    queue: str,
    store: str | None,
    settings: BulkSettings,
    consumer: dict[str, Any],
    hooks: list[Hook],
    stack: AsyncExitStack,
) -> Consumer:
    if queue.startswith("memory:"):
        raise InvalidSetting(
            "memory:// is private to its process, so this worker would get no item: name the queue "
            "of your app servers",
            field="queue",
        )
    if (folder := absent_queue(queue)) is not None:
        logger.warning("there was no queue in %s: a new one is made there", folder)
    if store is None:
        client = connect_queue(queue, settings, hooks=hooks)
        await _wait_for(client, SystemClock())
        await stack.enter_async_context(client)
        return client.worker(table, **consumer)
    name = consumer.pop("name")
    if (file := missing_file(store)) is not None:
        logger.warning("there was no database %s: a new one is made", file)
    heatsink = connect(store, queue=queue, hooks=hooks, bulk=settings, name=name, coordinate=False)
    await stack.enter_async_context(heatsink)
    return heatsink.worker(table, **consumer)


async def _run(
    opening: Callable[[AsyncExitStack], Awaitable[Consumer]],
    actions: list[str],
    endpoint: Endpoint | None,
    log_json: bool,
    ready: Ready | None,
    ending: Ending,
) -> None:
    """Run the worker until a signal.

    If there are several processes, each has a function `ready`, and calls it when it runs. Such a
    process does not end at a second signal, since it may get the same signal from the terminal and
    from its parent. If there is a second signal, the parent kills the process.
    """
    async with AsyncExitStack() as stack:
        running = await opening(stack)
        ending.stop = partial(_stop, running) if ready is None else running.stop
        fields: dict[str, Any] = {"worker": running.name, "actions": actions}
        if endpoint is not None:
            server = HealthServer(running, endpoint)
            stack.callback(server.stop)
            fields["port"] = server.port
        runs = f"worker {running.name} runs {', '.join(actions)}"
        if ready is None:
            announce(log_json, "started", f"{runs} (Ctrl-C stops it)", **fields)
        else:
            tell("process.started", runs, **fields)
            ready(fields.get("port", 0))
        await running.run()


async def _wait_for(queue: Queue, clock: Clock) -> None:
    """Wait up to `PATIENCE_S` for the queue, which may be restarting."""
    give_up_s, is_told = clock.monotonic_s() + PATIENCE_S, False
    while clock.monotonic_s() < give_up_s:
        try:
            await queue.bulk.open()
        except Retryable as error:
            if not is_told:
                text = "the queue is not available yet, waiting up to %.0f s: %s"
                logger.warning(text, PATIENCE_S, error)
            is_told = True
            await clock.sleep(PAUSE_S)
        else:
            return


class HealthServer:
    """Serves /healthz, /readyz and /metrics in its own thread.

    So it responds even while handlers block the event loop. If they block it for long, /readyz says
    that the worker is not ready.
    """

    def __init__(self, consumer: Consumer, endpoint: Endpoint) -> None:
        def ready() -> dict[str, object]:
            return {"ready": consumer.is_ready, "worker": consumer.name}

        app = health_app(ready, Metrics(WorkCollector(consumer)), endpoint.guard)
        self._farewell = ExitStack()
        self._listeners = self._farewell.enter_context(endpoint.listening())
        self._server = endpoint.server(app)
        self._thread = Thread(target=self._run, name="health", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._listeners[0].getsockname()[1])

    def _run(self) -> None:
        asyncio.run(self._server.serve(self._listeners))

    def stop(self) -> None:
        self._server.end()
        self._thread.join()
        self._farewell.close()


def _stop(consumer: Consumer) -> None:
    """Stop the consumer gracefully, and let the next signal end the process immediately."""
    consumer.stop()
    default_signals()
