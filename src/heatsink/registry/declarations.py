"""The declarations of users' tables: notes in the registry that all processes must agree with.

An item's place follows from its keys and from the rules of its table. A process with other rules
would look for items in the wrong places, and could write an item twice. So the first process that
uses a table records its declaration in the registry, and later processes compare theirs with it. As
long as no key of the table may have several buckets, all items are under the bare key, whatever the
rules say. In this time a new declaration replaces the recorded one. Afterwards the declaration is
**final**, and any other is refused. A declaration is stored as a note, like those on adoption: a
reserved subject is pinned to one bucket. The text of this pin holds the declaration as JSON.
"""

from __future__ import annotations

import logging

import msgspec

from heatsink.errors import InvalidSetting
from heatsink.primitives.clock import Clock
from heatsink.primitives.subjects import Kind, Subject

from .adoption import has_notes
from .decisions import PIN, Decision, View
from .registry import Registry

logger = logging.getLogger("heatsink")
BY_TIME = "by_time"
FIXED = "fixed"
UNSPREAD = "unspread"
SLACK_MS = 1_000  # a process may use a view for a moment after its horizon has passed


class DeclaredTable(msgspec.Struct, frozen=True):
    """What decides where a table's items are: its keys, and the rule for each prefix.

    A rule is text in the words of the declaration: `by_time iso_text`, `fixed 8` or `unspread`. An
    empty `sort_type` is unknown, and fits any.
    """

    partition_key: str
    sort_key: str
    sort_type: str
    rules: dict[str, str]

    @property
    def has_fixed(self) -> bool:
        """Whether items are in several buckets from the first item on."""
        return any(rule.startswith(FIXED) for rule in self.rules.values())


_declarations = msgspec.json.Decoder(DeclaredTable)


def note_of(table: str, declared: DeclaredTable) -> Decision:
    """Return the note that records a table's declaration."""
    text = msgspec.json.encode(declared, order="sorted").decode()
    return Decision(Subject(Kind.DECLARED, table), PIN, 1, "declared", text)


def recorded(view: View, table: str) -> DeclaredTable | None:
    """Return the declaration of a table that the registry holds; None if it holds none."""
    note = view.pins.get(Subject(Kind.DECLARED, table).text)
    return None if note is None else _declarations.decode(note.text)


def is_final(view: View, table: str) -> bool:
    """Return whether a table's declaration can no longer change.

    It cannot if a key of the table has several buckets, or may get them at any time.
    """
    known = recorded(view, table)
    if has_notes(view, table) or (known is not None and known.has_fixed):
        return True
    start = Subject(Kind.TABLE, f"{table}/").text
    layouts = list(view.layouts.items())
    return any(label.startswith(start) and layout.max_buckets > 1 for label, layout in layouts)


def difference(known: DeclaredTable, given: DeclaredTable) -> str:
    """Say in words how a declaration differs from the recorded one; empty if it does not."""
    for name in ("partition_key", "sort_key", "sort_type"):
        one, other = getattr(known, name), getattr(given, name)
        if one != other and one and other:
            return f"{name} is {other!r} here, and {one!r} in the registry"
    for prefix in sorted(known.rules.keys() | given.rules.keys()):
        before, now = _rule(known.rules, prefix), _rule(given.rules, prefix)
        if before != now:
            return f"the prefix {prefix!r} is {now} here, and {before} in the registry"
    return ""


def _rule(rules: dict[str, str], prefix: str) -> str:
    """Return the rule, in words, that applies to sort keys that begin with `prefix`.

    It is the rule with the longest prefix that `prefix` begins with.
    """
    longest = max((one for one in rules if prefix.startswith(one)), key=len, default=None)
    if longest is None:
        return UNSPREAD
    is_other = longest != prefix and rules[longest].startswith(BY_TIME)
    return f"{rules[longest]} after {longest!r}" if is_other else rules[longest]


def agrees(view: View, table: str, given: DeclaredTable) -> bool:
    """Return whether the registry holds a declaration of the table that equals `given`."""
    known = recorded(view, table)
    return known is not None and not difference(known, given)


def refused(table: str, differs: str) -> str:
    """Return the message for a declaration that differs (`differs` says how) from a final one."""
    return (
        f"the declaration of table {table} differs from the one by which its rows were placed: "
        f"{differs}. Rows would be hidden, so declare it as the registry has it. To change it, "
        "first bring the rows back with heatsink adopt --leave, then use another registry"
    )


def check(view: View, table: str, given: DeclaredTable) -> None:
    """Raise `InvalidSetting` if `given` differs from a recorded declaration that is final."""
    known = recorded(view, table)
    differs = difference(known, given) if known is not None else ""
    if differs and is_final(view, table):
        raise InvalidSetting(refused(table, differs), field="rules")


async def declare(registry: Registry, table: str, given: DeclaredTable, clock: Clock) -> None:
    """Record a table's declaration. Replaces the recorded one, unless that is final.

    Processes with the replaced declaration may go on until they renew their views. So this call
    waits until all views must have been renewed. Raises `InvalidSetting` if the declaration differs
    from a final one, or if another process declared the table at the same moment.
    """
    view = registry.view
    if agrees(view, table, given):
        return
    await registry.renew_shared()
    check(view, table, given)
    if agrees(view, table, given):
        return
    note = note_of(table, given)
    seen = view.pins.get(note.key)
    is_replaced = await registry.replace_pin(
        seen, note, lambda: seen is None or not is_final(view, table)
    )
    if not is_replaced:
        check(view, table, given)
        known = recorded(view, table) or given
        if agrees(view, table, given):
            return
        raise InvalidSetting(
            f"at the same moment, another process declared table {table} differently: "
            f"{difference(known, given)}. Use the same declaration everywhere, and start again",
            field="rules",
        )
    if seen is not None:
        logger.warning("table %s has a new declaration: restart all processes with it", table)
        until_ms = registry.meta.closed_ms + SLACK_MS
        await clock.sleep(max(until_ms - registry.now_ms(), 0) / 1000)
