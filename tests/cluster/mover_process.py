"""Moves one slot as a process of its own, to be killed: `python -m … URL SLOT TARGET`."""

from __future__ import annotations

import asyncio
import sys
from random import Random

from heatsink.cluster.mover import SlotMover
from heatsink.cluster.nodes import ClusterNodes
from heatsink.cluster.policy import SlotMove
from heatsink.cluster.rules import MoveLimits
from heatsink.primitives.clock import SystemClock


async def main(url: str, slot: int, target: str) -> None:
    clock = SystemClock()
    nodes = ClusterNodes(url, clock, Random(1))
    mover = SlotMover(nodes, MoveLimits(), clock)
    topology = await mover.check()
    move = SlotMove((slot,), topology.owners[slot], target, 1_000, "a test")
    await mover.carry_out(move, topology)
    await nodes.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
