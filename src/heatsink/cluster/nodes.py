"""What the nodes of a Redis or Valkey Cluster say about themselves, read and parsed.

`CLUSTER NODES` lists the nodes, their slots, and slots that an interrupted migration has left
half-way. `CLUSTER SLOT-STATS` (Valkey 8.0 or newer, Redis 8.2 or newer) has the counters of each
slot. Some servers keep only the number of keys, unless `cluster-slot-stats-enabled` is `yes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from hashlib import blake2b
from random import Random
from typing import Any, Literal

import msgspec
from redis.crc import key_slot

from heatsink.bulk.plan import LEGACY
from heatsink.errors import InvalidSetting, Misconfigured, NoAccess, Unavailable
from heatsink.primitives.clock import Clock
from heatsink.stores.redis.address import RedisAddress, parse
from heatsink.stores.redis.connection import FAILURES, Connection, Refused, open_driver
from heatsink.stores.redis.queue.keys import HOMES, QueueKeys

from .load import SLOTS, NodeCounters, SlotCounters, Snapshot
from .policy import Move

SETTING = "cluster-slot-stats-enabled"
TIMEOUT_S = 5.0
FAILING = frozenset({"fail", "fail?", "handshake", "noaddr"})
LEASE = "{heatsink-balance}"
LEASE_SCRIPT = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
SPEED_SCRIPT = "local n = 0 for i = 1, 200000 do n = n + i % 7 end return n"
SPEED_RUNS = 5
KEYS_SAMPLED = 20
WAIT_MS = 4_000
CONFIRM_S = 10.0
ENDED = frozenset({"success", "failed", "canceled", "cancelled"})


class Node(msgspec.Struct, frozen=True):
    """A node, as another node of the cluster describes it."""

    id: str
    host: str
    port: int
    flags: frozenset[str]
    primary: str
    """The id of the primary that it replicates; empty for a primary."""
    epoch: int
    is_linked: bool
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


class Migration(msgspec.Struct, frozen=True):
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


class ClusterNodes:
    """Connections to all nodes of a cluster, made as they are needed.

    Raises `Unavailable` while no node answers, `InvalidSetting` for another kind of URL, and
    `NoSlotStatistics` if the servers have no statistics.
    """

    def __init__(self, url: str, clock: Clock, rng: Random) -> None:
        address = parse(url, "URL", TIMEOUT_S)
        if address.kind == "sentinel":
            raise InvalidSetting(
                "URL names a Sentinel: use redis+cluster://host1,host2 with nodes of a cluster",
                field="URL",
            )
        self._address = address
        self._clock = clock
        self._rng = rng
        self._connections: dict[tuple[str, int], Connection] = {}

    @property
    def shown(self) -> str:
        """The hosts of the URL, for people, without user and password."""
        return str(self._address)

    def address_of(self, node: Node) -> RedisAddress:
        """Return the address of a node, with the login of the cluster's URL."""
        return self._address.node(node.host, node.port)

    def to(self, node: Node) -> Connection:
        """Return the connection to a node."""
        return self._connection(node.host, node.port)

    def _connection(self, host: str, port: int) -> Connection:
        if (host, port) not in self._connections:
            address: RedisAddress = self._address.node(host, port)
            self._connections[host, port] = Connection(address, self._clock, self._rng)
        return self._connections[host, port]

    async def topology(self) -> Topology:
        """Ask a node for all nodes, each primary for its own state, and all how they are."""
        nodes = await self._any_view()
        primaries = [node for node in nodes if node.is_primary and not node.is_failing]
        views = await asyncio.gather(
            *(self._view(self.to(node)) for node in primaries), return_exceptions=True
        )
        ailing = await asyncio.gather(
            *(self._ailment(node) for node in nodes if not node.is_failing)
        )
        asked = dict(zip((node.id for node in primaries), views, strict=True))
        own = {
            node.id: node
            for view in views
            if not isinstance(view, BaseException)
            for node in view
            if "myself" in node.flags
        }
        merged = tuple(own.get(node.id, node) for node in nodes)
        return Topology(merged, trouble_of(merged, asked) or next(filter(None, ailing), ""))

    async def _ailment(self, node: Node) -> str:
        """Return the problem that a node reports about itself; empty if there is none."""
        try:
            replication: dict[str, Any] = await self.to(node).run("INFO", "replication")
            state = pairs_of_lines(await self.to(node).run("CLUSTER", "INFO"))
        except Refused:
            raise
        except Unavailable:
            return f"{node.address} does not answer"
        return ailment_of(node, replication, state)

    async def _any_view(self) -> list[Node]:
        error: Exception = Unavailable("no node of the cluster was named: name one in URL")
        known = [*self._address.hosts, *self._connections]
        for host, port in dict.fromkeys(known):
            try:
                return await self._view(self._connection(host, port))
            except Refused as refusal:
                if refusal.code == "NOPERM":
                    raise NoAccess(
                        f"the user in URL may not run CLUSTER NODES on {host}:{port}: give it the "
                        "permissions in docs/how-to/balance-a-cluster.md"
                    ) from None
                raise InvalidSetting(
                    f"{host}:{port} is not a node of a cluster ({refusal.said}): name one in URL",
                    field="URL",
                ) from None
            except Unavailable as failure:
                error = failure
        raise error

    async def _view(self, connection: Connection) -> list[Node]:
        answer: bytes = await connection.run("CLUSTER", "NODES")
        return [parse_node(line) for line in text(answer).splitlines() if line.strip()]

    async def snapshot(self, topology: Topology, cores: Mapping[str, float]) -> Snapshot:
        """Read the counters of all primaries and their replicas.

        `cores` has the capacity of nodes, by address. Nodes that are not in `cores` have a capacity
        of 1.
        """
        primaries = topology.primaries
        members = [node for node in topology.nodes if not node.is_failing]
        read = await asyncio.gather(*(self._counters(node) for node in members))
        nodes = await asyncio.gather(
            *(self.node_counters(node, topology, cores) for node in primaries)
        )
        slots: dict[int, SlotCounters] = {}
        replicas: dict[str, dict[int, SlotCounters]] = {}
        for node, counters in zip(members, read, strict=True):
            if node.is_primary:
                slots |= counters
            else:
                replicas[node.id] = counters
        return Snapshot(self._clock.monotonic_s(), tuple(nodes), slots, replicas)

    async def node_counters(
        self, node: Node, topology: Topology, cores: Mapping[str, float]
    ) -> NodeCounters:
        """Read the memory, the CPU time and the kind of a primary."""
        info: dict[str, Any] = await self.to(node).run("INFO", "memory")
        info |= await self.to(node).run("INFO", "cpu")
        return NodeCounters(
            id=node.id,
            address=node.address,
            memory=int(info["used_memory"]),
            dataset=int(info.get("used_memory_dataset", info["used_memory"])),
            memory_max=int(info.get("maxmemory", 0) or info.get("total_system_memory", 0)),
            cpu_s=float(info["used_cpu_user"]) + float(info["used_cpu_sys"]),
            replicas=len(topology.replicas(node.id)),
            cores=cores.get(node.address, 1.0),
            kind=await self._kind(node),
        )

    async def _counters(self, node: Node) -> dict[int, SlotCounters]:
        return counted_in(await self._statistics(node), node.primary or node.id)

    async def _statistics(self, node: Node) -> list[Any]:
        words = ("CLUSTER", "SLOT-STATS", "SLOTSRANGE", 0, SLOTS - 1)
        try:
            found: list[Any] = await self.to(node).run(*words)
        except Refused as refusal:
            if refusal.code == "NOPERM":
                raise NoSlotStatistics(
                    f"the user in URL may not run CLUSTER SLOT-STATS on {node.address}"
                ) from None
            raise NoSlotStatistics(
                f"{node.address} has no CLUSTER SLOT-STATS: slots are measured by Valkey 8.0 or "
                "newer and Redis 8.2 or newer"
            ) from None
        return found

    async def _kind(self, node: Node) -> str:
        """Return a hash of a node's modules, functions and users, which a target node also needs.

        What the node does not tell is left out, for example if a user may not read the ACL.
        """
        said = []
        for words in (("MODULE", "LIST"), ("FUNCTION", "LIST", "WITHCODE"), ("ACL", "LIST")):
            with suppress(Refused):
                said.append(repr(await self.to(node).run(*words)))
        return blake2b("\n".join(said).encode(), digest_size=8).hexdigest()

    async def server(self, topology: Topology) -> Server:
        """Return the kind and version of the oldest primary, and how it moves slots."""
        infos = await asyncio.gather(
            *(self.to(node).run("INFO", "server") for node in topology.primaries)
        )
        return min((server_of(info) for info in infos), key=lambda each: each.version)

    async def speeds(self, topology: Topology) -> dict[str, float]:
        """Measure how fast each primary runs a short script. The mean is 1.

        Returns the speeds by address. The fastest of some runs counts, so that other work of the
        node and of the network matters little.
        """
        took_s: dict[str, float] = {}
        for node in topology.primaries:
            runs = [await self._time(node, "EVAL", SPEED_SCRIPT, 0) for _ in range(SPEED_RUNS)]
            idle = [await self._time(node, "PING") for _ in range(SPEED_RUNS)]
            took_s[node.address] = max(min(runs) - min(idle), 1e-6)
        mean = sum(1 / each for each in took_s.values()) / len(took_s)
        return {address: round(1 / each / mean, 2) for address, each in took_s.items()}

    async def _time(self, node: Node, *words: str | int) -> float:
        began_s = self._clock.monotonic_s()
        await self.to(node).run(*words)
        return self._clock.monotonic_s() - began_s

    async def start(self, move: Move, topology: Topology) -> None:
        """Ask the source to migrate the slots. Raises `Refused` if it does not."""
        words: list[str | int] = [slot for both in as_ranges(move.slots) for slot in both]
        source = topology.known(move.source)
        arguments = ("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", *words, "NODE", move.target)
        await self.to(source).run(*arguments)

    async def cancel(self, source: str, topology: Topology) -> None:
        """Cancel all migrations of a source."""
        await self.to(topology.known(source)).run("CLUSTER", "CANCELSLOTMIGRATIONS", "ALL")

    async def confirm(self, owner: str, slot: int, topology: Topology) -> None:
        """Wait until the moved slots are on the new owner's disk and on its replicas.

        The servers confirm only writes of the same connection, so this writes a short-lived key
        into the slot first. Raises `Unavailable` if the confirmation does not come.
        """
        node = topology.known(owner)
        driver: Any = open_driver(self.address_of(node).patient(CONFIRM_S))
        replicas = len(topology.replicas(owner))
        try:
            keeps_file = (await driver.info("persistence")).get("aof_enabled") == 1
            pipeline = driver.pipeline(transaction=False)
            pipeline.execute_command("SET", key_in(slot), "", "PX", 1_000)
            pipeline.execute_command("WAIT", replicas, WAIT_MS)
            if keeps_file:
                pipeline.execute_command("WAITAOF", 1, 0, WAIT_MS)
            _, acknowledged, *file = await pipeline.execute()
        except FAILURES as error:
            raise Unavailable(f"{node.address} did not confirm its new slots ({error})") from None
        finally:
            await driver.aclose()
        if acknowledged < replicas or (file and not file[0][0]):
            raise Unavailable(
                f"{node.address} did not write its new slots to disk and to {replicas} replicas "
                f"within {WAIT_MS / 1000:.0f} s"
            )

    async def lead(self, name: str, lease_ms: int, topology: Topology) -> bool:
        """Take or renew the lease of balancers, which is a key in the cluster itself.

        Returns whether `name` holds the lease. The lease saves work, but safety does not depend on
        it: if two balancers run at once, they find each other's migrations and stop.
        """
        owner = topology.known(topology.owners[key_slot(LEASE.encode())])
        return bool(await self.to(owner).run("EVAL", LEASE_SCRIPT, 1, LEASE, name, lease_ms))

    async def hottest_keys(self, slot: int, topology: Topology, most: int) -> list[str]:
        """Return keys of a slot: the most used ones if the server counts uses, otherwise any keys.

        Servers count the uses of keys only with an LFU policy for `maxmemory-policy`.
        """
        connection = self.to(topology.known(topology.owners[slot]))
        names: list[bytes] = await connection.run("CLUSTER", "GETKEYSINSLOT", slot, KEYS_SAMPLED)
        policy = (await connection.run("INFO", "memory")).get("maxmemory_policy", "")
        if "lfu" in policy:
            with suppress(Refused):  # the user may read no keys, or a key has just gone
                uses = [int(await connection.run("OBJECT", "FREQ", name) or 0) for name in names]
                ranked = sorted(zip(uses, names, strict=True), reverse=True)
                names = [name for _, name in ranked]
        return [text_or_hex(name) for name in names[:most]]

    async def enable_statistics(self, topology: Topology) -> None:
        """Turn the statistics of slots on, on all nodes, until their next restart."""
        for node in topology.nodes:
            if not node.is_failing:
                await self.to(node).run("CONFIG", "SET", SETTING, "yes")

    async def migrations(self, topology: Topology) -> list[Migration]:
        """Return all migrations that the primaries run or have run lately."""
        answers = await asyncio.gather(
            *(self.to(node).run("CLUSTER", "GETSLOTMIGRATIONS") for node in topology.primaries)
        )
        return one_of_each(each for answer in answers for each in map(migration, answer))

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._connections.values()))


