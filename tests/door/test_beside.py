"""Other engines answer the corpus as ours does, but for differences that are explained."""

from __future__ import annotations

import pytest

from .beside import ENGINES, Beside, Other

REQUESTS = 500


@pytest.mark.full("installs other engines")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ENGINES)
def test_each_difference_to_another_engine_is_explained(engine: str) -> None:
    run = Beside(engine, Other(ENGINES[engine]))
    run.run(0, REQUESTS)
    assert run.unexplained == []
    assert run.explained.total() < REQUESTS / 4
