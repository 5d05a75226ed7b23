"""`heatsink bulk …`: submit a file of items (CSV with a header, or JSON lines), watch and steer."""

from __future__ import annotations

import asyncio
import shlex
import signal
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource
from rich.cells import cell_len, set_cell_size
from rich.progress import Progress

from heatsink.bulk.batch import Batch, named
from heatsink.bulk.batch import Progress as BatchProgress
from heatsink.bulk.bulk import LIST_MAX, Bulk
from heatsink.bulk.changes import NO_WORKER
from heatsink.bulk.moving import told
from heatsink.bulk.plan import NUMBERS_MAX, PartitionPlace, place_in
from heatsink.bulk.settings import PARTITIONS_MAX
from heatsink.bulk.submit import PRIORITY_MAX
from heatsink.client.queue import connect_queue
from heatsink.errors import HeatsinkError, InvalidSetting, Retryable, Unavailable
from heatsink.primitives.checks import shown, shown_url
from heatsink.primitives.clock import SystemClock
from heatsink.primitives.words import counted
from heatsink.server.api.bulk_shapes import ControlLines, KeyUseLine, LimitLine
from heatsink.server.api.calls.bulk import failure_lines, result_lines
from heatsink.server.api.calls.operations import limit_lines

from .configuration import WORD, WholeRange, config_option, json_option
from .item_files import count_items, drawn, read_items
from .progress import progress_bar
from .queue_options import check_exists, queue_options, queue_or_server_options, settings_from
from .remote import SERVER, NeverSent, NoAnswer, Remote
from .remote_bulk import RemoteBulk
from .settings import changed_in, shown_value
from .store import store_option

LOOK_S = 0.2
CONFIRMING = "all items are sent; waiting until the queue confirms them"


@click.group()
def bulk() -> None:
    """Submit a file of items as a batch; look at, pause, cancel and retry batches."""


def _with_bulk(
    work: Callable[[Any], Awaitable[Any]],
    queue: str | None,
    server: str | None = None,
    token: str | None = None,
    **options: Any,
) -> Any:
    """Run the work with the queue's `Bulk`, or with `RemoteBulk`, which has the same calls."""
    if queue is None or _prefers_server(server):
        return asyncio.run(_through_server(work, _checked_server(server or SERVER, options), token))
    check_exists(queue)

    async def run() -> Any:
        async with connect_queue(queue, settings_from(**options)) as client:
            return await work(client.bulk)

    return asyncio.run(run())


def _prefers_server(server: str | None) -> bool:
    """Return whether to ask the server and not the queue: if --server is a flag and --queue is not.

    Either may also come from an environment variable.
    """
    if server is None:
        return False
    source = click.get_current_context().get_parameter_source
    is_flag = [source(name) is ParameterSource.COMMANDLINE for name in ("queue", "server")]
    if all(is_flag):
        raise click.UsageError("Use --queue or --server, not both.")
    return is_flag == [False, True]


def _checked_server(server: str, options: dict[str, Any]) -> str:
    """Return the server's URL.

    Raise if options of a queue are set: the server has its own queue.
    """
    context = click.get_current_context()
    for name in options:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = f"--{name.removesuffix('s') if name == 'places' else name}"
            raise click.UsageError(
                f"the server has already opened the queue with its own {flag}: leave {flag} out, "
                "or use --queue instead of --server."
            )
    return server


async def _through_server(
    work: Callable[[Any], Awaitable[Any]], server: str, token: str | None
) -> Any:
    if callable(signal.getsignal(signal.SIGINT)):  # requests block this thread: asyncio's handler
        signal.signal(signal.SIGINT, signal.default_int_handler)  # would wait for their answers
    return await work(RemoteBulk(Remote(server, token)))