def text(answer: bytes | str) -> str:
    return answer.decode() if isinstance(answer, bytes) else answer


def text_or_hex(name: bytes) -> str:
    """Return the name of a key for people. Bytes that are not text become hexadecimal digits."""
    try:
        return name.decode()
    except UnicodeDecodeError:
        return f"0x{name.hex()}"


def pairs(answer: Any) -> dict[str, Any]:
    """Return a map that a server sent, in either protocol, with text as its keys."""
    if isinstance(answer, Mapping):
        return {text(name): value for name, value in answer.items()}
    return {text(name): value for name, value in zip(answer[::2], answer[1::2], strict=True)}


def parse_node(line: str) -> Node:
    """Parse a line of `CLUSTER NODES`."""
    id, where, flags, primary, _, _, epoch, link, *slots = line.split()
    place = where.partition(",")[0].partition("@")[0]
    host, _, port = place.rpartition(":")
    named = where.partition(",")[2].partition(",")[0]
    ranges = [each for each in slots if not each.startswith("[")]
    half = [each for each in slots if each.startswith("[")]
    return Node(
        id=id,
        host=named or host.strip("[]"),
        port=int(port),
        flags=frozenset(flags.split(",")),
        primary="" if primary == "-" else primary,
        epoch=int(epoch),
        is_linked=link == "connected",
        ranges=tuple(_range(each) for each in ranges),
        open_slots=tuple(int(each[1:].partition("-")[0]) for each in half),
    )


