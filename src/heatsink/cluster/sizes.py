"""How much data slots have, and how much nodes may still take.

Only newer Redis servers count the bytes of a slot. Elsewhere keys are measured: all keys of a slot
if they are few, otherwise a part of them. The upper bound for a slot that was measured in part adds
three standard errors. The measured part may also have missed large keys. The *rule of three* says
how many, and each of these counts as the largest measured key. A single huge key that was missed
can still exceed the bound. So the mover also watches the memory of both nodes during a migration.

A server may send a large value in one piece. Then the target needs memory for this piece beside the
value itself, until the value has arrived (`piece`, `headroom`).

A source needs memory for the copy: its child process keeps each page of memory as it was when the
copy began, so each write during the copy costs a page. `may_copy` limits the size of the copy for
this reason. So even a source that is nearly full can give slots away, if the copy ends before
clients have written much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

import msgspec

ROOM = 0.8  # of a node's memory limit: slots may fill it up to here
CROWDED = 0.87  # of the limit: slots leave a node with more data, until it is below ROOM
FULL = 0.92  # of the limit: a migration that fills a node up to here is cancelled
GIVE = 0.01  # of the limit: what even a full source may use for a copy
COPY_S = 20e6  # bytes of slots that a source copies a second, at least
PAGES = 16  # bytes of pages that are kept for each written byte: writes are small, pages large
SURE = 3.0
IN_TRANSIT = 1.4  # of the largest key: measured, 1.04 for a value of 30 MB and 1.36 for 3 MB
MARGIN = 1.1  # for writes during the move, and for elements that were not looked at
SLOT_BYTES = 4_096  # what a slot needs for itself


class SlotSize(msgspec.Struct, frozen=True):
    """The data of a slot: an estimate in bytes, an upper bound, and the number of keys."""

    size: int
    most: int
    keys: int = 0
    piece: int = 0
    """What its largest key takes on the target in addition, while it arrives."""


def size_of(keys: int, measured: Sequence[int]) -> SlotSize:
    """Return the size of a slot with this number of keys, of which some or all were measured."""
    if not measured:
        return SlotSize(0, SLOT_BYTES, keys)
    largest, count = max(measured), len(measured)
    piece = round(largest * IN_TRANSIT)
    if count >= keys:
        whole = sum(measured)
        return SlotSize(whole, round(whole * MARGIN) + SLOT_BYTES, keys, piece)
    mean = fmean(measured)
    error = SURE * stdev(measured) / math.sqrt(count) if count > 1 else largest
    most = keys * (mean + error + largest * SURE / count)
    return SlotSize(round(keys * mean), round(most * MARGIN) + SLOT_BYTES, keys, piece)


class NodeMemory(msgspec.Struct, frozen=True):
    """The memory of a node: what it uses, and its limit in bytes."""

    used: int
    limit: int
    reserve: int = 0
    """What its replication buffers will use in addition, as soon as slots arrive."""
    received: int | None = None
    """The bytes that it has received in migrations so far, if it counts them."""
    data: int | None = None
    """What it uses without fragmentation, which stays when slots leave; None if that is `used`."""

    @property
    def room(self) -> float:
        """How many bytes of slots it may take."""
        return max(ROOM * self.limit - self.used - self.reserve, 0.0)

    @property
    def headroom(self) -> float:
        """How many bytes it may use above its room while slots arrive."""
        return (FULL - ROOM) * self.limit

    @property
    def spare(self) -> float:
        """How many bytes it has left for a copy of slots."""
        return max(self.limit - self.used, GIVE * self.limit)

    @property
    def excess(self) -> float:
        """How many bytes of slots should leave, because it is nearly full."""
        return self._data - ROOM * self.limit if self._data > CROWDED * self.limit else 0.0

    @property
    def is_relieved(self) -> bool:
        """Whether enough slots have left a node that was nearly full."""
        return self._data <= ROOM * self.limit

    @property
    def _data(self) -> int:
        return self.used if self.data is None else self.data

    @property
    def is_full(self) -> bool:
        return self.used > FULL * self.limit

    def is_worn(self, before: NodeMemory) -> bool:
        """Whether a copy has used up what the node could spare `before` it."""
        return self.used > max(FULL * self.limit, before.used + GIVE * self.limit)


def may_copy(spare: float, written_s: float) -> float:
    """Return how many bytes of slots a source may copy at once.

    The source has `spare` bytes of memory left, and clients write `written_s` bytes a second to it.
    """
    return spare * COPY_S / (PAGES * written_s) if written_s else math.inf


def memory_of(info: Mapping[str, Any], sharing: int, declared: int = 0) -> NodeMemory:
    """Return the memory of a node from its `INFO` (memory, replication, stats).

    A node may have two limits: the one that leaves less memory counts. One limit is `maxmemory`:
    against it, the server counts its data without the buffers of replication. The other limit is
    the memory of the machine: against it, all memory of the process counts, even what fragmentation
    wastes, and the pages that a child process keeps. Without `maxmemory`, the node's part of the
    machine is the only limit: `declared`, or an equal share for each of the `sharing` nodes.
    """
    used, resident = int(info["used_memory"]), int(info.get("used_memory_rss", 0))
    machine = int(info.get("total_system_memory", 0)) or 2**62
    backlog = int(info.get("repl_backlog_size", 0)) if info.get("connected_slaves") else 0
    buffered = int(
        info.get("mem_total_replication_buffers", info.get("mem_replication_backlog", 0))
    )
    reserve = max(backlog - buffered, 0)
    received = info.get("total_net_cluster_slot_import_bytes")
    limit = int(info.get("maxmemory", 0))
    limited = NodeMemory(
        max(used - int(info.get("mem_not_counted_for_evict", 0)), 0), limit, reserve, received
    )
    share = machine if limit else (declared or machine // max(sharing, 1))
    kept = int(info.get("current_cow_size", 0))
    whole = NodeMemory(max(used, resident) + kept, share, reserve, received, used)
    return min((limited, whole) if limit else (whole,), key=lambda each: (each.room, each.spare))
