"""The parser of conditions, updates and projections.

condition  = conjunction {OR conjunction};  conjunction = negation {AND negation}
negation   = NOT negation | term [comparison]
term       = "(" condition ")" | "(" term ")" | function "(" terms ")" | path | placeholder
update     = {SET … | REMOVE … | ADD … | DELETE …}, each at most once

A text that does not follow the grammar is a syntax error. All other mistakes are reported only if
the whole text follows the grammar, and by rank rather than by position, as DynamoDB does.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

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
from .updates import Update, shown_path

TEXT_MAX = 4_096
_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z][A-Za-z0-9_]*)|(?P<alias>\#[A-Za-z0-9_]+)|(?P<value>:[A-Za-z0-9_]+)"
    r"|(?P<index>\d+)|(?P<sign><>|<=|>=|[=<>()\[\],.+\-])|(?P<bad>\S))"
)
NEAR = 1
KEPT = 4_096
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
CONDITION_WORDS = frozenset(("AND", "OR", "NOT", "BETWEEN", "IN"))
PARENTHESES, UNKNOWN, MISUSED, RESERVED, SECTION = range(5)  # ranks of mistakes
UPDATE_RANKS = {RESERVED: 0, UNKNOWN: 1, SECTION: 2}
T = TypeVar("T")


class Token(NamedTuple):
    """A token of an expression. `kind` is name, alias, value, index, sign, bad or end."""

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
        self._mistakes: dict[int, str] = {}
        self._last_group = (-1, -1)
        self.field = field
        self.keywords: frozenset[str] = frozenset()
        self.late: str | None = None
        self.names: dict[str, None] = {}
        self.values: dict[str, None] = {}
        self.nested: list[Path] = []

    def mistake(self, rank: int, what: str) -> None:
        """Remember a mistake, to report it after the whole text is read.

        Of several mistakes, the one with the lowest rank is reported; within a rank, the first one.
        """
        self._mistakes.setdefault(rank, what)

    def mistake_in_call(self, what: str) -> None:
        """Remember a mistake in a function's arguments.

        It is reported only if all placeholders of the expression are defined.
        """
        self.late = self.late or what

    def check_mistakes(self, ranks: dict[int, int] | None = None) -> None:
        if self._mistakes:
            first = min(self._mistakes, key=lambda rank: (ranks or {}).get(rank, rank))
            raise self.invalid(self._mistakes[first])

    def open_group(self) -> int:
        self.expect("(")
        return self._at - 1

    def close_group(self, opened: int) -> None:
        """Read the parenthesis that closes a group; the group's `(` is token number `opened`.

        Two pairs of parentheses around the same text are a mistake.
        """
        if self._last_group == (opened + 1, self._at - 1):
            self.mistake(PARENTHESES, "The expression has redundant parentheses;")
        self._last_group = (opened, self._at)
        self.expect(")")

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
        return self.rest_of_path([self._name()])

    def rest_of_path(self, parts: list[str | int]) -> Path:
        while True:
            if self.take_sign("."):
                parts.append(self._name())
            elif self.take_sign("["):
                if self.next.kind != "index":
                    raise self.syntax_error()
                parts.append(int(self.take().text))
                self.expect("]")
            else:
                path = Path(tuple(parts))
                if len(parts) > 1:
                    self.nested.append(path)
                return path

    def _name(self) -> str:
        token = self.next
        if token.kind == "alias":
            self.names[token.text] = None
        elif token.kind != "name" or token.text.upper() in self.keywords:
            raise self.syntax_error()
        elif token.text.upper() in reserved_words():
            self.mistake(
                RESERVED, f"Attribute name is a reserved keyword; reserved keyword: {token.text}"
            )
        return self.take().text

    def placeholder(self) -> Placeholder:
        if self.next.kind != "value":
            raise self.syntax_error()
        self.values[self.next.text] = None
        return Placeholder(self.take().text)

    def calls_function(self) -> bool:
        return (
            self.next.kind == "name"
            and self.after_next.text == "("
            and self.next.text.upper() not in self.keywords
        )


class Parsed(msgspec.Struct, Generic[T], frozen=True):
    """A parsed expression. `names` and `values` are the placeholders that it uses, in order.

    `late` is a mistake that is reported only if the request defines all placeholders. `nested` are
    the paths that reach into an attribute, such as `a.b`.
    """

    root: T
    names: tuple[str, ...]
    values: tuple[str, ...]
    field: str
    late: str | None = None
    nested: tuple[Path, ...] = ()


def _parsed(reader: Reader, root: T) -> Parsed[T]:
    names, values = tuple(reader.names), tuple(reader.values)
    return Parsed(root, names, values, reader.field, reader.late, tuple(reader.nested))


@lru_cache(KEPT)
def parse_condition(text: str, field: str) -> Parsed[Condition]:
    reader = Reader(text, field)
    reader.keywords = CONDITION_WORDS
    root = _condition(reader)
    reader.expect_end()
    condition = _as_condition(reader, root)
    reader.check_mistakes()
    return _parsed(reader, condition)


@lru_cache(KEPT)
def parse_update(text: str) -> Parsed[Update]:
    reader = Reader(text, "UpdateExpression")
    reader.keywords = frozenset(CLAUSES)
    root = _update(reader)
    reader.expect_end()
    reader.check_mistakes(UPDATE_RANKS)
    return _parsed(reader, root)


@lru_cache(KEPT)
def parse_projection(text: str) -> Parsed[tuple[Path, ...]]:
    reader = Reader(text, "ProjectionExpression")
    root = tuple(_listed(reader, Reader.path))
    reader.expect_end()
    reader.check_mistakes()
    return _parsed(reader, root)


class FunctionCall(msgspec.Struct, frozen=True):
    """A call of a function, before it is known whether it is a condition or an operand."""

    name: str
    arguments: tuple[Any, ...]

    def value(self, _: Any, __: Any) -> None:
        """Return nothing: no call is ever evaluated.

        The parser replaces it, or refuses the expression.
        """


Node = Any  # a condition, an operand, or a call that may become either


def _condition(reader: Reader) -> Node:
    left = _conjunction(reader)
    while reader.take_word("OR"):
        right = _conjunction(reader)
        left = Either(_as_condition(reader, left), _as_condition(reader, right))
    return left


def _conjunction(reader: Reader) -> Node:
    left = _negation(reader)
    while reader.take_word("AND"):
        right = _negation(reader)
        left = Both(_as_condition(reader, left), _as_condition(reader, right))
    return left


def _negation(reader: Reader) -> Node:
    if reader.take_word("NOT"):
        return Negation(_as_condition(reader, _negation(reader)))
    return _comparison(reader, _term(reader))


def _comparison(reader: Reader, subject: Node) -> Node:
    if reader.take_word("BETWEEN"):
        low = _operand(reader)
        if not reader.take_word("AND"):
            raise reader.syntax_error()
        return Between(_as_operand(reader, subject), low, _operand(reader))
    if reader.take_word("IN"):
        reader.expect("(")
        options = tuple(_listed(reader, _operand))
        reader.expect(")")
        return OneOf(_as_operand(reader, subject), options)
    if reader.next.kind == "sign" and reader.next.text in COMPARISONS:
        sign = reader.take().text
        left, right = _as_operand(reader, subject), _operand(reader)
        _check_distinct(reader, sign, (left, right))
        return Compare(sign, left, right)
    return subject


def _term(reader: Reader) -> Node:
    if reader.next.text == "(":
        opened = reader.open_group()
        inner = _condition(reader)
        reader.close_group(opened)
        if isinstance(inner, Path) and reader.next.text in (".", "["):
            return reader.rest_of_path(list(inner.parts))
        return inner
    if reader.calls_function():
        name = reader.take().text
        reader.expect("(")
        arguments = tuple(_listed(reader, _operand))
        reader.expect(")")
        return _call(reader, FunctionCall(name, arguments))
    return reader.placeholder() if reader.next.kind == "value" else reader.path()


def _operand(reader: Reader) -> Operand:
    return _as_operand(reader, _term(reader))


def _as_operand(reader: Reader, node: Node) -> Operand:
    """Return the node if it can be an operand: a path, a placeholder or a size.

    Any other function is a mistake. Any other condition is a syntax error.
    """
    if isinstance(node, Path | Placeholder | Size):
        return node
    if isinstance(node, FunctionCall):
        _misused(reader, node.name)
        return node
    name = FUNCTION_NAMES.get(type(node))
    if name is None:
        raise reader.syntax_error()
    if isinstance(node, Exists) and not node.wanted:
        name = "attribute_not_exists"
    _misused(reader, name)
    return node  # type: ignore[no-any-return]  # never evaluated: the expression is refused


def _as_condition(reader: Reader, node: Node) -> Condition:
    if isinstance(node, Path | Placeholder):
        raise reader.syntax_error()
    if isinstance(node, Size):
        _misused(reader, "size")
    return node  # type: ignore[no-any-return]


def _misused(reader: Reader, name: str) -> None:
    reader.mistake(
        MISUSED,
        f"The function is not allowed to be used this way in an expression; function: {name}",
    )


def _call(reader: Reader, call: FunctionCall) -> Node:
    """Return the condition or operand that a function call means.

    If the call is a mistake, remember it, and return a node that is never evaluated.
    """
    known = FUNCTIONS.get(call.name)
    if known is None:
        reader.mistake(UNKNOWN, f"Invalid function name; function: {call.name}")
        return call
    count, make = known
    if len(call.arguments) != count:
        reader.mistake_in_call(_wrong_count(call))
        return make(*(call.arguments * 2)[:count])
    _check_distinct(reader, call.name, call.arguments)
    if make in (_exists, _not_exists) and not isinstance(call.arguments[0], Path):
        reader.mistake_in_call(_no_path(call.name))
    if make is HasType and not isinstance(call.arguments[1], Placeholder):
        reader.mistake_in_call(
            "Incorrect operand type for operator or function; operator or function: "
            "attribute_type, operand type: {NS,SS,L,BS,N,M,B,BOOL,NULL,S}"
        )
    return make(*call.arguments)


def _wrong_count(call: FunctionCall) -> str:
    return (
        "Incorrect number of operands for operator or function; operator or function: "
        f"{call.name}, number of operands: {len(call.arguments)}"
    )


def _no_path(name: str) -> str:
    return f"Operator or function requires a document path; operator or function: {name}"


def _check_distinct(reader: Reader, name: str, operands: tuple[Operand, ...]) -> None:
    if len(operands) == PAIR and isinstance(operands[0], Path) and operands[0] == operands[1]:
        shown = shown_path(operands[0].parts)
        reader.mistake_in_call(
            "The first operand must be distinct from the remaining operands for this operator or "
            f"function; operator: {name}, first operand: {shown}"
        )


def _exists(path: Any) -> Condition:
    return Exists(path, True)


def _not_exists(path: Any) -> Condition:
    return Exists(path, False)


PAIR = 2
FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {
    "attribute_exists": (1, _exists),
    "attribute_not_exists": (1, _not_exists),
    "attribute_type": (PAIR, HasType),
    "begins_with": (PAIR, BeginsWith),
    "contains": (PAIR, Contains),
    "size": (1, Size),
}
FUNCTION_NAMES: dict[type, str] = {
    Exists: "attribute_exists",
    HasType: "attribute_type",
    BeginsWith: "begins_with",
    Contains: "contains",
}


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
            reader.mistake(
                SECTION, f'The "{verb}" section can only be used once in an update expression;'
            )
        reader.take()
        clauses.setdefault(verb, []).extend(_listed(reader, CLAUSES[verb]))
    return Update(*(tuple(clauses.get(verb, ())) for verb in CLAUSES))  # type: ignore[arg-type]


def _set(reader: Reader) -> tuple[Path, Operand]:
    path = reader.path()
    reader.expect("=")
    if reader.take_sign("("):
        value = _sum(reader)
        reader.expect(")")
        return path, _sum(reader, value)
    return path, _sum(reader)


def _sum(reader: Reader, left: Operand | None = None) -> Operand:
    left = _set_operand(reader) if left is None else left
    for sign, factor in (("+", 1), ("-", -1)):
        if reader.take_sign(sign):
            return Sum(factor, left, _set_operand(reader))
    return left


def _set_operand(reader: Reader) -> Operand:
    if reader.take_sign("("):
        inner = _set_operand(reader)
        reader.expect(")")
        return inner
    if not reader.calls_function():
        return reader.placeholder() if reader.next.kind == "value" else reader.path()
    name = reader.take().text
    reader.expect("(")
    arguments = tuple(_listed(reader, _set_operand))
    reader.expect(")")
    if name not in ("if_not_exists", "list_append"):
        reader.mistake(UNKNOWN, f"Invalid function name; function: {name}")
    elif len(arguments) != PAIR:
        reader.mistake_in_call(_wrong_count(FunctionCall(name, arguments)))
    elif name == "list_append":
        return ListAppend(*arguments)
    elif isinstance(arguments[0], Path):
        return IfNotExists(arguments[0], arguments[1])
    else:
        reader.mistake_in_call(_no_path(name))
    return arguments[0]


def _path_and_placeholder(reader: Reader) -> tuple[Path, Placeholder]:
    return reader.path(), reader.placeholder()


CLAUSES: dict[str, Callable[[Reader], object]] = {
    "SET": _set,
    "REMOVE": Reader.path,
    "ADD": _path_and_placeholder,
    "DELETE": _path_and_placeholder,
}
