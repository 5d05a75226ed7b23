"""Key schemas of tables and indexes: which attributes form a key, and the checks of a key."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, NamedTuple

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

HASH_BYTES_MAX = 2_048
SORT_BYTES_MAX = 1_024
MISMATCH = "The provided key element does not match the schema"


Part = Native | tuple[Native, ...]


class Key(NamedTuple):
    """A key of a table or an index. `sort` is None in a table without sort keys.

    In an index, `sort` is a tuple: the index's sort key, then the primary key of the table. The
    primary key is needed because many items may have the same key in an index. `hash` is a tuple if
    several attributes form the partition key.
    """

    hash: Part
    sort: Part | None


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
        """The attributes that an ExclusiveStartKey has.

        For an index, these are the index's key attributes and the table's.
        """
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


class IndexSchema(msgspec.Struct, frozen=True):
    """The key of an index: up to four attributes form its hash, and up to four its sort key.

    `table` is the schema of the table, whose key attributes are part of every entry.
    """

    hash_parts: tuple[KeyPart, ...]
    sort_parts: tuple[KeyPart, ...]
    table: Schema

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name for part in (*self.hash_parts, *self.sort_parts))

    @property
    def entry_names(self) -> tuple[str, ...]:
        """The key attributes of the index and of the table, each once."""
        return tuple(dict.fromkeys((*self.names, *self.table.names)))

    def part(self, value: Value | None, part: KeyPart) -> Native:
        if value is None or type(value) is not dict:
            raise ValidationFailed(MISMATCH)
        admit(value)
        if kind_of(value) != part.kind:
            raise ValidationFailed(MISMATCH)
        return checked(value, part, HASH_BYTES_MAX if part in self.hash_parts else SORT_BYTES_MAX)

    def start_key(self, key: Item) -> Key:
        """Return the key of the index entry that a request's `ExclusiveStartKey` names."""
        if key.keys() != set(self.entry_names):
            raise ValidationFailed(MISMATCH)
        for part in (*self.hash_parts, *self.sort_parts):
            self.part(key[part.name], part)
        found = self.key_of(self.table.key_of(self.table.key_values(key)), key)
        assert found is not None
        return found

    def key_of(self, key: Key, item: Item) -> Key | None:
        """Return the key of an item's entry. None if the item has no entry in the index.

        An item has no entry if it lacks a key attribute of the index, or if the attribute's value
        is not valid in a key. The latter can happen if the item is older than the index.
        """
        hashes = natives(item, self.hash_parts, HASH_BYTES_MAX)
        sorts = natives(item, self.sort_parts, SORT_BYTES_MAX)
        if hashes is None or sorts is None:
            return None
        of_table = (key.hash,) if key.sort is None else (key.hash, key.sort)
        sort: Any = (*sorts, *of_table)
        return Key(hashes[0] if len(hashes) == 1 else hashes, sort)

    def key_values(self, item: Item) -> Item:
        return {name: item[name] for name in self.entry_names}


def natives(item: Item, parts: tuple[KeyPart, ...], most: int) -> tuple[Native, ...] | None:
    found = []
    for part in parts:
        value = item.get(part.name)
        if value is None or part.kind not in value:
            return None
        content = native(value)
        if not isinstance(content, Decimal):
            length = len(content.encode()) if isinstance(content, str) else len(content)
            if not 0 < length <= most:
                return None
        found.append(content)
    return tuple(found)
