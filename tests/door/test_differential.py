"""Random requests through the core are answered as DynamoDB answers them, whatever the layouts."""

from __future__ import annotations

import pytest

from .differential import Differential

REQUESTS = 300


@pytest.mark.parametrize("seed", range(10))
def test_a_spread_table_answers_as_a_plain_table_does(seed: int) -> None:
    run = Differential(seed)
    run.run(REQUESTS)
    assert run.spread > REQUESTS / 2