@bulk.command()
@config_option
@click.argument("action", type=WORD)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@queue_or_server_options
@click.option(
    "--tenant",
    default="default",
    show_default=True,
    help="Tenant of the batch. Workers divide their time fairly among tenants.",
)
@click.option(
    "--priority",
    type=WholeRange(-PRIORITY_MAX, PRIORITY_MAX),
    default=0,
    show_default=True,
    help="Priority among the batches of the same tenant; higher runs first.",
)
@click.option(
    "--rate",
    help="Maximum rate at which items of this action and tenant start, such as 500/s, 30000/min.",
)
@click.option(
    "--id", "batch_id", help="Id of the batch. A retry with the same id creates no second batch."
)
@click.option("--on-done", default="", help="Action to run with the outcome when the batch ends.")
@click.option("--at", help="Time before which no item starts, such as 2026-12-24T18:00+01:00.")
@click.option("--delay", type=float, help="Seconds from now on before which no item starts.")
@click.option("--keep-results", is_flag=True, help="Keep what ACTION returns for each item.")
@click.option("--result-bytes", type=int, help="Maximum size of one result.")
@click.option("--result-days", type=float, help="Days for which batch and results are kept.")
@click.option("--then", help="Action that gets the items that are done, in a batch that follows.")
@click.option("--otherwise", help="Action that gets the items that failed.")
@click.option("--unique", help="Key that at most one batch has in each window of --within.")
@click.option("--within", type=float, help="Length of the windows of --unique, in seconds.")
@click.option("--one-partition", is_flag=True, help="Put the whole batch into one partition.")
@click.option("--no-wait", is_flag=True, help="Print the batch's id and exit before it has ended.")
@json_option
def submit(
    action: str,
    file: Path,
    batch_id: str | None,
    one_partition: bool,
    no_wait: bool,
    as_json: bool,
    **others: Any,
) -> None:
    """Run ACTION on every line of FILE (.csv with a header, or .jsonl).

    A line of a .csv file is a dict. All its values are text, even numbers. A line of a .jsonl file
    is any JSON value.
    """
    names = ("tenant", "priority", "rate", "on_done", "delay")
    order = {name: others.pop(name) for name in names} | {"at": _instant(others.pop("at"))}
    order |= {"results": "keep"} if others.pop("keep_results") else {}
    more = ("result_bytes", "result_days", "then", "otherwise", "unique", "within")
    kept = {name: others.pop(name) for name in more}
    order |= {name: value for name, value in kept.items() if value is not None}
    is_sent: list[bool] = []
    accepted_as: list[str] = []

    async def run(bulk: Bulk) -> BatchProgress:
        with progress_bar() as bar:
            staged = bar.add_task("submitting", total=count_items(file, bulk))
            confirms = partial(bar.update, staged, description=CONFIRMING)
            items = drawn(read_items(file), lambda: bar.advance(staged), confirms)
            is_sent.append(True)
            accepted = await bulk.submit(
                action, items, id=batch_id, spread=not one_partition, **order
            )
            bar.update(staged, total=accepted.items, completed=accepted.items)
            accepted_as.append(accepted.id)
            if not as_json:
                click.echo(accepted.id)
            seen = bulk.status(accepted.id) if no_wait else _watch(bulk, accepted.id, bar)
            return await seen

    try:
        progress = _with_bulk(run, **others)
    except HeatsinkError as error:
        same_queue = same_queue_options(**others)
        if accepted_as:
            raise Unavailable(f"{error}\n{_accepted(accepted_as[0], same_queue)}") from error
        if isinstance(error, NoAnswer):
            raise NoAnswer(f"{error}\n{_unconfirmed(batch_id, same_queue)}") from error
        if isinstance(error, Unavailable) and (isinstance(error, NeverSent) or not is_sent):
            raise Unavailable(f"{error}; nothing was accepted") from error
        raise
    except KeyboardInterrupt:
        click.echo(_interrupted(same_queue_options(**others), *accepted_as), err=True)
        raise
    if as_json:
        _print_json(progress)
    if not no_wait:
        _conclude(progress, same_queue_options(**others))


def _instant(text: str | None) -> datetime | None:
    try:
        return None if text is None else datetime.fromisoformat(text)
    except ValueError:
        raise InvalidSetting(
            f"--at must be a time such as 2026-12-24T18:00+01:00, not {shown(text)}", field="at"
        ) from None


