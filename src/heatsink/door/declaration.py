"""The declaration of a table: which of its sort keys are spread, and how.

All items with one partition key form a collection. A collection may mix items of several kinds,
which differ in the first characters of their sort keys: `META`, `MEMBER#ada`,
`MSG#2026-11-17T12:00:00Z#1`. Each kind gets a rule by its prefix. If several prefixes match a sort
key, the longest one decides. Sort keys that match no prefix stay under the bare key.

    declared = SpreadTable(
        "chat", partition_key="room", sort_key="at",
        rules=[by_time("MSG#", iso_text), unspread("ORDER#"), fixed("TENANT#", buckets=8)],
    )
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any, NamedTuple

from heatsink.errors import InvalidId, InvalidSetting, NoTable
from heatsink.primitives.checks import check_number, check_text, check_whole, shown
from heatsink.primitives.words import did_you_mean
from heatsink.stores.dynamodb.wire.values import Native, native

from .times import TimeOf, careful, name_of, sort_type_of

logger = logging.getLogger("heatsink")
NAME_MAX = 255
BUCKETS_MAX = 256
AHEAD_S = 2.0
AHEAD_S_MAX = 60.0
KINDS = {"S": "text", "N": "a number", "B": "binary"}
SEPARATOR = re.compile(r"[^0-9A-Za-z]+")
LONG_AGO_MS = 978_307_200_000  # 2001: a number that is no time seldom looks like a later one
BACKWARDS_MS_MAX = 1_000  # `…:59Z` sorts after `…:59.500Z`: sort keys and times agree to the second


class Rule(NamedTuple):
    """How a table places the items whose sort keys begin with `prefix`.

    With `time_of`, these items are spread by the time in their sort keys. With `buckets`, a hash
    spreads them over this fixed number of buckets. With neither, they stay under the bare key.
    """

    prefix: str
    time_of: TimeOf | None = None
    buckets: int = 1

    def time_ms(self, sort: Native) -> int | None:
        """Return the time in a sort key; None if it has no time, or if the rule needs none."""
        if self.time_of is None:
            return None
        try:
            return self.time_of(sort[len(self.prefix) :] if self.prefix else sort)  # type: ignore
        except InvalidId:
            return None


UNSPREAD = Rule("")


def by_time(prefix: str, time_of: TimeOf) -> Rule:
    """Spread sort keys with this prefix by the time that follows it.

    Raises `InvalidSetting` if `time_of` is no function::

        by_time("MSG#", iso_text)
    """
    if not callable(time_of):
        raise InvalidSetting(
            "time_of must be a function that returns the time in a sort key, in milliseconds",
            field="time_of",
        )
    return Rule(_prefix(prefix), careful(time_of))


def unspread(prefix: str) -> Rule:
    """Keep all sort keys with this prefix under the bare key: `unspread("DUE#")`"""
    return Rule(_prefix(prefix))


def fixed(prefix: str, *, buckets: int) -> Rule:
    """Place sort keys with this prefix in a fixed number of buckets, by hash.

    The number can never change, and no item with this prefix may exist before the declaration.
    Raises `InvalidSetting` for a number that is not between 2 and 256::

        fixed("TENANT#", buckets=8)
    """
    check_whole("buckets", buckets, 2, BUCKETS_MAX)
    return Rule(_prefix(prefix), None, buckets)


def _prefix(prefix: object) -> str:
    if not isinstance(prefix, str):
        raise InvalidSetting(f"prefix must be text, not {shown(prefix)}", field="prefix")
    return prefix


@dataclass(frozen=True)
class Index:
    """An index of a declared table: the names of its key attributes, and what it projects.

    `projected` is None if the index projects all attributes.
    """

    name: str
    partition_keys: tuple[str, ...]
    sort_keys: tuple[str, ...]
    is_global: bool
    projected: frozenset[str] | None = None
    kinds: Mapping[str, str] = field(default_factory=dict)
    """The types of the key attributes: S, N or B."""


@dataclass(frozen=True)
class SpreadTable:
    """A table whose hot keys are spread: its key schema and the rules for its sort keys.

    `sort_type` is the type of the sort key: S, N or B. An `append_only` table accepts only puts,
    gets, deletes and queries, without conditions. In return, its keys may be spread while other
    programs still write under the bare key. `ahead_s` is how far ahead of now the time in a new
    sort key may be. `unused_indexes` are indexes that no request may use. Raises `InvalidSetting`
    for a bad value::

        SpreadTable("chat", partition_key="room", sort_key="at", rules=[by_time("", iso_text)])
    """

    name: str
    partition_key: str
    sort_key: str
    rules: Sequence[Rule]
    sort_type: str = "S"
    append_only: bool = False
    ahead_s: float = AHEAD_S
    unused_indexes: frozenset[str] = frozenset()
    indexes: Mapping[str, Index] = field(default_factory=dict)
    key_attributes: frozenset[str] = field(init=False, default=frozenset())
    """The key attributes of the table and of its indexes."""
    _only: Rule | None = field(init=False, default=None, repr=False, compare=False)

    def __new__(cls, *_: Any, **named: Any) -> SpreadTable:
        """Refuse an unknown setting, with the name that may have been meant."""
        known = [one.name for one in fields(cls) if one.init]
        for name in named:
            if name not in known:
                raise InvalidSetting(
                    f"SpreadTable has no setting {name!r}: {did_you_mean(name, known)}", field=name
                )
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for what in ("name", "partition_key", "sort_key"):
            check_text(what, getattr(self, what), NAME_MAX)
        if self.sort_type not in KINDS:
            raise InvalidSetting(
                f"sort_type must be S, N or B, not {shown(self.sort_type)}", field="sort_type"
            )
        check_number("ahead_s", self.ahead_s, 0, AHEAD_S_MAX)
        self._check_choices()
        if not isinstance(self.rules, Sequence) or isinstance(self.rules, Rule | str):
            raise InvalidSetting("rules must be a list: write rules=[…]", field="rules")
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise InvalidSetting(
                    "rules must be a list of by_time(…), unspread(…) and fixed(…), not of "
                    f"{shown(rule)}",
                    field="rules",
                )
        rules = sorted(self.rules, key=lambda rule: -len(rule.prefix))
        prefixes = [rule.prefix for rule in rules]
        if len(set(prefixes)) != len(prefixes):
            raise InvalidSetting("rules has two rules for one prefix", field="rules")
        if self.sort_type != "S" and any(prefixes):
            raise InvalidSetting(
                f"a sort key that is {KINDS[self.sort_type]} has no prefix: give one rule with the "
                'prefix ""',
                field="rules",
            )
        self._check_times()
        object.__setattr__(self, "rules", tuple(rules))
        object.__setattr__(self, "unused_indexes", frozenset(self.unused_indexes))
        object.__setattr__(self, "_only", rules[0] if prefixes == [""] else None)
        of_indexes = (n for i in self.indexes.values() for n in (*i.partition_keys, *i.sort_keys))
        names = frozenset((self.partition_key, self.sort_key, *of_indexes))
        object.__setattr__(self, "key_attributes", names)

    def _check_choices(self) -> None:
        if not isinstance(self.append_only, bool):
            raise InvalidSetting(
                f"append_only must be True or False, not {shown(self.append_only)}",
                field="append_only",
            )
        names = self.unused_indexes
        is_several = isinstance(names, Iterable) and not isinstance(names, str)
        if not is_several or not all(isinstance(name, str) for name in names):
            raise InvalidSetting(
                f"unused_indexes must be a set of index names, not {shown(names)}",
                field="unused_indexes",
            )

    def _check_times(self) -> None:
        """Raise `InvalidSetting` for a rule that can read no time of this table's sort keys."""
        for rule in self.rules:
            reads = sort_type_of(rule.time_of) if rule.time_of is not None else None
            if rule.time_of is not None and reads not in (None, self.sort_type):
                raise InvalidSetting(
                    f"{name_of(rule.time_of)} reads sort keys that are {KINDS[str(reads)]}, but "
                    f"those of table {self.name} are {KINDS[self.sort_type]}: use another function "
                    "of heatsink.door.times, or correct sort_type",
                    field="rules",
                )

    def rule_of(self, sort: Native) -> Rule:
        """Return the rule with the longest prefix that fits a sort key."""
        if self._only is not None:
            return self._only
        for rule in self.rules:
            if sort.startswith(rule.prefix):  # type: ignore[union-attr,arg-type]
                return rule
        return UNSPREAD

    def meant_for(self, sort: Native) -> Rule | None:
        """Return the rule that may be meant for a sort key which matches no rule, or None.

        A rule may be meant if its `time_of` can read a time in the sort key after some other
        prefix: the rule's own prefix is probably misspelt.
        """
        if not isinstance(sort, str):
            return None
        ends = [0, *(found.end() for found in SEPARATOR.finditer(sort))]
        for rule in self.rules:
            for end in ends if rule.time_of else ():
                time_ms = rule.time_ms(rule.prefix + sort[end:])
                if time_ms is not None and time_ms >= LONG_AGO_MS:
                    return rule
        return None

    @property
    def ahead_ms(self) -> int:
        return int(self.ahead_s * 1000)


