"""Bugs that somebody might write, each planted into the production code for one run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

from msgspec import structs

from heatsink.reads.invalidation import Invalidation
from heatsink.reads.near_cache import Landing, NearCache, Shelf, Times
from heatsink.reads.reads import Coalescer, Flight, Reads
from heatsink.reads.tags import TagIndex, tag_in
from tests.planted import Bugs

BUGS = bug = Bugs()


@bug
def a_reader_joins_a_load_older_than_its_own_write() -> Iterator[None]:
    with patch.object(Coalescer, "forget", lambda *_: None):
        yield


@bug
def a_load_that_began_before_the_write_is_kept() -> Iterator[None]:
    """Forgetting is about entries only: what lands later is put there again."""
    with patch.object(Coalescer, "_retire", lambda *_: True):
        yield


@bug
def age_counts_from_the_end_of_the_load() -> Iterator[None]:
    keep = Shelf.keep

    def keep_young(self: Shelf, key: str, landed: Landing, *others: Any) -> None:
        landed.began_s = self._now()
        keep(self, key, landed, *others)

    with patch.object(Shelf, "keep", keep_young):
        yield


@bug
def an_error_poisons_the_entry() -> Iterator[None]:
    keep = Shelf.keep

    def keep_all(self: Shelf, key: str, landed: Landing, times: Times, _refresh: bool) -> None:
        keep(self, key, landed, structs.replace(times, errors_for=60.0))

    with patch.object(Shelf, "keep", keep_all):
        yield


@bug
def a_cancelled_leader_fails_the_others() -> Iterator[None]:
    wait = Coalescer.wait

    async def leading(self: Coalescer, key: str, flight: Flight) -> Any:
        leads = flight.readers == 0
        try:
            return await wait(self, key, flight)
        except asyncio.CancelledError:
            if leads and flight.task is not None:
                flight.task.cancel()
            raise

    with patch.object(Coalescer, "wait", leading):
        yield


@bug
def readers_wait_for_the_load_itself() -> Iterator[None]:
    """A loader that ends with CancelledError cancels everybody who waits for it."""

    async def shielded(_: Coalescer, __: str, flight: Flight) -> Any:
        assert flight.task is not None
        return await asyncio.shield(flight.task)

    with patch.object(Coalescer, "wait", shielded):
        yield


@bug
def a_load_that_fails_wakes_nobody() -> Iterator[None]:
    """The seeds' coalescing: the future is completed on success only."""
    land = Flight.land

    def land_if_well(self: Flight) -> None:
        if self.error is None:
            land(self)

    with patch.object(Flight, "land", land_if_well):
        yield


@bug
def nobody_gives_up_on_a_load_that_hangs() -> Iterator[None]:
    with patch.object(Coalescer, "_give_up", lambda *_: None):
        yield


@bug
def a_load_is_joined_however_old_it_is() -> Iterator[None]:
    flying = Coalescer.flying

    def any_age(self: Coalescer, key: str, _since_s: float) -> Flight | None:
        return flying(self, key, float("-inf"))

    with patch.object(Coalescer, "flying", any_age):
        yield


@bug
def the_stale_bound_is_the_writers_not_the_readers() -> Iterator[None]:
    """An entry that one reader may have for long is served to all for as long."""
    get = Reads._get_otherwise

    async def generous(self: Reads, key: str, load: Any, times: Times, tags: Any) -> Any:
        return await get(self, key, load, structs.replace(times, stale_for=5.0), tags)

    with patch.object(Reads, "_get_otherwise", generous):
        yield


@bug
def nothing_is_forgotten_when_the_link_is_back() -> Iterator[None]:
    with patch.object(Invalidation, "linked", lambda self: self._set_linked(True)):
        yield


@bug
def stale_values_are_served_without_a_link() -> Iterator[None]:
    set_linked = Invalidation._set_linked

    def always(self: Invalidation, _is_linked: bool) -> None:
        set_linked(self, True)

    with patch.object(Invalidation, "_set_linked", always):
        yield


@bug
def a_tag_does_not_know_the_loads_that_are_running() -> Iterator[None]:
    """A key gets its tags when it is cached: forgetting the tag before leaves the load running."""
    note = TagIndex.note

    def note_cached(self: TagIndex, key: str, tags: Any) -> None:
        reads = self._is_alive.__self__  # type: ignore[attr-defined]
        if reads._find(key) is not None:
            note(self, key, tags)

    with patch.object(TagIndex, "note", note_cached):
        yield


@bug
def other_processes_do_not_forget_tags() -> Iterator[None]:
    heard = Invalidation.heard

    def heard_keys(self: Invalidation, keys: Sequence[str]) -> None:
        if kept := [key for key in keys if tag_in(key) is None]:
            heard(self, kept)

    with patch.object(Invalidation, "heard", heard_keys):
        yield


@bug
def forgetting_leaves_the_value() -> Iterator[None]:
    with patch.object(NearCache, "forget", lambda *_: None):
        yield
