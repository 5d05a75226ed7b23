"""How many files a reader opens to follow one request: `./dev walk NAME` prints them."""

from __future__ import annotations

import pytest

from tests.walk import MOST, WALKS, walk


def test_every_walk_has_its_limit() -> None:
    assert MOST == {"append": 9, "http": 9, "report": 14, "item": 15}
    assert MOST.keys() == WALKS.keys()


@pytest.mark.parametrize("name", WALKS)
def test_a_request_passes_few_files(name: str) -> None:
    files = walk(name)
    advice = "\n".join(["too many files: fold fragments into the module they serve", *files])
    assert 0 < len(files) <= MOST[name], advice