def _range(words: str) -> tuple[int, int]:
    first, _, last = words.partition("-")
    return int(first), int(last or first)


def trouble_of(nodes: Sequence[Node], asked: Mapping[str, object]) -> str:
    """Say why no slot should move now; empty if the cluster is well."""
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


def counted_in(answer: Sequence[Any], owner: str) -> dict[int, SlotCounters]:
    """Parse an answer to `CLUSTER SLOT-STATS`, of the owner of the slots or of its replica.

    Raises `NoSlotStatistics` if CPU time is missing.
    """
    found: dict[int, SlotCounters] = {}
    for slot, words in answer:
        counted = pairs(words)
        if "cpu-usec" not in counted:
            raise NoSlotStatistics(
                f"the cluster does not count the CPU time of slots: set {SETTING} to yes on "
                "all nodes, or run `heatsink cluster look URL --enable`",
                can_enable=True,
            )
        found[slot] = SlotCounters(
            owner,
            int(counted["key-count"]),
            int(counted["cpu-usec"]),
            int(counted["network-bytes-in"]),
            int(counted["network-bytes-out"]),
        )
    return found


def migration(answer: Any) -> Migration:
    """Parse an entry of `CLUSTER GETSLOTMIGRATIONS`.

    A target whose source has vanished does not name the source any more.
    """
    said = pairs(answer)
    ranges = [_range(each) for each in text(said["slot_ranges"]).split()]
    return Migration(
        name=text(said["name"]),
        source=text(said.get("source_node", "")),
        target=text(said.get("target_node", "")),
        slots=frozenset(slot for first, last in ranges for slot in range(first, last + 1)),
        state=text(said["state"]),
        message=text(said.get("message", "")),
        changed_s=float(said.get("last_update_time", 0)),
    )


