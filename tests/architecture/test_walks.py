"""How many files a reader opens to follow one request: `./dev walk NAME` prints them."""

from __future__ import annotations

import pytest

from tests.walk import MOST, WALKS, walk

TRIES = 10


def test_every_walk_has_its_limit() -> None:
    assert MOST == {"append": 9, "http": 9, "report": 14, "item": 15}
    assert MOST.keys() == WALKS.keys()


@pytest.mark.parametrize("name", WALKS)
def test_a_request_passes_few_files(name: str) -> None:
    """Background work of a slow machine may fall into a walk, but not into each of several."""
    walks = (walk(name) for _ in range(TRIES))
    files = next((files for files in walks if len(files) <= MOST[name]), None) or walk(name)
    advice = "\n".join(["too many files: fold fragments into the module they serve", *files])
    assert 0 < len(files) <= MOST[name], advice
