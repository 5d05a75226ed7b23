"""Virtual time: passes at once, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc

import pytest

from heatsink.testing import run_on_virtual_time
from heatsink.testing.clocks import Deadlock


def test_time_passes_when_nothing_else_is_left_to_do() -> None:
    async def nap() -> float:
        await asyncio.sleep(3_600)
        return asyncio.get_running_loop().time()

    assert run_on_virtual_time(nap()) == pytest.approx(3_600)


def test_who_waits_for_ever_is_told() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_on_virtual_time(wait())


def test_what_starts_while_all_else_ends_is_ended_too() -> None:
    """Else it is never awaited, and warns in whatever test runs when it is collected."""

    async def farewell(left: int) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            if left:
                asyncio.get_running_loop().farewell = asyncio.create_task(farewell(left - 1))  # type: ignore[attr-defined]

    async def work() -> None:
        one = asyncio.create_task(farewell(3))
        await asyncio.sleep(0)
        assert not one.done()
        raise KeyError("violation")

    with pytest.raises(KeyError, match="violation"):
        run_on_virtual_time(work())
    gc.collect()
