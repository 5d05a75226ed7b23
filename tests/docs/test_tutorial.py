"""The tutorial, followed to the letter: every step works, and says what the page says."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from heatsink.stores.embedded import free_port

from .pages import TUTORIAL, blocks
from .shell import PORTS, run

CHANGING = (
    (r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID"),
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?", "TIME"),
    (r"\d[\d,.]*", "N"),
)


EPOCH_BETWEEN = " " * 10 + "N buckets from TIME UTC"  # a slow machine may need more than one step


def shape(text: str) -> list[str]:
    """Without what differs from run to run: ids, times, numbers, reasons and heat."""
    for pattern, name in CHANGING:
        text = re.sub(pattern, name, text)
    lines = [re.sub(r"^(  (?:why|heat) ).*", r"\1…", line) for line in text.splitlines()]
    return [line for line in lines if line != EPOCH_BETWEEN]


@pytest.mark.timeout(180)  # they wait for servers, and machines may be busy
def test_a_reader_meets_no_step_that_fails(tmp_path: Path) -> None:
    steps = blocks(TUTORIAL)
    printed = iter(run(steps, tmp_path, {port: free_port() for port in PORTS}))
    shown = 0
    for block, after in pairwise([*steps, steps[0]]):
        if block.language == "sh" and block.is_run:
            output = next(printed)
            if after.language == "text":
                assert shape(output) == shape(after.text), block.text
                shown += 1
    assert shown == sum(block.language == "text" for block in steps)


def test_shapes_tell_words_apart_and_not_numbers() -> None:
    assert shape("335 of 400 writes") == shape("12 of 400 writes")
    assert shape("335 of 400 writes") != shape("335 of 400 reads")
    assert shape("4 from 2026-11-15 12:00:00.500 UTC") == shape("9 from 2027-01-01 01:02:03.1 UTC")
