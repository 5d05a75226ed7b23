"""Cases in which a queue of ranges has no advantage, beside other queues: the honest ones.

One item per call: 64 callers in one process, each call accepted before the next. Ours is
`hs.bulk.enqueue`; `jobs` measures such items until they have run. Items of 1 ms: what a worker
process gets through if its handlers wait a little. 10,000 tenants: ours divides the workers fairly
among them; the others, who know no tenants, get the same items in one line. All share one private
Redis that keeps nothing on disk; the rest is as in `queue`. A full run takes about three minutes on
a quiet machine.
"""

from __future__ import annotations

import msgspec

from heatsink.testing.redis import RedisServer

from .harness import Bench, Scale, interleave
from .queue import Contender
from .queue.peers import BULLMQ, OURS, OURS_JOBS, OURS_TENANTS, PEERS, Peer

BY_NAME = {peer.name: peer for peer in PEERS}
PYTHON = tuple(BY_NAME[name] for name in ("Huey", "SAQ", "taskiq", "dramatiq"))


class Case(msgspec.Struct, frozen=True):
    """What is compared: a field of `Turn`, of ours and of the others."""

    metric: str
    field: str
    ours: Peer
    others: tuple[Peer, ...]
    items: int = 0
    pause_ms: int = 0
    callers: int = 0


CASES = (
    Case("one item per call", "enqueued_per_s", OURS_JOBS, (BULLMQ, *PYTHON), 20_000, callers=64),
    Case("items of 1 ms, drained", "drained_per_s", OURS, (BULLMQ, *PYTHON), 40_000, 1),
    Case("10,000 tenants, drained", "drained_per_s", OURS_TENANTS, (BULLMQ, *PYTHON)),
)


def contenders(case: Case, scale: Scale, url: str) -> list[Contender]:
    peers = [peer for peer in case.others if not scale.peers or peer.name in scale.peers]
    made = [(peer, peer.command()) for peer in (case.ours, *peers)]
    return [
        Contender(
            peer,
            command,
            max(min(peer.items, case.items or peer.items) // scale(8, 6), 200),
            url,
            case.pause_ms,
            case.callers,
        )
        for peer, command in made
        if command is not None
    ]


async def run(bench: Bench, scale: Scale) -> None:
    for case in CASES:
        with RedisServer() as server:
            ours, *others = contenders(case, scale, server.url)
            await interleave(scale(1, 7), ours, *others, warm_up=0)
            for other in others:
                if not other.failed and not ours.failed:
                    alternative = (other.peer.name, other.samples(case.field))
                    bench.add(case.metric, "/s", ours.samples(case.field), None, alternative)
