from __future__ import annotations

import pytest

from .simulation import simulate


@pytest.mark.parametrize("seed", range(8))
def test_every_home_shows_every_post_once_in_order(seed: int) -> None:
    simulate(seed)
