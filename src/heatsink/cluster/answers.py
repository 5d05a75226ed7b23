"""What the nodes of a Redis or Valkey Cluster answer, parsed.

`CLUSTER NODES` lists the nodes, their slots, and slots that an interrupted migration has left
half-way. `CLUSTER SLOT-STATS` (Valkey 8.0 or newer, Redis 8.2 or newer) has the counters of each
slot. Some servers keep only the number of keys, unless `cluster-slot-stats-enabled` is `yes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from heatsink.errors import Misconfigured, Unavailable

from .load import SlotCounters
from .slots import SLOTS, ranges_of

SETTING = "cluster-slot-stats-enabled"
FAILING = frozenset({"fail", "fail?", "handshake", "noaddr"})
ENDED = frozenset({"success", "failed", "canceled", "cancelled"})


class Node(msgspec.Struct, frozen=True):
    """A node, as another node of the cluster describes it."""

    id: str
    host: str
    port: int
    flags: frozenset[str]
    primary: str
    """The id of the primary that it replicates; empty for a primary."""
    ranges: tuple[tuple[int, int], ...] = ()
    open_slots: tuple[int, ...] = ()
    """Slots in importing or migrating state. A node knows this of itself only."""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def is_primary(self) -> bool:
        return "master" in self.flags

    @property
    def is_failing(self) -> bool:
        return bool(self.flags & FAILING)

    @property
    def slots(self) -> Iterator[int]:
        for first, last in self.ranges:
            yield from range(first, last + 1)


class SlotMigration(msgspec.Struct, frozen=True):
    """A migration of slots that a node runs or has run."""

    name: str
    source: str
    target: str
    slots: frozenset[int]
    state: str
    message: str = ""
    changed_s: float = 0.0
    """When its state changed last, by the clock of the node; 0 if unknown."""

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED


class Topology(msgspec.Struct, frozen=True):
    """The nodes of a cluster, and why it is not safe to move slots now, if it is not."""

    nodes: tuple[Node, ...]
    trouble: str = ""

    @property
    def primaries(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.is_primary and not node.is_failing)

    @property
    def owners(self) -> dict[int, str]:
        """The owner of each slot."""
        return {slot: node.id for node in self.nodes if node.is_primary for slot in node.slots}

    def replicas(self, primary: str) -> list[Node]:
        """Return the replicas of a primary that do not fail."""
        return [node for node in self.nodes if node.primary == primary and not node.is_failing]

    def known(self, id: str) -> Node:
        """Return the node with this id. Raises `Unavailable` if it has left the cluster."""
        for node in self.nodes:
            if node.id == id:
                return node
        raise Unavailable(f"node {id} has left the cluster")


class Server(msgspec.Struct, frozen=True):
    """A server and its way to move slots.

    `migrateslots`: atomic, started on the source (Valkey 9). `import`: atomic, started on the
    target (Redis 8.4). `setslot`: key by key, by many commands.
    """

    name: str
    version: tuple[int, ...]
    way: Literal["migrateslots", "import", "setslot"]


class NoSlotStatistics(Misconfigured):
    """The servers keep no statistics of slots, or they are turned off (`can_enable`)."""

    def __init__(self, message: str, can_enable: bool = False) -> None:
        super().__init__(message)
        self.can_enable = can_enable


def text(answer: bytes | str) -> str:
    return answer.decode() if isinstance(answer, bytes) else answer


def pairs(answer: Any) -> dict[str, Any]:
    """Return a map that a server sent, in either protocol, with text as its keys."""
    if isinstance(answer, Mapping):
        return {text(name): value for name, value in answer.items()}
    return {text(name): value for name, value in zip(answer[::2], answer[1::2], strict=True)}


def in_order(answer: Any) -> str:
    """Return an answer as text, without the order in which a server happens to list things."""
    if isinstance(answer, Mapping):
        answer = [[name, value] for name, value in answer.items()]
    if isinstance(answer, list | tuple | set | frozenset):
        return f"[{', '.join(sorted(map(in_order, answer)))}]"
    return repr(answer)


def endpoints_in(answer: Sequence[Any], asked: str) -> dict[str, str]:
    """Return the host of each node from `CLUSTER SHARDS`: an address or a name, as configured.

    A node without an endpoint has the host that was `asked`. An unknown endpoint is left out.
    """
    nodes = [pairs(each) for shard in answer for each in pairs(shard)["nodes"]]
    found = {text(node["id"]): text(node.get("endpoint") or asked) for node in nodes}
    return {id: host for id, host in found.items() if host != "?"}


def parse_node(line: str) -> Node:
    """Parse a line of `CLUSTER NODES`. A node that has met no other yet does not know its host."""
    id, where, flags, primary, _, _, _, _, *slots = line.split()
    place = where.partition(",")[0].partition("@")[0]
    host, _, port = place.rpartition(":")
    ranges = [each for each in slots if not each.startswith("[")]
    half = [each for each in slots if each.startswith("[")]
    return Node(
        id=id,
        host=host.strip("[]"),
        port=int(port),
        flags=frozenset(flags.split(",")),
        primary="" if primary == "-" else primary,
        ranges=tuple(_range(each) for each in ranges),
        open_slots=tuple(int(each[1:].partition("-")[0]) for each in half),
    )


def _range(words: str) -> tuple[int, int]:
    first, _, last = words.partition("-")
    return int(first), int(last or first)


def trouble_of(nodes: Sequence[Node], asked: Mapping[str, object]) -> str:
    """Say why no slot should move now; empty if nothing is wrong.

    `asked` has what each node said about itself.
    """
    for node in nodes:
        if node.is_failing:
            return f"{node.address} is failing ({', '.join(sorted(node.flags & FAILING))})"
        if node.open_slots:
            return (
                f"{node.address} has slots in importing or migrating state "
                f"({ranges_of(node.open_slots)}): finish or undo that migration first"
            )
        if isinstance(asked.get(node.id), BaseException):
            return f"{node.address} does not answer"
    covered = sum(1 for node in nodes if node.is_primary for _ in node.slots)
    if covered < SLOTS:
        return f"{SLOTS - covered} slots have no owner"
    return ""


def counted_in(answer: Sequence[Any], owner: str, address: str) -> dict[int, SlotCounters]:
    """Parse the answer of the node at `address` to `CLUSTER SLOT-STATS`.

    `owner` is the owner of the slots: the node itself, or its primary. Raises `NoSlotStatistics` if
    CPU time is missing.
    """
    found: dict[int, SlotCounters] = {}
    for slot, words in answer:
        counted = pairs(words)
        if "cpu-usec" not in counted:
            raise NoSlotStatistics(
                f"{address} does not count the CPU time of slots: set {SETTING} to yes on all "
                "nodes (`heatsink cluster look URL --enable` does it)",
                can_enable=True,
            )
        found[slot] = SlotCounters(
            owner,
            int(counted["key-count"]),
            int(counted["cpu-usec"]),
            int(counted["network-bytes-in"]),
            int(counted["network-bytes-out"]),
            counted.get("memory-bytes"),
        )
    return found


def migration(answer: Any) -> SlotMigration:
    """Parse an entry of `CLUSTER GETSLOTMIGRATIONS`.

    A target whose source has vanished does not name the source any more.
    """
    said = pairs(answer)
    ranges = [_range(each) for each in text(said["slot_ranges"]).split()]
    return SlotMigration(
        name=text(said["name"]),
        source=text(said.get("source_node", "")),
        target=text(said.get("target_node", "")),
        slots=frozenset(slot for first, last in ranges for slot in range(first, last + 1)),
        state=text(said["state"]),
        message=text(said.get("message", "")),
        changed_s=float(said.get("last_update_time", 0)),
    )


def one_of_each(found: Iterable[SlotMigration]) -> list[SlotMigration]:
    """Join the two entries of each migration: that of its source and that of its target.

    A migration has ended if both entries say so. If it was cancelled on one side, the other side
    may only know that it failed.
    """
    joined: dict[str, SlotMigration] = {}
    for each in found:
        other = joined.get(each.name)
        if other is None or _weight(each) > _weight(other):
            joined[each.name] = each
    return list(joined.values())


def _weight(one: SlotMigration) -> int:
    """Which of two entries of a migration says more about it."""
    if not one.has_ended:
        return 3
    return {"success": 2, "failed": 0}.get(one.state, 1)


def pairs_of_lines(answer: bytes | str) -> dict[str, str]:
    """Return the values of an answer with lines like `cluster_state:ok`."""
    found = (line.partition(":") for line in text(answer).splitlines())
    return {name: value for name, colon, value in found if colon}


def ailment_of(node: Node, replication: Mapping[str, Any], state: Mapping[str, str]) -> str:
    """Return why no slot should move, by a node's own report; empty if nothing is wrong."""
    if state.get("cluster_state", "ok") != "ok":
        return f"{node.address} says that the state of the cluster is {state['cluster_state']}"
    if replication.get("master_failover_state", "no-failover") != "no-failover":
        return f"{node.address} hands over to its replica"
    if node.is_primary:
        return ""
    if replication.get("master_sync_in_progress") or replication.get("master_link_status") != "up":
        return f"{node.address} is not in step with its primary: wait until it has copied all data"
    return ""


def cpu_s_in(info: Mapping[str, Any]) -> float:
    """Return the CPU time that a server has used since its start, from its `INFO cpu`."""
    return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])


def server_of(info: Mapping[str, Any]) -> Server:
    """Return what a server is, from its `INFO server`."""
    is_valkey = "valkey_version" in info
    words = str(info["valkey_version"] if is_valkey else info["redis_version"])
    version = tuple(int(each) if each.isdigit() else 0 for each in words.split("."))
    name = f"{'Valkey' if is_valkey else 'Redis'} {words}"
    if is_valkey:
        return Server(name, version, "migrateslots" if version >= (9,) else "setslot")
    return Server(name, version, "import" if version >= (8, 4) else "setslot")
