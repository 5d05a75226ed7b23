"""Bugs to plant in the core. The simulation must find each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from heatsink.door import items, many, queries, rewriting
from heatsink.door.keys import physical
from heatsink.door.places import ItemPlaces, Keys, Spot
from heatsink.door.protocol import UpstreamCall, WireError
from heatsink.door.queries import Merge
from heatsink.door.times import TimeOf, first_text
from heatsink.registry.layouts import Layout
from heatsink.stores.dynamodb.wire.expressions.conditions import Exists

from .world import Registry

Bug = Callable[[], AbstractContextManager[object]]


def an_old_item_is_placed_by_the_newest_epoch() -> AbstractContextManager[object]:
    return patch.object(Layout, "epoch_at", lambda self, _: self.epochs[-1])


def a_write_does_not_wait_for_the_horizon() -> AbstractContextManager[object]:
    def to_write(self: ItemPlaces, keys: Keys) -> Any:
        rule = self.table.rule_of(keys.sort)
        return self.spot(keys, rule, rule.time_ms(keys.sort))
        yield []

    return patch.object(ItemPlaces, "to_write", to_write)


def a_request_past_the_horizon_passes_untouched() -> AbstractContextManager[object]:
    right = ItemPlaces.may_pass

    def may_pass(self: ItemPlaces, keys: Keys) -> bool:
        label, rule = self.label(keys.key), self.table.rule_of(keys.sort)
        cold = label not in self._view.layouts and rule.buckets == 1
        return cold or right(self, keys)

    return patch.object(ItemPlaces, "may_pass", may_pass)


def a_sort_key_within_a_second_of_the_horizon_counts_as_past() -> AbstractContextManager[object]:
    def later(time_of: TimeOf, time_ms: int) -> str:
        return first_text(time_of, time_ms + 1_000)

    return patch("heatsink.door.places.first_text", later)


def a_strong_read_does_not_renew_the_view() -> AbstractContextManager[object]:
    right = ItemPlaces.to_read

    def to_read(self: ItemPlaces, keys: Keys, *, consistent: bool) -> Any:
        del consistent
        return right(self, keys, consistent=False)

    return patch.object(ItemPlaces, "to_read", to_read)


def a_strong_query_plans_from_the_view() -> AbstractContextManager[object]:
    return patch.object(queries, "_passes", lambda *_: False)


def a_query_forgets_the_bare_key() -> AbstractContextManager[object]:
    right = queries.buckets_of
    return patch.object(queries, "buckets_of", lambda *a: right(*a)[1:] or [None])


def a_query_asks_the_newest_buckets_only() -> AbstractContextManager[object]:
    def newest(_: Any, layout: Layout, __: Any) -> list[int | None]:
        return [None, *range(max(layout.buckets, 3))]

    return patch.object(queries, "buckets_of", newest)


def a_query_forgets_prefixes_with_fixed_buckets() -> AbstractContextManager[object]:
    def by_time(_: Any, layout: Layout, __: Any) -> list[int | None]:
        return [None, *range(layout.max_buckets)] if layout.max_buckets > 1 else [None]

    return patch.object(queries, "buckets_of", by_time)


def a_page_token_skips_rows() -> AbstractContextManager[object]:
    right = Merge._ended

    def ended(self: Merge, last: Any) -> Any:
        heads = [source.rows[0][1] for source in self._sources.values() if source.rows]
        return right(self, heads[0] if heads else last)

    return patch.object(Merge, "_ended", ended)


def a_page_token_repeats_rows() -> AbstractContextManager[object]:
    right = Merge._call

    def call(self: Merge, source: Any, rows: int) -> UpstreamCall:
        made = right(self, source, rows)
        if source.bucket == 1:
            made.parameters.pop("ExclusiveStartKey", None)
        return made

    return patch.object(Merge, "_call", call)


def of_two_rows_in_one_round_one_is_lost() -> AbstractContextManager[object]:
    right = Merge._next

    def lossy(self: Merge) -> Any:
        found = right(self)
        full = [source for source in self._sources.values() if len(source.rows) > 2]
        if found and full:
            full[0].rows.popleft()
        return found

    return patch.object(Merge, "_next", lossy)


def a_condition_is_checked_under_the_bare_key() -> AbstractContextManager[object]:
    right = items.placed_write

    def placed(places: ItemPlaces, operation: str, parameters: Any, where: Any) -> UpstreamCall:
        target, keys, spot = where
        if "ConditionExpression" in parameters:
            spot = items.bare(spot, keys)
        return right(places, operation, parameters, (target, keys, spot))

    return patch.object(items, "placed_write", placed)


def a_delete_goes_to_the_bare_key() -> AbstractContextManager[object]:
    right = items.placed_write

    def placed(places: ItemPlaces, operation: str, parameters: Any, where: Any) -> UpstreamCall:
        target, keys, spot = where
        if operation == "DeleteItem":
            spot = items.bare(spot, keys)
        return right(places, operation, parameters, (target, keys, spot))

    return patch.object(items, "placed_write", placed)


def a_transaction_checks_under_the_bare_key() -> AbstractContextManager[object]:
    right = many._placed_action

    def placed(places: ItemPlaces, verb: str, given: Any, moment: Any) -> Any:
        if verb == "ConditionCheck":
            return {verb: given}
        return (yield from right(places, verb, given, moment))

    return patch.object(many, "_placed_action", placed)


def a_transaction_shows_half_of_another() -> AbstractContextManager[object]:
    """The places of the items are final, even if the view lacked one of them."""

    class Always(list[Any]):
        __hash__ = None

        def __eq__(self, _: object) -> bool:
            return True

    right = many._spots

    def spots(wanted: Any) -> Any:
        return Always((yield from right(wanted)))

    return patch.object(many, "_spots", spots)


def an_item_has_another_place_for_updates() -> AbstractContextManager[object]:
    right = items.write_item

    def write(places: ItemPlaces, operation: str, parameters: Any, keys: Keys) -> Any:
        if operation != "UpdateItem":
            return (yield from right(places, operation, parameters, keys))
        spot = yield from places.to_write(keys)
        other = Spot(spot.label, 0, physical(keys.key, 0))
        call = items.placed_write(places, operation, parameters, ("Key", keys, other))
        return items.shown_answer((yield [call])[0], places)

    return patch("heatsink.door.core.write_item", write)


def a_lost_update_is_sent_again() -> AbstractContextManager[object]:
    right = items.write_item

    def write(places: ItemPlaces, operation: str, parameters: Any, keys: Keys) -> Any:
        steps = right(places, operation, parameters, keys)
        needs = next(steps)
        try:
            while True:
                answers = yield needs
                if any(isinstance(one, WireError) and one.code == "Lost" for one in answers):
                    answers = yield needs
                needs = steps.send(answers)
        except StopIteration as end:
            return end.value

    return patch("heatsink.door.core.write_item", write)


def a_condition_on_the_key_sees_the_bucket_s_name() -> AbstractContextManager[object]:
    return patch.object(items, "for_place", lambda parameters, *_: parameters)


def the_guard_of_a_condition_is_missing() -> AbstractContextManager[object]:
    def always(self: Any, holds: bool, if_missing: bool) -> Any:
        del if_missing
        return Exists(self._own, holds)

    def unguarded(_: Any, node: Any, __: bool) -> Any:
        return node

    @contextmanager
    def both() -> Iterator[None]:
        with (
            patch.object(rewriting._Rewriter, "_always", lambda s, h, m: always(s, h or m, m)),
            patch.object(rewriting._Rewriter, "_guarded", unguarded),
        ):
            yield

    return both()


def an_epoch_starts_before_the_closed_time() -> AbstractContextManager[object]:
    right = Registry.append

    def append(self: Registry, *decisions: Any) -> None:
        real, self.closed_ms = self.closed_ms, self.closed_ms - 30
        last = max((entry.start_ms for entry in self.entries), default=0)
        self.closed_ms = max(self.closed_ms, last + 1)
        right(self, *decisions)
        self.closed_ms = real

    return patch.object(Registry, "append", append)


def a_layout_just_read_is_taken_for_final() -> AbstractContextManager[object]:
    right = Merge.learn

    def learn(self: Merge, layout: Layout) -> Any:
        self._final_ms = 10**15
        return right(self, layout)

    return patch.object(Merge, "learn", learn)


def a_changed_declaration_is_accepted() -> AbstractContextManager[object]:
    @contextmanager
    def everywhere() -> Iterator[None]:
        with (
            patch("heatsink.registry.declarations.difference", lambda *_: ""),
            patch("heatsink.door.places.difference", lambda *_: ""),
        ):
            yield

    return everywhere()


def a_scan_goes_on_where_its_last_row_belongs() -> AbstractContextManager[object]:
    return patch.object(ItemPlaces, "bucket_to_name", lambda *_: None)


def a_stray_in_fixed_buckets_is_shown() -> AbstractContextManager[object]:
    def by_time(self: Merge, _: Any, time_ms: int | None) -> bool:
        return time_ms is not None and time_ms < self._final_ms

    return patch.object(Merge, "_is_placed", by_time)


BUGS: list[Bug] = [
    a_scan_goes_on_where_its_last_row_belongs,
    a_stray_in_fixed_buckets_is_shown,
    a_changed_declaration_is_accepted,
    a_layout_just_read_is_taken_for_final,
    an_old_item_is_placed_by_the_newest_epoch,
    a_write_does_not_wait_for_the_horizon,
    a_request_past_the_horizon_passes_untouched,
    a_sort_key_within_a_second_of_the_horizon_counts_as_past,
    a_strong_read_does_not_renew_the_view,
    a_strong_query_plans_from_the_view,
    a_query_forgets_the_bare_key,
    a_query_asks_the_newest_buckets_only,
    a_query_forgets_prefixes_with_fixed_buckets,
    a_page_token_skips_rows,
    a_page_token_repeats_rows,
    of_two_rows_in_one_round_one_is_lost,
    a_condition_is_checked_under_the_bare_key,
    a_delete_goes_to_the_bare_key,
    a_transaction_checks_under_the_bare_key,
    a_transaction_shows_half_of_another,
    an_item_has_another_place_for_updates,
    a_lost_update_is_sent_again,
    a_condition_on_the_key_sees_the_bucket_s_name,
    the_guard_of_a_condition_is_missing,
    an_epoch_starts_before_the_closed_time,
]
