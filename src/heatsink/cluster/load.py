"""How busy the nodes and slots of a cluster are, from the counters that the nodes keep.

Each node counts the CPU time and the bytes of each of its slots. `SlotRates` turns two readings of
these counters into rates. It takes the median of the last windows, so that one busy second does not
count. It compares a node's counters only with earlier counters of the same node. So a replica that
becomes a primary keeps its counters. If a counter went down, or if a slot is new on its node,
counting begins at zero again.

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
    """What one node has counted for a slot: its owner, or a replica of the owner."""

    owner: str
    keys: int
    cpu_us: int
    bytes_in: int
    bytes_out: int


ZERO = SlotCounters("", 0, 0, 0, 0)


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
    replicas: Mapping[str, Mapping[int, SlotCounters]] = msgspec.field(default_factory=dict)
    """What each replica has counted, by its id. `owner` is the id of its primary."""

    def counted_by(self, member: str, slot: int) -> SlotCounters | None:
        """Return what this node had counted for the slot: zero if the slot was not on this node.

        Returns None if this snapshot does not know the node.
        """
        of_owner = self.slots.get(slot)
        if of_owner is not None and of_owner.owner == member:
            return of_owner
        if member in self.replicas:
            return self.replicas[member].get(slot, ZERO)
        return ZERO if any(node.id == member for node in self.nodes) else None


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


class NodeUsage(msgspec.Struct, frozen=True):
    """How busy a node is. `ratio` is its share of used capacity ÷ that of all nodes."""

    id: str
    address: str
    slots: int
    cpu: float
    net_s: float
    memory: int
    used: float
    ratio: float
    replicas: int
    cores: float


def usage_of(load: ClusterLoad, owners: Mapping[int, str] | None = None) -> list[NodeUsage]:
    """Return how busy each node is, or would be if the slots still had these `owners`."""
    nodes = {node.id: node for node in load.nodes}
    slots = dict.fromkeys(nodes, 0)
    cpu, net_s = dict.fromkeys(nodes, 0.0), dict.fromkeys(nodes, 0.0)
    for slot in load.slots:
        owner = owners.get(slot.slot, slot.node) if owners else slot.node
        if owner in nodes:
            slots[owner] += 1
            cpu[owner] += slot.cpu
            net_s[owner] += slot.net_s
    used = {id: max(cpu[id] / node.cores, net_s[id] / node.net_max_s) for id, node in nodes.items()}
    mean = max(
        sum(cpu.values()) / max(sum(node.cores for node in load.nodes), 1e-9),
        sum(net_s.values()) / max(sum(node.net_max_s for node in load.nodes), 1e-9),
    )
    return [
        NodeUsage(
            id=node.id,
            address=node.address,
            slots=slots[node.id],
            cpu=cpu[node.id],
            net_s=net_s[node.id],
            memory=node.memory,
            used=used[node.id],
            ratio=used[node.id] / mean if mean else 1.0,
            replicas=node.replicas,
            cores=node.cores,
        )
        for node in load.nodes
    ]


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
            rates.append(_slot_rates(slot, counters, snapshot, last, took_s))
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


Rates = tuple[float, float, float]


def _slot_rates(
    slot: int, counters: SlotCounters, now: Snapshot, before: Snapshot, took_s: float
) -> Rates:
    """Return CPU, bytes and written bytes a second: of the owner, and of its replicas."""
    cpu, net_s, written_s = _rates(counters, before.counted_by(counters.owner, slot), took_s)
    for id, counted in now.replicas.items():
        reading = counted.get(slot)
        if reading is not None and reading.owner == counters.owner:
            more = _rates(reading, before.counted_by(id, slot), took_s)
            cpu, net_s, written_s = cpu + more[0], net_s + more[1], written_s + more[2]
    return cpu, net_s, written_s


def _rates(now: SlotCounters, before: SlotCounters | None, took_s: float) -> Rates:
    """Return the rates of one node's counters; none if the node was not known before."""
    if before is None:
        return 0.0, 0.0, 0.0
    since = ZERO if now.cpu_us < before.cpu_us else before
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
