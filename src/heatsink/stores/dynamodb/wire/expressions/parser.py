"""The parser of conditions, updates and projections.

condition  = conjunction {OR conjunction};  conjunction = negation {AND negation}
negation   = NOT negation | "(" condition ")" | function | operand comparison
update     = {SET … | REMOVE … | ADD … | DELETE …}, each at most once
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Generic, NamedTuple, TypeVar

import msgspec

from heatsink.stores.dynamodb.wire.errors import ValidationFailed

from .conditions import (
    BeginsWith,
    Between,
    Both,
    Compare,
    Condition,
    Contains,
    Either,
    Exists,
    HasType,
    Negation,
    OneOf,
)
from .operands import IfNotExists, ListAppend, Operand, Path, Placeholder, Size, Sum
from .updates import Update

TEXT_MAX = 4_096
_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z][A-Za-z0-9_]*)|(?P<alias>\#[A-Za-z0-9_]+)|(?P<value>:[A-Za-z0-9_]+)"
    r"|(?P<index>\d+)|(?P<sign><>|<=|>=|[=<>()\[\],.+\-]))"
)
_REST = re.compile(r"\s*(\S)")
NEAR = 1
KEPT = 4_096
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
T = TypeVar("T")


class Token(NamedTuple):
    """A token of an expression. `kind` is name, alias, value, index, sign or end."""

    kind: str
    text: str
    start: int

    def is_word(self, word: str) -> bool:
        return self.kind == "name" and self.text.upper() == word


def tokens_of(text: str, field: str) -> list[Token]:
    if not text.strip():
        raise ValidationFailed(f"Invalid {field}: The expression can not be empty;")
    if len(text.encode()) > TEXT_MAX:
        raise ValidationFailed(
            f"Invalid {field}: Expression size has exceeded the maximum allowed size; "
            f"expression size: {len(text.encode())}"
        )
    tokens, position = [], 0
    while match := _TOKEN.match(text, position):
        kind = match.lastgroup
        assert kind is not None
        tokens.append(Token(kind, match[kind], match.start(kind)))
        position = match.end()
    if bad := _REST.match(text, position):
        tokens.append(Token("bad", bad[1], bad.start(1)))
    return [*tokens, Token("end", "<EOF>", len(text))]


@cache
def reserved_words() -> frozenset[str]:
    """Return the reserved words of DynamoDB: attributes with such a name need an alias."""
    return frozenset(pathlib.Path(__file__).with_name("reserved_words.txt").read_text().split())


class Reader:
    """Reads paths and operands from a list of tokens, and collects the placeholders in them."""

    def __init__(self, text: str, field: str) -> None:
        self._tokens = tokens_of(text, field)
        self._text = text
        self._at = 0
        self.field = field
        self.names: set[str] = set()
        self.values: set[str] = set()

    @property
    def next(self) -> Token:
        return self._tokens[self._at]

    @property
    def after_next(self) -> Token:
        return self._tokens[min(self._at + 1, len(self._tokens) - 1)]

    def take(self) -> Token:
        token = self.next
        self._at = min(self._at + 1, len(self._tokens) - 1)
        return token

    def take_sign(self, sign: str) -> bool:
        if self.next.kind == "sign" and self.next.text == sign:
            self.take()
            return True
        return False

    def take_word(self, word: str) -> bool:
        if self.next.is_word(word):
            self.take()
            return True
        return False

    def expect(self, sign: str) -> None:
        if not self.take_sign(sign):
            raise self.syntax_error()

    def expect_end(self) -> None:
        if self.next.kind != "end":
            raise self.syntax_error()

    def syntax_error(self) -> ValidationFailed:
        around = self._tokens[max(self._at - NEAR, 0) : self._at + NEAR + 1]
        written = [token for token in around if token.kind != "end"]
        near = ""
        if written:
            near = self._text[written[0].start : written[-1].start + len(written[-1].text)]
        return self.invalid(f'Syntax error; token: "{self.next.text}", near: "{near}"')

    def invalid(self, what: str) -> ValidationFailed:
        return ValidationFailed(f"Invalid {self.field}: {what}")

    def path(self) -> Path:
        parts: list[str | int] = [self._name()]
        while True:
            if self.take_sign("."):
                parts.append(self._name())
            elif self.take_sign("["):
                if self.next.kind != "index":
                    raise self.syntax_error()
                parts.append(int(self.take().text))
                self.expect("]")
            else:
                return Path(tuple(parts))

    def _name(self) -> str:
        token = self.next
        if token.kind == "alias":
            self.names.add(token.text)
        elif token.kind != "name":
            raise self.syntax_error()
        elif token.text.upper() in reserved_words():
            raise self.invalid(
                f"Attribute name is a reserved keyword; reserved keyword: {token.text}"
            )
        return self.take().text

    def placeholder(self) -> Placeholder:
        if self.next.kind != "value":
            raise self.syntax_error()
        self.values.add(self.next.text)
        return Placeholder(self.take().text)

    def path_or_placeholder(self) -> Path | Placeholder:
        return self.placeholder() if self.next.kind == "value" else self.path()

    def calls_function(self) -> bool:
        return self.next.kind == "name" and self.after_next.text == "("


class Parsed(msgspec.Struct, Generic[T], frozen=True):
    """A parsed expression. `names` and `values` are the placeholders that it uses."""

    root: T
    names: frozenset[str]
    values: frozenset[str]
    field: str


def _parse(text: str, field: str, grammar: Callable[[Reader], T]) -> Parsed[T]:
    reader = Reader(text, field)
    root = grammar(reader)
    reader.expect_end()
    return Parsed(root, frozenset(reader.names), frozenset(reader.values), field)


@lru_cache(KEPT)
def parse_condition(text: str, field: str) -> Parsed[Condition]:
    return _parse(text, field, _condition)


@lru_cache(KEPT)
def parse_update(text: str) -> Parsed[Update]:
    return _parse(text, "UpdateExpression", _update)


@lru_cache(KEPT)
def parse_projection(text: str) -> Parsed[tuple[Path, ...]]:
    return _parse(text, "ProjectionExpression", lambda reader: tuple(_listed(reader, Reader.path)))


def _condition(reader: Reader) -> Condition:
    left = _conjunction(reader)
    while reader.take_word("OR"):
        left = Either(left, _conjunction(reader))
    return left


def _conjunction(reader: Reader) -> Condition:
    left = _negation(reader)
    while reader.take_word("AND"):
        left = Both(left, _negation(reader))
    return left


def _negation(reader: Reader) -> Condition:
    if reader.take_word("NOT"):
        return Negation(_negation(reader))
    if reader.take_sign("("):
        inner = _condition(reader)
        reader.expect(")")
        return inner
    if reader.calls_function() and reader.next.text != "size":
        return _function(reader)
    return _comparison(reader, _operand(reader))


def _comparison(reader: Reader, subject: Operand) -> Condition:
    if reader.take_word("BETWEEN"):
        low = _operand(reader)
        if not reader.take_word("AND"):
            raise reader.syntax_error()
        return Between(subject, low, _operand(reader))
    if reader.take_word("IN"):
        reader.expect("(")
        options = tuple(_listed(reader, _operand))
        reader.expect(")")
        return OneOf(subject, options)
    if reader.next.kind != "sign" or reader.next.text not in COMPARISONS:
        raise reader.syntax_error()
    return Compare(reader.take().text, subject, _operand(reader))


def _operand(reader: Reader) -> Operand:
    if reader.calls_function():
        if reader.next.text != "size":
            raise _unknown_function(reader)
        reader.take()
        reader.expect("(")
        size = Size(reader.path())
        reader.expect(")")
        return size
    return reader.path_or_placeholder()


def _exists(reader: Reader) -> Condition:
    return Exists(reader.path(), True)


def _not_exists(reader: Reader) -> Condition:
    return Exists(reader.path(), False)


def _two(reader: Reader, make: Callable[[Operand, Operand], T]) -> T:
    first = reader.path_or_placeholder()
    reader.expect(",")
    return make(first, reader.path_or_placeholder())


def _has_type(reader: Reader) -> Condition:
    path = reader.path()
    reader.expect(",")
    return HasType(path, reader.placeholder())


FUNCTIONS: dict[str, Callable[[Reader], Condition]] = {
    "attribute_exists": _exists,
    "attribute_not_exists": _not_exists,
    "attribute_type": _has_type,
    "begins_with": lambda reader: _two(reader, BeginsWith),
    "contains": lambda reader: _two(reader, Contains),
}


def _function(reader: Reader) -> Condition:
    arguments = FUNCTIONS.get(reader.next.text)
    if arguments is None:
        raise _unknown_function(reader)
    reader.take()
    reader.expect("(")
    condition = arguments(reader)
    reader.expect(")")
    return condition


def _unknown_function(reader: Reader) -> Exception:
    return reader.invalid(f"Invalid function name; function: {reader.next.text}")


def _listed(reader: Reader, one: Callable[[Reader], T]) -> list[T]:
    found = [one(reader)]
    while reader.take_sign(","):
        found.append(one(reader))
    return found


def _update(reader: Reader) -> Update:
    clauses: dict[str, list[object]] = {}
    while reader.next.kind != "end":
        verb = reader.next.text.upper() if reader.next.kind == "name" else ""
        if verb not in CLAUSES:
            raise reader.syntax_error()
        if verb in clauses:
            raise reader.invalid(
                f'The "{verb}" section can only be used once in an update expression;'
            )
        reader.take()
        clauses[verb] = _listed(reader, CLAUSES[verb])
    return Update(*(tuple(clauses.get(verb, ())) for verb in CLAUSES))  # type: ignore[arg-type]


def _set(reader: Reader) -> tuple[Path, Operand]:
    path = reader.path()
    reader.expect("=")
    left = _set_operand(reader)
    for sign, factor in (("+", 1), ("-", -1)):
        if reader.take_sign(sign):
            return path, Sum(factor, left, _set_operand(reader))
    return path, left


def _set_operand(reader: Reader) -> Operand:
    if reader.take_sign("("):
        inner = _set_operand(reader)
        reader.expect(")")
        return inner
    if not reader.calls_function():
        return reader.path_or_placeholder()
    name = reader.next.text
    if name not in ("if_not_exists", "list_append"):
        raise _unknown_function(reader)
    reader.take()
    reader.expect("(")
    first = reader.path() if name == "if_not_exists" else _set_operand(reader)
    reader.expect(",")
    second = _set_operand(reader)
    reader.expect(")")
    return (
        IfNotExists(first, second)
        if isinstance(first, Path) and (name == "if_not_exists")
        else ListAppend(first, second)
    )


def _path_and_placeholder(reader: Reader) -> tuple[Path, Placeholder]:
    return reader.path(), reader.placeholder()


CLAUSES: dict[str, Callable[[Reader], object]] = {
    "SET": _set,
    "REMOVE": Reader.path,
    "ADD": _path_and_placeholder,
    "DELETE": _path_and_placeholder,
}
