"""Bugs to plant in the spreading of an index. The simulation must find each of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from heatsink.door import computed, index_pages, many
from heatsink.door.migration import IndexMigration, Settle
from heatsink.door.places import ItemPlaces
from heatsink.door.protocol import UpstreamCall
from heatsink.door.spread_indexes import SpreadIndex
from heatsink.door.tagging import _Following
from heatsink.registry.spread_indexes import DAY_MS, Swept

from .index_simulation import IndexSimulation

Bug = Callable[[], AbstractContextManager[object]]


def a_removed_value_leaves_its_shadow_behind() -> AbstractContextManager[object]:
    right = _Following.changed

    def changed(self: Any, parameters: Any, update: Any) -> Any:
        return parameters if update.removes else right(self, parameters, update)

    return patch.object(_Following, "changed", changed)


def a_stale_row_is_shown() -> AbstractContextManager[object]:
    right = index_pages.IndexMerge._feed

    def feed(self: Any, source: Any, answer: Any) -> None:
        value = {"S": self._asked.key}
        rows = [{**row, self._index.attribute: value} for row in answer["Items"]]
        right(self, source, {**answer, "Items": rows})

    return patch.object(index_pages.IndexMerge, "_feed", feed)


def a_bucket_is_closed_before_it_is_swept() -> AbstractContextManager[object]:
    def buckets(self: Any, value: str) -> list[int | None]:
        layout = self._view.layout(self.label(value))
        return [None, *range(layout.buckets)] if layout.buckets > 1 else [None]

    return patch.object(SpreadIndex, "buckets", buckets)


def a_sweep_looks_into_another_bucket() -> AbstractContextManager[object]:
    right = IndexMigration._entries
    return patch.object(IndexMigration, "_entries", lambda self, name: right(self, f"{name}0"))


def _without_condition(make: str) -> AbstractContextManager[object]:
    right = getattr(IndexMigration, make)

    def made(self: Any, *given: Any) -> Any:
        call = right(self, *given)
        if not isinstance(call, UpstreamCall):
            return call
        rest = {name: one for name, one in call.parameters.items() if name != "ConditionExpression"}
        rest["ExpressionAttributeNames"] = {"#s": self._index.shadow}
        values = rest.pop("ExpressionAttributeValues", {})
        if ":new" in values:
            rest["ExpressionAttributeValues"] = {":new": values[":new"]}
        return UpstreamCall("UpdateItem", rest)

    return patch.object(IndexMigration, make, made)


def a_backfill_overwrites_a_newer_value() -> AbstractContextManager[object]:
    return _without_condition("_mending")


def a_sweep_overwrites_a_newer_value() -> AbstractContextManager[object]:
    return _without_condition("_retag")


def a_step_begins_before_all_processes_know_the_last_one() -> AbstractContextManager[object]:
    right = IndexSimulation._met

    def met(self: Any, need: Any) -> Any:
        return None if isinstance(need, Settle) else right(self, need)

    return patch.object(IndexSimulation, "_met", met)


def a_repeated_transaction_uses_the_newest_buckets_only() -> AbstractContextManager[object]:
    return patch.object(many, "_earlier", lambda *_: iter(()))


def a_page_token_forgets_the_ties_of_other_buckets() -> AbstractContextManager[object]:
    right = index_pages.Position
    return patch.object(index_pages, "Position", lambda bucket, *_: right(bucket))


def an_update_keeps_the_shadow_of_the_old_value() -> AbstractContextManager[object]:
    right = _Following.changed

    def changed(self: Any, parameters: Any, update: Any) -> Any:
        return parameters if update.sets else right(self, parameters, update)

    return patch.object(_Following, "changed", changed)


def a_computed_value_is_written_although_the_item_has_changed() -> AbstractContextManager[object]:
    return patch.object(computed, "_only_if_unchanged", lambda parameters, _: parameters)


def a_page_token_does_not_say_where_a_stray_is() -> AbstractContextManager[object]:
    return patch.object(ItemPlaces, "bucket_to_name", lambda *_: None)


def a_row_is_shown_by_each_of_its_buckets() -> AbstractContextManager[object]:
    right = index_pages.IndexMerge._checked

    def checked(self: Any, rows: Any) -> Any:
        self._seen.clear()
        return right(self, rows)

    return patch.object(index_pages.IndexMerge, "_checked", checked)


def a_bucket_is_forgotten_as_soon_as_it_is_closed() -> AbstractContextManager[object]:
    return patch.object(Swept, "is_forgotten", property(lambda self: self.is_closed))


def a_bucket_is_forgotten_after_a_day_without_a_last_sweep() -> AbstractContextManager[object]:
    right = SpreadIndex.buckets

    def buckets(self: Any, value: str) -> list[int | None]:
        def is_forgotten(swept: Swept) -> bool:
            return swept.is_closed and swept.last_ms + DAY_MS <= self._view.horizon_ms

        with patch.object(Swept, "is_forgotten", property(is_forgotten)):
            return right(self, value)

    return patch.object(SpreadIndex, "buckets", buckets)


BUGS: list[Bug] = [
    a_page_token_does_not_say_where_a_stray_is,
    a_row_is_shown_by_each_of_its_buckets,
    a_bucket_is_forgotten_as_soon_as_it_is_closed,
    a_bucket_is_forgotten_after_a_day_without_a_last_sweep,
    a_computed_value_is_written_although_the_item_has_changed,
    a_removed_value_leaves_its_shadow_behind,
    a_stale_row_is_shown,
    a_bucket_is_closed_before_it_is_swept,
    a_sweep_looks_into_another_bucket,
    a_backfill_overwrites_a_newer_value,
    a_sweep_overwrites_a_newer_value,
    a_step_begins_before_all_processes_know_the_last_one,
    a_repeated_transaction_uses_the_newest_buckets_only,
    a_page_token_forgets_the_ties_of_other_buckets,
    an_update_keeps_the_shadow_of_the_old_value,
]
