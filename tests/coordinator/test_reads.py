from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from heatsink.coordinator.reads import REPEATS_MAX, NearDecisions, NearWatch
from heatsink.errors import Unavailable
from heatsink.heat.heat import KeyHeat, WindowHeat
from heatsink.reads.near_cache import REPEAT_S, NearKeys
from heatsink.reads.policy import NearPolicy, NearRules
from heatsink.registry.decisions import SoftDecision
from heatsink.stores.memory.messages import MemorySoft
from heatsink.testing import ManualClock


class Stage:
    """A leader that sees what it is shown."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.said: list[SoftDecision] = []
        self.keys = NearKeys(clock)
        self.seen = SimpleNamespace(latest=None, servers=1)
        self.leader = SimpleNamespace(term=3)
        self.soft: Any = MemorySoft(self.said)
        seen: Any = self.seen
        leader: Any = self.leader
        self.watch = NearWatch(
            seen, NearPolicy(NearRules()), leader, NearDecisions(self.keys, self.soft), clock
        )

    async def show(self, *keys: str) -> int:
        """The number of decisions that were said after a second in which these keys were hot."""
        await self.clock.advance(1.0)
        now_s, before = int(self.clock.monotonic_s()), len(self.said)
        heat = {key: KeyHeat(0, 0, 5_000, 0, 0) for key in keys}
        self.seen.latest = WindowHeat(now_s, now_s, True, heat, 0)
        await self.watch.run_once()
        await self.watch.run_once()  # the same window again: nothing new
        return len(self.said) - before


async def test_what_holds_is_repeated_now_and_then(clock: ManualClock) -> None:
    stage = Stage(clock)
    assert await stage.show("hot") == 1
    assert stage.said == [SoftDecision(3, stage.said[0].decision)]
    assert stage.keys.near_s("hot") == 0.1
    said = [await stage.show("hot") for _ in range(61)]
    assert sum(said) == 61 // int(REPEAT_S)


async def test_a_new_leader_says_what_holds_a_little_at_a_time(clock: ManualClock) -> None:
    stage, keys = Stage(clock), [f"k{n}" for n in range(3 * REPEATS_MAX)]
    assert await stage.show(*keys) == len(keys)
    heir = Stage(clock)
    heir.keys.apply(stage.said)
    assert [await heir.show(*keys) for _ in range(4)] == [REPEATS_MAX] * 3 + [0]


async def test_what_could_not_be_said_is_decided_again(clock: ManualClock) -> None:
    stage = Stage(clock)
    publish = stage.soft.publish

    async def fail(*_: Any) -> None:
        raise Unavailable("no Redis")

    stage.soft.publish = fail
    assert await stage.show("hot") == 0
    stage.soft.publish = publish
    assert await stage.show("hot") == 1
