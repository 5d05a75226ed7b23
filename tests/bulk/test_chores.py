"""What a partition's owner does with ends that it cannot report."""

from __future__ import annotations

from typing import Any

import pytest

from heatsink import connect
from heatsink.bulk.batch import PartEnd
from heatsink.errors import NoAccess, Unavailable

END = PartEnd("long-gone", "part", 0, 1, 0, 0)


async def test_the_end_of_a_batch_that_is_gone_is_done_with() -> None:
    async with connect("memory://") as hs:
        assert await hs.bulk.reconciler._record_ends_of(3, END.batch, [END]) == (END.batch, True)


@pytest.mark.parametrize("refusal", [NoAccess("the login is refused"), Unavailable("away")])
async def test_an_end_that_the_queue_does_not_take_is_kept(
    monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    async def refuse(*_: Any) -> None:
        raise refusal

    async with connect("memory://") as hs:
        monkeypatch.setattr(hs.bulk.reconciler, "_get_or_rebuild", refuse)
        assert await hs.bulk.reconciler._record_ends_of(3, END.batch, [END]) == (END.batch, False)
