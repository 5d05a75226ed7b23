"""Followers by the hundred and workers that are killed: every home has every post, once."""

from __future__ import annotations

from pathlib import Path

import pytest

from .celebrity import Sizes, play


@pytest.mark.full("real processes for seconds; plain runs have the simulation of timelines")
@pytest.mark.sleeps("workers work for a while between the kills")
@pytest.mark.timeout(240)
async def test_flips_by_followers_and_killed_workers_lose_and_double_nothing(
    tmp_path: Path,
) -> None:
    sizes = Sizes(
        followers=(5, 50, 100, 400, 1_000),
        threshold=100,
        falls=(100, 400),
        sample=100,
        steps=5,
        kills=1,
        workers=1,
    )
    await play(tmp_path, sizes)
