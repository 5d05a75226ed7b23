"""A position in a list of tokens, and what conditions and updates both read: paths and operands."""

from __future__ import annotations

from heatsink.dynamo.errors import ValidationFailed

from .lexer import Token, reserved_words, tokens_of
from .operands import Path, Placeholder

NEAR = 1


class Reader:
    """Reads tokens one by one, and remembers which placeholders it met."""

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