def one_of_each(found: Iterable[Migration]) -> list[Migration]:
    """Join what source and target say of a migration: it has ended if both say so."""
    joined: dict[str, Migration] = {}
    for each in found:
        other = joined.get(each.name)
        if other is None or (other.has_ended and other.state != "success") or not each.has_ended:
            joined[each.name] = each
    return list(joined.values())


def pairs_of_lines(answer: bytes | str) -> dict[str, str]:
    """Return the values of an answer with lines like `cluster_state:ok`."""
    found = (line.partition(":") for line in text(answer).splitlines())
    return {name: value for name, colon, value in found if colon}


def ailment_of(node: Node, replication: Mapping[str, Any], state: Mapping[str, str]) -> str:
    """Return why no slot should move, by a node's own report; empty if the node is well."""
    if state.get("cluster_state", "ok") != "ok":
        return f"{node.address} says that the state of the cluster is {state['cluster_state']}"
    if replication.get("master_failover_state", "no-failover") != "no-failover":
        return f"{node.address} hands over to its replica"
    if node.is_primary:
        return ""
    if replication.get("master_sync_in_progress") or replication.get("master_link_status") != "up":
        return f"{node.address} is not in step with its primary: wait until it has copied all data"
    return ""


def server_of(info: Mapping[str, Any]) -> Server:
    """Return what a server is, from its `INFO server`."""
    is_valkey = "valkey_version" in info
    words = str(info["valkey_version"] if is_valkey else info["redis_version"])
    version = tuple(int(each) if each.isdigit() else 0 for each in words.split("."))
    name = f"{'Valkey' if is_valkey else 'Redis'} {words}"
    if is_valkey:
        return Server(name, version, "migrateslots" if version >= (9,) else "setslot")
    return Server(name, version, "import" if version >= (8, 4) else "setslot")


