"""Random requests through Heatsink are answered as DynamoDB answers them, whatever the layouts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.planted import usually

from .differential import Differential
from .live import LiveWorld, attached, behind_a_door
from .world import World

REQUESTS = 300
LIVE_REQUESTS = usually(150, full=3_000)


@pytest.mark.parametrize("seed", range(10))
def test_a_spread_table_answers_as_a_plain_table_does(seed: int) -> None:
    run = Differential(seed, World(processes=3))
    run.run(REQUESTS)
    assert run.spread > REQUESTS / 2


@pytest.mark.parametrize("seed", range(10))
def test_a_table_with_a_spread_index_answers_as_a_plain_table_does(seed: int) -> None:
    run = Differential(seed, World(processes=3, spread_index=True))
    run.run(REQUESTS)
    assert run.spread > REQUESTS / 2
    assert run.computed < REQUESTS / 4


@pytest.mark.timeout(600)
@pytest.mark.parametrize("opened", [attached, behind_a_door])
@pytest.mark.server("a Heatsink that runs")
def test_a_running_heatsink_answers_as_a_plain_table_does(
    opened: Callable[[Path], AbstractContextManager[LiveWorld]], tmp_path: Path
) -> None:
    with opened(tmp_path) as world:
        run = Differential(7, world)
        run.run(LIVE_REQUESTS)
        assert run.spread > LIVE_REQUESTS / 2
        assert world.buckets_used() > 2
