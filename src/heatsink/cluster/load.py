"""How busy the nodes and slots of a cluster are, from the counters that the nodes keep.

A node counts, for each of its slots, CPU time and bytes since it began to count. `SlotRates` turns
two readings of these counters into rates. It takes the median of the last windows, so that one busy
second does not count. A counter that went down, or a slot with another owner, begins at zero again.

Servers count the time in which they run the commands of a slot. They also need time to read
requests and to write answers, often several times as much. `SlotRates` divides the whole CPU time
of the nodes among the slots in proportion to their counted time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median

import msgspec

SLOTS = 16_384
WINDOWS = 3
OVERHEAD_MAX = 50.0  # an idle node needs CPU time for itself, which no slot causes


class SlotCounters(msgspec.Struct, frozen=True):
    """What the owner of a slot has counted for the slot, and what its replicas have counted."""

    owner: str
    keys: int
    cpu_us: int
    bytes_in: int
    bytes_out: int


class NodeCounters(msgspec.Struct, frozen=True):
    """A primary node: its name, memory and capacity. `memory_max` is 0 if it has no limit."""

    id: str
    address: str
    memory: int
    dataset: int
    memory_max: int
    cpu_s: float = 0.0
    """The CPU time that the node has used since its start."""
    replicas: int = 0
    cores: float = 1.0
    """How much CPU the node can use for commands. A node of twice the speed has 2."""
    kind: str = ""
    """A hash of its modules, functions and users. Slots move only between nodes of one kind."""


class Snapshot(msgspec.Struct, frozen=True):
    """The counters of all primaries at one time. `at_s` is a monotonic time."""

    at_s: float
    nodes: tuple[NodeCounters, ...]
    slots: Mapping[int, SlotCounters]


class SlotLoad(msgspec.Struct, frozen=True):
    """The load of one slot. `cpu` is the share of a core; `size` is an estimate in bytes."""

    slot: int
    node: str
    cpu: float
    net_s: float
    written_s: float
    keys: int
    size: int


class NodeLoad(msgspec.Struct, frozen=True):
    """A primary node and what it can do."""

    id: str
    address: str
    cores: float
    net_max_s: float
    memory: int
    memory_max: int
    replicas: int = 0
    kind: str = ""


class ClusterLoad(msgspec.Struct, frozen=True):
    """The load of a cluster at `at_s`: all primaries and all slots."""

    at_s: float
    nodes: tuple[NodeLoad, ...]
    slots: tuple[SlotLoad, ...]


class SlotRates:
    """Turns snapshots of counters into loads. Call `add` once a window."""

    def __init__(self, net_max_s: float, windows: int = WINDOWS) -> None:
        """`net_max_s` is how many bytes a second the network of a node carries."""
        self._net_max_s = net_max_s
        self._windows = windows
        self._last: Snapshot | None = None
        self._rates: dict[int, deque[tuple[float, float, float]]] = {}
        self._overheads: deque[float] = deque(maxlen=windows)

    def add(self, snapshot: Snapshot) -> ClusterLoad | None:
        """Return the load up to this snapshot; None after the first snapshot."""
        last, self._last = self._last, snapshot
        if last is None or snapshot.at_s <= last.at_s:
            return None
        took_s = snapshot.at_s - last.at_s
        counted = 0.0
        for slot, counters in snapshot.slots.items():
            rates = self._rates.setdefault(slot, deque(maxlen=self._windows))
            rates.append(_rates(counters, last.slots.get(slot), took_s))
            counted += rates[-1][0]
        for gone in self._rates.keys() - snapshot.slots.keys():
            del self._rates[gone]
        used = _cpu(snapshot, last) / took_s
        self._overheads.append(min(max(used / counted if counted else 1.0, 1.0), OVERHEAD_MAX))
        return ClusterLoad(
            snapshot.at_s,
            tuple(_node_load(node, self._net_max_s) for node in snapshot.nodes),
            tuple(self._slot_loads(snapshot)),
        )

    def _slot_loads(self, snapshot: Snapshot) -> list[SlotLoad]:
        weights, overhead = _bytes_per_key(snapshot), median(self._overheads)
        found = []
        for slot, counters in snapshot.slots.items():
            cpu, net_s, written_s = (median(each) for each in zip(*self._rates[slot], strict=True))
            size = round(counters.keys * weights.get(counters.owner, 0.0))
            load = SlotLoad(
                slot, counters.owner, cpu * overhead, net_s, written_s, counters.keys, size
            )
            found.append(load)
        return found


def _rates(
    now: SlotCounters, before: SlotCounters | None, took_s: float
) -> tuple[float, float, float]:
    """Return CPU, bytes and written bytes a second since the last reading."""
    fresh = before is None or before.owner != now.owner or now.cpu_us < before.cpu_us
    zero = SlotCounters(now.owner, 0, 0, 0, 0)
    since = zero if fresh or before is None else before
    bytes_in = max(now.bytes_in - since.bytes_in, 0) / took_s
    bytes_out = max(now.bytes_out - since.bytes_out, 0) / took_s
    return (now.cpu_us - since.cpu_us) / 1e6 / took_s, bytes_in + bytes_out, bytes_in


def _cpu(now: Snapshot, before: Snapshot) -> float:
    """The CPU time that all nodes have used since the last reading."""
    used_s = {node.id: node.cpu_s for node in before.nodes}
    return sum(max(node.cpu_s - used_s.get(node.id, node.cpu_s), 0.0) for node in now.nodes)


def _bytes_per_key(snapshot: Snapshot) -> dict[str, float]:
    """Return the mean size of a key on each node. Nodes do not count the memory of a slot."""
    keys: dict[str, int] = {}
    for counters in snapshot.slots.values():
        keys[counters.owner] = keys.get(counters.owner, 0) + counters.keys
    return {node.id: node.dataset / max(keys.get(node.id, 0), 1) for node in snapshot.nodes}


def _node_load(node: NodeCounters, net_max_s: float) -> NodeLoad:
    return NodeLoad(
        node.id,
        node.address,
        node.cores,
        net_max_s,
        node.memory,
        node.memory_max,
        node.replicas,
        node.kind,
    )
