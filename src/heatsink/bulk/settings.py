"""The settings of the queue of bulk actions, and of a worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from heatsink.errors import InvalidSetting
from heatsink.primitives.allowed_urls import check_prefixes
from heatsink.primitives.checks import (
    CheckedStruct,
    check_kind,
    check_number,
    check_whole,
    shown,
)

from .limits import parse_amounts

PARTITIONS_MAX = 1_024
REPLICAS_MAX = 100
WORKERS_MAX = 10_000
HANDLER_PROCESSES_MAX = 1_000
Durability = Literal["fsync", "relaxed"]


class BulkSettings(CheckedStruct, frozen=True):
    """Settings of the queue of bulk actions. All processes that use a queue need the same settings.

    `BulkSettings(partitions=32, weights={"acme": 2.0})` gives one tenant a double share. An invalid
    value raises `InvalidSetting`. `partitions` and `places` are used when a queue is created: the
    first process stores them in the queue, and all processes follow the stored values. A process
    that was started with other values is refused with `Misconfigured`.
    """

    partitions: int | None = None
    """Number of partitions of a new queue; 16 if it is not set. Later only `repartition` changes
    the number."""
    partitioned: bool = True
    """`False` uses the unpartitioned queue, for a rollout without downtime."""
    stage: str = "default"
    """Separates deployments that share a Redis."""
    durability: Durability = "fsync"
    """`relaxed` accepts a batch before it is on disk."""
    replicas: int | None = None
    """How many replicas must acknowledge a batch before it is accepted. By default, all replicas
    that are connected. A fail-over loses nothing if every replica that may be promoted must
    acknowledge."""
    places: Mapping[int, str] = {}
    """Partitions of a new queue that another Redis holds, by number: `{3: "redis://other"}`. Later
    only `place` moves a partition."""
    deadline_s: float = 30.0
    """How long a call retries while the queue does not answer."""
    weights: Mapping[str, float] = {}
    """Weights of tenants: a tenant with weight 2.0 gets twice the worker time of one that is not
    listed here."""
    limits: Mapping[str, str] = {}
    """Limits with other values than the actions declare: `{"mail": "5, 20/s"}` allows at most 5
    running and 20 starts per second. `"0"` stops all items that need a place at the limit."""
    paused_tenants: Mapping[str, bool] = {}
    """Tenants whose items do not start: `{"acme": True}`. Only the deployment's setting counts."""
    paused_actions: Mapping[str, bool] = {}
    """Actions whose items do not start: `{"mail": True}`. Only the deployment's setting counts."""
    webhooks: tuple[str, ...] = ()
    """URL prefixes that may be called when a batch is done: a host, or the start of a path."""

    def __post_init__(self) -> None:
        if self.partitions is not None:
            check_whole("partitions", self.partitions, 1, PARTITIONS_MAX)
        check_kind("partitioned", self.partitioned, bool)
        check_number("deadline_s", self.deadline_s, 0.1, 3_600)
        if self.durability not in get_args(Durability):
            wrong = f"durability must be 'fsync' or 'relaxed', not {shown(self.durability)}"
            raise InvalidSetting(wrong, field="durability")
        if self.replicas is not None:
            check_whole("replicas", self.replicas, 0, REPLICAS_MAX)
        for tenant, weight in self.weights.items():
            check_number(f"weights[{tenant!r}]", weight, 0.001, 1_000)
        for name, text in self.limits.items():
            parse_amounts(f"limits[{name!r}]", text)
        check_prefixes("webhooks", self.webhooks)


class ConsumerSettings(CheckedStruct, frozen=True):
    """The settings of `hs.worker(actions, …)`, such as `workers=16`."""

    workers: int = 8
    """Workers in each partition, until a coordinator sets another number."""
    workers_max: int = 256
    """Maximum number of workers in one partition."""
    lease_s: float = 10.0
    """Seconds of the lease on claimed items. If it is not renewed, other workers get the items."""
    member_s: float = 5.0
    """Seconds of the lease on partitions. If it is not renewed, other processes get the partitions.
    """
    grace_s: float = 8.0
    """How long running items may take to finish after `stop`."""
    partitioned: bool = True
    """The same setting as in `BulkSettings`."""
    concurrency: int | None = None
    """Maximum number of handlers that run at once in this process; None means no such maximum."""
    handler_processes: int | None = None
    """Maximum number of processes for handlers with `process=True`; None means one for each CPU."""
    mark: str = ""
    """Text with which the ids of this process's leases begin. A parent gives each process that it
    starts another mark, which nobody else uses. When a process dies, the parent ends its leases."""

    def __post_init__(self) -> None:
        check_kind("mark", self.mark, str)
        check_whole("workers", self.workers, 1, WORKERS_MAX)
        check_whole("workers_max", self.workers_max, self.workers, WORKERS_MAX)
        check_number("lease_s", self.lease_s, 0.1, 3_600)
        check_number("member_s", self.member_s, 0.1, 3_600)
        check_number("grace_s", self.grace_s, 0, 3_600)
        check_kind("partitioned", self.partitioned, bool)
        if self.concurrency is not None:
            check_whole("concurrency", self.concurrency, 1, WORKERS_MAX)
        if self.handler_processes is not None:
            check_whole("handler_processes", self.handler_processes, 1, HANDLER_PROCESSES_MAX)
