"""Made-up loads of a cluster, for the tests of its planner."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from heatsink.cluster.load import ClusterLoad, NodeLoad, SlotLoad
from heatsink.cluster.sizes import NodeMemory
from heatsink.cluster.slots import SLOTS

NET_MAX_S = 125e6
KEY_BYTES = 100


def node(
    number: int, cores: float = 1.0, memory: int = 10**7, memory_max: int = 0, replicas: int = 0
) -> NodeLoad:
    limit = NodeMemory(memory, memory_max)
    return NodeLoad(
        id=f"n{number}",
        address=f"10.0.0.{number}:6379",
        cores=cores,
        net_max_s=NET_MAX_S,
        memory=memory,
        room=limit.room if memory_max else math.inf,
        spare=limit.spare if memory_max else math.inf,
        excess=limit.excess if memory_max else 0.0,
        headroom=limit.headroom if memory_max else math.inf,
        replicas=replicas,
    )


def cluster(
    cpu: Sequence[float], nodes: Sequence[NodeLoad], keys: Sequence[int], at_s: float = 0.0
) -> ClusterLoad:
    """A cluster whose slots are shared by count, with this CPU and these keys in each slot."""
    slots = tuple(
        SlotLoad(
            slot,
            nodes[slot * len(nodes) // SLOTS].id,
            cpu[slot],
            cpu[slot] * 1e6,
            cpu[slot] * 5e5,
            keys[slot],
            keys[slot] * KEY_BYTES,
        )
        for slot in range(SLOTS)
    )
    return ClusterLoad(at_s, tuple(nodes), slots)


def zipf(
    seed: int, s: float, nodes: Sequence[NodeLoad], used: float = 0.3, keys: int = 20_000
) -> ClusterLoad:
    """A cluster that uses the share `used` of its CPU, by keys with a Zipf distribution."""
    rng = Random(seed)
    weights = [1 / (rank + 1) ** s for rank in range(keys)]
    scale = used * sum(node.cores for node in nodes) / sum(weights)
    cpu, counts = [0.0] * SLOTS, [0] * SLOTS
    for weight in weights:
        slot = rng.randrange(SLOTS)
        cpu[slot] += weight * scale
        counts[slot] += 1
    return cluster(cpu, nodes, counts)


def even(nodes: Sequence[NodeLoad], used: float = 0.3) -> ClusterLoad:
    """A cluster in which all slots are equally busy."""
    cpu = used * sum(node.cores for node in nodes) / SLOTS
    return cluster([cpu] * SLOTS, nodes, [1] * SLOTS)
