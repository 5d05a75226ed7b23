"""Until when a table's bare keys may have been written by programs without Heatsink.

Such a program puts every row under the bare key, also where a layout says otherwise. So reads ask
the bare key along with the buckets, until an operator says that the last such program is gone.
The registry then notes the time: rows from before it may still be strays under the bare key, and
stay readable; rows from after it are where their layout puts them.

The note is a pin of one bucket on a reserved name that carries the time. Such a pin asks nothing
of the coordinator, and travels to every process as all decisions do.
"""

from __future__ import annotations

from heatsink.checks import check_text
from heatsink.client.urls import open_stores
from heatsink.clock import Clock
from heatsink.registry.decision import PIN, for_key
from heatsink.registry.registry import Registry
from heatsink.registry.view import View

from .names import adoption_prefix

TABLE_NAME_MAX = 255


class Adoption:
    """Reads the note in a view; looks anew only when the view has changed."""

    def __init__(self, table: str, view: View) -> None:
        self._prefix = adoption_prefix(table)
        self._view = view
        self._seen: tuple[int, float] = (-1, float("inf"))

    @property
    def complete_ms(self) -> float:
        """From this time on no row is a stray; infinite while adoption is not complete."""
        version = self._view.version
        if self._seen[0] != version:
            self._seen = (version, completed_ms(self._view, self._prefix))
        return self._seen[1]


def completed_ms(view: View, prefix: str) -> float:
    notes = [name for name in list(view.pins) if name.startswith(prefix)]
    return min((int(name.removeprefix(prefix)) for name in notes), default=float("inf"))


async def adopt(url: str, table: str, complete: bool, clock: Clock) -> float:
    """When the table's adoption was complete, after making it so if told to; else infinite."""
    check_text("table", table, TABLE_NAME_MAX)
    prefix = adoption_prefix(table)
    stores = open_stores(url, clock, must_exist=True)
    try:
        await stores.open()
        registry = Registry(stores.registry, clock)
        await registry.open((await stores.registry.meta()).meta)
        found_ms = completed_ms(registry.view, prefix)
        if not complete or found_ms < float("inf"):
            return found_ms
        await registry.keep_ahead(leads=False)
        name = f"{prefix}{registry.view.horizon_ms}"
        await registry.publish([for_key(name, PIN, 1, "adoption is complete")], term=None)
        return completed_ms(registry.view, prefix)
    finally:
        await stores.close()
