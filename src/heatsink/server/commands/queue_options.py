"""Options of every command that uses the queue of bulk actions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from heatsink.bulk.plan import PARTITIONS, places_of
from heatsink.bulk.settings import PARTITIONS_MAX, REPLICAS_MAX, BulkSettings
from heatsink.client.queue import embedded_folder
from heatsink.cluster.rules import SlotSettings
from heatsink.errors import InvalidSetting, NotFound
from heatsink.stores.embedded import is_made

from .configuration import WORD, WholeRange, Word
from .remote import SERVER


def _places(_: click.Context, __: click.Parameter, words: tuple[str, ...]) -> dict[int, str]:
    pairs = [word.partition("=")[::2] for word in words]
    if any(not number or not url for number, url in pairs):
        raise click.BadParameter("write NUMBER=URL, as in --place 3=redis://other:6379")
    return places_of(dict(pairs))


SHAPE = (
    click.option(
        "--stage",
        default="default",
        show_default=True,
        help="Name that separates deployments on one Redis.",
    ),
    click.option(
        "--partitions",
        type=WholeRange(1, PARTITIONS_MAX),
        show_default=f"{PARTITIONS} for a new queue",
        help="Number of partitions of a new queue. An existing queue stores its number: another "
        "one is refused.",
    ),
    click.option(
        "--place",
        "places",
        multiple=True,
        callback=_places,
        help="Put a partition of a new queue on another Redis, as NUMBER=URL; may be repeated. An "
        "existing queue stores its places: `heatsink bulk place` moves a partition.",
    ),
    click.option(
        "--legacy", is_flag=True, help="Use the older, unpartitioned queue on the same Redis."
    ),
    click.option(
        "--relaxed",
        is_flag=True,
        help="Accept batches before Redis has written them to disk. A crash may lose them.",
    ),
    click.option(
        "--replicas",
        type=WholeRange(0, REPLICAS_MAX),
        help="Number of Redis replicas that must acknowledge a batch; default: all connected ones.",
    ),
)

CLUSTER = (
    click.option(
        "--cluster",
        type=WORD,
        help="URL of a Redis or Valkey Cluster to watch; default: that of --queue, if it is one.",
    ),
    click.option(
        "--balance-cluster",
        is_flag=True,
        help="Move slots of the watched cluster while this process leads.",
    ),
)

OPTIONS = (
    click.option(
        "--queue",
        type=Word("Use redis://host:6379, or embedded:///heatsink-data/queue beside `serve`."),
        required=True,
        help="URL of the queue: redis://host:6379",
    ),
    *SHAPE,
)

QUEUE_OR_SERVER = (
    click.option("--queue", type=WORD, help="URL of the queue: redis://host:6379"),
    click.option(
        "--server",
        type=WORD,
        envvar="HEATSINK_SERVER",
        show_default=f"{SERVER}, if there is no --queue",
        help="URL of a running `heatsink serve`, instead of --queue.",
    ),
    click.option(
        "--token",
        envvar="HEATSINK_TOKEN",
        help="Token of the server, with the scope that the command needs.",
    ),
    *SHAPE,
)


def cluster_settings(
    cluster: str | None, balance_cluster: bool, queue: str | None
) -> dict[str, Any]:
    """Return which cluster to watch, as arguments of `connect`: the named one, or the queue's."""
    of_queue = queue if queue and queue.partition(":")[0].endswith("+cluster") else None
    if balance_cluster and not (cluster or of_queue):
        raise InvalidSetting("--balance-cluster needs --cluster redis+cluster://host:6379")
    return {"cluster": cluster or of_queue or "", "slots": SlotSettings(balance=balance_cluster)}


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(CLUSTER):
        command = option(command)
    return command


def queue_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def queue_or_server_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(QUEUE_OR_SERVER):
        command = option(command)
    return command


def absent_queue(url: str) -> Path | None:
    """Return the folder of an embedded queue that no process has created yet; otherwise None."""
    if url.partition(":")[0] != "embedded":
        return None
    folder = embedded_folder(url)
    return None if is_made(folder) else folder


def check_exists(url: str) -> None:
    """Refuse the URL of a queue that only workers and servers may create.

    Raises `NotFound` if there is no queue in the folder of `embedded:///folder`, and
    `InvalidSetting` for a queue in memory, which ends with the command.
    """
    if url.partition(":")[0] == "memory":
        raise InvalidSetting(
            "queue must name the queue of a running worker or server, such as "
            "embedded:///heatsink-data/queue: memory:// would end with this command",
            field="queue",
        )
    if (folder := absent_queue(url)) is not None:
        raise NotFound(
            f"there is no queue in {folder}: check --queue. `heatsink serve` and `heatsink worker "
            "--queue …` create a queue"
        )


def settings_from(
    stage: str,
    partitions: int | None,
    places: dict[int, str],
    legacy: bool,
    relaxed: bool,
    replicas: int | None = None,
    **others: Any,
) -> BulkSettings:
    return BulkSettings(
        stage=stage,
        partitions=partitions,
        places=places,
        partitioned=not legacy,
        durability="relaxed" if relaxed else "fsync",
        replicas=replicas,
        **others,
    )
