"""The key schema of a table: which attributes form a primary key, and their checks."""

from __future__ import annotations

from typing import Any

import msgspec

from heatsink.stores.dynamodb.wire.errors import ValidationFailed
from heatsink.stores.dynamodb.wire.values import (
    Item,
    Native,
    Value,
    admit,
    kind_of,
    native,
    text_size,
)

from .rows import Key

HASH_BYTES_MAX = 2_048
SORT_BYTES_MAX = 1_024
MISMATCH = "The provided key element does not match the schema"


class KeyPart(msgspec.Struct, frozen=True):
    name: str
    kind: str


class Schema(msgspec.Struct, frozen=True):
    hash: KeyPart
    sort: KeyPart | None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.hash.name,) if self.sort is None else (self.hash.name, self.sort.name)

    @property
    def entry_names(self) -> tuple[str, ...]:
        """The attributes of a starting key. In an index, it has more than the key attributes."""
        return self.names

    @property
    def hash_parts(self) -> tuple[KeyPart, ...]:
        return (self.hash,)

    @property
    def sort_parts(self) -> tuple[KeyPart, ...]:
        return () if self.sort is None else (self.sort,)

    def key_of_item(self, item: Item) -> Key:
        """Return the primary key of an item to put. The item's values must already be checked."""
        hash_ = _put_part(item, self.hash, HASH_BYTES_MAX)
        if self.sort is None:
            return Key(hash_, None)
        return Key(hash_, _put_part(item, self.sort, SORT_BYTES_MAX))

    def key_of(self, key: Item) -> Key:
        """Return the primary key in the field `Key` of a request.

        Raises unless `key` has exactly the key's attributes, with the right types.
        """
        if len(key) != len(self.names):
            raise ValidationFailed(MISMATCH)
        hash_ = self.part(key.get(self.hash.name), self.hash)
        return Key(
            hash_, None if self.sort is None else self.part(key.get(self.sort.name), self.sort)
        )

    def part(self, value: Value | None, part: KeyPart) -> Native:
        if value is None or type(value) is not dict:
            raise ValidationFailed(MISMATCH)
        admit(value)
        if kind_of(value) != part.kind:
            raise ValidationFailed(MISMATCH)
        return checked(value, part, HASH_BYTES_MAX if part is self.hash else SORT_BYTES_MAX)

    def key_values(self, item: Item) -> Item:
        return {name: item[name] for name in self.names}


def _put_part(item: Item, part: KeyPart, most: int) -> Native:
    value = item.get(part.name)
    if value is None:
        raise ValidationFailed(
            f"One or more parameter values were invalid: Missing the key {part.name} in the item"
        )
    if part.kind not in value:
        raise ValidationFailed(
            f"One or more parameter values were invalid: Type mismatch for key {part.name} "
            f"expected: {part.kind} actual: {kind_of(value)}"
        )
    return checked(value, part, most)


def checked(value: Value, part: KeyPart, most: int) -> Native:
    content: Any = native(value)
    if part.kind == "N":
        return content  # type: ignore[no-any-return]
    if not content:
        raise ValidationFailed(
            f"One or more parameter values are not valid. The AttributeValue for a key attribute "
            f"cannot contain an empty {'string' if part.kind == 'S' else 'binary'} value. "
            f"Key: {part.name}"
        )
    if (text_size(content) if part.kind == "S" else len(content)) > most:
        raise ValidationFailed(
            f"One or more parameter values were invalid: Size of hashkey has exceeded the maximum "
            f"size limit of{HASH_BYTES_MAX} bytes"
            if most == HASH_BYTES_MAX
            else f"One or more parameter values were invalid: Aggregated size of all range keys "
            f"has exceeded the size limit of {SORT_BYTES_MAX} bytes"
        )
    return content  # type: ignore[no-any-return]
