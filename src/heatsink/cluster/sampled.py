"""The heat of slots from a sample of commands, for servers without statistics of slots.

`SampledCluster` listens to a few thousand commands of each primary with `MONITOR`, and divides the
node's CPU time and network bytes among the slots of their keys. Listening costs the node work for
every command, so it ends after `SAMPLES` commands or half a second. `MONITOR` does not show reads
on replicas. `SampledCluster` counts the keys of slots that the sample named; any other slot counts
as one key.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing, suppress
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.crc import key_slot

from heatsink.errors import Misconfigured
from heatsink.primitives.clock import Clock
from heatsink.stores.redis.connection import FAILURES, open_driver

from .answers import Node, Topology, cpu_s_in
from .keys import SlotKeys, key_counts
from .load import ClusterCounters, NodeCounters, SlotCounters
from .nodes import ClusterNodes

SAMPLES = 2_000
LISTEN_S = 0.5
SCRIPTS = frozenset({"EVAL", "EVALSHA", "EVAL_RO", "EVALSHA_RO", "FCALL", "FCALL_RO"})
KEYLESS = frozenset({
    "ACL", "ASKING", "AUTH", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DBSIZE", "DISCARD", "EXEC",
    "HELLO", "INFO", "MONITOR", "MULTI", "PING", "PSYNC", "PUBLISH", "READONLY", "READWRITE",
    "REPLCONF", "SCRIPT", "SELECT", "WAIT", "WAITAOF",
})  # fmt: skip


class SampledCluster:
    """Measures slots by listening to commands. Use it in place of `ClusterNodes` in a meter."""

    def __init__(self, nodes: ClusterNodes, clock: Clock) -> None:
        self._nodes = nodes
        self._clock = clock
        self._spent: dict[int, SlotCounters] = {}
        self._last: dict[str, tuple[float, int, int]] = {}
        self._heard: dict[int, Counter[str]] = {}

    async def keys_of(self, slot: int, topology: Topology, most: int) -> SlotKeys:
        """Return the keys of a slot that most commands of the last sample named.

        If the sample named no key of the slot, the slot's owner is asked for keys.
        """
        heard = self._heard.get(slot)
        if heard is None:
            return await self._nodes.keys_of(slot, topology, most)
        return SlotKeys(tuple(name for name, _ in heard.most_common(most)), are_hottest=True)

    async def topology(self) -> Topology:
        return await self._nodes.topology()

    async def snapshot(self, topology: Topology, cores: Mapping[str, float]) -> ClusterCounters:
        """Sample all primaries at once, and add the CPU time and bytes since the last snapshot."""
        primaries = topology.primaries
        heard = await asyncio.gather(*(self._listen(node) for node in primaries))
        self._heard = {}
        for name, count in (pair for names in heard for pair in names.items()):
            self._heard.setdefault(key_slot(name.encode()), Counter())[name] += count
        found: list[NodeCounters] = []
        slots: dict[int, SlotCounters] = {}
        for node, names in zip(primaries, heard, strict=True):
            counts = Counter[int]()
            for name, count in names.items():
                counts[key_slot(name.encode())] += count
            info = await self._nodes.to(node).run("INFO")
            found.append(await self._nodes.node_counters(node, topology, cores))
            keys = await key_counts(self._nodes.to(node), sorted({*counts} & {*node.slots}))
            slots |= self._divided(node, info, counts, keys)
        self._spent = slots
        return ClusterCounters(self._clock.monotonic_s(), tuple(found), slots)

    def _divided(
        self, node: Node, info: Mapping[str, Any], counts: Counter[int], keys: Mapping[int, int]
    ) -> dict[int, SlotCounters]:
        """Divide a node's CPU time since the last snapshot among slots, by their commands.

        `counts` are the sampled commands of each slot.
        """
        now = (
            cpu_s_in(info),
            int(info["total_net_input_bytes"]),
            int(info["total_net_output_bytes"]),
        )
        last = self._last.get(node.id, now)
        self._last[node.id] = now
        spent = [max(new - old, 0) for new, old in zip(now, last, strict=True)]
        total = max(sum(counts.values()), 1)
        zero = SlotCounters(node.id, 1, 0, 0, 0)
        found = {}
        for slot in node.slots:
            before = self._spent.get(slot, zero)
            before = before if before.owner == node.id else zero
            share = counts[slot] / total
            found[slot] = msgspec.structs.replace(
                before,
                keys=keys.get(slot, before.keys),
                cpu_us=before.cpu_us + round(1e6 * spent[0] * share),
                bytes_in=before.bytes_in + round(spent[1] * share),
                bytes_out=before.bytes_out + round(spent[2] * share),
            )
        return found

    async def _listen(self, node: Node) -> Counter[str]:
        """Return how many commands a node got for each key, in a sample."""
        driver: Any = open_driver(self._nodes.address_of(node))
        assert isinstance(driver, Redis)
        counts: Counter[str] = Counter()
        try:
            with suppress(TimeoutError):
                async with (
                    asyncio.timeout(LISTEN_S),
                    driver.monitor() as monitor,
                    aclosing(monitor.listen()) as heard,
                ):
                    async for each in heard:
                        key = key_in(each["command"])
                        if key is not None:
                            counts[key] += 1
                        if counts.total() >= SAMPLES:
                            break
        except FAILURES as error:
            raise Misconfigured(
                f"{node.address} has neither statistics of slots nor MONITOR ({error}): use Valkey "
                "8.0 or newer, or a user with +monitor"
            ) from None
        finally:
            await driver.aclose()
        return counts


def key_in(command: str) -> str | None:
    """Return the first key of a command as `MONITOR` shows it; None if it has no key."""
    words = command.split(" ")
    name = words[0].upper()
    place = 3 if name in SCRIPTS else 1
    if name in KEYLESS or len(words) <= place:
        return None
    return words[place]
