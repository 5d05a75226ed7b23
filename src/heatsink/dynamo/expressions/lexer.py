"""An expression's text as tokens."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from heatsink.dynamo.errors import ValidationFailed

TEXT_MAX = 4_096
_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z][A-Za-z0-9_]*)|(?P<alias>\#[A-Za-z0-9_]+)|(?P<value>:[A-Za-z0-9_]+)"
    r"|(?P<index>\d+)|(?P<sign><>|<=|>=|[=<>()\[\],.+\-]))"
)
_REST = re.compile(r"\s*(\S)")


class Token(NamedTuple):
    """`kind` is name, alias, value, index, sign or end."""

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
    """Names that need an alias, as DynamoDB's documentation lists them."""
    return frozenset(Path(__file__).with_name("reserved_words.txt").read_text().split())
