"""Who may call what: tokens with scopes, and checks of Host and Origin against DNS rebinding."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b

from heatsink.errors import InvalidSetting
from heatsink.primitives.connections import foreign, misdirected

from .problems import UNKNOWN_TOKEN, Refusal
from .routing import SCOPES, Scope

TOKEN_LENGTH_MIN = 8
CHALLENGE = ((b"www-authenticate", b"Bearer"),)
UNKNOWN = "unknown token: the server was not started with it; check for a typo, or ask its operator"


@dataclass(frozen=True)
class Token:
    scope: Scope
    digest: bytes

    @property
    def name(self) -> str:
        """A name for logs that distinguishes tokens without revealing them."""
        return f"{self.scope}:{self.digest.hex()[:8]}"


def parse_token(text: str) -> Token:
    scope, _, secret = text.partition(":")
    if scope not in SCOPES:
        raise InvalidSetting(
            f"token must be SCOPE:TOKEN with a scope of {', '.join(SCOPES)}", field="token"
        )
    if len(secret) < TOKEN_LENGTH_MIN or not secret.isascii() or not secret.isprintable():
        raise InvalidSetting(
            f"token must have {TOKEN_LENGTH_MIN} or more letters and digits after {scope}:",
            field="token",
        )
    return token_of(scope, secret)


def token_of(scope: Scope, secret: str) -> Token:
    return Token(scope, _digest(secret.encode()))


class Guard:
    """Checks callers. Without tokens everybody may do everything: only for servers on this machine.

    `hosts` are the host names that the server answers to; None is any.
    """

    def __init__(self, tokens: Iterable[Token] = (), hosts: Iterable[str] | None = None) -> None:
        self._tokens = tuple(tokens)
        self._hosts = None if hosts is None else frozenset(hosts)

    @property
    def needs_token(self) -> bool:
        return bool(self._tokens)

    def check(self, headers: Mapping[bytes, bytes], scope: Scope | None) -> str:
        """The caller, for the audit log; raises `Refusal` if the call is not allowed."""
        if self._hosts is not None:
            self._check_host(headers, self._hosts)
        if scope is None or not self._tokens:
            return "anybody"
        return self._check_token(headers, scope)

    def _check_host(self, headers: Mapping[bytes, bytes], hosts: frozenset[str]) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        if refusal := misdirected(host, hosts):
            raise Refusal(421, refusal)
        origin = headers.get(b"origin")
        if origin is not None and (refusal := foreign(origin.decode("latin-1"), host)):
            raise Refusal(403, refusal)

    def _check_token(self, headers: Mapping[bytes, bytes], scope: Scope) -> str:
        kind, _, secret = headers.get(b"authorization", b"").partition(b" ")
        digest = _digest(secret.strip())
        found = None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        if kind.lower() != b"bearer" or not secret.strip():
            raise Refusal(401, "send the header Authorization: Bearer TOKEN", headers=CHALLENGE)
        if found is None:
            raise Refusal(401, UNKNOWN, headers=CHALLENGE, title=UNKNOWN_TOKEN)
        if SCOPES.index(found.scope) < SCOPES.index(scope):
            raise Refusal(403, f"this call needs the scope {scope}; the token has {found.scope}")
        return found.name


def _digest(secret: bytes) -> bytes:
    return blake2b(secret, digest_size=32, person=b"heatsink token").digest()
