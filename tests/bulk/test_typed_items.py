"""Handlers that declare the type of their items, and objects as items."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any, TypedDict
from uuid import UUID, uuid4

import msgspec
import pydantic
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


@dataclass
class Order:
    lines: list[Charge]
    note: str = ""


class Priced(Model):
    """A model whose JSON has text in place of a field."""

    model_fields = ("number", "price")

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.price = Decimal(number)

    def model_dump(self, mode: str) -> dict[str, Any]:
        return {**super().model_dump(mode), "price": str(self.price)}


CHARGE = Charge(UUID(int=7), Decimal("9.90"), date(2026, 3, 1))


@pytest.mark.parametrize(
    ("item", "what"),
    [
        (CHARGE, "item.id is a UUID"),
        (Order([CHARGE]), "item.lines[0].id is a UUID"),
        (Priced(3), "item.price is a Decimal"),
    ],
)
@pytest.mark.parametrize("together", [1, 10])
def test_an_object_that_lost_a_type_is_refused_for_a_handler_without_a_type(
    item: Any, what: str, together: int
) -> None:
    actions = Actions()
    actions.action("any", together=together)(lambda *_: pytest.fail("it ran"))
    (failure,) = run(actions, [item]).failures
    assert failure.reason.startswith(f"{what}, and 'any' would get it as another type")
    assert failure.attempts == 1


def test_a_failed_object_can_be_submitted_again_and_still_says_what_it_lost() -> None:
    untyped, typed, got = Actions(), Actions(), []
    untyped.action("any")(nothing)

    @typed.action("charge")
    async def handle(item: Charge, _: Context) -> None:
        got.append(item)

    (failure,) = run(untyped, [CHARGE]).failures
    assert run(untyped, [failure.item]).progress.failed == 1
    assert run(typed, [failure.item]).progress.done == 1
    assert got == [CHARGE]
    assert msgspec.json.decode(msgspec.json.encode(failure.item))["id"] == str(CHARGE.id)


def test_an_object_of_json_values_reaches_any_handler_as_a_dict() -> None:
    actions, got = Actions(), []
    actions.action("any")(lambda item, _: got.append(item))
    run(actions, [Tag(1), Model(3), Order([])])
    assert got == [{"conversation": 1, "label": "new"}, {"number": 3}, {"lines": [], "note": ""}]


def test_a_result_that_would_lose_a_type_fails_its_item() -> None:
    actions = Actions()
    actions.action("any")(lambda *_: CHARGE)
    actions.action("tag")(lambda *_: Tag(1))
    (failure,) = run(actions, [1], action="any", results="keep").failures
    assert failure.reason.startswith("the result cannot be kept: the value.id is a UUID")
    assert run(actions, [1], action="tag", results="keep").progress.done == 1


def test_a_key_that_would_become_text_is_refused() -> None:
    actions = Actions()
    actions.action("any")(nothing)
    with pytest.raises(InvalidBody, match=r"item 0 has the key .*, a UUID"):
        run(actions, [{CHARGE.id: 1}])


class Payment(pydantic.BaseModel):
    id: UUID
    amount: Decimal = pydantic.Field(gt=0)
    tags: list[Tag] = []


def test_a_pydantic_model_is_validated_and_reaches_its_handler_as_it_was() -> None:
    actions, got = Actions(), []

    @actions.action("pay")
    async def handle(item: Payment, _: Context) -> str:
        got.append(item)
        return item.model_dump_json()

    paid = Payment(id=UUID(int=7), amount=Decimal("9.90"), tags=[Tag(1)])
    wrong = {"id": str(paid.id), "amount": "-1"}
    ran = run(actions, [paid, wrong, paid.model_dump(mode="json")], results="keep")
    assert got == [paid, paid]
    assert [(each.index, each.value) for each in ran.results] == [
        (0, paid.model_dump_json()),
        (2, paid.model_dump_json()),
    ]
    (failure,) = ran.failures
    assert failure.index == 1
    assert failure.reason.startswith("the item is not a valid Payment: 1 validation error")
    assert "amount" in failure.reason


def test_a_pydantic_model_is_refused_for_a_handler_without_a_type() -> None:
    actions = Actions()
    actions.action("any")(nothing)
    (failure,) = run(actions, [Payment(id=UUID(int=7), amount=Decimal(1))]).failures
    assert failure.reason.startswith("item.id is a UUID, and 'any' would get it as another")
    with pytest.raises(pydantic.ValidationError):
        Payment.model_validate({"id": "x", "amount": 1})
