"""Why DynamoDB refuses a malformed request, in DynamoDB's words and order.

The engine decodes a request with msgspec, which is fast but words errors in its own way. So if a
request fails, the engine asks this module. The module reads the body again, slowly but with exact
errors: first the JSON type of every field (SerializationException), then all constraints
(ValidationException, which lists up to ten). DynamoDB does both before it looks at expressions or
looks the table up.

`Shape.fitted` also accepts what DynamoDB tolerates and msgspec does not: null in place of an
optional field, whole numbers with a fraction, and truth values as text.
"""

from __future__ import annotations

import binascii
import re
import types
from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec

from heatsink.primitives.validation import what_is_wrong
from heatsink.stores.dynamodb.wire.errors import EngineError, NotSerializable, ValidationFailed
from heatsink.stores.dynamodb.wire.values import KINDS, SETS, TOO_DEEP

MODEL = "com.amazonaws.dynamodb.v20120810."
VIOLATIONS_MAX = 10
TRUE, FALSE = frozenset(("TRUE", "1", "YES")), frozenset(("FALSE", "0", "NO"))
BLOB_BLOCK = 4


class ValuePath(msgspec.Struct, frozen=True):
    """Where a value is in its request: `path` is, for example, `key.pk.member`.

    `inner` says that the value is an element of a list or map, and not a field.
    """

    path: str = ""
    inner: bool = False

    def field(self, name: str) -> ValuePath:
        return ValuePath(f"{self.path}.{name}" if self.path else name)

    def member(self, key: object) -> ValuePath:
        return ValuePath(f"{self.path}.{key}.member", True)


class Shape:
    """The type of a field, with its constraints."""

    java = "java.lang.String"

    def __init__(self, least: int | None = None, most: int | None = None, **extra: Any) -> None:
        self.least = least
        self.most = most
        self.extra = extra

    def fitted(self, value: Any, place: ValuePath) -> Any:  # noqa: ARG002  for subclasses
        """Convert a value to the field's type as DynamoDB does.

        Raises if it cannot be converted.
        """
        return value

    def violations(self, value: Any, place: ValuePath) -> Iterator[str]:  # noqa: ARG002
        """Return a message for each constraint that the value, or a value in it, violates."""
        return iter(())

    def _violated(self, value: Any, place: ValuePath, constraint: str) -> str:
        if self.extra.get("modern"):
            path = ".".join(part if part == "member" else _upper(part) for part in _parts(place))
            subject = f"Value at '{path}'"
        else:
            subject = f"Value '{shown(value)}' at '{place.path}'"
        return f"{subject} failed to satisfy constraint: {constraint}"

    def _bounds(self, amount: int, value: Any, place: ValuePath, what: str) -> Iterator[str]:
        for text in bounds_of(self, amount, what):
            yield self._violated(value, place, text)


def bounds_of(shape: Shape, amount: int, what: str) -> Iterator[str]:
    if shape.least is not None and amount < shape.least:
        yield f"Member must have {what} greater than or equal to {shape.least}"
    if shape.most is not None and amount > shape.most:
        yield f"Member must have {what} less than or equal to {shape.most}"


def _parts(place: ValuePath) -> list[str]:
    return place.path.split(".")


def _upper(name: str) -> str:
    return name[:1].upper() + name[1:]


def _lower(name: str) -> str:
    return name[:1].lower() + name[1:]


def shown(value: Any) -> str:
    """Show a value as DynamoDB does in errors: `[a, b]`, `{name=value}`."""
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{name}={shown(inner)}' for name, inner in value.items())}}}"
    return "null" if value is None else str(value)


def _scalar_name(value: Any) -> str:
    if isinstance(value, bool):
        return "TRUE_VALUE" if value else "FALSE_VALUE"
    if isinstance(value, str):
        return "STRING_VALUE"
    return "NUMBER_VALUE" if float(value).is_integer() else "DECIMAL_VALUE"


def _no_collection(value: Any, java: str) -> None:
    if isinstance(value, list):
        raise NotSerializable(f"Unrecognized collection type class {java}")
    if isinstance(value, dict):
        raise NotSerializable("Start of structure or map found where not expected")


class Text(Shape):
    """A string. `options` are the allowed values, if only some are."""

    def __init__(self, options: tuple[str, ...] = (), **constraints: Any) -> None:
        super().__init__(**constraints)
        self.options = options

    def fitted(self, value: Any, _: ValuePath) -> Any:
        _no_collection(value, "java.lang.String")
        if not isinstance(value, str):
            raise NotSerializable(f"{_scalar_name(value)} cannot be converted to String")
        return value

    def violations(self, value: Any, place: ValuePath) -> Iterator[str]:
        if self.options and value not in self.options:
            options = f"Member must satisfy enum value set: [{', '.join(self.options)}]"
            yield self._violated(value, place, options)
        yield from (self._violated(value, place, text) for text in self.broken(value))

    def broken(self, value: str) -> Iterator[str]:
        """Yield the constraints on pattern and length that the text violates."""
        pattern = self.extra.get("pattern")
        if pattern and value.startswith("arn:"):
            return
        if pattern and value and not re.fullmatch(pattern, value):
            yield f"Member must satisfy regular expression pattern: {pattern}"
        yield from bounds_of(self, len(value), "length")

    def rules(self) -> str:
        """List all constraints, as DynamoDB does for the keys of a map."""
        return (
            f"[Member must have length less than or equal to {self.most}, "
            f"Member must have length greater than or equal to {self.least}, "
            f"Member must satisfy regular expression pattern: {self.extra.get('pattern')}]"
        )