def described(declared: SpreadTable, description: Mapping[str, Any]) -> SpreadTable:
    """Return the declaration with the types and indexes that DescribeTable shows added.

    `description` is the field `Table` in the answer to DescribeTable. Raises `InvalidSetting` if
    the table cannot be spread as declared.
    """
    kinds = {
        one["AttributeName"]: one["AttributeType"] for one in description["AttributeDefinitions"]
    }
    keys = _names(description["KeySchema"])
    wanted = ((declared.partition_key,), (declared.sort_key,))
    if keys != wanted:
        if not keys[1]:
            raise InvalidSetting(
                f"table {declared.name} has no sort key, so it cannot be spread", field="sort_key"
            )
        place = 0 if keys[0] != wanted[0] else 1
        name, has = ("partition_key", "sort_key")[place], ", ".join(keys[place])
        raise InvalidSetting(
            f"{name} is {wanted[place][0]!r}, but table {declared.name} has {has!r}", field=name
        )
    if kinds[declared.partition_key] != "S":
        raise InvalidSetting(
            f"the partition key {declared.partition_key} of table {declared.name} is "
            f"{KINDS[kinds[declared.partition_key]]}: only a text key can contain a bucket's name",
            field="partition_key",
        )
    if kinds[declared.sort_key] != declared.sort_type:
        raise InvalidSetting(
            f"the sort key {declared.sort_key} of table {declared.name} is "
            f"{KINDS[kinds[declared.sort_key]]}: declare sort_type="
            f"{kinds[declared.sort_key]!r}",
            field="sort_type",
        )
    local = _indexes(declared, description, kinds, is_global=False)
    overall = _indexes(declared, description, kinds, is_global=True)
    for index in overall.values():
        _check_index(declared, index)
    return SpreadTable(
        declared.name,
        declared.partition_key,
        declared.sort_key,
        declared.rules,
        declared.sort_type,
        declared.append_only,
        declared.ahead_s,
        declared.unused_indexes,
        {**local, **overall},
    )