def same_queue_options(
    queue: str | None, stage: str, legacy: bool, server: str | None = None, **_: Any
) -> str:
    """Return the options that name the same queue in another command, ready to be pasted.

    A user name and password are left out, and a comment of the shell says so. A URL from the
    environment reaches the other command without an option.
    """
    context = click.get_current_context()
    words, comment = [], ""
    if queue is None or _prefers_server(server):
        is_known = context.get_parameter_source("server") is ParameterSource.ENVIRONMENT
        return "" if is_known else shlex.join(["--server", server or SERVER])
    if context.get_parameter_source("queue") is not ParameterSource.ENVIRONMENT:
        url = shown_url(queue).replace("://…@", "://")
        comment = "" if url == queue else "  # put the password into the URL"
        words += ["--queue", url]
    words += ["--stage", stage] if stage != "default" else []
    words += ["--legacy"] if legacy else []
    return shlex.join(words) + comment


def _interrupted(same_queue: str, accepted: str = "") -> str:
    if not accepted:
        return (
            "Interrupted before the queue confirmed the batch. To see whether it was "
            f"accepted: heatsink bulk list {same_queue}\n"
            "A retry with the same --id creates no second batch."
        )
    return f"Interrupted. {_accepted(accepted, same_queue)}"


def _accepted(id: str, same_queue: str) -> str:
    return (
        f"The batch {id} is accepted: workers go on with it. Watch it:\n"
        f"heatsink bulk status {shlex.quote(id)} {same_queue}\n"
        f"or cancel it:\nheatsink bulk cancel {shlex.quote(id)} {same_queue}"
    )


def _unconfirmed(id: str | None, same_queue: str) -> str:
    """Return how to find out whether a batch was accepted, if the answer was lost."""
    if id is None:
        return f"To see whether the batch was accepted: heatsink bulk list {same_queue}"
    return f"A retry with the same --id {shlex.quote(id)} creates no second batch."


def _print_json(value: object) -> None:
    click.echo(msgspec.json.encode(value).decode())


async def _watch(bulk: Bulk, id: str, bar: Progress) -> BatchProgress:
    clock, shown, told = SystemClock(), None, ""
    while not (progress := await bulk.status(id)).is_final:
        shown = shown if shown is not None else bar.add_task("running", total=progress.accepted)
        ended = progress.done + progress.failed + progress.cancelled + progress.lost
        bar.update(shown, completed=ended, description=progress.reason or progress.state)
        waits = progress.reason if progress.reason.startswith(NO_WORKER) else ""
        if bar.disable and waits != told:  # there is no bar to show it
            click.echo(f"{id}: {waits or progress.state}", err=True)
            told = waits
        await clock.sleep(LOOK_S)
    shown = shown if shown is not None else bar.add_task("running", total=progress.accepted)
    bar.update(shown, completed=progress.accepted, description=progress.state)
    return progress


def _conclude(progress: BatchProgress, same_queue: str) -> None:
    parts = [f"{progress.done:,} done", f"{progress.failed:,} failed"]
    parts += [f"{progress.cancelled:,} cancelled"] if progress.cancelled else []
    parts += [f"{progress.lost:,} lost"] if progress.lost else []
    click.echo(f"{progress.state}: {', '.join(parts)} of {progress.accepted:,}", err=True)
    if progress.lost:
        click.echo(progress.reason, err=True)
    if progress.failed:
        words = f"heatsink bulk failures {shlex.quote(progress.id)} --csv {same_queue}"
        click.echo(f"see: {words}", err=True)
    if progress.state != "done":
        click.get_current_context().exit(1)


@bulk.command()
@config_option
@click.argument("batch_id", metavar="BATCH")
@queue_or_server_options
@json_option
def status(batch_id: str, as_json: bool, **options: Any) -> None:
    """Show the progress of BATCH."""
    progress: BatchProgress = _with_bulk(lambda bulk: bulk.status(batch_id), **options)
    if as_json:
        _print_json(progress)
        return
    known = {name: getattr(progress, name) for name in progress.__struct_fields__}
    start_ms, eta_s, missing = (known.pop(name) for name in ("start_ms", "eta_s", "missing"))
    known["missing"] = f"items {named(missing)}" if missing else ""
    known["start"] = f"{datetime.fromtimestamp(start_ms / 1000, UTC):%F %T} UTC" if start_ms else ""
    known["eta"] = f"{eta_s:,.1f} s" if eta_s and not progress.is_final else ""
    for name, value in known.items():
        if value != "":
            text = f"{value:,}" if isinstance(value, int) else _plain(str(value))
            click.echo(f"{name:<10} {text}")