def as_ranges(slots: Iterable[int]) -> list[tuple[int, int]]:
    """Join slots to ranges, in ascending order."""
    found: list[tuple[int, int]] = []
    for slot in sorted(slots):
        if found and found[-1][1] == slot - 1:
            found[-1] = found[-1][0], slot
        else:
            found.append((slot, slot))
    return found


def ranges_of(slots: Iterable[int]) -> str:
    """Return slots in words: `5, 7-9`."""
    return ", ".join(f"{a}-{b}" if a < b else f"{a}" for a, b in as_ranges(slots))


def queue_slots(partitions: int) -> frozenset[int]:
    """Return the slots of Heatsink's queue: its partitions, batches, limits and fleet."""
    keys = QueueKeys()
    names = [keys.partition(number) for number in range(partitions)]
    names += [f"{{batch_{n}}}" for n in range(HOMES)] + [f"{{limit_{n}}}" for n in range(HOMES)]
    names += [keys.newest(), keys.fleet("plan"), keys.partition(LEGACY)]
    return frozenset(key_slot(name.encode()) for name in names)


@cache
def key_in(slot: int) -> str:
    """Return the name of a key in this slot."""
    return next(
        name for n in range(2**20) if key_slot((name := f"{{heatsink-{n}}}").encode()) == slot
    )
