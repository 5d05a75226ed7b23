"""How batches get in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from heatsink.errors import Conflict, HeatsinkError, InvalidBody, InvalidSetting

from .world import World, on_virtual_time


@on_virtual_time
async def test_every_item_runs_once_and_the_batch_is_done() -> None:
    world = World()
    async with world.consumer():
        batch = await world.bulk.submit("note", range(1_000))
        progress = await world.bulk.wait(batch.id, 60.0)
    assert (progress.state, progress.done, progress.accepted) == ("done", 1_000, 1_000)
    assert world.items_run(batch.id) == list(range(1_000))
