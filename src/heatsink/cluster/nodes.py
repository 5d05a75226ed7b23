"""The nodes of a Redis or Valkey Cluster: questions and orders to them.

`answers.py` parses what they answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from random import Random
from typing import Any

import msgspec
from redis.crc import key_slot

from heatsink.errors import InvalidSetting, NoAccess, Unavailable
from heatsink.primitives.clock import Clock
from heatsink.stores.redis.address import RedisAddress, parse
from heatsink.stores.redis.connection import FAILURES, Connection, RedisRefused, open_driver

from .answers import (
    SETTING,
    Node,
    NoSlotStatistics,
    Server,
    SlotMigration,
    Topology,
    ailment_of,
    counted_in,
    cpu_s_in,
    endpoints_in,
    in_order,
    migration,
    one_of_each,
    pairs_of_lines,
    parse_node,
    server_of,
    text,
    trouble_of,
)
from .keys import PERMISSIONS, SlotKeys, keys_of, slot_sizes
from .load import ClusterCounters, NodeCounters, SlotCounters
from .policy import SlotMove
from .sizes import NodeMemory, SlotSize, memory_of
from .slots import SLOTS, as_ranges, key_in

TIMEOUT_S = 5.0
LEASE = "{heatsink-balance}"
LEASE_SCRIPT = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
SPEED_SCRIPT = "local n = 0 for i = 1, 200000 do n = n + i % 7 end return n"
SPEED_RUNS = 5
WAIT_MS = 4_000
CONFIRM_S = 10.0
NOTHING_TO_CANCEL = "no migrations ongoing"


class ClusterNodes:
    """Connections to all nodes of a cluster, made as they are needed.

    Raises `Unavailable` while no node answers, `InvalidSetting` for another kind of URL, and
    `NoSlotStatistics` if the servers have no statistics.
    """

    def __init__(self, url: str, clock: Clock, rng: Random, node_bytes: int = 0) -> None:
        """`node_bytes` is the memory of a node that has no `maxmemory`; 0: ask its machine."""
        address = parse(url, "URL", TIMEOUT_S)
        if address.kind == "sentinel":
            raise InvalidSetting(
                "URL names a Sentinel: use redis+cluster://host1,host2 with nodes of a cluster",
                field="URL",
            )
        self.address = address
        self._clock = clock
        self._rng = rng
        self.node_bytes = node_bytes
        self.enables = False
        """Whether to turn the statistics of slots on where they are off, also after a restart."""
        self._connections: dict[tuple[str, int], Connection] = {}

    @property
    def shown(self) -> str:
        """The hosts of the URL, for people, without user and password."""
        return str(self.address)

    def address_of(self, node: Node) -> RedisAddress:
        """Return the address of a node, with the login of the cluster's URL."""
        return self.address.node(node.host, node.port)

    def to(self, node: Node) -> Connection:
        """Return the connection to a node."""
        return self._connection(node.host, node.port)

    def _connection(self, host: str, port: int) -> Connection:
        if (host, port) not in self._connections:
            address: RedisAddress = self.address.node(host, port)
            self._connections[host, port] = Connection(address, self._clock, self._rng, PERMISSIONS)
        return self._connections[host, port]

    async def topology(self) -> Topology:
        """Ask one node for all nodes, each primary for its slots, and every node for its health."""
        nodes = sorted(await self._any_view(), key=lambda node: (node.host, node.port))
        primaries = [node for node in nodes if node.is_primary and not node.is_failing]
        views = await asyncio.gather(
            *(self._view(self.to(node)) for node in primaries), return_exceptions=True
        )
        ailing = await asyncio.gather(
            *(self._ailment(node) for node in nodes if not node.is_failing)
        )
        asked = dict(zip((node.id for node in primaries), views, strict=True))
        at = {node.id: (node.host, node.port) for node in nodes}
        own = {
            node.id: msgspec.structs.replace(node, host=at[node.id][0], port=at[node.id][1])
            for view in views
            if not isinstance(view, BaseException)
            for node in view
            if "myself" in node.flags and node.id in at
        }
        merged = tuple(own.get(node.id, node) for node in nodes)
        return Topology(merged, trouble_of(merged, asked) or next(filter(None, ailing), ""))

    async def _ailment(self, node: Node) -> str:
        """Return the problem that a node reports about itself; empty if there is none."""
        try:
            replication: dict[str, Any] = await self.to(node).run("INFO", "replication")
            state = pairs_of_lines(await self.to(node).run("CLUSTER", "INFO"))
        except RedisRefused:
            raise
        except Unavailable:
            return f"{node.address} does not answer"
        return ailment_of(node, replication, state)

    async def _any_view(self) -> list[Node]:
        error: Exception = Unavailable("no node of the cluster was named: name one in URL")
        known = [*self.address.hosts, *self._connections]
        for host, port in dict.fromkeys(known):
            try:
                return await self._reachable(host, port)
            except RedisRefused as refusal:
                if refusal.code == "NOPERM":
                    raise NoAccess(
                        f"the user in URL may not run CLUSTER NODES on {host}:{port}: give it the "
                        f"permissions in {PERMISSIONS}"
                    ) from None
                raise InvalidSetting(
                    f"{host}:{port} is not a node of a cluster ({refusal.said}): name one in URL",
                    field="URL",
                ) from None
            except Unavailable as failure:
                error = failure
        raise error

    async def _reachable(self, host: str, port: int) -> list[Node]:
        """Return all nodes at the addresses that the cluster tells clients to use."""
        connection = self._connection(host, port)
        nodes = await self._view(connection)
        told: dict[str, str] = {}
        with suppress(RedisRefused):  # servers before Redis 7 know no other addresses
            told = endpoints_in(await connection.run("CLUSTER", "SHARDS"), host)
        return [
            msgspec.structs.replace(node, host=told.get(node.id) or node.host or host)
            for node in nodes
        ]

    async def _view(self, connection: Connection) -> list[Node]:
        answer: bytes = await connection.run("CLUSTER", "NODES")
        return [parse_node(line) for line in text(answer).splitlines() if line.strip()]

    async def snapshot(self, topology: Topology, cores: Mapping[str, float]) -> ClusterCounters:
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
        used = await asyncio.gather(
            *(self._info(node, "cpu") for node in members if not node.is_primary)
        )
        replicas_cpu_s = dict(zip(replicas, map(cpu_s_in, used), strict=True))
        return ClusterCounters(
            self._clock.monotonic_s(), tuple(nodes), slots, replicas, replicas_cpu_s
        )

    async def node_counters(
        self, node: Node, topology: Topology, cores: Mapping[str, float]
    ) -> NodeCounters:
        """Read the memory, the CPU time and the kind of a primary."""
        info = await self._info(node, "memory", "replication", "cpu")
        memory = self._memory_in(info, node, topology)
        return NodeCounters(
            id=node.id,
            address=node.address,
            memory=int(info["used_memory"]),
            dataset=int(info.get("used_memory_dataset", info["used_memory"])),
            room=memory.room,
            headroom=memory.headroom,
            spare=memory.spare,
            excess=memory.excess,
            cpu_s=cpu_s_in(info),
            replicas=len(topology.replicas(node.id)),
            cores=cores.get(node.address, 1.0),
            kind=await self._kind(node),
        )

    async def _info(self, node: Node, *sections: str) -> dict[str, Any]:
        answers = await asyncio.gather(*(self.to(node).run("INFO", each) for each in sections))
        return {name: value for answer in answers for name, value in answer.items()}

    def _memory_in(self, info: Mapping[str, Any], node: Node, topology: Topology) -> NodeMemory:
        sharing = sum(each.host == node.host for each in topology.nodes)
        return memory_of(info, sharing, self.node_bytes)

    async def memory(self, id: str, topology: Topology) -> NodeMemory:
        """Read how much memory a node uses, its limit, and what it has received in migrations."""
        node = topology.known(id)
        sections = ("memory", "replication", "stats", "persistence")
        return self._memory_in(await self._info(node, *sections), node, topology)

    async def sizes(
        self, owner: str, slots: Sequence[int], topology: Topology
    ) -> dict[int, SlotSize]:
        """Measure the data of slots on their owner."""
        return await slot_sizes(self.to(topology.known(owner)), slots)

    async def _counters(self, node: Node) -> dict[int, SlotCounters]:
        owner = node.primary or node.id
        try:
            return counted_in(await self._statistics(node), owner, node.address)
        except NoSlotStatistics as missing:
            if not (self.enables and missing.can_enable):
                raise
        await self.to(node).run("CONFIG", "SET", SETTING, "yes")  # until its next restart
        return counted_in(await self._statistics(node), owner, node.address)

    async def _statistics(self, node: Node) -> list[Any]:
        words = ("CLUSTER", "SLOT-STATS", "SLOTSRANGE", 0, SLOTS - 1)
        try:
            found: list[Any] = await self.to(node).run(*words)
        except RedisRefused as refusal:
            if refusal.code == "NOPERM":
                raise NoSlotStatistics(
                    f"the user in URL may not run CLUSTER SLOT-STATS on {node.address}"
                ) from None
            raise NoSlotStatistics(
                f"{node.address} has no CLUSTER SLOT-STATS: slots are measured by Valkey 8.0 or "
                "newer and Redis 8.2 or newer"
            ) from None
        except Unavailable:
            raise Unavailable(
                f"{node.address} does not answer: it is down, or the cluster announces an address "
                "that this machine cannot reach"
            ) from None
        return found

    async def _kind(self, node: Node) -> str:
        """Return a hash of a node's modules, functions and users, which a target node also needs.

        What the node does not tell is left out, for example if a user may not read the ACL.
        """
        said = []
        for words in (("MODULE", "LIST"), ("FUNCTION", "LIST", "WITHCODE"), ("ACL", "LIST")):
            with suppress(RedisRefused):
                said.append(in_order(await self.to(node).run(*words)))
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

    async def start(self, move: SlotMove, topology: Topology) -> None:
        """Ask the source to migrate the slots. Raises `RedisRefused` if it does not."""
        words: list[str | int] = [slot for both in as_ranges(move.slots) for slot in both]
        source = topology.known(move.source)
        arguments = ("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", *words, "NODE", move.target)
        await self.to(source).run(*arguments)

    async def cancel(self, source: str, topology: Topology) -> None:
        """Cancel all migrations of a source. Does nothing if they have all ended."""
        try:
            await self.to(topology.known(source)).run("CLUSTER", "CANCELSLOTMIGRATIONS")
        except RedisRefused as refusal:
            if NOTHING_TO_CANCEL not in refusal.said.lower():
                raise

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

    async def check_user(self, topology: Topology) -> None:
        """Raise `NoAccess` if the user may not do what `confirm` does on some primary.

        `confirm` comes after a migration, when it is too late to find this out.
        """
        for node in topology.primaries:
            key = key_in(next(node.slots, 0))
            for words in (
                ("SET", key, "", "PX", 1_000),
                ("WAIT", 0, 1),
                ("WAITAOF", 0, 0, 1),
            ):
                try:
                    await self.to(node).run(*words)
                except RedisRefused as refusal:
                    if refusal.code == "NOPERM":
                        raise NoAccess(str(refusal)) from None

    async def lead(self, name: str, lease_ms: int, topology: Topology) -> bool:
        """Take or renew the lease of balancers, which is a key in the cluster itself.

        Returns whether `name` holds the lease.
        """
        owner = topology.known(topology.owners[key_slot(LEASE.encode())])
        return bool(await self.to(owner).run("EVAL", LEASE_SCRIPT, 1, LEASE, name, lease_ms))

    async def keys_of(self, slot: int, topology: Topology, most: int) -> SlotKeys:
        """Return some keys of a slot: the most used ones if the server counts uses."""
        return await keys_of(self.to(topology.known(topology.owners[slot])), slot, most)

    async def migrations(self, topology: Topology) -> list[SlotMigration]:
        """Return all migrations that the primaries run or have run lately."""
        answers = await asyncio.gather(
            *(self.to(node).run("CLUSTER", "GETSLOTMIGRATIONS") for node in topology.primaries)
        )
        return one_of_each(each for answer in answers for each in map(migration, answer))

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._connections.values()))
