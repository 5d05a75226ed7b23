from __future__ import annotations

from heatsink.registry.layouts import Layout
from heatsink.registry.registry import Registry
from heatsink.stores.memory.data import MemoryRegistry
from heatsink.testing import ManualClock
from heatsink.timelines.modes import Modes, mode_of


async def test_a_post_from_beyond_the_horizon_has_a_mode_if_its_author_has_an_epoch_behind_it(
    clock: ManualClock,
) -> None:
    """As after a reset of the closed time: nobody has to wait for the post's time to come."""
    registry, reached = Registry(MemoryRegistry(clock), clock), []

    async def reach(time_ms: int) -> None:
        reached.append(time_ms)

    registry.view.layouts[mode_of("ada").text] = Layout.of([(900, 2), (1_001, 2)])

    async def never(key: str, buckets: int) -> None:
        raise AssertionError(f"nobody waits for {buckets} of {key}")

    modes = Modes(registry, reach, never)
    await modes.know([("ada", 1_000), ("ada", 950)])
    assert (reached, modes.at("ada", 1_000)) == ([], "pull")
    await modes.know([("ada", 1_000), ("bob", 940), ("bob", 950)])
    assert reached == [950]