def _plain(text: str) -> str:
    """Return the text without unprintable characters: users' names must not control a terminal."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


@bulk.command("list")
@config_option
@queue_or_server_options
@click.option("--tenant", default="", help="Only batches of this tenant.")
@click.option(
    "--limit",
    type=WholeRange(1, LIST_MAX),
    default=50,
    show_default=True,
    help="Maximum number of batches.",
)
@json_option
def list_batches(tenant: str, limit: int, as_json: bool, **options: Any) -> None:
    """List the newest batches."""
    batches = _with_bulk(lambda bulk: bulk.list(limit, tenant), **options)
    if as_json:
        _print_json(batches)
        return
    _print_batches(batches)


def _print_batches(batches: Sequence[Batch]) -> None:
    heads = ("batch", "action", "tenant", "state", "items", "")
    _print_table(
        heads, [(b.id, b.action, b.tenant, b.state, f"{b.items:,}", b.reason) for b in batches]
    )


def _print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print one line per row. Lines are never cut, so that users can copy what they see."""
    columns = [[_plain(word) for word in column] for column in zip(heads, *rows, strict=True)]
    widths = [max(map(cell_len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        words = map(set_cell_size, row, widths)
        click.echo("  ".join(words).rstrip())


@bulk.command()
@config_option
@queue_or_server_options
@store_option
@json_option
def controls(store: str | None, as_json: bool, **options: Any) -> None:
    """Show limits and their use, paused tenants and actions, and weights of tenants.

    With --queue, also name the data store: it has what operators have changed.
    """

    async def run(bulk: Bulk | RemoteBulk) -> ControlLines:
        if isinstance(bulk, RemoteBulk):
            return await bulk.controls()
        return ControlLines(limit_lines(await bulk.limits()), changed_in(store) if store else [])

    found: ControlLines = _with_bulk(run, **options)
    if as_json:
        _print_json(found)
        return
    _print_limits(found.limits)
    click.echo()
    if found.settings:
        rows = [
            (each.name, shown_value(each.value), each.by, f"{each.changed:%F %H:%M}", each.reason)
            for each in found.settings
        ]
        _print_table(("setting", "value", "by", "when", "why"), rows)
    elif options["queue"] and not store:
        click.echo("To see what is paused or changed, add --store URL, or use --server.")
    else:
        click.echo("Nothing is paused, and no weight or limit is changed.")


def _print_limits(limits: Sequence[LimitLine]) -> None:
    if not limits:
        click.echo("No worker has a limit.")
        return
    rows = [
        (each.name, each.allows + mark, use.key, f"{use.running:,}", f"{use.waiting:,}")
        for each in limits
        for mark in [" (changed)" if each.changed else ""]
        for use in each.uses or [KeyUseLine("", 0, 0)]
    ]
    _print_table(("limit", "allows", "key", "running", "waiting"), rows)


@bulk.command()
@config_option
@click.argument("batch_id", metavar="BATCH")
@queue_or_server_options
@click.option("--csv/--json", "as_csv", help="Print CSV, or one JSON object per line.")
def failures(batch_id: str, as_csv: bool, **options: Any) -> None:
    """List the items of BATCH that failed and are not retried, with the reasons."""

    async def run(bulk: Bulk) -> None:
        async for line in failure_lines(bulk.failures(batch_id), as_csv):
            click.echo(line, nl=False)

    _with_bulk(run, **options)


@bulk.command()
@config_option
@click.argument("batch_id", metavar="BATCH")
@queue_or_server_options
@click.option("--after", type=WholeRange(-1), default=-1, help="Index of the last result you have.")
@click.option("--csv/--json", "as_csv", help="Print CSV, or one JSON object per line.")
def results(batch_id: str, after: int, as_csv: bool, **options: Any) -> None:
    """Print what the handler returned for the items of BATCH that are done, in their order.

    The batch must have been submitted with --keep-results.
    """

    async def run(bulk: Bulk) -> None:
        async for line in result_lines(bulk.results(batch_id, after), as_csv):
            click.echo(line, nl=False)

    _with_bulk(run, **options)


def _steering(name: str, method: str, said: str, text: str) -> None:
    @bulk.command(name, help=text)
    @config_option
    @click.argument("batch_id", metavar="BATCH")
    @queue_or_server_options
    @json_option
    def steer(batch_id: str, as_json: bool, **options: Any) -> None:
        async def run(bulk: Bulk) -> BatchProgress | None:
            await getattr(bulk, method)(batch_id)
            try:
                return await bulk.status(batch_id) if as_json else None
            except HeatsinkError as error:
                raise Unavailable(f"{batch_id}: {said}, but no status: {error}") from error

        progress = _with_bulk(run, **options)
        if as_json:
            _print_json(progress)
        else:
            click.echo(f"{batch_id}: {said}")


_steering(
    "cancel",
    "cancel",
    "waiting items will not run",
    "Cancel the waiting items of BATCH. Items that are running may finish.",
)
_steering("pause", "pause", "paused", "Pause BATCH: start no more items until `bulk resume`.")
_steering("resume", "resume", "resumed", "Resume BATCH after `bulk pause`.")
_steering(
    "retry-failed", "retry_failed", "failed items run again", "Run the failed items of BATCH again."
)


@bulk.command()
@config_option
@click.argument("count", type=WholeRange(1, PARTITIONS_MAX))
@queue_options
@json_option
def repartition(count: int, as_json: bool, **options: Any) -> None:
    """Change the queue's number of partitions to COUNT. Producers and workers may keep running."""
    plan = _with_bulk(lambda bulk: bulk.repartition(count), **options)
    if as_json:  # without places: their URLs may have passwords
        names = ("partitions", "high_water", "version")
        _print_json({name: getattr(plan, name) for name in names})
        return
    used = counted(plan.partitions, "partition")
    click.echo(f"new batches use {used}; queued items stay where they are")


@bulk.command()
@config_option
@queue_options
@json_option
def places(as_json: bool, **options: Any) -> None:
    """List which Redis holds each partition of the queue."""
    found: list[PartitionPlace] = _with_bulk(lambda bulk: bulk.places(), **options)
    if as_json:
        _print_json(found)
        return
    rows = [
        (str(each.number), each.place, each.moves_to and f"moves to {each.moves_to}")
        for each in found
    ]
    _print_table(("partition", "place", ""), rows)


@bulk.command()
@config_option
@click.argument("partition", type=WholeRange(0, NUMBERS_MAX))
@click.argument("url")
@queue_options
@json_option
def place(partition: int, url: str, as_json: bool, **options: Any) -> None:
    """Move PARTITION to the Redis at URL, or to `home`, while producers and workers run.

    The partition gets no new parts. When its parts have ended, it moves. If this command is killed,
    run it again to continue. To cancel the move, place the partition where it is now.
    """
    before: list[str] = []
    is_moved: list[bool] = []

    async def run(bulk: Bulk) -> PartitionPlace:
        before.append(place_in(await bulk.plan(), partition).place)
        with progress_bar() as bar:
            shown = bar.add_task(f"asking the Redis at {shown_url(url)}", total=None)
            async for step in bulk.moving(partition, url):
                bar.update(shown, description=told(step))
        is_moved.append(True)
        return place_in(await bulk.plan(), partition)

    try:
        found = _with_bulk(run, **options)
    except KeyboardInterrupt:
        click.echo(f"Interrupted. {_unfinished(partition, is_moved, *before)}", err=True)
        raise
    except Retryable as error:
        raise Unavailable(f"{error}. {_unfinished(partition, is_moved, *before)}") from error
    if as_json:
        _print_json(found)
    else:
        click.echo(f"partition {partition} is at {found.place}")


def _unfinished(partition: int, is_moved: Sequence[bool], before: str = "") -> str:
    if not before:
        return "The move has not begun."
    if is_moved:
        return f"Partition {partition} has moved. See: heatsink bulk places"
    return (
        f"If the move has begun, partition {partition} gets no new parts until it is done: run the "
        f"same command again, or give the move up: heatsink bulk place {partition} {before}"
    )
