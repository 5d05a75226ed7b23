"""Objects as items: dataclasses, `msgspec.Struct`s and pydantic models, stored as their fields.

The class of an object declares the types of its fields, and a handler that declares the class gets
the object back. A handler that does not declare the class would get a field such as a `UUID` as
text. So the stored item names such a field (`Fields`), and the item fails in this handler.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import msgspec

from heatsink.primitives.checks import shown
from heatsink.primitives.words import with_article

KEPT = (bool, int, float, str, bytes, bytearray, memoryview)
CHANGED = 1  # the code of the MessagePack extension of an object that lost a type

_encode = msgspec.msgpack.Encoder().encode
_decode_value = msgspec.msgpack.Decoder().decode
_decode_changed = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw]).decode


class Fields(dict[str, Any]):
    """The fields of an object, if some of them have lost their type.

    `changed` names the first of these, for example ".account is a UUID".
    """

    changed = ""


class Values(list[Any]):
    """The same for an object that is stored as a list, such as a Struct with `array_like`."""

    changed = ""


LOSSY = (Fields, Values)


def lossy(body: bytes, changed: str) -> bytes:
    """Encode the encoded fields of an object that has lost a type."""
    return _encode(msgspec.msgpack.Ext(CHANGED, _encode((changed, msgspec.Raw(body)))))


def extension(code: int, data: memoryview) -> Any:
    """Decode the extension in stored items: an object of which some fields have lost their type."""
    if code != CHANGED:
        return msgspec.msgpack.Ext(code, bytes(data))
    said, body = _decode_changed(data)
    value = _decode_value(body)
    found = Fields(value) if isinstance(value, dict) else Values(value)
    found.changed = said
    return found


def is_object(item: object) -> bool:
    """Return whether the item is an object, or the stored fields of one."""
    known = isinstance(item, msgspec.Struct | Fields | Values)
    return known or dataclasses.is_dataclass(type(item))


def dumped(model: Any) -> Any:
    """Return a pydantic model as a dict of JSON values."""
    plain = model.model_dump(mode="json")
    found = changed(model, in_object=True)
    if found is None or not isinstance(plain, dict):
        return plain
    fields = Fields(plain)
    fields.changed = found
    return fields


def _is_model(item: object) -> bool:
    return hasattr(type(item), "model_dump")


def changed(value: object, in_object: bool = False) -> str | None:
    """Say where the encoding changes a value, such as "['tags'] is a set"; None if nowhere.

    Objects count as changed, unless they are `in_object`.
    """
    if isinstance(value, dict):
        for key in value:
            if not _is_kept(key):
                return f" has the key {shown(key)}, {with_article(type(key).__name__)}"
        parts: Iterable[tuple[str, object]] = ((f"[{shown(at)}]", v) for at, v in value.items())
    elif isinstance(value, list | tuple):
        parts = ((f"[{at}]", part) for at, part in enumerate(value))
    elif in_object and (is_object(value) or _is_model(value)):
        parts = ((f".{name}", getattr(value, name, None)) for name in _names(value))
    else:
        return None if _is_kept(value) else f" is {with_article(type(value).__name__)}"
    for at, part in parts:
        if (found := changed(part, in_object)) is not None:
            return f"{at}{found}"
    return None


def _names(value: Any) -> Iterable[str]:
    if isinstance(value, msgspec.Struct):
        return value.__struct_fields__
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    return getattr(type(value), "model_fields", ())


def _is_kept(value: object) -> bool:
    if value is None or value is msgspec.UNSET or isinstance(value, KEPT):
        return True
    try:
        return bool(_decode_value(_encode(value)) == value)
    except (TypeError, ValueError):  # of a model, which makes a JSON value of it
        return False
