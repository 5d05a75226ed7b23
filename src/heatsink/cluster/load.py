"""How busy the nodes and slots of a cluster are, from the counters that the nodes keep.

Each node counts the CPU time and the bytes of each of its slots. `SlotRates` turns two readings of
these counters into rates. It takes the median of the last windows, so that one busy second does not
count. It compares a node's counters only with earlier counters of the same node. So a replica that
becomes a primary keeps its counters. If a counter went down, or if a slot is new on its node,
counting begins at zero again.

Replicas count the writes that their primary sends them in the same way as commands of clients. But
a replica answers only commands of clients. So if a replica has sent no bytes for a slot, all its
work for this slot was replicated writes. From such slots Heatsink learns what a replicated write
costs a replica. In all other slots, Heatsink subtracts this cost, and counts the rest as reads. A
primary and its replicas together are as busy as the busiest of them (`SlotDemand.used`).

Servers count the time in which they run the commands of a slot. They also need time to read
requests and to write answers, often several times as much. `SlotRates` divides the whole CPU time
of the primaries among the slots in proportion to their counted time. It does the same for the
replicas.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple

import msgspec

from .sizes import size_of

WINDOWS = 3
OVERHEAD_MAX = 50.0  # an idle node needs CPU time for itself, which no slot causes


class SlotCounters(msgspec.Struct, frozen=True):
    """What one node has counted for a slot: its owner, or a replica of the owner."""

    owner: str
    keys: int
    cpu_us: int
    bytes_in: int
    bytes_out: int
    size: int | None = None
    """Its bytes of memory, if the server counts them."""


ZERO = SlotCounters("", 0, 0, 0, 0)


class NodeCounters(msgspec.Struct, frozen=True):
    """A primary node: its name, memory and capacity."""

    id: str
    address: str
    memory: int
    dataset: int
    room: float = math.inf
    """How many bytes of slots the node may still take."""
    headroom: float = math.inf
    """How many bytes it may use above its room while slots arrive."""
    spare: float = math.inf
    """How many bytes it has left for a copy of slots."""
    excess: float = 0.0
    """How many bytes of slots should leave, because it is nearly full."""
    cpu_s: float = 0.0
    """The CPU time that the node has used since its start."""
    replicas: int = 0
    cores: float = 1.0
    """How much CPU the node can use for commands: 2 for twice the speed, 0 to drain the node."""
    kind: str = ""
    """A hash of its modules, functions and users. Slots move only between nodes of one kind."""


class ClusterCounters(msgspec.Struct, frozen=True):
    """The counters of all primaries at one time. `at_s` is a monotonic time."""

    at_s: float
    nodes: tuple[NodeCounters, ...]
    slots: Mapping[int, SlotCounters]
    replicas: Mapping[str, Mapping[int, SlotCounters]] = msgspec.field(default_factory=dict)
    """What each replica has counted, by its id. `owner` is the id of its primary."""
    replicas_cpu_s: Mapping[str, float] = msgspec.field(default_factory=dict)
    """The CPU time that each replica has used since its start."""

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
    """The load of one slot. `cpu` is the share of a core, on its primary.

    `size` is its data in bytes: an estimate, until the slot is measured. `most` is an upper bound
    of `size`; it is 0 if the slot was not measured.
    """

    slot: int
    node: str
    cpu: float
    net_s: float
    written_s: float
    keys: int
    size: int
    most: int = 0
    replicated_cpu: float = 0.0
    """What its replicated writes cost each replica, as a share of a core."""
    replicated_s: float = 0.0
    """How many bytes a second its replicated writes cost each replica."""
    reads_cpu: float = 0.0
    """What reads cost all replicas together, as a share of a core."""
    reads_s: float = 0.0
    """How many bytes a second reads cost all replicas together."""
    piece: int = 0
    """What its largest key takes on a target in addition, while it arrives; 0: not measured."""

    @property
    def heat(self) -> float:
        """The CPU that clients cause, on the primary and by reads on its replicas."""
        return self.cpu + self.reads_cpu


class NodeLoad(msgspec.Struct, frozen=True):
    """A primary node and what it can do."""

    id: str
    address: str
    cores: float
    net_max_s: float
    memory: int
    room: float = math.inf
    """How many bytes of slots the node may still take."""
    replicas: int = 0
    kind: str = ""
    spare: float = math.inf
    """How many bytes it has left for a copy of slots."""
    excess: float = 0.0
    """How many bytes of slots should leave, because it is nearly full."""
    headroom: float = math.inf
    """How many bytes it may use above its room while slots arrive."""


class SlotDemand(msgspec.Struct):
    """What slots demand of a primary and its replicas, in sum. The fields are as in `SlotLoad`."""

    cpu: float = 0.0
    net_s: float = 0.0
    replicated_cpu: float = 0.0
    replicated_s: float = 0.0
    reads_cpu: float = 0.0
    reads_s: float = 0.0

    def add(self, other: SlotLoad | SlotDemand, sign: int = 1) -> None:
        """Add the demand of a slot or of several; subtract it if `sign` is -1."""
        self.cpu += sign * other.cpu
        self.net_s += sign * other.net_s
        self.replicated_cpu += sign * other.replicated_cpu
        self.replicated_s += sign * other.replicated_s
        self.reads_cpu += sign * other.reads_cpu
        self.reads_s += sign * other.reads_s

    def joined(self, other: SlotDemand, sign: int = 1) -> SlotDemand:
        """Return the sum; the difference if `sign` is -1."""
        both = SlotDemand()
        both.add(self)
        both.add(other, sign)
        return both

    def busiest(self, replicas: int) -> tuple[float, float]:
        """Return the CPU and the bytes a second of the busiest of a primary and its replicas.

        Replicas share the reads. Without replicas, the primary gets them.
        """
        if not replicas:
            return self.cpu + self.reads_cpu, self.net_s + self.reads_s
        return (
            max(self.cpu, self.replicated_cpu + self.reads_cpu / replicas),
            max(self.net_s, self.replicated_s + self.reads_s / replicas),
        )

    def used(self, node: NodeLoad) -> float:
        """Return how busy `node` is with this demand.

        This is the share of its capacity that the busiest of the node and its replicas uses.
        """
        cpu, net_s = self.busiest(node.replicas)
        return max(cpu / (node.cores or 1.0), net_s / node.net_max_s)


def demand_of(slots: Iterable[SlotLoad]) -> SlotDemand:
    whole = SlotDemand()
    for slot in slots:
        whole.add(slot)
    return whole


def mean_used(whole: SlotDemand, nodes: Iterable[NodeLoad]) -> float:
    """Return how busy each node would be if the demand were spread evenly over `nodes`."""
    able = [node for node in nodes if node.cores]
    cores = max(sum(node.cores for node in able), 1e-9)
    net_s = max(sum(node.net_max_s for node in able), 1e-9)
    replicas = sum(node.replicas for node in able) / max(len(able), 1)
    if not replicas:
        return max((whole.cpu + whole.reads_cpu) / cores, (whole.net_s + whole.reads_s) / net_s)
    return max(
        whole.cpu / cores,
        whole.net_s / net_s,
        (whole.replicated_cpu + whole.reads_cpu / replicas) / cores,
        (whole.replicated_s + whole.reads_s / replicas) / net_s,
    )


class ClusterLoad(msgspec.Struct, frozen=True):
    """The load of a cluster at `at_s`: all primaries and all slots."""

    at_s: float
    nodes: tuple[NodeLoad, ...]
    slots: tuple[SlotLoad, ...]


class NodeUsage(msgspec.Struct, frozen=True):
    """How busy a node is. `ratio` is 1 for a node as busy as the mean.

    It is the share of its capacity that the node uses, divided by the share that all nodes together
    use. `cpu` and `net_s` are the figures of the busiest of the node and its replicas.
    """

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
    slots = {node.id: 0 for node in load.nodes}
    demands = {node.id: SlotDemand() for node in load.nodes}
    whole = SlotDemand()
    for slot in load.slots:
        owner = owners.get(slot.slot, slot.node) if owners else slot.node
        if owner in demands:
            slots[owner] += 1
            demands[owner].add(slot)
            whole.add(slot)
    mean = mean_used(whole, load.nodes)
    found = []
    for node in load.nodes:
        (cpu, net_s), used = demands[node.id].busiest(node.replicas), demands[node.id].used(node)
        found.append(
            NodeUsage(
                id=node.id,
                address=node.address,
                slots=slots[node.id],
                cpu=cpu,
                net_s=net_s,
                memory=node.memory,
                used=used,
                ratio=used / mean if mean else 1.0,
                replicas=node.replicas,
                cores=node.cores,
            )
        )
    return found


class Rates(NamedTuple):
    """What a slot costs per second, in one window. The fields are as in `SlotLoad`."""

    cpu: float = 0.0
    net_s: float = 0.0
    written_s: float = 0.0
    replicated_cpu: float = 0.0
    replicated_s: float = 0.0
    reads_cpu: float = 0.0
    reads_s: float = 0.0


IDLE = Rates()


class SlotRates:
    """Turns snapshots of counters into loads. Call `add` once a window."""

    def __init__(self, net_max_s: float, windows: int = WINDOWS) -> None:
        """`net_max_s` is how many bytes a second the network of a node carries."""
        self._net_max_s = net_max_s
        self._windows = windows
        self._last: ClusterCounters | None = None
        self._rates: dict[int, deque[Rates]] = {}
        self._overheads: deque[tuple[float, float]] = deque(maxlen=windows)

    def add(self, snapshot: ClusterCounters) -> ClusterLoad | None:
        """Return the load up to this snapshot; None after the first snapshot."""
        last, self._last = self._last, snapshot
        if last is None or snapshot.at_s <= last.at_s:
            return None
        took_s = snapshot.at_s - last.at_s
        replicas = [_ReplicaRates(id, snapshot, last, took_s) for id in snapshot.replicas]
        of_owner: dict[str, list[_ReplicaRates]] = {}
        for each in replicas:
            of_owner.setdefault(each.owner, []).append(each)
        cost = _cost_of_writes(replicas)
        counted = 0.0
        for slot, counters in snapshot.slots.items():
            own = _rates(counters, last.counted_by(counters.owner, slot), took_s)
            rates = _with_replicas(slot, own, of_owner.get(counters.owner, []), cost)
            self._rates.setdefault(slot, deque(maxlen=self._windows)).append(rates)
            counted += rates.cpu
        for gone in self._rates.keys() - snapshot.slots.keys():
            del self._rates[gone]
        now, before = ({node.id: node.cpu_s for node in each.nodes} for each in (snapshot, last))
        used = _used(now, before) / took_s
        on_replicas = _used(snapshot.replicas_cpu_s, last.replicas_cpu_s) / took_s
        counted_there = sum(each.cpu for each in replicas)
        self._overheads.append((_overhead(used, counted), _overhead(on_replicas, counted_there)))
        return ClusterLoad(
            snapshot.at_s,
            tuple(_node_load(node, self._net_max_s) for node in snapshot.nodes),
            tuple(self._slot_loads(snapshot)),
        )

    def _slot_loads(self, snapshot: ClusterCounters) -> list[SlotLoad]:
        weights = _bytes_per_key(snapshot)
        overhead, on_replicas = (median(each) for each in zip(*self._overheads, strict=True))
        found = []
        for slot, counters in snapshot.slots.items():
            rates = _median(self._rates[slot])
            size, keys = counters.size, counters.keys
            most = size_of(1, [size]).most if size is not None else 0
            if size is None:
                size = round(keys * weights.get(counters.owner, 0.0))
            found.append(
                SlotLoad(
                    slot,
                    counters.owner,
                    rates.cpu * overhead,
                    rates.net_s,
                    rates.written_s,
                    keys,
                    size,
                    most,
                    rates.replicated_cpu * on_replicas,
                    rates.replicated_s,
                    rates.reads_cpu * on_replicas,
                    rates.reads_s,
                )
            )
        return found


def _median(windows: Iterable[Rates]) -> Rates:
    if all(each is IDLE for each in windows):
        return IDLE
    return Rates(*(median(each) for each in zip(*windows, strict=True)))


def _overhead(used: float, counted: float) -> float:
    """Return by how much the CPU time of servers exceeds the time that they count for slots."""
    return min(max(used / counted if counted else 1.0, 1.0), OVERHEAD_MAX)


Counted = tuple[float, float, float]
"""CPU (cores), received and sent bytes a second."""


class _ReplicaRates:
    """What the slots of one replica cost it, divided into replicated writes and reads."""

    def __init__(
        self, id: str, now: ClusterCounters, before: ClusterCounters, took_s: float
    ) -> None:
        counters = now.replicas[id]
        self.owner = next((each.owner for each in counters.values()), "")
        self.slots = {
            slot: _rates(each, before.counted_by(id, slot), took_s)
            for slot, each in counters.items()
            if each.owner == self.owner
        }
        self.cpu = sum(cpu for cpu, _, _ in self.slots.values())

    def split(
        self, slot: int, most: float, cost: float | None
    ) -> tuple[float, float, float, float]:
        """Return CPU and bytes of replicated writes, and of reads.

        The writes have at most `most` bytes. Each of these bytes takes the CPU time `cost`, if it
        is known.
        """
        cpu, bytes_in, bytes_out = self.slots.get(slot, (0.0, 0.0, 0.0))
        if not bytes_out:
            return cpu, bytes_in, 0.0, 0.0
        copied = min(bytes_in, most)
        each = cpu / (bytes_in + bytes_out) if cost is None else cost
        writes = min(copied * each, cpu)
        return writes, copied, cpu - writes, bytes_in + bytes_out - copied


def _cost_of_writes(replicas: Sequence[_ReplicaRates]) -> float | None:
    """Return the CPU time that a byte of replicated writes takes, from slots that nobody reads.

    Returns None if there are no such slots. All replicas count together: a node may have one busy
    slot only.
    """
    slots = (each for one in replicas for each in one.slots.values())
    only_written = [each for each in slots if each[1] and not each[2]]
    bytes_in = sum(each[1] for each in only_written)
    return sum(each[0] for each in only_written) / bytes_in if bytes_in else None


def _with_replicas(
    slot: int, own: Counted, replicas: Sequence[_ReplicaRates], cost: float | None
) -> Rates:
    """Return the rates of a slot from its owner's rates and those of the replicas.

    The owner receives all writes from clients, and sends them to each replica. So a replica cannot
    have received more bytes of replicated writes than the owner has received.
    """
    cpu, bytes_in, bytes_out = own
    if not replicas:
        return Rates(cpu, bytes_in + bytes_out, bytes_in) if any(own) else IDLE
    count = len(replicas)
    most = min(bytes_in, bytes_out / count)
    split = (one.split(slot, most, cost) for one in replicas)
    parts = [sum(each) for each in zip(*split, strict=True)]
    if not any(own) and not any(parts):
        return IDLE
    writes_cpu, writes_s, reads_cpu, reads_s = parts
    return Rates(
        cpu,
        bytes_in + bytes_out,
        bytes_in,
        writes_cpu / count,
        writes_s / count,
        reads_cpu,
        reads_s,
    )


def _rates(now: SlotCounters, before: SlotCounters | None, took_s: float) -> Counted:
    """Return the rates of a slot on one node; zero if the node was not known `before`."""
    if before is None:
        return 0.0, 0.0, 0.0
    since = ZERO if now.cpu_us < before.cpu_us else before
    bytes_in = max(now.bytes_in - since.bytes_in, 0) / took_s
    bytes_out = max(now.bytes_out - since.bytes_out, 0) / took_s
    return (now.cpu_us - since.cpu_us) / 1e6 / took_s, bytes_in, bytes_out


def _used(now_s: Mapping[str, float], before_s: Mapping[str, float]) -> float:
    """The CPU time that nodes have used since the last reading."""
    return sum(max(used - before_s.get(id, used), 0.0) for id, used in now_s.items())


def _bytes_per_key(snapshot: ClusterCounters) -> dict[str, float]:
    """Return the mean size of a key on each node."""
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
        node.room,
        node.replicas,
        node.kind,
        node.spare,
        node.excess,
        node.headroom,
    )
