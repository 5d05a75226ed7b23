"""Other engines answer the corpus as ours does, but for differences that are explained."""

from __future__ import annotations

import pytest

from heatsink.stores.dynamodb.verify.assumptions import ALL

from .beside import CHECKED, ENGINES, EXPLAINED, Beside, Other

REQUESTS = 500


def test_heatsink_verify_asks_dynamodb_what_is_not_known() -> None:
    names = {one.name for one in ALL}
    for why in (one.why for one in EXPLAINED if "NOT KNOWN" in one.why):
        assert [name for words, name in CHECKED.items() if words in why and name in names], why


@pytest.mark.full("installs other engines")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ENGINES)
def test_each_difference_to_another_engine_is_explained(engine: str) -> None:
    run = Beside(engine, Other(ENGINES[engine]))
    run.run(0, REQUESTS)
    assert run.unexplained == []
    assert run.explained.total() < REQUESTS / 4