class Whole(Shape):
    @property
    def _kind(self) -> str:
        return str(self.extra.get("java", "Integer"))

    def fitted(self, value: Any, _: ValuePath) -> Any:
        _no_collection(value, f"java.lang.{self._kind}")
        if isinstance(value, bool | str):
            raise NotSerializable(f"{_scalar_name(value)} cannot be converted to {self._kind}")
        return int(value // 1)

    def violations(self, value: Any, place: ValuePath) -> Iterator[str]:
        return self._bounds(value, value, place, "value")


class Flag(Shape):
    def fitted(self, value: Any, _: ValuePath) -> Any:
        _no_collection(value, "java.lang.Boolean")
        if isinstance(value, str):
            if value.upper() not in TRUE | FALSE:
                raise NotSerializable("Unexpected token received from parser")
            return value.upper() in TRUE
        if not isinstance(value, bool):
            raise NotSerializable(f"{_scalar_name(value)} cannot be converted to Boolean")
        return value


class Blob(Shape):
    def fitted(self, value: Any, _: ValuePath) -> Any:
        _no_collection(value, "java.nio.ByteBuffer")
        if not isinstance(value, str):
            raise NotSerializable("only base-64-encoded strings are convertible to bytes")
        if len(value) % BLOB_BLOCK:
            raise NotSerializable(
                f"Base64 encoded length is expected a multiple of 4 bytes but found: {len(value)}"
            )
        try:
            raw = binascii.a2b_base64(value, strict_mode=True) if value else b""
            canonical = binascii.b2a_base64(raw, newline=False).decode() == value
        except (binascii.Error, ValueError):
            canonical = False
        if not canonical:
            raise NotSerializable("Invalid last non-pad Base64 character dectected")
        return value


class Listing(Shape):
    def __init__(self, of: Shape, **constraints: Any) -> None:
        super().__init__(**constraints)
        self.of = of

    @property
    def java(self) -> str:  # type: ignore[override]
        return f"java.util.List<{self.of.java}>"

    def fitted(self, value: Any, place: ValuePath) -> Any:
        if isinstance(value, dict):
            raise NotSerializable("Start of structure or map found where not expected")
        if not isinstance(value, list):
            raise NotSerializable("Unexpected field type")
        return [
            None if one is None else self.of.fitted(one, place.member(number))
            for number, one in enumerate(value, 1)
        ]

    def violations(self, value: Any, place: ValuePath) -> Iterator[str]:
        yield from self._bounds(len(value), value, place, "length")
        for number, one in enumerate(value, 1):
            if one is not None:
                yield from self.of.violations(one, place.member(number))


class Mapped(Shape):
    """A map with any keys. `keys` are the constraints on each key's text."""

    def __init__(self, of: Shape, keys: Shape, **constraints: Any) -> None:
        super().__init__(**constraints)
        self.of = of
        self.keys = keys

    def fitted(self, value: Any, place: ValuePath) -> Any:
        if isinstance(value, list):
            java = f"java.util.Map<java.lang.String, {self.of.java}>"
            raise NotSerializable(f"Unrecognized collection type {java}")
        if not isinstance(value, dict):
            raise NotSerializable("Unexpected field type")
        return {
            key: self.of.fitted(one, place.member(key))
            for key, one in value.items()
            if one is not None
        }

    def violations(self, value: Any, place: ValuePath) -> Iterator[str]:
        yield from self._bounds(len(value), value, place, "length")
        keys = self.keys
        if isinstance(keys, Text) and keys.extra and any(any(keys.broken(key)) for key in value):
            yield self._violated(value, place, f"Map keys must satisfy constraint: {keys.rules()}")
        for key, one in value.items():
            if isinstance(self.of, Listing) and any(bounds_of(self.of, len(one), "length")):
                rules = (
                    f"[Member must have length less than or equal to {self.of.most}, "
                    f"Member must have length greater than or equal to {self.of.least}]"
                )
                yield self._violated(value, place, f"Map value must satisfy constraint: {rules}")
            else:
                yield from self.of.violations(one, place.member(key))


class Structure(Shape):
    """An object with named fields."""

    def __init__(self, kind: type[Any]) -> None:
        super().__init__()
        self._kind = kind
        self.java = MODEL + (getattr(kind, "JAVA", "") or kind.__name__)

    @property
    def fields(self) -> dict[str, tuple[Shape, bool]]:
        """The shapes of all fields by their names on the wire, and whether each is required."""
        return _fields(self._kind)  # type: ignore[arg-type]  # classes are hashable

    def fitted(self, value: Any, place: ValuePath) -> Any:
        if isinstance(value, list):
            raise NotSerializable(f"Unrecognized collection type class {self.java}")
        if not isinstance(value, dict):
            raise NotSerializable(
                "Unexpected value type in payload" if place.inner else "Unexpected field type"
            )
        fields = self.fields
        return {
            name: fields[name][0].fitted(one, place.field(_lower(name))) if name in fields else one
            for name, one in value.items()
            if one is not None
        }

    def violations(self, value: Any, place: ValuePath) -> Iterator[str]:
        for name, (shape, required) in self.fields.items():
            inner = place.field(_lower(name))
            if name in value:
                yield from shape.violations(value[name], inner)
            elif required:
                yield (
                    f"Value null at '{inner.path}' failed to satisfy constraint: "
                    "Member must not be null"
                )


class Attribute(Shape):
    """An attribute value, such as `{"S": "x"}`. Later checks refuse a value with several types."""

    java = MODEL + "AttributeValue"

    def fitted(self, value: Any, place: ValuePath) -> Any:
        if isinstance(value, list):
            raise NotSerializable(f"Unrecognized collection type class {self.java}")
        if not isinstance(value, dict):
            raise NotSerializable(
                "Unexpected value type in payload" if place.inner else "Unexpected field type"
            )
        return {
            kind: CONTENTS[kind].fitted(content, ValuePath())
            for kind, content in value.items()
            if content is not None and kind in KINDS
        }


CONTENTS: dict[str, Shape] = {
    "S": Text(),
    "N": Text(),
    "B": Blob(),
    "BOOL": Flag(),
    "NULL": Flag(),
    **{name: Listing(Blob() if kind == "B" else Text()) for name, kind in SETS.items()},
    "L": Listing(Attribute()),
    "M": Mapped(Attribute(), Text()),
}


def shape_of(kind: Any) -> Shape:
    """Return the shape of a Python type that a request's field has."""
    constraints: dict[str, Any] = {}
    while get_origin(kind) is Annotated:
        for note in kind.__metadata__:
            constraints |= _constraints(note)
        kind = kind.__origin__
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return shape_of(next(one for one in inner if one is not types.NoneType))
    if origin is Literal:
        return Text(inner)
    if origin is list:
        return Listing(shape_of(inner[0]), **constraints)
    if origin is dict:
        if inner[1] is Any:
            return Attribute()
        return Mapped(shape_of(inner[1]), shape_of(inner[0]), **constraints)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return Structure(kind)
    plain: dict[Any, type[Shape]] = {str: Text, int: Whole, bool: Flag}
    return plain.get(kind, Shape)(**constraints)


def _constraints(note: msgspec.Meta) -> dict[str, Any]:
    least = note.ge if note.min_length is None else note.min_length
    most = note.le if note.max_length is None else note.max_length
    return {"least": least, "most": most, **(note.extra or {})}


@cache
def _fields(kind: type[Any]) -> dict[str, tuple[Shape, bool]]:
    hints = get_type_hints(kind, include_extras=True)
    names = dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True))
    infos = {field.name: field for field in msgspec.structs.fields(kind)}
    first = [name for name in getattr(kind, "ORDER", "").split() if name in names]
    ordered = [*first, *(name for name in names if name not in first)]
    return {names[name]: (shape_of(hints[name]), infos[name].required) for name in ordered}


