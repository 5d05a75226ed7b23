"""Attribute values in the wire format, `{"S": "x"}`: checked, normalised, measured, compared.

Values stay in the wire format, so that most requests copy nothing. `admit` normalises a value, so
that equal values have equal text: numbers lose leading and trailing zeros, and base64 becomes
canonical. Later code then compares strings. An admitted value is never changed in place: updates
copy it.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any

from .errors import DoesNotFit, ValidationFailed

Value = dict[str, Any]
Item = dict[str, Value]
Native = str | Decimal | bytes

DEPTH_MAX = 32
DIGITS_MAX = 38
LARGEST_EXPONENT = 125
SMALLEST_EXPONENT = -130
CONTAINER_BYTES = 3
ELEMENT_BYTES = 1
NUMBER = re.compile(r"[0-9eE.+-]+")
TOO_LARGE = (
    "Number overflow. Attempting to store a number with magnitude larger than supported range"
)
TOO_DEEP = "Nesting Levels have exceeded supported limits"
SETS = {"SS": "S", "NS": "N", "BS": "B"}
EMPTY_SET = {
    "SS": "An string set  may not be empty",
    "NS": "An number set  may not be empty",
    "BS": "Binary sets should not be empty",
}
INVALID = "One or more parameter values were invalid: "
NAME_BYTES_MAX = 65_535

_exact = Context(prec=DIGITS_MAX, traps=[Inexact, InvalidOperation, Overflow])


def admit_item(item: Item) -> int:
    """Check and normalise an item's names and values. Returns the item's size in bytes."""
    size = 0
    for name, value in item.items():
        size += text_size(name) + admit(value)
    if "" in item:
        raise ValidationFailed(f"{INVALID}An attribute name must not be empty")
    if size > NAME_BYTES_MAX:
        for name in item:
            if text_size(name) > NAME_BYTES_MAX:
                raise ValidationFailed(
                    f"{INVALID}An attribute name must not be longer than {NAME_BYTES_MAX} bytes"
                )
    return size


def admit(value: Value, depth: int = 1) -> int:
    """Check a value and normalise it in place. Returns its size in bytes.

    Raises `ValidationFailed` if the value is malformed.
    """
    if len(value) != 1:
        _keep_one_type(value, depth)
    [(kind, content)] = value.items()
    if kind == "S" and type(content) is str:
        return text_size(content)
    measure = _ADMIT.get(kind)
    if measure is None or content is None:
        raise ValidationFailed(_NOT_ONE_TYPE["none"])
    if depth > DEPTH_MAX:
        raise ValidationFailed(TOO_DEEP)
    return measure(value, content, depth)


def _keep_one_type(value: Value, depth: int) -> None:
    """Remove types with the content null, such as S in `{"S": null, "N": "1"}`.

    Raises unless exactly one type is left.
    """
    for kind in [kind for kind, content in value.items() if content is None]:
        del value[kind]
    if len(value) == 1:
        return
    for kind, content in value.items():
        admit({kind: content}, depth)
    raise ValidationFailed(_NOT_ONE_TYPE["many" if value else "none"])


_NOT_ONE_TYPE = {
    "none": "Supplied AttributeValue is empty, must contain exactly one of the supported datatypes",
    "many": "Supplied AttributeValue has more than one datatypes set, "
    "must contain exactly one of the supported datatypes",
}


def text_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def number_size(normal: str) -> int:
    """Return the approximate size of a number in bytes.

    The size is one byte per two digits, one byte for the exponent and one for a minus sign.
    """
    if normal == "0":
        return 1
    digits = normal.strip("-").replace(".", "").strip("0")
    return (len(digits) + 1) // 2 + 1 + (normal[0] == "-")


def normal_number(text: Any) -> str:
    """Return a number in its normal form, in which it is stored, compared and returned."""
    if type(text) is not str:
        raise ValidationFailed("Expected a number as a string")
    if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX and text[0] != "0":
        return text
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("nan")
    if not number.is_finite() or not NUMBER.fullmatch(text):
        raise ValidationFailed(
            f"The parameter cannot be converted to a numeric value: {text}"
            if text
            else "The parameter cannot be converted to a numeric value"
        )
    return number_text(number)


def number_text(number: Decimal) -> str:
    if not number:
        return "0"
    try:
        number = number.normalize(_exact)
    except Inexact:
        raise ValidationFailed(
            "Attempting to store more than 38 significant digits in a Number"
        ) from None
    if number.adjusted() > LARGEST_EXPONENT:
        raise ValidationFailed(TOO_LARGE)
    if number.adjusted() < SMALLEST_EXPONENT:
        raise ValidationFailed(
            "Number underflow. Attempting to store a number with magnitude smaller than "
            "supported range"
        )
    return format(number, "f")


def add_numbers(left: str, right: str, sign: int = 1) -> str:
    combine = _exact.add if sign > 0 else _exact.subtract
    try:
        return number_text(combine(Decimal(left), Decimal(right)))
    except Inexact:
        raise DoesNotFit(TOO_LARGE) from None
    except ValidationFailed as error:
        raise DoesNotFit(error.message) from None


def native(value: Value) -> Native:
    """Convert a value to a Python value that sorts in the same order as in DynamoDB."""
    [(kind, content)] = value.items()
    if kind == "N":
        return Decimal(content)
    return binascii.a2b_base64(content) if kind == "B" else str(content)


def equal(left: Value, right: Value) -> bool:
    """Return whether two values are equal. In sets at any depth, the order does not count."""
    if left == right:
        return True
    [(kind, one)], [(other_kind, two)] = left.items(), right.items()
    if kind != other_kind or kind not in _NESTED_EQUAL:
        return False
    return _NESTED_EQUAL[kind](one, two)


def kind_of(value: Value) -> str:
    return next(iter(value))


def _lists_equal(one: list[Value], two: list[Value]) -> bool:
    return len(one) == len(two) and all(map(equal, one, two))


def _maps_equal(one: Item, two: Item) -> bool:
    return one.keys() == two.keys() and all(equal(one[name], two[name]) for name in one)


def _sets_equal(one: list[str], two: list[str]) -> bool:
    return set(one) == set(two)


_NESTED_EQUAL: dict[str, Callable[[Any, Any], bool]] = {
    "L": _lists_equal,
    "M": _maps_equal,
    "SS": _sets_equal,
    "NS": _sets_equal,
    "BS": _sets_equal,
}


def _string(_: Value, __: Any, ___: int) -> int:
    raise ValidationFailed("Expected a string")


def _number(value: Value, content: Any, _: int) -> int:
    normal = normal_number(content)
    if normal is not content:
        value["N"] = normal
    return number_size(normal)


def _binary(value: Value, content: Any, _: int) -> int:
    raw, value["B"] = _normal_binary(content)
    return len(raw)


def _normal_binary(content: Any) -> tuple[bytes, str]:
    try:
        raw = b"" if content == "" else binascii.a2b_base64(content, strict_mode=True)
    except (binascii.Error, TypeError, ValueError):
        raise ValidationFailed("Invalid Base64 data in a binary value") from None
    return raw, binascii.b2a_base64(raw, newline=False).decode()


def _boolean(_: Value, content: Any, __: int) -> int:
    if type(content) is not bool:
        raise ValidationFailed("Expected true or false")
    return 1


def _null(_: Value, content: Any, __: int) -> int:
    if content is not True:
        raise ValidationFailed(f"{INVALID}Null attribute value types must have the value of true")
    return 1


def _list(_: Value, content: Any, depth: int) -> int:
    if type(content) is not list or not all(type(one) is dict for one in content):
        raise ValidationFailed("Expected a list of attribute values")
    return CONTAINER_BYTES + sum(admit(one, depth + 1) + ELEMENT_BYTES for one in content)


def _map(_: Value, content: Any, depth: int) -> int:
    if type(content) is not dict or not all(type(one) is dict for one in content.values()):
        raise ValidationFailed("Expected a map of attribute values")
    return CONTAINER_BYTES + sum(
        text_size(name) + admit(one, depth + 1) + ELEMENT_BYTES for name, one in content.items()
    )


def _set(value: Value, content: Any, depth: int) -> int:
    kind = kind_of(value)
    if type(content) is not list:
        raise ValidationFailed("Expected a list of the members of a set")
    if not content:
        raise ValidationFailed(INVALID + EMPTY_SET[kind])
    members = [{SETS[kind]: member} for member in content]
    size = sum(admit(member, depth) for member in members)
    normal = [member[SETS[kind]] for member in members]
    if len(set(normal)) != len(normal):
        raise ValidationFailed(_duplicates(kind, content))
    value[kind] = normal
    return size


def _duplicates(kind: str, content: list[str]) -> str:
    if kind == "NS":
        return "Input collection contains duplicates"
    of_type = "of type BS" if kind == "BS" else ""
    return f"{INVALID}Input collection [{', '.join(content)}]{of_type} contains duplicates."


_ADMIT: dict[str, Callable[[Value, Any, int], int]] = {
    "S": _string,
    "N": _number,
    "B": _binary,
    "BOOL": _boolean,
    "NULL": _null,
    "L": _list,
    "M": _map,
    "SS": _set,
    "NS": _set,
    "BS": _set,
}
KINDS = frozenset(_ADMIT)
