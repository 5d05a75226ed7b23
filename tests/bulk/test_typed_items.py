"""Handlers that declare the type of their items, and objects as items."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID, uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heatsink.bulk import Actions, Context, Fail
from heatsink.errors import InvalidBody, InvalidSetting
from heatsink.testing import run


class Charge(msgspec.Struct):
    id: UUID
    amount: Decimal
    due: date
    tags: set[str] = set()
    proof: bytes = b""


@dataclass
class Tag:
    conversation: int
    label: str = "new"


class Row(TypedDict):
    name: str


class Model:
    """Shaped as a pydantic model is."""

    def __init__(self, number: int) -> None:
        self.number = number

    def model_dump(self, mode: str) -> dict[str, Any]:
        assert mode == "json"
        return {"number": self.number}

    @classmethod
    def model_validate(cls, value: Any) -> Model:
        if not isinstance(value.get("number"), int):
            raise ValueError("number must be a whole number")
        return cls(value["number"])


def nothing(*_: Any) -> None:
    pass


@given(
    st.builds(
        Charge,
        id=st.uuids(),
        amount=st.decimals(allow_nan=False, allow_infinity=False),
        due=st.dates(),
        tags=st.sets(st.text()),
        proof=st.binary(),
    )
)
def test_an_object_reaches_a_handler_that_declares_its_type_as_it_was(charge: Charge) -> None:
    actions, got = Actions(), []

    @actions.action("charge")
    async def handle(item: Charge, _: Context) -> None:
        got.append(item)

    assert run(actions, [charge]).progress.done == 1
    assert got == [charge]


@pytest.mark.parametrize("item", [Tag(1), {"conversation": 1}])
def test_a_dataclass_in_an_annotation_is_enough(item: Any) -> None:
    actions, got = Actions(), []

    @actions.action("tag")
    def handle(item: Tag, _: Context) -> None:
        got.append(item)

    run(actions, [item])
    assert got == [Tag(1)]


def test_a_model_that_validates_itself_is_stored_as_json_and_read_back() -> None:
    actions, got = Actions(), []

    @actions.action("count")
    async def handle(item: Model, _: Context) -> None:
        got.append(item.number)

    ran = run(actions, [Model(3), {"number": "three"}])
    assert got == [3]
    assert ran.failures[0].reason == (
        "the item is not a valid Model: number must be a whole number"
    )


def test_an_item_that_does_not_fit_fails_at_once_and_its_handler_never_runs() -> None:
    actions = Actions()

    @actions.action("tag", max_attempts=5)
    async def handle(_item: Tag, _: Context) -> None:
        raise Fail("it ran")

    (failure,) = run(actions, [{"conversation": "one"}]).failures
    assert failure.attempts == 1
    assert failure.reason.startswith("the item is not a valid Tag: Expected `int`, got `str`")


def test_one_bad_item_among_many_fails_alone() -> None:
    actions, got = Actions(), []

    @actions.action("tag", together=10)
    async def handle(items: list[Tag], contexts: list[Context]) -> list[Exception | None]:
        assert len(items) == len(contexts)
        got.extend(items)
        return [None if item.conversation else Fail("no such conversation") for item in items]

    ran = run(actions, [{"conversation": 1}, {}, {"conversation": 0}, {"conversation": 2}])
    assert [item.conversation for item in got] == [1, 0, 2]
    assert [(each.index, each.reason) for each in ran.failures] == [
        (1, "the item is not a valid Tag: Object missing required field `conversation`"),
        (2, "no such conversation"),
    ]


def test_items_stay_as_they_are_without_a_type_that_declares_fields() -> None:
    actions = Actions()
    got: list[Any] = []

    @actions.action("any")
    async def handle(item: dict[str, int], _: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
        got.append(item)

    run(actions, [{"number": "text"}])
    assert got == [{"number": "text"}]


def test_a_typed_dict_is_checked_and_any_type_can_be_named() -> None:
    actions, got = Actions(), []

    @actions.action("row")
    async def row(item: Row, _: Context) -> None:
        got.append(item)

    @actions.action("id", item=UUID)
    async def by_id(item: Any, _: Context) -> None:
        got.append(item)

    id = uuid4()
    assert run(actions, [{"name": "a"}, {"name": 1}], action="row").progress.failed == 1
    run(actions, [str(id)], action="id")
    assert got == [{"name": "a"}, id]


def test_a_type_that_cannot_be_read_is_refused_when_it_is_registered() -> None:
    with pytest.raises(InvalidSetting, match="item of action 'tag' must be a type") as refused:
        Actions().action("tag", item=object())(nothing)
    assert refused.value.field == "item"


@pytest.mark.parametrize("item", [{"tags": {1}}, {"tag": Tag(1)}, [uuid4()], {"due": Decimal(1)}])
def test_a_value_whose_type_nobody_declares_is_still_refused(item: Any) -> None:
    actions = Actions()
    actions.action("tag")(nothing)
    with pytest.raises(InvalidBody, match="which a handler would get as another type"):
        run(actions, [item])


def test_a_bare_value_is_submitted_as_text_and_the_refusal_says_so() -> None:
    actions, got = Actions(), []

    @actions.action("by-id", item=UUID)
    async def handle(item: UUID, _: Context) -> None:
        got.append(item)

    id = uuid4()
    with pytest.raises(InvalidBody, match=r"to text\. An action that declares a type"):
        run(actions, [id])
    assert run(actions, [str(id)]).progress.done == 1
    assert got == [id]


def test_text_in_place_of_a_number_names_the_kind_of_file_that_has_numbers() -> None:
    actions = Actions()

    @actions.action("tag")
    async def handle(item: Tag, _: Context) -> None: ...

    as_csv, other = run(actions, [{"conversation": "7"}, {"conversation": []}]).failures
    assert as_csv.reason.endswith(
        "Expected `int`, got `str` - at `$.conversation`. All values of a .csv file are text: to "
        "submit numbers, use a .jsonl file"
    )
    assert ".csv" not in other.reason


def test_unknown_fields_are_ignored_unless_the_class_forbids_them() -> None:
    class Strict(msgspec.Struct, forbid_unknown_fields=True):
        conversation: int

    actions = Actions()
    actions.action("loose", item=Tag)(nothing)
    actions.action("strict", item=Strict)(nothing)
    item = {"conversation": 7, "colour": "red"}
    assert run(actions, [item], action="loose").progress.done == 1
    assert "unknown field `colour`" in run(actions, [item], action="strict").failures[0].reason


def test_a_run_without_any_action_says_so() -> None:
    with pytest.raises(InvalidSetting, match="actions has no action: register one"):
        run(Actions(), [1])