class Reading(NamedTuple):
    """A request as DynamoDB reads it, or in `problem` what is wrong with its form.

    `differs` says that DynamoDB's reading differs from the JSON: it ignores nulls, for example.
    """

    problem: EngineError | None
    request: Any = None
    differs: bool = False


def explain(kind: type[Any], body: bytes) -> Reading:
    """Read a request that the fast decoder refused.

    Either DynamoDB tolerates its form, and `request` is what DynamoDB reads, or `problem` says what
    is wrong.
    """
    try:
        given = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Reading(NotSerializable(str(error)))
    except RecursionError:
        return Reading(ValidationFailed(TOO_DEEP))
    try:
        found = fitted(kind, given)
    except EngineError as error:
        return Reading(error)
    try:
        return Reading(None, msgspec.convert(found, kind), found != given)
    except msgspec.ValidationError as error:
        return Reading(ValidationFailed(_detected([what_is_wrong(error)[1]])))


def fitted(kind: type[Any], given: Any) -> Any:
    """Return the parameters of a request as DynamoDB reads them.

    Raises `EngineError` if their form is wrong.
    """
    shape = Structure(kind)
    try:
        found = shape.fitted(given, ValuePath(inner=True))
    except RecursionError:
        raise ValidationFailed(TOO_DEEP) from None
    for name, (field, required) in shape.fields.items():
        if required and field.extra.get("named") and name not in found:
            missing = f"The parameter '{name}' is required but was not present in the request"
            raise ValidationFailed(missing)
    violated = list(islice(shape.violations(found, ValuePath()), VIOLATIONS_MAX))
    if violated:
        raise ValidationFailed(_detected(violated))
    return found


def _detected(violated: list[str]) -> str:
    errors = "error" if len(violated) == 1 else "errors"
    return f"{len(violated)} validation {errors} detected: {'; '.join(violated)}"