def no_table(name: str, where: str) -> NoTable:
    """Return the error for a declared table that does not exist."""
    return NoTable(
        f"there is no table {name!r} in {where}: check the name and the region", field="tables"
    )


def _names(schema: Iterable[Mapping[str, str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    parts = [(one["KeyType"], one["AttributeName"]) for one in schema]
    hashes = tuple(name for kind, name in parts if kind == "HASH")
    return hashes, tuple(name for kind, name in parts if kind == "RANGE")


def _indexes(
    declared: SpreadTable,
    description: Mapping[str, Any],
    kinds: Mapping[str, str],
    *,
    is_global: bool,
) -> dict[str, Index]:
    found = {}
    field_ = "GlobalSecondaryIndexes" if is_global else "LocalSecondaryIndexes"
    for one in description.get(field_) or ():
        hashes, sorts = _names(one["KeySchema"])
        projection, projected = one.get("Projection") or {}, None
        if projection.get("ProjectionType") != "ALL":
            extra = projection.get("NonKeyAttributes") or ()
            own = (declared.partition_key, declared.sort_key, *hashes, *sorts)
            projected = frozenset((*own, *extra))
        name = one["IndexName"]
        found[name] = Index(name, hashes, sorts, is_global, projected, kinds)
    return found


def _check_index(declared: SpreadTable, index: Index) -> None:
    name = declared.partition_key
    mixes = name in index.sort_keys or (name in index.partition_keys and index.partition_keys[1:])
    if mixes and index.name not in declared.unused_indexes:
        raise InvalidSetting(
            f"index {index.name} of table {declared.name} is sorted by the partition key {name}, "
            "so buckets would change its order: name it in unused_indexes if no request uses it",
            field="unused_indexes",
        )


SAMPLE = 200
"""How many items of a table to look at when it is declared."""
ENOUGH = 10


def sampling(declared: SpreadTable) -> dict[str, Any]:
    """Return the parameters of the Scan whose items `check_sample` takes."""
    return {
        "TableName": declared.name,
        "Limit": SAMPLE,
        "ProjectionExpression": "#p, #s",
        "ExpressionAttributeNames": {"#p": declared.partition_key, "#s": declared.sort_key},
    }


def check_sample(declared: SpreadTable, items: Iterable[Mapping[str, Any]]) -> None:
    """Check the rules of a table against some of its items, in wire form.

    Raises `InvalidSetting` if the times in sort keys do not grow with the sort keys, or if no sort
    key of a rule carries a time. Then the function `time_of` of the rule does not fit the table.
    Logs a warning if only few sort keys show that `time_of` does not fit, or if the prefix of a
    rule may be misspelt.
    """
    found: dict[tuple[str, Rule], list[Native]] = {}
    for item in items:
        sort = native(item[declared.sort_key])
        key = str(item[declared.partition_key].get("S"))
        found.setdefault((key, declared.rule_of(sort)), []).append(sort)
    _warn_of_misspelt(declared, found)
    seen: dict[Rule, tuple[int, int]] = {}
    examples: dict[Rule, Native] = {}
    for (key, rule), sorts in found.items():
        if rule.time_of is None:
            continue
        timed = [(sort, rule.time_ms(sort)) for sort in sorted(sorts)]
        _check_growth(declared, key, [(s, time) for s, time in timed if time is not None])
        with_time, count = seen.get(rule, (0, 0))
        times = sum(time is not None for _, time in timed)
        examples[rule] = sorts[0]
        seen[rule] = (with_time + times, count + len(timed))
    for rule, (with_time, count) in seen.items():
        if with_time:
            continue
        if count >= ENOUGH:
            text = _timeless(declared, rule, count, examples[rule])
            raise InvalidSetting(text, field="rules")
        logger.warning("%s", _timeless(declared, rule, count, examples[rule]))


def _timeless(declared: SpreadTable, rule: Rule, count: int, example: Native) -> str:
    where = f"table {declared.name}" + (f" with the prefix {rule.prefix!r}" if rule.prefix else "")
    found = f"none of {count:,} sort keys looked at in {where}, such as {shown(example)}, carries"
    if count == 1:
        found = f"the only sort key looked at in {where}, {shown(example)}, does not carry"
    return (
        f"{found} a time that time_of can read, so such items would not be spread: correct "
        "time_of, or declare the prefix unspread"
    )


def _warn_of_misspelt(
    declared: SpreadTable, found: Mapping[tuple[str, Rule], list[Native]]
) -> None:
    used = {rule for _, rule in found}
    for (_, rule), sorts in found.items():
        for sort in sorts if rule is UNSPREAD else ():
            meant = declared.meant_for(sort)
            if meant is not None and meant not in used:
                logger.warning("table %s: %s", declared.name, misspelt(meant, sort))
                return


def misspelt(rule: Rule, sort: Native) -> str:
    """Return a warning that a rule's prefix may be misspelt.

    No item has the prefix, but the sort key `sort` has a time that the rule could read.
    """
    return (
        f"no item looked at has the declared prefix {rule.prefix!r}, but {shown(sort)} carries a "
        "time after another prefix, so it is not spread: correct the prefix in rules, or declare "
        "the other one unspread"
    )


def _check_growth(declared: SpreadTable, key: str, timed: list[tuple[Native, int]]) -> None:
    for (one, earlier_ms), (other, later_ms) in pairwise(timed):
        if later_ms < earlier_ms - BACKWARDS_MS_MAX:
            raise InvalidSetting(
                f"the times in the sort keys of table {declared.name} do not grow with the sort "
                f"keys: for {shown(key)}, {shown(other)} sorts after {shown(one)}, but its time is "
                f"{(earlier_ms - later_ms) / 1000:,.0f} s earlier. Rows would be missing from "
                "queries: correct time_of, or declare the prefix unspread",
                field="rules",
            )
