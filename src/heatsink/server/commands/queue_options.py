"""Options of every command that uses the queue of bulk actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from heatsink.bulk.bulk import PARTITIONS, PARTITIONS_MAX, REPLICAS_MAX, BulkSettings

from .configuration import WholeRange, Word

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
        default=PARTITIONS,
        show_default=True,
        help="Number of partitions of a new queue. An existing queue keeps its number.",
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

OPTIONS = (
    click.option(
        "--queue",
        type=Word("Use redis://host:6379, or embedded:///heatsink-data/queue beside `serve`."),
        required=True,
        help="URL of the queue: redis://host:6379",
    ),
    *SHAPE,
)


def queue_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def settings_from(
    stage: str,
    partitions: int,
    legacy: bool,
    relaxed: bool,
    replicas: int | None = None,
    **others: Any,
) -> BulkSettings:
    return BulkSettings(
        stage=stage,
        partitions=partitions,
        partitioned=not legacy,
        durability="relaxed" if relaxed else "fsync",
        replicas=replicas,
        **others,
    )
